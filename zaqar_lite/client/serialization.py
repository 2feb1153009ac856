"""Messages and answers to JSON and back.

orjson and msgspec do it where they are installed, else the standard library, with one outcome: what
is sent does not depend on the extras that are installed. Beyond what JSON knows, a body may hold
datetime, date and time (ISO 8601), UUID and Decimal (as strings, so that no digit is lost), Enum
(its value), dataclasses (objects of their fields) and tuples.
"""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar, get_args, get_origin

from zaqar_lite.client import arguments
from zaqar_lite.client.calls import Response, bad_answer
from zaqar_lite.client.models import NewMessage, RawBody

T = TypeVar("T")
Encoder = Callable[[Any], bytes | str]
"""Makes the JSON of a body; `Client(encoder=...)` replaces `dumps` by another."""


def plain(value: object) -> object:
    """Return a simpler value for one that JSON does not know.

    Your own encoder can call it for values that it does not handle itself.

    Raises:
        TypeError: there is none.
        ValueError: a Decimal that is not a number.
    """
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            message = f"a body can't hold Decimal({str(value)!r}), which JSON does not have"
            raise ValueError(message)
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return list(value)
    message = f"Object of type {type(value).__name__} is not JSON serializable"
    raise TypeError(message)


def _with_text_keys(value: object) -> object:
    """Return a value whose objects have keys that the standard library writes."""
    if isinstance(value, dict):
        return {_key(key): _with_text_keys(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_text_keys(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return _with_text_keys(plain(value))


def _key(key: object) -> object:
    while not (key is None or isinstance(key, str | int | float)):
        key = plain(key)
        if isinstance(key, list | dict):
            message = "keys of an object must be strings, or what becomes one"
            raise TypeError(message)
    return key


def standard_dumps(value: object) -> bytes:
    """Return a body as JSON, by the standard library alone."""
    try:
        text = _json(value)
    except TypeError:
        text = _json(_with_text_keys(value))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = "a body can't hold half of a surrogate pair, which UTF-8 does not have"
        raise ValueError(message) from error


def _json(value: object) -> str:
    try:
        return json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain
        )
    except ValueError as error:
        if "Out of range" not in str(error):
            raise  # a circle, or what `plain` refuses
        message = "a body can't hold NaN or an infinity, which JSON does not have"
        raise ValueError(message) from error


dumps: Callable[[object], bytes] = standard_dumps
loads: Callable[[bytes], Any] = json.loads

try:
    import orjson
except ModuleNotFoundError:
    pass
else:
    # Dataclasses and instants go to `plain`: orjson would leave out fields that begin with "_".
    _OPTIONS = (
        orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
    )

    def _orjson_dumps(value: object) -> bytes:
        try:
            encoded = orjson.dumps(value, default=plain, option=_OPTIONS)
        except orjson.JSONEncodeError:
            # The standard library takes a few things more (integers of any size) and says better
            # why it does not take the others.
            return standard_dumps(value)
        if b"null" in encoded:
            # orjson writes NaN as null; a body must never change silently, so the standard
            # library, which refuses NaN, has the last word wherever a null came out.
            standard_dumps(value)
        return encoded

    dumps, loads = _orjson_dumps, orjson.loads


def encode_body(body: object, encoder: Encoder | None = None) -> bytes:
    """Return a body's JSON; a `RawBody` is JSON already.

    Raises:
        TypeError: JSON cannot hold it; binary data must be put into a string (base64), and JSON
            text that is ready goes into a `RawBody`.
        ValueError: it contains NaN, an infinity, or half of a surrogate pair.
    """
    if isinstance(body, RawBody):
        return body
    if encoder is not None:
        encoded = encoder(body)
        return encoded.encode("utf-8") if isinstance(encoded, str) else encoded
    if isinstance(body, bytes | bytearray | memoryview):
        message = (
            "a body of bytes is ambiguous: use RawBody(...) for JSON text, base64 for binary data"
        )
        raise TypeError(message)
    return dumps(body)


def encode_message(message: object, encoder: Encoder | None = None) -> bytes:
    """Return one entry of a POST: `message` is a NewMessage, or anything else as its body."""
    if not isinstance(message, NewMessage):
        return b'{"body":' + encode_body(message, encoder) + b"}"
    parts = [b'{"body":', encode_body(message.body, encoder)]
    if message.ttl is not None:
        parts.append(b',"ttl":%d' % arguments.whole("ttl", message.ttl))
    delay = seconds_until(message.delay, message.deliver_at)
    if delay is not None:
        parts.append(b',"delay":%d' % arguments.whole("delay", delay))
    if message.idempotency_key is not None:
        key = arguments.text("idempotency_key", message.idempotency_key)
        parts += (b',"idempotency_key":', dumps(key))
    if message.headers is not None:
        arguments.takes("headers", message.headers, Mapping)
        parts += (b',"headers":', dumps(dict(message.headers)))
    if message.group is not None:
        parts += (b',"group":', dumps(arguments.text("group", message.group)))
    return b"".join([*parts, b"}"])


def has_instant(message: object) -> TypeGuard[NewMessage]:
    """Whether a message to post has a `deliver_at`.

    Raises:
        TypeError, ValueError: it is not an instant with a time zone.
    """
    if not isinstance(message, NewMessage):
        return False
    arguments.zoned("deliver_at", message.deliver_at)
    return message.deliver_at is not None


def envelope(encoded: Sequence[bytes]) -> bytes:
    """Return the body of a POST of these entries."""
    return b'{"messages":[' + b",".join(encoded) + b"]}"


ENVELOPE_BYTES = len(envelope([]))


def seconds_until(delay: int | None, deliver_at: dt.datetime | None) -> int | None:
    """Return the delay in whole seconds, rounded up so that nothing is ever early.

    Raises:
        TypeError: the instant is none.
        ValueError: both were given, or the instant has no time zone.
    """
    if deliver_at is None:
        return delay
    if delay is not None:
        message = "give delay or deliver_at, not both"
        raise ValueError(message)
    arguments.zoned("deliver_at", deliver_at)
    left = (deliver_at - dt.datetime.now(dt.UTC)).total_seconds()
    return max(0, math.ceil(left))


def document(response: Response) -> Any:  # noqa: ANN401 - JSON is anything
    """Decode an answer's JSON.

    Raises:
        BadAnswer: it is not JSON.
    """
    try:
        return loads(response.body)
    except ValueError as error:
        raise bad_answer(response, "the body is not JSON") from error


def json_object(response: Response) -> dict[str, Any]:
    """Decode an answer that is a JSON object.

    Raises:
        BadAnswer: it is something else.
    """
    found = document(response)
    if not isinstance(found, dict):
        raise bad_answer(response, "a JSON object was expected")
    return found


def objects(response: Response, key: str) -> list[dict[str, Any]]:
    """Return the list of objects under `key` of an answer.

    Raises:
        BadAnswer: it is not there.
    """
    found = document(response)
    entries = found.get(key) if isinstance(found, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise bad_answer(response, f"there is no list of objects called {key!r}")
    return entries


def instant(text: object) -> dt.datetime | None:
    """Read the server's YYYY-MM-DDTHH:MM:SSZ; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC)


_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def standard_raw_bodies(response: Response) -> list[RawBody]:
    """Return the bodies of an answer as JSON text, by the standard library alone."""
    text = response.body.decode("utf-8")
    found: list[RawBody] = []
    for key, start, _ in _members(text, _skip(text, 0)):
        if key == "messages":
            for at in _items(text, start):
                for name, begin, end in _members(text, at):
                    if name == "body":
                        found.append(RawBody(text[begin:end].encode("utf-8")))
                        break
                else:
                    raise bad_answer(response, "a message has no body")
            break
    return found


def _skip(text: str, at: int) -> int:
    """Return the next place that is not white space."""
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yield key, begin and end of each value of the object that begins at `at`."""
    if text[at] != "{":
        return
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        begin = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, begin)
        yield key, begin, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _items(text: str, at: int) -> Iterator[int]:
    """Yield where each item of the array that begins at `at` begins."""
    if text[at] != "[":
        return
    at = _skip(text, at + 1)
    while text[at] != "]":
        yield at
        _, end = _DECODER.raw_decode(text, at)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


try:
    import msgspec
except ModuleNotFoundError:
    _cut: Callable[[Response], list[RawBody]] = standard_raw_bodies
else:

    class _Entry(msgspec.Struct):
        body: msgspec.Raw

    class _Page(msgspec.Struct):
        messages: list[_Entry]

    _decode_page = msgspec.json.Decoder(_Page).decode

    def _cut(response: Response) -> list[RawBody]:
        try:
            return [RawBody(entry.body) for entry in _decode_page(response.body).messages]
        except msgspec.DecodeError as error:
            raise bad_answer(response, str(error)) from error


def raw_bodies(response: Response) -> list[RawBody]:
    """Return the bodies of an answer's messages as the JSON text they are in.

    Decoding and encoding again would change a body: digits of long fractions, repeated keys,
    spaces. So the text is cut where the values begin and end; msgspec does it where it is
    installed, many times faster.

    Raises:
        BadAnswer: a message has none.
    """
    return _cut(response)


def reader(kind: type[T], **keys: str) -> Callable[[Mapping[str, Any]], T]:
    """Return a function that makes a dataclass of an object of an answer.

    A field is read from the key of its own name, or from the key that `keys` gives for it. Times
    become instants, lists become tuples, and objects become dataclasses, as the field's type says.
    A key that is absent or null leaves the field its default, or else None. For a field that takes
    neither, the function raises KeyError. Keys without a field are left out, so that a newer server
    can be read.
    """
    fields = [_Field(field, keys.get(field.name, field.name)) for field in dataclasses.fields(kind)]  # type: ignore[arg-type] # a dataclass

    def read(entry: Mapping[str, Any]) -> T:
        given: dict[str, Any] = {}
        for field in fields:
            value = entry.get(field.key)
            if value is not None:
                given[field.name] = field.convert(value)
            elif field.may_be_none:
                given[field.name] = None
            elif not field.has_default:
                raise KeyError(field.key)
        return kind(**given)

    return read


class _Field:
    """How one field is read."""

    def __init__(self, field: "dataclasses.Field[Any]", key: str) -> None:
        kinds = arguments.alternatives(field.type)
        self.name = field.name
        self.key = key
        self.convert = next(filter(None, map(_converter, kinds)), _as_it_is)
        self.has_default = (
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        )
        self.may_be_none = not self.has_default and (type(None) in kinds or Any in kinds)


def _converter(kind: Any) -> Callable[[Any], Any] | None:  # noqa: ANN401 - a part of an annotation
    if kind is dt.datetime:
        return instant
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return reader(kind)
    if get_origin(kind) is Sequence:
        one = _converter(get_args(kind)[0])
        return tuple if one is None else lambda items: tuple(map(one, items))
    return None


def _as_it_is(value: object) -> object:
    return value

"""Messages and answers to JSON and back, by orjson and msgspec.

Beyond what JSON knows, a body may hold datetime, date and time (ISO 8601), UUID and Decimal (as
strings, so that no digit is lost), Enum (its value), dataclasses (objects of their fields) and
tuples.
"""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import orjson

from zaqar_lite.client import arguments
from zaqar_lite.client.calls import Response, bad_answer
from zaqar_lite.client.models import NewMessage, RawBody

T = TypeVar("T")
Encoder = Callable[[Any], bytes | str]
"""Makes the JSON of a body; `Client(encoder=...)` replaces `dumps` by another."""
# Dataclasses and instants go to `plain`: orjson would leave out fields that begin with "_".
_OPTIONS = (
    orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
)
loads: Callable[[bytes], Any] = orjson.loads


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


def dumps(value: object) -> bytes:
    """Return a body as JSON.

    Raises:
        TypeError: it holds what JSON can't.
        ValueError: it holds NaN, an infinity, half of a surrogate pair, or itself.
    """
    try:
        encoded = orjson.dumps(value, default=plain, option=_OPTIONS)
    except orjson.JSONEncodeError:
        return _dumps_slowly(value)
    if b"null" in encoded:
        _refuse_nan(value)
    return encoded


def _dumps_slowly(value: object) -> bytes:
    """Return a body that orjson refuses: integers of any size are JSON, and errors say why."""
    try:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain
        )
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = "a body can't hold half of a surrogate pair, which UTF-8 does not have"
        raise ValueError(message) from error
    except ValueError as error:
        if "Out of range" in str(error):
            _refuse_nan(value)
        raise  # a circle, or what `plain` refuses


def _refuse_nan(value: object) -> None:
    """Refuse NaN and infinities, which orjson writes as null: a body never changes silently."""
    if isinstance(value, float) and not math.isfinite(value):
        message = "a body can't hold NaN or an infinity, which JSON does not have"
        raise ValueError(message)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for one in value:
            _refuse_nan(one)
    elif value is not None and not isinstance(value, str | int | float):
        _refuse_nan(plain(value))


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
        raise ValueError("give delay or deliver_at, not both")
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


class _Entry(msgspec.Struct):
    body: msgspec.Raw


class _Page(msgspec.Struct):
    messages: list[_Entry]


_decode_page = msgspec.json.Decoder(_Page).decode


def raw_bodies(response: Response) -> list[RawBody]:
    """Return the bodies of an answer's messages as the JSON text they are in.

    Decoding and encoding again would change a body: digits of long fractions, repeated keys,
    spaces.

    Raises:
        BadAnswer: a message has none.
    """
    try:
        return [RawBody(entry.body) for entry in _decode_page(response.body).messages]
    except msgspec.DecodeError as error:
        raise bad_answer(response, str(error)) from error


def reader(kind: type[T], **keys: str) -> Callable[[Mapping[str, Any]], T]:
    """Return a function that makes a dataclass of an object of an answer.

    A field is read from the key of its own name, or from the key that `keys` gives for it. A key
    that is absent or null leaves the field its default, or else None. Keys without a field are left
    out, so that a newer server can be read.

    The function raises ValueError for what the type of a field does not take.
    """
    nothing = {
        one.name: None
        for one in dataclasses.fields(kind)  # type: ignore[arg-type] # a dataclass
        if one.default is one.default_factory is dataclasses.MISSING
    }

    convert = converter(kind)

    def read(entry: Mapping[str, Any]) -> T:
        renamed = {name: entry.get(key) for name, key in keys.items()}
        given = {name: value for name, value in {**entry, **renamed}.items() if value is not None}
        return convert(nothing | given)

    return read


def converter(kind: type[T]) -> Callable[[object], T]:
    """Return a function that makes a value of a type; msgspec learns the type here.

    Call it at import. msgspec 0.22 learns a type when it first meets it; where another thread meets
    the type meanwhile, the process ends by a segmentation fault.
    """
    msgspec.json.Decoder(kind)
    return partial(msgspec.convert, type=kind, strict=False)

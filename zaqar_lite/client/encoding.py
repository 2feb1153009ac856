"""Messages to JSON and back; msgspec cuts raw bodies where it is installed, else plain Python."""

import datetime as dt
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from zaqar_lite.client import arguments
from zaqar_lite.client.bodies import Encoder, dumps, encode_body, loads
from zaqar_lite.client.errors import BadAnswer
from zaqar_lite.client.models import NewMessage, RawBody
from zaqar_lite.client.wire import Response


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


def bad_answer(response: Response, what: str) -> BadAnswer:
    """Make the error for an answer that is not the protocol's."""
    return BadAnswer(
        "Not Zaqar's protocol",
        f"{what}; is this address a Zaqar server, or a proxy's page?",
        status=response.status,
        request_id=response.headers.get("x-openstack-request-id"),
    )


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

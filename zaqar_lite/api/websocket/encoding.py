"""Frames: text ones hold JSON and binary ones MessagePack; an answer is written as its request."""

import math
from typing import Any, NamedTuple

import msgspec
import orjson

_decode_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_binary = msgspec.msgpack.Decoder().decode
_NOTHING: dict[str, Any] = {}


class Unreadable(Exception):
    """A frame that is no request; its text tells the client why."""


class Frame(NamedTuple):
    """What a client sent: `action`, `headers` and `body` may be anything; None where missing.

    `raw` is the frame's text where it was JSON.
    """

    action: Any
    headers: Any
    body: Any
    raw: bytes | None

    @property
    def binary(self) -> bool:
        """Whether it was MessagePack, and the answer is."""
        return self.raw is None

    def text_of(self, field: str) -> bytes:
        """A field of the body as JSON: of a JSON frame the bytes that were sent.

        Raises:
            Unreadable: it holds what JSON has no form for.
        """
        if self.raw is not None:
            return bytes(_decode_parts(_decode_parts(self.raw)["body"])[field])
        return to_json(self.body[field])

    def echo(self) -> dict[str, Any]:
        """The request as its answer repeats it, without what proves who sent it."""
        headers = self.headers if isinstance(self.headers, dict) else _NOTHING
        if not _SECRETS.isdisjoint(headers):
            headers = {name: text for name, text in headers.items() if name not in _SECRETS}
        body: Any = _NOTHING if self.body is None else self.body
        if self.raw is not None and self.body is not None:
            body = orjson.Fragment(bytes(_decode_parts(self.raw)["body"]))
        return {"action": self.action, "body": body, "headers": headers, "api": "v2"}


_SECRETS = frozenset(("X-Auth-Token", "Authorization", "X-Service-Token"))
UNREAD: dict[str, Any] = {"action": None, "body": {}, "headers": {}, "api": "v2"}
"""What the answer to an unreadable frame repeats."""


def read(data: bytes, *, binary: bool) -> Frame:
    """Read a frame.

    Raises:
        Unreadable: it is no request.
    """
    try:
        document = _decode_binary(data) if binary else orjson.loads(data)
    except (ValueError, RecursionError, msgspec.DecodeError) as exc:
        kind = "binary" if binary else "text"
        raise Unreadable(f"Can't decode {kind} frame: {exc}") from None
    if not isinstance(document, dict):
        raise Unreadable(f"Unexpected body type. Expected dict, got {type(document).__name__}.")
    return Frame(
        document.get("action"),
        document.get("headers"),
        document.get("body"),
        None if binary else data,
    )


def write(document: dict[str, Any], *, binary: bool) -> bytes:
    """Write an answer, or a document that the server sends by itself."""
    if binary:  # which holds no parts that are text already
        body = orjson.loads(orjson.dumps(document["body"]))
        return msgspec.msgpack.encode({**document, "body": body})
    return orjson.dumps(document)


def notification(text: bytes, *, binary: bool) -> bytes:
    """Write a notification: JSON, unless its subscription made another text of it."""
    if not binary:
        return text.decode("utf-8", "replace").encode()
    try:
        document = orjson.loads(text)
    except ValueError:
        document = text.decode("utf-8", "replace")
    return msgspec.msgpack.encode(document)


def to_json(value: Any) -> bytes:  # noqa: ANN401 - what MessagePack can hold
    """Write what a binary frame held as JSON.

    Raises:
        Unreadable: it holds bytes, a NaN, a key that is no string, or is nested too deeply.
    """
    _check(value)
    try:
        return orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError as exc:
        raise Unreadable(f"Can't decode binary frame: {exc}") from None


def _check(value: Any) -> None:  # noqa: ANN401 - what MessagePack can hold
    """Refuse the numbers that orjson writes as null."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)
        elif isinstance(one, float) and not math.isfinite(one):
            raise Unreadable("Can't decode binary frame: JSON has no NaN and no infinity.")

"""WebSocket's frames: how they are read, and what their answers say."""

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import orjson

from zaqar_lite.api.request import Response

_decode_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_binary = msgspec.msgpack.Decoder().decode
_NOTHING: dict[str, Any] = {}


class Unreadable(Exception):
    """A frame that is no request; its text tells the client why."""


class Frame(NamedTuple):
    """What a client sent: `action`, `headers` and `body` may be anything; None where missing.

    `text` is the body's text where the frame was JSON.
    """

    action: Any
    headers: Any
    body: Any
    text: bytes | None

    @property
    def binary(self) -> bool:
        """Whether it was MessagePack, and the answer is."""
        return self.text is None

    def text_of(self, field: str) -> bytes:
        """A field of the body as JSON: of a JSON frame the bytes that were sent.

        Raises:
            Unreadable: it holds what JSON has no form for.
        """
        if self.text is not None:
            return bytes(_decode_parts(self.text)[field])
        return to_json(self.body[field])

    def echo(self) -> dict[str, Any]:
        """The request as its answer repeats it, without what proves who sent it."""
        headers = self.headers if isinstance(self.headers, dict) else _NOTHING
        if not _SECRETS.isdisjoint(headers):
            headers = {name: text for name, text in headers.items() if name not in _SECRETS}
        body: Any = _NOTHING if self.body is None else self.body
        if self.text is not None and self.body is not None:
            body = orjson.Fragment(self.text)
        return {"action": self.action, "body": body, "headers": headers, "api": "v2"}


_SECRETS = frozenset(("X-Auth-Token", "Authorization", "X-Service-Token"))
UNREAD: dict[str, Any] = {"action": None, "body": {}, "headers": {}, "api": "v2"}
"""What the answer to an unreadable frame repeats."""


def read(data: bytes, *, binary: bool) -> Frame:
    """Read a frame.

    Raises:
        Unreadable: it is no request.
    """
    text = None
    try:
        document = _decode_binary(data) if binary else orjson.loads(data)
        if not isinstance(document, dict):
            raise Unreadable(f"Unexpected body type. Expected dict, got {type(document).__name__}.")
        if not binary:
            text = bytes(_decode_parts(data).get("body", b""))
    except (ValueError, RecursionError, msgspec.DecodeError) as exc:
        kind = "binary" if binary else "text"
        raise Unreadable(f"Can't decode {kind} frame: {exc}") from None
    return Frame(document.get("action"), document.get("headers"), document.get("body"), text)


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


Given = Mapping[str, Any]
Show = Callable[[Given, Response], Any]
"""Makes the body of an answer from the body of the frame and the result."""
_CLAIM_ID = "?claim_id="
_PLACE = re.compile(r" \(message \d+\)\.\Z")
"""Which message a field's error is about, which upstream does not tell."""


class Answer(NamedTuple):
    """What a frame is answered; `take_back` undoes it where it can't be sent."""

    status: int
    body: Any
    take_back: Callable[[], Awaitable[None]] | None = None


def refused(status: int, error: str) -> Answer:
    """Refuse a frame that became no request."""
    return Answer(status, {"error": error})


NOT_AUTHENTIFIED = refused(403, "Not authentified.")
NO_SCHEMA = refused(400, "Schema validation failed.")


def document(_: Given, response: Response) -> Any:  # noqa: ANN401 - any JSON
    """Show the document that there is, or an empty object."""
    return response.document or {}


def text(template: str) -> Show:
    """Show a sentence, in which fields of the frame stand."""
    return lambda given, _: template.format_map(given)


def subscribed(given: Given, response: Response) -> dict[str, Any]:
    """Show the subscription that was made; a connection that listens itself has no secret."""
    shown = {**response.document, "message": f"Subscription {given['queue_name']} created."}
    if given.get("subscriber") is None:
        del shown["secret"]  # it signs what webhooks are sent
    return shown


def without_links(_: Given, response: Response) -> dict[str, Any]:
    """Show a page without its links: a frame has no address."""
    return {name: value for name, value in response.document.items() if name != "links"}


def names(_: Given, response: Response) -> dict[str, Any]:
    """Show queues by their names, not their addresses."""
    queues = response.document["queues"]
    return {"queues": [{key: one[key] for key in one if key != "href"} for one in queues]}


def stats(_: Given, response: Response) -> dict[str, Any]:
    """Show what is counted, and the ids of the oldest and the newest message."""
    counts = dict(response.document["messages"])
    for end in ("oldest", "newest"):
        if end in counts:
            found = dict(counts[end])
            counts[end] = {"id": _name(found.pop("href")), **found}
    return {"messages": counts}


def posted(_: Given, response: Response) -> dict[str, Any]:
    """Show the ids of the messages that were posted."""
    made = dict(response.document)
    return {"message_ids": [_name(href) for href in made.pop("resources")], **made}


def message(_: Given, response: Response) -> dict[str, Any]:
    """Show one message; upstream calls it `messages`."""
    return {"messages": _shown(response.document)}


def messages(_: Given, response: Response) -> dict[str, Any]:
    """Show messages; what is absent is an empty list."""
    if response.status != 200:
        return {"messages": []} if response.status == 404 else {}
    return {"messages": [_shown(one) for one in response.document["messages"]]}


def claimed(given: Given, response: Response) -> dict[str, Any]:
    """Show a new claim and what it holds; its id is null where there was nothing to claim."""
    if response.status == 204:
        return {"claim_id": None}
    location = dict(response.headers)[b"location"].decode()
    return {"claim_id": _name(location), **messages(given, Response(200, response.document))}


def claim(given: Given, response: Response) -> dict[str, Any]:
    """Show a claim and what it holds."""
    found = response.document
    return {"age": found["age"], "ttl": found["ttl"], **messages(given, response)}


def _name(href: str) -> str:
    return href.rpartition("/")[2]


def _shown(one: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": one["id"],
        "claim_id": one.get("href", "").partition(_CLAIM_ID)[2] or None,
        "ttl": one["ttl"],
        "age": one["age"],
        "body": one["body"],
    }
    if "checksum" in one:
        shown["checksum"] = one["checksum"]
    return shown


def error(given: Given, response: Response, missing: str) -> Answer:
    """Show an error in upstream's two fields; `missing` is what a 404 says there."""
    document = response.document or {}
    title = document.get("title")
    exception = document.get("description") or title or ""
    message = None if response.status == 400 else title
    if title == "Invalid request body":
        exception = f"Bad request. {_PLACE.sub('.', exception)}"
    if response.status == 404 and missing:
        message = missing.format_map(given)
    if response.status == 500:
        message = "Unexpected error."
    return Answer(response.status, {"exception": exception, "error": message})

"""What a frame's answer says, made of what the same request over HTTP is answered."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import orjson

from zaqar_lite.api.http import Response
from zaqar_lite.api.websocket.encoding import Json

Given = Mapping[str, Any]
Show = Callable[[Given, Response], Any]
"""Makes the body of an answer from the body of the frame and the response."""
_CLAIM_ID = "?claim_id="


class _Message(msgspec.Struct):
    """A message as the routes render it; its body stays the bytes that were posted."""

    id: str
    ttl: int
    age: int
    body: msgspec.Raw
    href: str = ""
    claim_id: str | None = None
    checksum: str | msgspec.UnsetType = msgspec.UNSET


class _Messages(msgspec.Struct):
    messages: list[_Message]
    age: int = 0
    ttl: int = 0


_decode_message = msgspec.json.Decoder(_Message).decode
_decode_messages = msgspec.json.Decoder(_Messages).decode


def nothing(_: Given, response: Response) -> Any:  # noqa: ANN401 - any JSON
    """Show an empty object, or the document that there is."""
    return Json(response.body) if response.body else {}


def text(template: str) -> Show:
    """Show a sentence, in which fields of the frame stand."""

    def show(given: Given, _: Response) -> str:
        return template.format_map(given)

    return show


def subscribed(given: Given, response: Response) -> dict[str, Any]:
    """Show the subscription that was made."""
    made = orjson.loads(response.body)
    return {**made, "message": f"Subscription {given['queue_name']} created."}


def without_links(_: Given, response: Response) -> dict[str, Any]:
    """Show a page without its links: a frame has no address."""
    shown: dict[str, Any] = orjson.loads(response.body)
    shown.pop("links", None)
    return shown


def posted(_: Given, response: Response) -> dict[str, Any]:
    """Show the ids of the messages that were posted."""
    document = orjson.loads(response.body)
    ids = [href.rpartition("/")[2] for href in document["resources"]]
    shown = {"message_ids": ids}
    if "duplicates" in document:
        shown["duplicates"] = document["duplicates"]
    return shown


def message(_: Given, response: Response) -> dict[str, Any]:
    """Show one message; upstream calls it `messages`."""
    return {"messages": _shown(_decode_message(response.body))}


def messages(_: Given, response: Response) -> dict[str, Any]:
    """Show messages; what is absent is an empty list."""
    if response.status != 200:
        return {"messages": []} if response.status == 404 else {}
    return {"messages": [_shown(one) for one in _decode_messages(response.body).messages]}


def claimed(_: Given, response: Response) -> dict[str, Any]:
    """Show a new claim and what it holds; its id is null where there was nothing to claim."""
    if response.status == 204:
        return {"claim_id": None}
    location = dict(response.headers)[b"location"].decode()
    held = _decode_messages(response.body).messages
    return {"claim_id": location.rpartition("/")[2], "messages": [_shown(one) for one in held]}


def claim(_: Given, response: Response) -> dict[str, Any]:
    """Show a claim and what it holds."""
    found = _decode_messages(response.body)
    held = [_shown(one) for one in found.messages]
    return {"age": found.age, "ttl": found.ttl, "messages": held}


def _shown(one: _Message) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": one.id,
        "claim_id": one.href.partition(_CLAIM_ID)[2] or None,
        "ttl": one.ttl,
        "age": one.age,
        "body": Json(bytes(one.body)),
    }
    if one.checksum is not msgspec.UNSET:
        shown["checksum"] = one.checksum
    return shown

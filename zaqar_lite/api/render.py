"""Messages as Zaqar shows them; bodies go out as the bytes that were posted."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from zaqar_lite.api.request import Request
from zaqar_lite.domain.attempts import Attempt
from zaqar_lite.domain.groups import GROUP_HEADER, group_of
from zaqar_lite.domain.models import Message, QueueRef


def instant(at_ms: int) -> str:
    """Write an instant as Zaqar does: UTC, whole seconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def next_page(request: Request, marker: str | None, **more: str) -> list[dict[str, str]]:
    """The links of a page that ends at `marker`: to the next one, asked for as this one was.

    Flags are written as true or false, whichever words they were given in, as in upstream's links.
    `more` are parameters that hold though nobody gave them. There is no next page of an empty one,
    whose `marker` is None. A page that was waited for is followed by one that is not.
    """
    if marker is None:
        return []
    declared = () if request.route is None else request.route.parameters
    flags = {one.name for one in declared if one.schema == "Flag"}
    asked = {
        name: yes_no(request.flag(name)) if name in flags else values[-1]
        for name, values in request.parameters.items()
        if name != "wait"
    }
    query = urlencode({**asked, **more, "marker": marker}, quote_via=quote, safe="")
    return [{"rel": "next", "href": f"{request.path}?{query}"}]


def yes_no(value: bool) -> str:
    """Write a boolean as links do."""
    return "true" if value else "false"


class Renderer:
    """Render messages, with checksums where the server is set to."""

    def __init__(self, *, checksum: bool) -> None:
        self._checksum = checksum

    def message(self, queue: QueueRef, message: Message, *, details: bool) -> dict[str, Any]:
        """One message with Zaqar's keys and no others, unless `details` are asked for.

        The href of a claimed message ends with its claim id: clients cut it off there.
        """
        (shown,) = self.messages(queue, (message,), details=details)
        return shown

    def messages(
        self, queue: QueueRef, messages: Sequence[Message], *, details: bool
    ) -> list[dict[str, Any]]:
        """A list of messages; see `message`."""
        path = f"/v2/queues/{queue.name}/messages/"
        fragment = orjson.Fragment
        shown: list[dict[str, Any]] = [
            {
                "id": one.id,
                "href": f"{path}{one.id}"
                if one.claim_id is None
                else f"{path}{one.id}?claim_id={one.claim_id}",
                "ttl": one.ttl_ms // 1000,
                "age": (one.now - one.created_at) // 1000 if one.now > one.created_at else 0,
                "body": fragment(one.body),
            }
            for one in messages
        ]
        if self._checksum or details:
            for document, one in zip(shown, messages, strict=True):
                if self._checksum:
                    self._add_checksum(document, one.body)
                if details:
                    document.update(_details(one))
        return shown

    def popped(
        self, queue: QueueRef, messages: Sequence[Message], *, details: bool
    ) -> list[dict[str, Any]]:
        """Messages that were popped: upstream's own shape, without an href; see `message`."""
        shown = self.messages(queue, messages, details=details)
        for document, one in zip(shown, messages, strict=True):
            del document["href"]
            document["claim_id"], document["claim_count"] = None, one.claim_count
        return shown

    @staticmethod
    def _add_checksum(shown: dict[str, Any], body: bytes) -> None:
        """MD5 over the body as Python's json.dumps writes it (zaqar-behaviour 9)."""
        value = json.loads(body)
        if value is not None:
            digest = hashlib.md5(json.dumps(value).encode(), usedforsecurity=False).hexdigest()
            shown["checksum"] = f"MD5:{digest}"


def _details(message: Message) -> Mapping[str, Any]:
    delayed_until, origin = message.delay_expires_at, message.origin
    parked_until, group = message.parked_until, group_of(message.headers)
    headers = message.headers
    if headers is not None and group is not None:
        headers = {name: text for name, text in headers.items() if name != GROUP_HEADER} or None
    return {
        "claim_count": message.claim_count,
        "failure_count": message.failure_count,
        "parked_until": None if parked_until is None else instant(parked_until),
        "attempts": [_attempt(attempt) for attempt in message.attempts],
        "created": instant(message.created_at),
        "delay_expires": None if delayed_until is None else instant(delayed_until),
        "headers": headers,
        "group": group,
        "dead_letter": None
        if origin is None
        else {
            "source": origin.source,
            "moved_at": instant(origin.moved_at),
            "claim_count": origin.claim_count,
            "last_claim_id": origin.last_claim_id,
            "last_client_id": origin.last_client_id,
            "reason": origin.reason,
            "redriven": origin.redriven,
        },
    }


def _attempt(attempt: Attempt) -> Mapping[str, Any]:
    return {
        "number": attempt.number,
        "claimed_at": instant(attempt.claimed_at),
        "ended_at": instant(attempt.ended_at),
        "outcome": attempt.outcome.value,
        "delay": attempt.delay_ms // 1000,
        "reason": attempt.reason,
        "detail": attempt.detail,
        "client_id": attempt.client_id,
    }

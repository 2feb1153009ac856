"""Messages as documents: their fields, and how a reader sees one."""

from typing import Any

from bson import Int64
from bson.datetime_ms import DatetimeMS
from msgspec.structs import astuple

from zaqar_lite.domain.attempts import MAX_CLAIMS, Attempt, Ended
from zaqar_lite.domain.groups import group_of
from zaqar_lite.domain.models import Message, Origin
from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.queues import QueueState

_ORIGIN = ("source", "at", "n", "cid", "cu", "r", "rd")
"""How `o` names the fields of an origin, in their order."""
NO_ATTEMPTS: Document = {"a": 0}
"""The projection for readers that do not ask for details."""


def to_document(message: Message, state: QueueState, position: int) -> Document:
    """Make the document of a message that nobody holds, as it is at `state.now`."""
    document: Document = {
        "_id": message.id,
        "q": state.key,
        "k": Int64(position),
        "s": states.READY,
        "b": message.body,
        "z": len(message.body),
        "u": message.client_id or "",
        "n": message.claim_count,
        "t": Int64(message.ttl_ms),
        "c": DatetimeMS(message.created_at),
        "e": DatetimeMS(message.expires_at),
    }
    if message.headers:
        # Pairs: a header's name may hold a dot or begin with a dollar sign.
        document["h"] = [[name, text] for name, text in message.headers.items()]
        if (group := group_of(message.headers)) is not None:
            document["g"] = group
    if message.delay_expires_at:
        document["d"] = DatetimeMS(message.delay_expires_at)
        if message.delay_expires_at > state.now:
            document["s"], document["w"] = states.DELAYED, document["d"]
    if message.failure_count:
        document["f"] = message.failure_count
    if message.attempts:
        document["a"] = [stored_attempt(one) for one in message.attempts]
    if message.origin is not None:
        document["o"] = stored_origin(message.origin)
    return document


def to_message(document: Document, now: int) -> Message:
    """The message of a document as a reader sees it at `now`; unread fields stay empty."""
    state = document["s"]
    is_away = state in (states.CLAIMED, states.PARKED) and int(document["w"]) > now
    delayed_until = document.get("d")
    headers = document.get("h")
    return Message(
        document["_id"],
        int(document["k"]),
        document["b"],
        int(document["t"]),
        int(document["c"]),
        int(document["e"]),
        now,
        document["cid"] if is_away and state == states.CLAIMED else None,
        document["n"],
        document["u"],
        None if delayed_until is None else int(delayed_until),
        None if headers is None else dict(headers),
        origin_of(document),
        document.get("f", 0),
        int(document["w"]) if is_away and state == states.PARKED else None,
        attempts_of(document),
    )


def attempts_of(document: Document) -> tuple[Attempt, ...]:
    """The history of a message; empty where the document was read without it.

    What the server computed comes as its own kind of integer, which no other store takes.
    """
    return tuple(
        Attempt(number, int(claimed_at), int(ended_at), Ended(outcome), int(delay_ms), *rest)
        for number, claimed_at, ended_at, outcome, delay_ms, *rest in document.get("a", ())
    )


def stored_attempt(attempt: Attempt) -> list[Any]:
    """An attempt as it is stored: its fields in their order."""
    return [field.value if isinstance(field, Ended) else field for field in attempt]


def origin_of(document: Document) -> Origin | None:
    """Where a message comes from that was moved here."""
    stored = document.get("o")
    if stored is None:
        return None
    fields = {"cid": None, "cu": None, "r": MAX_CLAIMS, "rd": 0, **stored, "at": int(stored["at"])}
    return Origin(*(fields[name] for name in _ORIGIN))


def stored_origin(origin: Origin) -> Document:
    """An origin as it is stored."""
    stored = dict(zip(_ORIGIN, astuple(origin), strict=True))
    return {**stored, "at": DatetimeMS(origin.moved_at)}

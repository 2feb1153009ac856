"""The schema of what is read, and how a message becomes a row of it."""

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zaqar_lite.client import Message

SCHEMA = (
    "queue string, id string, body string, ttl int, age int, created timestamp, "
    "delay_until timestamp, claim_id string, claim_count int, headers map<string,string>, "
    "dlq_source_queue string, dlq_moved_at timestamp, dlq_claim_count int, checksum string"
)
COLUMNS = tuple(part.split()[0] for part in SCHEMA.replace("map<string,string>", "map").split(", "))


def to_row(message: Message, columns: Sequence[str]) -> tuple[Any, ...]:
    """Make the row of a message (read with details and raw), in the order of `columns`."""
    return tuple(_COLUMN[name](message) for name in columns)


def to_document(message: Message) -> dict[str, Any]:
    """Make the JSON of a message for the ledger: the values of every column."""
    document: dict[str, Any] = {}
    for name in COLUMNS:
        value = _COLUMN[name](message)
        document[name] = value.isoformat() if isinstance(value, dt.datetime) else value
    return document


def from_document(document: Mapping[str, Any], columns: Sequence[str]) -> tuple[Any, ...]:
    """Make a row of the ledger's JSON."""
    return tuple(
        dt.datetime.fromisoformat(document[name])
        if name in _TIMES and document[name] is not None
        else document[name]
        for name in columns
    )


def _body(message: Message) -> str | None:
    return None if message.body is None else bytes(message.body).decode()


_TIMES = ("created", "delay_until", "dlq_moved_at")
_COLUMN: dict[str, Callable[[Message], Any]] = {
    "queue": lambda m: m.queue,
    "id": lambda m: m.id,
    "body": _body,
    "ttl": lambda m: int(m.ttl),
    "age": lambda m: int(m.age),
    "created": lambda m: m.created,
    "delay_until": lambda m: m.delay_expires,
    "claim_id": lambda m: m.claim_id,
    "claim_count": lambda m: m.claim_count,
    "headers": lambda m: None if m.headers is None else dict(m.headers),
    "dlq_source_queue": lambda m: m.dead_letter.source if m.dead_letter else None,
    "dlq_moved_at": lambda m: m.dead_letter.moved_at if m.dead_letter else None,
    "dlq_claim_count": lambda m: m.dead_letter.claim_count if m.dead_letter else None,
    "checksum": lambda m: m.checksum,
}

"""Queues and messages as JSON lines: out of one store and into another.

    {"format": "zaqar-lite", "version": 1}
    {"queue": {"project": ..., "name": ..., "metadata": {...}}}
    {"message": {"project": ..., "queue": ..., "body": "the JSON as text", ...}}

Instants are milliseconds since 1970. A message keeps its order, deadlines, delay, claim count,
headers and origin; it gets a new id, because an id proves that its store gave it out. A claimed
message comes in delayed until its lease ends: nobody can hold it there, and the holder may be done.
"""

import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.models import Message, Origin, QueueRecord, QueueRef
from zaqar_lite.storage.opendata import keys
from zaqar_lite.storage.opendata.configuration import encode_record
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.entries import Entry
from zaqar_lite.storage.opendata.keys import RecordType
from zaqar_lite.storage.opendata.paging import cold_after, prepared
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import fill

HEAD = {"format": "zaqar-lite", "version": 1}
_CHUNK = 500


async def export(db: Database, project: str | None, name: str | None) -> AsyncIterator[str]:
    """Write the queues and their live messages, by project and name where these are given."""
    yield _line(HEAD)
    now = db.clock.now_ms()
    for queue in sorted(db.queues, key=lambda queue: queue.ref):
        if project not in (None, queue.ref.project) or name not in (None, queue.ref.name):
            continue
        if queue.record is not None:
            described = {**queue.ref._asdict(), "metadata": queue.record.metadata}
            yield _line({"queue": described})
        position = -1
        while True:
            needed = partial(cold_after, position=position, count=_CHUNK)
            await prepared(db, queue.ref, None, needed, reads=True)
            chunk = list(islice(queue.after(position), _CHUNK))
            if not chunk:
                break
            position = chunk[-1].position
            messages = [entry.view(db.names.write(entry.name), now) for entry in chunk]
            leases = {
                entry.position: entry.claim.deadline for entry in chunk if entry.claim is not None
            }
            priorities = {entry.position: entry.priority for entry in chunk}
            await fill(db, queue, chunk, messages)
            for message in messages:
                yield _line(
                    {
                        "message": _describe(
                            queue.ref,
                            message,
                            leases.get(message.position),
                            priorities[message.position],
                        )
                    }
                )


def _describe(ref: QueueRef, message: Message, lease: int | None, priority: int) -> dict[str, Any]:
    described = {
        "project": ref.project,
        "queue": ref.name,
        "body": message.body.decode(),
        "created_at": message.created_at,
        "expires_at": message.expires_at,
        "ttl_ms": message.ttl_ms,
        "delayed_until": message.delay_expires_at,
        "claimed_until": lease,
        "claim_count": message.claim_count,
        "priority": priority,
        "client_id": message.client_id,
        "headers": None if message.headers is None else dict(message.headers),
        "origin": None if message.origin is None else message.origin._asdict(),
    }
    return {key: value for key, value in described.items() if value is not None}


def _line(value: Any) -> str:  # noqa: ANN401 - any JSON
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


async def load(db: Database, lines: Sequence[str]) -> tuple[int, int]:
    """Read what `export` wrote; answer how many queues and messages came in.

    Every line is checked before the first one is stored. A queue that exists keeps its metadata.

    Raises:
        Invalid: names the line that is wrong; nothing was stored.
    """
    queues, messages = _parse(lines)
    for described in queues:
        _make_queue(db, described)
    for start in range(0, len(messages), _CHUNK):
        for described in messages[start : start + _CHUNK]:
            _add(db, described)
        await db.committer.durable()
    await db.committer.durable()
    return len(queues), len(messages)


def _parse(lines: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    queues: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if number == 1:
                if value != HEAD:
                    raise ValueError(f"the file must begin with {_line(HEAD)}")
            elif "queue" in value:
                _check(value["queue"], project=str, name=str, metadata=dict)
                queues.append(value["queue"])
            else:
                _check_message(value["message"])
                messages.append(value["message"])
        except (ValueError, KeyError, TypeError) as exc:
            raise Invalid(f"Line {number} can't be imported: {exc}. Nothing was stored.") from exc
    return queues, messages


def _check(value: dict[str, Any], **fields: type) -> None:
    for name, kind in fields.items():
        if not isinstance(value[name], kind) or isinstance(value[name], bool):
            raise TypeError(f"{name!r} must be of type {kind.__name__}")
    if "/" in value.get("name", value.get("queue", "")):
        raise ValueError("a queue's name holds no '/'")


def _check_message(value: dict[str, Any]) -> None:
    _check(value, project=str, queue=str, body=str, created_at=int, expires_at=int, ttl_ms=int)
    json.loads(value["body"])
    for name, most in (("claim_count", 0xFFFF), ("priority", 0xFF)):
        if not 0 <= value.get(name, 0) <= most:
            raise ValueError(f"{name!r} must be 0 to {most}")
    if value.get("origin") is not None:
        Origin(**value["origin"])


def _make_queue(db: Database, described: dict[str, Any]) -> None:
    queue = db.queues.make(QueueRef(described["project"], described["name"]))
    if queue.record is None:
        version = db.ids.take(1, db.puts)
        record = QueueRecord(queue.ref, described["metadata"], version)
        db.puts[keys.queue_key(RecordType.CONFIG, queue.raw)] = encode_record(record)
        db.queues.set_record(queue, record)
        db.changed(queue)


def _add(db: Database, described: dict[str, Any]) -> None:
    queue: Queue = db.queues.make(QueueRef(described["project"], described["queue"]))
    message_id = db.ids.take(1, db.puts)
    created = described["created_at"]
    expires = max(described["expires_at"], created + 1)  # in the log, a retention of 0 is for ever
    due = max(described.get("delayed_until") or 0, described.get("claimed_until") or 0)
    client, headers = described.get("client_id") or "unknown", described.get("headers")
    entry = Entry(
        message_id, message_id, queue.tail(message_id), described.get("priority", 100), due,
        expires, described["ttl_ms"], created, client, headers,
    )  # fmt: skip
    entry.attempts = described.get("claim_count", 0)
    entry.delayed = due > db.clock.now_ms()
    if described.get("origin") is not None:
        entry.remember().origin = Origin(**described["origin"])
    queue.add(entry)
    db.publish(queue, (entry,), (described["body"].encode(),))
    db.changed(queue)

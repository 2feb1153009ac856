"""Queues and messages as JSON lines: out of one store and into another.

    {"format": "zaqar-lite", "version": 1}
    {"queue": {"project": ..., "name": ..., "metadata": {...}}}
    {"message": {"project": ..., "queue": ..., "body": "the JSON as text", ...}}
    {"record": {"kind": ..., "project": ..., "name": ..., "value": "the JSON as text", ...}}

Instants are milliseconds since 1970. A message keeps its order, deadlines, delay, claim count,
headers, origin, failures and attempts, and waits for its next try as before; it gets a new id,
because an id proves that its store gave it out. A claimed message comes in delayed until its lease
ends: nobody can hold it there, and the holder may be done.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from zaqar_lite.domain.attempts import Attempt, Ended
from zaqar_lite.domain.errors import Invalid, LimitReached, Unavailable
from zaqar_lite.domain.models import Message, Origin, QueueRecord, QueueRef, Record
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.opendata import histories
from zaqar_lite.storage.opendata.configuration import encode_record
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.entries import Entry
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.attempts import Attempts, Kept, encode_attempt
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.importing import (
    HEAD,
    Numbered,
    parse,
    read_attempt,
    refused,
    write_line,
)
from zaqar_lite.storage.opendata.messages import OpenDataMessageStore
from zaqar_lite.storage.opendata.paging import cold_after, prepared
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import fill

_CHUNK = 500
MakeQueue: TypeAlias = Callable[[QueueRef, Mapping[str, Any]], Awaitable[None]]
"""Makes a queue as the server would; raises Invalid or LimitReached where it would refuse."""
Rehearse: TypeAlias = Callable[[MessageStore, Iterable[QueueRecord]], Awaitable[MakeQueue]]
"""Answers what makes queues beside these records, for this message store, and stores nothing."""


class Export:
    """Queues and their live messages as lines, and what of them can't be read.

    `missing` counts the messages that were left out, `damaged` the records that can't be read at
    all; both are complete when the lines are.
    """

    def __init__(self, db: Database, project: str | None, name: str | None) -> None:
        self._db = db
        self._project = project
        self._name = name
        self.missing = 0
        self.damaged = len(db.damages)

    async def lines(self) -> AsyncIterator[str]:
        """Write the queues, by project and name where these are given."""
        yield write_line(HEAD)
        for ref in self._db.queues.refs():
            if self._project not in (None, ref.project) or self._name not in (None, ref.name):
                continue
            queue = self._db.queues.make(ref)
            if queue.record is not None:
                yield write_line({"queue": {**ref._asdict(), "metadata": queue.record.metadata}})
            known = len(queue.damaged_pages)
            async for described in self._messages(queue):
                yield write_line({"message": described})
            self.damaged += len(queue.damaged_pages) - known
        if self._name is None:
            for record in self._db.catalogue.all():
                if self._project in (None, record.project):
                    yield write_line({"record": _describe_record(record)})

    async def _messages(self, queue: Queue) -> AsyncIterator[dict[str, Any]]:
        db, now, position = self._db, self._db.clock.now_ms(), -1
        while True:
            needed = partial(cold_after, position=position, count=_CHUNK)
            await prepared(db, queue.ref, None, needed, reads=True)
            chunk = list(islice(queue.after(position), _CHUNK))
            if not chunk:
                return
            position = chunk[-1].position
            messages = [entry.view(db.names.write(entry.name), now) for entry in chunk]
            leases = {
                entry.position: entry.claim.lease(entry.position)
                for entry in chunk
                if entry.claim is not None
            }
            priorities = {entry.position: entry.priority for entry in chunk}
            told = await histories.read(db, chunk)
            for message in messages:
                message.attempts = told.get(message.position, ())
            await fill(db, queue, chunk, messages)
            self.missing += len(chunk) - len(messages)
            for message in messages:
                at = message.position
                yield _describe(queue.ref, message, leases.get(at), priorities[at])


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
        "parked_until": message.parked_until,
        "claim_count": message.claim_count,
        "failure_count": message.failure_count or None,
        "attempts": [_describe_attempt(one) for one in message.attempts] or None,
        "priority": priority,
        "client_id": message.client_id,
        "headers": None if message.headers is None else dict(message.headers),
        "origin": None if message.origin is None else message.origin._asdict(),
    }
    return {key: value for key, value in described.items() if value is not None}


def _describe_record(record: Record) -> dict[str, Any]:
    described = {
        "kind": record.kind,
        "project": record.project,
        "name": record.name,
        "value": record.value.decode(),
        "expires_at": record.expires_at,
    }
    return {key: value for key, value in described.items() if value is not None}


def _describe_attempt(attempt: Attempt) -> dict[str, Any]:
    described = {**attempt._asdict(), "outcome": attempt.outcome.value}
    return {key: value for key, value in described.items() if value is not None}


async def load(db: Database, text: bytes, rehearse: Rehearse) -> tuple[int, int]:
    """Read what `Export` wrote; answer how many queues and messages came in.

    Every line is checked before the first one is stored. A queue that exists keeps its metadata,
    and a record its value.

    Raises:
        Invalid: names the line that is wrong; nothing was stored.
        Unavailable: writing failed, and a part may be stored.
    """
    queues, messages, records = parse(text)
    await _check_records(db, queues, rehearse)
    for _, described in queues:
        _make_queue(db, described)
    for described in records:
        _add_record(db, described)
    try:
        for start in range(0, len(messages), _CHUNK):
            for described in messages[start : start + _CHUNK]:
                _add(db, described)
            await db.committer.durable()
        await db.committer.durable()
    except Unavailable as exc:
        raise Unavailable(
            f"{exc} A part of the file may be stored, and importing it again would store that "
            "part twice: import it into an empty store."
        ) from exc
    return len(queues), len(messages)


async def _check_records(db: Database, queues: Sequence[Numbered], rehearse: Rehearse) -> None:
    records = [record for ref in db.queues.refs() if (record := db.queues.record(ref)) is not None]
    make = await rehearse(OpenDataMessageStore(db), records)
    for number, described in queues:
        ref, metadata = QueueRef(described["project"], described["name"]), described["metadata"]
        try:
            await make(ref, metadata)
            encode_record(QueueRecord(ref, metadata, 0))
        except (Invalid, LimitReached, ValueError) as exc:
            raise refused(number, exc) from exc


def _make_queue(db: Database, described: dict[str, Any]) -> None:
    queue = db.queues.make(QueueRef(described["project"], described["name"]))
    if queue.record is None:
        version = db.ids.take(1, db.puts)
        record = QueueRecord(queue.ref, described["metadata"], version)
        db.puts[keys.queue_key(RecordType.CONFIG, queue.raw)] = encode_record(record)
        db.queues.set_record(queue, record)
        db.changed(queue)


def _add_record(db: Database, described: dict[str, Any]) -> None:
    kind, project, name = described["kind"], described["project"], described["name"]
    if db.catalogue.get(kind, project, name, db.clock.now_ms()) is None:
        value, version = described["value"].encode(), db.ids.take(1, db.puts)
        expires_at = described.get("expires_at")
        db.put_record(Record(kind, project, name, value, version, expires_at))


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
    _add_attempts(db, queue, entry, described)
    if described.get("parked_until", 0) > db.clock.now_ms():
        entry.delayed = False
        entry.remember().parked_until = described["parked_until"]
    queue.add(entry)
    db.publish(queue, (entry,), (described["body"].encode(),))
    db.changed(queue)


def _add_attempts(db: Database, queue: Queue, entry: Entry, described: dict[str, Any]) -> None:
    attempts = [read_attempt(one) for one in described.get("attempts", ())]
    failures = described.get("failure_count", 0)
    if not attempts and not failures:
        return
    entry.remember().attempts = Attempts(
        [one.client_id or "unknown" for one in attempts],
        db.ids.take(1, db.puts),
        failures,
        attempts[-1].outcome if attempts else Ended.FAILED,
        tuple(Kept(one.number, one.size) for one in attempts),
    )
    for one in attempts:
        db.put(keys.attempt_key(entry.remember().history, one.number), encode_attempt(one))
    queue.ended.append(entry)

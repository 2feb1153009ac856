"""Queues, messages and records as JSON lines: out of one store and into another.

    {"format": "zaqar-lite", "version": 1}
    {"queue": {"project": ..., "name": ..., "metadata": {...}}}
    {"message": {"project": ..., "queue": ..., "body": "the JSON as text", ...}}
    {"record": {"kind": ..., "project": ..., "name": ..., "value": "the JSON as text", ...}}

Instants are milliseconds since 1970. A message keeps its order, deadlines, delay, claim count,
headers, origin, failures, attempts and the wait for its next attempt. It gets a new id, because an
id proves that the store handed it out. A claimed message is imported as delayed until its lease
ends: its claim does not exist in the new store, and its claimant may have finished. Histories and
idempotency keys, which hold ids, stay behind.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from itertools import groupby, islice
from typing import Annotated, Any, TypeAlias

import apsw
from msgspec import Meta, MsgspecError, Struct, structs
from msgspec.json import Decoder, decode, encode

from zaqar_lite.api import documents
from zaqar_lite.api.request import Refused
from zaqar_lite.domain import metadata as metadata_rules
from zaqar_lite.domain.attempts import MAX_ATTEMPTS, Attempt, Ended
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Conflict, Invalid, LimitReached
from zaqar_lite.domain.ids import new_message_id
from zaqar_lite.domain.limits import MAX_PROJECT_ID
from zaqar_lite.domain.models import MAX_RECORD, Message, Origin, QueueRef, StoreOptions
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.queues import Queues
from zaqar_lite.settings import Settings
from zaqar_lite.storage.registry import create_stores
from zaqar_lite.storage.sql import records
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.importing import enter, is_first
from zaqar_lite.storage.sql.records import _create as create_queue

_HEAD = {"format": "zaqar-lite", "version": 1}
_CHUNK = 500
_SYNC_AFTER = 100
"""Chunks after which the disk gets its part, because the store waits 10 s for the last sync."""
_LAST = 253_402_300_799_999
"""The end of the year 9999, in milliseconds."""
_Whole: TypeAlias = Annotated[int, Meta(ge=0, le=_LAST)]
_Text: TypeAlias = Annotated[str, Meta(max_length=0xFFFF)]
_Name: TypeAlias = Annotated[str, Meta(pattern=r"^(?!\.\.?\Z)[A-Za-z0-9_.-]{1,64}\Z")]
_OwnName: TypeAlias = Annotated[str, Meta(pattern=r"^(?!\.\.?\Z)~?[A-Za-z0-9_.-]{1,64}\Z")]
"""Also of a queue that the server keeps for itself, as that of messages for subscribers."""
_Project: TypeAlias = Annotated[str, Meta(max_length=MAX_PROJECT_ID)]


class _Queue(Struct):
    project: _Project
    name: _Name
    metadata: dict[str, Any]


class _Record(Struct, omit_defaults=True):
    kind: _Text
    project: _Project
    name: _Text
    value: Annotated[str, Meta(max_length=4 * MAX_RECORD)]  # it is longer where it is sealed
    expires_at: _Whole | None = None

    def __post_init__(self) -> None:
        decode(self.value)


class _Attempt(Struct, omit_defaults=True):
    number: _Whole
    claimed_at: _Whole
    ended_at: _Whole
    outcome: Ended
    delay_ms: _Whole = 0
    reason: _Text | None = None
    detail: _Text | None = None
    client_id: _Text | None = None


class _Message(Struct, omit_defaults=True):
    project: _Project
    queue: _OwnName
    body: str
    created_at: _Whole
    expires_at: _Whole
    ttl_ms: _Whole
    delayed_until: _Whole | None = None
    claimed_until: _Whole | None = None
    parked_until: _Whole | None = None
    claim_count: _Whole = 0
    failure_count: _Whole = 0
    attempts: Annotated[list[_Attempt], Meta(max_length=MAX_ATTEMPTS)] = []
    priority: Annotated[int, Meta(ge=0, le=0xFF)] = 100
    client_id: _Text | None = None
    headers: dict[_Text, _Text] | None = None
    origin: Origin | None = None

    def __post_init__(self) -> None:
        decode(self.body)


class _Line(Struct, omit_defaults=True):
    """One of these."""

    queue: _Queue | None = None
    message: _Message | None = None
    record: _Record | None = None

    def __post_init__(self) -> None:
        if (self.queue, self.message, self.record).count(None) != 2:
            raise ValueError("it is no `queue`, `message` or `record`")


_LINE = Decoder(_Line)
_ATTEMPTS = Decoder(tuple[Attempt, ...])

_QUEUES = """SELECT project, name, version, metadata, content FROM queue
    WHERE (?1 IS NULL OR project = ?1) AND (?2 IS NULL OR name = ?2) ORDER BY project, name"""
_MESSAGES = """SELECT CAST(b.body AS TEXT), e.created, e.expires, e.ttl, nullif(e.due, 0),
    iif(e.state = 2 AND e.until > ?2, e.until, NULL),
    iif(e.state = 3 AND e.until > ?2, e.until, NULL),
    e.claims, e.failures, a.attempts, e.priority, nullif(e.client, ''), e.headers, e.origin
    FROM entry e CROSS JOIN body b ON b.number = e.body
    LEFT JOIN attempts a ON e.has_attempts AND a.id = e.id
    WHERE e.queue = ?1 AND e.expires > ?2 ORDER BY e.position"""
_RECORDS = """SELECT kind, project, name, CAST(value AS TEXT), ends FROM record
    WHERE (?1 IS NULL OR project = ?1) AND (ends IS NULL OR ends > ?2)
    AND kind != 'adopted' ORDER BY kind, project, name"""


def export(store: apsw.Connection, project: str | None, name: str | None) -> Iterator[bytes]:
    """Write the queues of a snapshot as lines, by project and name where these are given."""
    clock = Clock()
    clock.not_before(store.execute("SELECT instant FROM counter").get)
    now = clock.now_ms()
    yield encode(_HEAD)
    for owner, queue, version, metadata, content in store.execute(_QUEUES, (project, name)):
        if version:
            yield encode(_Line(queue=_Queue(owner, queue, decode(metadata))))
        for row in store.execute(_MESSAGES, (content, now)):
            yield encode(_Line(message=_message(owner, queue, row)))
    if name is None:
        for row in store.execute(_RECORDS, (project, now)):
            yield encode(_Line(record=_Record(*row)))


def _message(project: str, queue: str, row: Sequence[Any]) -> _Message:
    *fields, attempts, priority, client, headers, origin = row
    ended = [] if attempts is None else [_Attempt(*one) for one in _ATTEMPTS.decode(attempts)]
    named = None if headers is None else decode(headers)
    moved = None if origin is None else decode(origin, type=Origin)
    return _Message(*[project, queue, *fields, ended, priority, client, named, moved])


def parse(file: BufferedIOBase) -> Iterator[tuple[int, _Line]]:
    """Read and check the lines of an export. Raises Invalid: names the line that is wrong."""
    number = 1
    file.seek(0)
    try:
        if decode(file.readline().strip() or b"null") != _HEAD:
            raise ValueError(f"the file must begin with {encode(_HEAD).decode()}")
        for number, text in enumerate(file, 2):
            if text.strip():
                yield number, _LINE.decode(text)
    except (ValueError, RecursionError, MsgspecError) as exc:
        raise _refused(number, exc) from exc


def _refused(number: int, why: object) -> Invalid:
    return Invalid(f"Line {number} can't be imported: {str(why).rstrip('.')}. Nothing was stored.")


async def load(db: Database, file: BufferedIOBase, settings: Settings) -> tuple[int, int]:
    """Store what `export` wrote, all of it in one step; answer how many queues and messages.

    A queue that exists keeps its metadata, and a record its value. Raises, and stores nothing:
    Invalid: names the line that is wrong; Conflict: this file was stored within a day, by a call
    that may have been killed before it said so; Unavailable: writing failed.
    """
    queues, messages, known = 0, 0, await _queues_of(db, settings)
    for number, line in parse(file):
        messages += line.message is not None
        if line.queue is not None:
            queues += 1
            try:
                metadata_rules.check_size(line.queue.metadata, settings.limits())
                # What is asked of every document: its depth, and numbers of 64 bits.
                documents.parse_object(json.dumps(line.queue.metadata, ensure_ascii=False).encode())
                ref = QueueRef(line.queue.project, line.queue.name)
                await known.create(ref, metadata_rules.visible(line.queue.metadata))
            except Refused as exc:
                raise _refused(number, exc.description or exc.title) from exc
            except (Invalid, LimitReached, ValueError) as exc:
                raise _refused(number, exc) from exc
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    await db.write(_store, file, digest if messages else "")  # nothing else is stored twice
    return queues, messages


async def _queues_of(db: Database, settings: Settings) -> Queues:
    """What an import checks queues by: the server's own service, over a copy in memory."""
    messages, management = create_stores("memory://", clock=Clock(), options=StoreOptions())
    for *ref, metadata in db.execute("SELECT project, name, metadata FROM queue WHERE version"):
        known = decode(metadata)
        await management.create_queue(QueueRef(*ref), known, max_queues=sys.maxsize)
    limits, encrypts = settings.limits(), settings.encryption_key_file is not None
    policies = Policies(management, limits, checked=True)
    return Queues(management, messages, policies, limits, encrypts=encrypts)


def _store(db: Database, file: BufferedIOBase, digest: str) -> None:
    db.check_growth()
    if digest and not is_first(db, "", f"import/{digest}", 0):
        raise Conflict(
            "This file is in the store already. To store it once more, add an empty line to it."
        )

    def queue_of(line: _Line) -> QueueRef | None:
        message = line.message
        return None if message is None else QueueRef(message.project, message.queue)

    chunks = 0
    for ref, group in groupby((line for _, line in parse(file)), queue_of):
        while chunk := list(islice(group, _CHUNK)):
            if ref is not None:
                enter(db, ref, [_arrival(db, line.message) for line in chunk if line.message])
            for line in chunk:
                if line.queue is not None:
                    made = QueueRef(line.queue.project, line.queue.name)
                    create_queue(db, made, line.queue.metadata, sys.maxsize)
                elif line.record is not None:
                    _add_record(db, line.record)
            chunks += 1
            if chunks % _SYNC_AFTER == 0:
                db.place.sync()


def _add_record(db: Database, line: _Record) -> None:
    lasts = None if line.expires_at is None else line.expires_at - db.clock.now_ms()
    if (lasts is None or lasts > 0) and not records.find(db, line.kind, line.project, line.name):
        records.put(db, line.kind, line.project, line.name, line.value.encode(), ttl_ms=lasts)


def _arrival(db: Database, line: _Message) -> tuple[Message, int]:
    """A message as it enters; one that was claimed is delayed until its lease ends."""
    due = max(line.delayed_until or 0, line.claimed_until or 0)
    message = Message(
        new_message_id(db.clock.now_us()), 0, line.body.encode(), line.ttl_ms, line.created_at,
        line.expires_at, 0, None, line.claim_count, line.client_id, due, line.headers,
        line.origin, line.failure_count, line.parked_until,
        [Attempt(*structs.astuple(one)) for one in line.attempts],
    )  # fmt: skip
    return message, line.priority

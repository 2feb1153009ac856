"""Queues, messages and records as JSON lines: out of one store and into another.

    {"format": "zaqar-lite", "version": 1}
    {"queue": {"project": ..., "name": ..., "metadata": {...}}}
    {"message": {"project": ..., "queue": ..., "body": "the JSON as text", ...}}
    {"record": {"kind": ..., "project": ..., "name": ..., "value": "the JSON as text", ...}}

Instants are milliseconds since 1970. A message keeps its order, deadlines, delay, claim count,
headers, origin, failures, attempts and the wait for its next attempt. It gets a new id, because an
id proves that the store handed it out. A claimed message is imported as delayed until its lease
ends: its claim does not exist in the new store, and its claimant may have finished.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, NamedTuple, TypeAlias

from msgspec import Meta, MsgspecError, Struct, structs
from msgspec.json import Decoder, decode, encode

from zaqar_lite.domain.attempts import MAX_ATTEMPTS, MAX_CLAIMS, Attempt, Ended
from zaqar_lite.domain.errors import Invalid, LimitReached, Unavailable
from zaqar_lite.domain.limits import MAX_PROJECT_ID
from zaqar_lite.domain.metadata import is_queue_name
from zaqar_lite.domain.models import (
    MAX_RECORD,
    MAX_REDRIVEN,
    Message,
    Origin,
    QueueRecord,
    QueueRef,
    Record,
)
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.format import MAX_U16
from zaqar_lite.storage.opendata.format.bookkeeping import encode_queue_record
from zaqar_lite.storage.opendata.messages import OpenDataMessageStore
from zaqar_lite.storage.opendata.paging import cold_after, prepared
from zaqar_lite.storage.opendata.posting import enter
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import read

_HEAD = {"format": "zaqar-lite", "version": 1}
_CHUNK = 500
_LAST = 253_402_300_799_999
"""The end of the year 9999."""
_LONGEST = 0xFFFF_FFFF * 1000
"""Milliseconds that a record's seconds can count."""
MakeQueue: TypeAlias = Callable[[QueueRef, Mapping[str, Any]], Awaitable[None]]
"""Makes a queue as the server would; raises Invalid or LimitReached where it would refuse."""
Rehearse: TypeAlias = Callable[[MessageStore, Iterable[QueueRecord]], Awaitable[MakeQueue]]
"""Answers what makes queues beside these records, for this message store, and stores nothing."""
_Instant: TypeAlias = Annotated[int, Meta(ge=0, le=_LAST)]
_Span: TypeAlias = Annotated[int, Meta(ge=0, le=_LONGEST)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=0xFFFF)]
_Text: TypeAlias = Annotated[str, Meta(max_length=MAX_U16)]
"""A text in a record; it has at most so many bytes, too (`_check_texts`)."""
_Project: TypeAlias = Annotated[str, Meta(max_length=MAX_PROJECT_ID)]


class _Queue(Struct):
    project: _Project
    name: _Text
    metadata: dict[str, Any]


class _Record(Struct, omit_defaults=True):
    kind: _Text
    project: _Project
    name: _Text
    value: str
    expires_at: _Instant | None = None


class _Attempt(Struct, omit_defaults=True):
    number: _Count
    claimed_at: _Instant
    ended_at: _Instant
    outcome: Ended
    delay_ms: _Instant = 0
    reason: _Text | None = None
    detail: _Text | None = None
    client_id: _Text | None = None


class _Origin(Struct):
    source: _Text
    moved_at: _Instant
    claim_count: _Count
    last_claim_id: _Text | None
    last_client_id: _Text | None
    reason: _Text = MAX_CLAIMS
    redriven: Annotated[int, Meta(ge=0, le=MAX_REDRIVEN)] = 0


class _Message(Struct, omit_defaults=True):
    project: _Project
    queue: _Text
    body: str
    created_at: _Instant
    expires_at: _Instant
    ttl_ms: _Span
    delayed_until: _Instant | None = None
    claimed_until: _Instant | None = None
    parked_until: _Instant | None = None
    claim_count: _Count = 0
    failure_count: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)] = 0
    attempts: Annotated[list[_Attempt], Meta(max_length=MAX_ATTEMPTS)] = []
    priority: Annotated[int, Meta(ge=0, le=0xFF)] = 100
    client_id: _Text | None = None
    headers: dict[_Text, _Text] | None = None
    origin: _Origin | None = None


class _Line(Struct, omit_defaults=True):
    """One of these."""

    queue: _Queue | None = None
    message: _Message | None = None
    record: _Record | None = None


class _Lines(NamedTuple):
    """The queues of a file, each with the number of its line, its messages and its records."""

    queues: list[tuple[int, _Queue]]
    messages: list[_Message]
    records: list[_Record]


_LINE = Decoder(_Line)


def _parse(text: bytes) -> _Lines:
    """Read and check the lines of an export. Raises Invalid: names the line that is wrong."""
    queues, messages, records = found = _Lines([], [], [])
    lines = ((number, line) for number, line in enumerate(text.split(b"\n"), 1) if line.strip())
    number, head = next(lines, (1, b""))
    try:
        _expect(bool(head), "the file is empty")
        _expect(decode(head) == _HEAD, f"the file must begin with {encode(_HEAD).decode()}")
        for number, text_of_line in lines:
            line = _LINE.decode(text_of_line)
            if line.queue is not None:
                _check_name(line.queue.name)
                queues.append((number, line.queue))
            elif line.record is not None:
                value = line.record.value.encode()
                _expect(len(value) <= MAX_RECORD, f"`value` is longer than {MAX_RECORD} bytes")
                decode(value)
                _check_texts((line.record.kind, line.record.name))
                records.append(line.record)
            elif line.message is not None:
                _check_message(line.message)
                messages.append(line.message)
            else:
                raise ValueError("it has no `queue`, `message` or `record`")
    except (ValueError, RecursionError, MsgspecError) as exc:
        raise _refused(number, exc) from exc
    return found


def _refused(number: int, why: Exception) -> Invalid:
    return Invalid(f"Line {number} can't be imported: {str(why).rstrip('.')}. Nothing was stored.")


def _check_message(message: _Message) -> None:
    _check_name(message.queue)
    decode(message.body)
    _check_texts((message.client_id, message.headers, message.origin, message.attempts))
    lasts = message.expires_at - message.created_at
    _expect(lasts <= _LONGEST, "`expires_at` is more than 136 years after `created_at`")
    claim = None if message.origin is None else message.origin.last_claim_id
    _expect(claim is None or len(bytes.fromhex(claim)) == 16, "`last_claim_id` is no claim id")


def _check_texts(part: object) -> None:
    """Refuse a text, at any depth, that is too long for a record."""
    if isinstance(part, str):
        _expect(len(part) <= MAX_U16 // 4 or len(part.encode()) <= MAX_U16,
                f"a text is longer than {MAX_U16} bytes")  # fmt: skip
    elif isinstance(part, Struct):
        _check_texts(structs.astuple(part))
    elif isinstance(part, dict):
        _check_texts([*part, *part.values()])
    elif isinstance(part, list | tuple):
        for one in part:
            _check_texts(one)


def _check_name(name: str) -> None:
    _expect(is_queue_name(name), f"{name!r} is no name: 1 to 64 letters, digits, '_', '-' or '.'")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


class Export:
    """Writes queues and their messages as lines, and counts what can't be read.

    `missing` counts the messages that were left out, `damaged` the records that can't be read. Both
    are complete after the last line.
    """

    def __init__(self, db: Database, project: str | None, name: str | None) -> None:
        self._db = db
        self._project = project
        self._name = name
        self.missing = 0
        self.damaged = len(db.damages)

    async def lines(self) -> AsyncIterator[bytes]:
        """Write the queues, by project and name where these are given."""
        yield encode(_HEAD)
        for ref in self._db.queues.refs():
            if self._project not in (None, ref.project) or self._name not in (None, ref.name):
                continue
            queue = self._db.queues.make(ref)
            if queue.record is not None:
                yield encode(_Line(queue=_Queue(*ref, dict(queue.record.metadata))))
            known = len(queue.damaged_pages)
            async for message in self._messages(queue):
                yield encode(_Line(message=message))
            self.damaged += len(queue.damaged_pages) - known
        if self._name is None:
            for record in self._db.catalogue.all():
                if self._project in (None, record.project):
                    name = record.kind, record.project, record.name
                    value = record.value.decode()
                    yield encode(_Line(record=_Record(*name, value, record.expires_at)))

    async def _messages(self, queue: Queue) -> AsyncIterator[_Message]:
        db, now, position = self._db, self._db.clock.now_ms(), -1
        while True:
            needed = partial(cold_after, position=position, count=_CHUNK)
            await prepared(db, queue.ref, None, needed, reads=True)
            chunk = list(islice(queue.after(position), _CHUNK))
            if not chunk:
                return
            position = chunk[-1].position
            leases = {e.position: e.claim.lease(e.position) for e in chunk if e.claim is not None}
            priorities = {entry.position: entry.priority for entry in chunk}
            messages = await read(db, queue, chunk, now, details=True)
            self.missing += len(chunk) - len(messages)
            for message in messages:
                at = message.position
                yield _describe(queue.ref, message, leases.get(at), priorities[at])


def _describe(ref: QueueRef, message: Message, lease: int | None, priority: int) -> _Message:
    return _Message(
        ref.project,
        ref.name,
        message.body.decode(),
        message.created_at,
        message.expires_at,
        message.ttl_ms,
        message.delay_expires_at,
        lease,
        message.parked_until,
        message.claim_count,
        message.failure_count,
        [_Attempt(*one) for one in message.attempts],
        priority,
        message.client_id,
        None if message.headers is None else dict(message.headers),
        None if message.origin is None else _Origin(*structs.astuple(message.origin)),
    )


async def load(db: Database, text: bytes, rehearse: Rehearse) -> tuple[int, int]:
    """Read what `Export` wrote; answer how many queues and messages were imported.

    Every line is checked before the first one is stored. A queue that exists keeps its metadata,
    and a record its value. Raises Invalid: names the line that is wrong; nothing was stored;
    Unavailable: writing failed, and a part may be stored.
    """
    queues, messages, records = _parse(text)
    await _check_queues(db, queues, rehearse)
    for _, line in queues:
        _make_queue(db, line)
    for record in records:
        _add_record(db, record)
    try:
        for start in range(0, len(messages), _CHUNK):
            for message in messages[start : start + _CHUNK]:
                _add(db, message)
            await db.committer.durable()
        await db.committer.durable()
    except (Unavailable, ValueError) as exc:
        raise Unavailable(
            f"{exc} A part of the file may be stored, and importing it again would store that "
            "part twice: import it into an empty store."
        ) from exc
    return len(queues), len(messages)


async def _check_queues(
    db: Database, queues: Sequence[tuple[int, _Queue]], rehearse: Rehearse
) -> None:
    known = db.queues.records
    records = [record for ref in sorted(known.refs()) if (record := known.get(ref)) is not None]
    make = await rehearse(OpenDataMessageStore(db), records)
    for number, line in queues:
        ref = QueueRef(line.project, line.name)
        try:
            await make(ref, line.metadata)
            encode_queue_record(QueueRecord(ref, line.metadata, 0))
        except (Invalid, LimitReached, ValueError) as exc:
            raise _refused(number, exc) from exc


def _make_queue(db: Database, line: _Queue) -> None:
    queue = db.queues.make(QueueRef(line.project, line.name))
    if queue.record is None:
        record = QueueRecord(queue.ref, line.metadata, db.ids.take(1, db.puts))
        db.put_queue(queue, record, encode_queue_record(record))


def _add_record(db: Database, line: _Record) -> None:
    if db.catalogue.get(line.kind, line.project, line.name, db.clock.now_ms()) is None:
        version = db.ids.take(1, db.puts)
        value = line.value.encode()
        db.put_record(Record(line.kind, line.project, line.name, value, version, line.expires_at))


def _add(db: Database, line: _Message) -> None:
    """Add a message; one that was claimed is delayed until its lease ends."""
    message = Message(
        "", 0, line.body.encode(), line.ttl_ms, line.created_at, line.expires_at, 0, None,
        line.claim_count, line.client_id, None, line.headers,
        None if line.origin is None else Origin(*structs.astuple(line.origin)),
        line.failure_count, line.parked_until,
        [Attempt(*structs.astuple(one)) for one in line.attempts],
    )  # fmt: skip
    due = max(line.delayed_until or 0, line.claimed_until or 0)
    enter(db, QueueRef(line.project, line.queue), message, due, line.priority)

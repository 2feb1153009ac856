"""From the engine's records to the working state: at open, and for some queues after a failure."""

import gc
import logging
from collections.abc import AsyncIterator, Sequence
from itertools import count as counted
from typing import TypeAlias

from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.models import QueueRef, Record
from zaqar_lite.storage.opendata.cold import summary
from zaqar_lite.storage.opendata.configuration import decode_record
from zaqar_lite.storage.opendata.engine import Damage, Stored
from zaqar_lite.storage.opendata.entries import UNKNOWN, Claim, Entry, Page
from zaqar_lite.storage.opendata.format import bookkeeping, keys
from zaqar_lite.storage.opendata.format.active import read_active, rows_of_five
from zaqar_lite.storage.opendata.format.attempts import decode_attempts
from zaqar_lite.storage.opendata.format.bookkeeping import Remembered
from zaqar_lite.storage.opendata.format.encoding import CodecError, after_prefix
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.format.records import (
    ClaimRecord,
    decode_claim,
    decode_ended,
)
from zaqar_lite.storage.opendata.idempotency import read_record
from zaqar_lite.storage.opendata.leases import index_claim
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import State

logger = logging.getLogger(__name__)
OfQueue: TypeAlias = tuple[RecordType, keys.QueueKey, bytes]
"""Type, place and value of a record that belongs to a queue."""
_PER_QUEUE = (
    RecordType.CONFIG,
    RecordType.ACTIVE,
    RecordType.CLAIM,
    RecordType.DONE,
    RecordType.FAILED,
    RecordType.IDEMPOTENCY,
)


async def load(db: State) -> Sequence[OfQueue]:
    """Load all queues; answer their records."""
    gc_was_on = gc.isenabled()
    gc.disable()  # millions of objects that stay: looking through them again and again is wasted
    try:
        records = [
            record for kind in _PER_QUEUE async for record in _records(db, keys.prefix(kind), kind)
        ]
        await _build(db, records)
    finally:
        if gc_was_on:
            gc.enable()
    gc.freeze()
    return records


async def reload(db: State, refs: Sequence[QueueRef]) -> None:
    """Bring these queues back to what the engine holds."""
    records = []
    for ref in refs:
        db.queues.discard(ref)
        raw = keys.queue_id(ref)
        for kind in _PER_QUEUE:
            prefix = keys.queue_key(kind, raw)
            records += [record async for record in _records(db, prefix, kind)]
    await _build(db, records)
    count_shared(db)


async def _records(db: State, prefix: bytes, kind: RecordType) -> AsyncIterator[OfQueue]:
    """Read the records of a type; damaged ones are named and kept as they are."""
    async for chunk in db.engine.scan(prefix, after_prefix(prefix)):
        for key, value in chunk:
            if isinstance(value, Damage) and value.until is not None:
                db.damaged(value)
                if kind is RecordType.ACTIVE:
                    after = key if key != prefix else prefix[:-1]  # its own record is lost, too
                    db.queues.lose_pages(after, value.until or after_prefix(prefix))
                continue
            try:
                where = keys.read_queue_key(key)
            except CodecError as exc:
                db.damaged(Damage(key, str(exc)))
                continue
            if isinstance(value, Damage):
                db.damaged(value, kind, where)
            else:
                yield kind, where, value


class _Parts:
    """The records of one queue that are put together at the end."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.claims: dict[str, ClaimRecord] = {}
        self.in_flight: list[tuple[Entry, int, int]] = []
        self.pages: list[Page] = []
        self.cold: dict[int, tuple[int, int]] = {}  # by the page's first position
        self.hot = 0
        self.keys: list[tuple[bytes, Remembered]] = []


async def _build(db: State, records: Sequence[OfQueue]) -> None:
    parts: dict[bytes, _Parts] = {}
    for kind, where, value in records:
        try:
            part = parts.get(where.queue)
            if part is None:
                queue = db.queues.make(keys.read_queue_id(where.queue))
                part = parts[where.queue] = _Parts(queue)
            _read_record(db, part, kind, where, value)
        except CodecError as exc:
            key = keys.queue_key(kind, where.queue) + where.rest
            db.damaged(Damage(key, str(exc)), kind, where)
    for part in parts.values():
        _assemble(db, part)
    await _read_attempts(db, [part.queue for part in parts.values()])
    count_shared(db)


def _read_record(
    db: State, part: _Parts, kind: RecordType, where: keys.QueueKey, value: bytes
) -> None:
    queue = part.queue
    if kind is RecordType.CONFIG:
        db.queues.set_record(queue, decode_record(queue.ref, value))
    elif kind is RecordType.ACTIVE:
        _read_page(db, part, keys.read_page(where.rest), value)
    elif kind is RecordType.CLAIM:
        part.claims[where.rest.hex()] = decode_claim(value)
    elif kind is RecordType.IDEMPOTENCY:
        part.keys.append((where.rest, read_record(where.rest, value)))
    else:
        history = queue.done if kind is RecordType.DONE else queue.failed
        history.restore_page(keys.read_page(where.rest), decode_ended(value))


def _read_page(db: State, part: _Parts, number: int | None, value: bytes) -> None:
    available, in_flight, extras = read_active(value)
    page = Page(number, 0)
    if part.hot >= db.hot_limit and available and not in_flight and not extras:
        found = summary(available, db.clock.now_ms())
        if found is not None:
            count, page.first, priority, page.min_expires = found
            part.pages.append(page)
            part.cold[page.first] = count, priority
            return
    part.hot += (len(available) + len(in_flight)) // 5
    entries: list[Entry] = []
    places = counted()
    for message_id, priority, visible_at, deadline, attempts in rows_of_five(available):
        extra = extras.get(next(places)) if extras else None
        if extra is None and not attempts:
            entry = Entry(
                message_id, message_id, page, priority, visible_at, deadline, 0, UNKNOWN, None, None
            )
        else:
            entry = Entry.restore(page, message_id, priority, attempts, extra)
            entry.visible_at, entry.expires_at = visible_at, deadline
        entries.append(entry)
    for message_id, priority, claimed_at, lease, attempts in rows_of_five(in_flight):
        extra = extras.get(next(places))
        entry = Entry.restore(page, message_id, priority, attempts, extra)
        if extra is not None and extra.deadline is not None:
            entry.visible_at, entry.expires_at = extra.visible_at or 0, extra.deadline
        else:  # a literal record of the RFC keeps no deadline here: it lives at least so long
            entry.expires_at = lease + 1
        entries.append(entry)
        if extra is not None and extra.parked:
            entry.remember().parked_until = lease
        else:
            part.in_flight.append((entry, claimed_at, lease))
    entries.sort(key=lambda entry: entry.position)
    page.entries = {entry.position: entry for entry in entries}
    if entries:
        page.first = entries[0].position
        part.pages.append(page)


def _assemble(db: State, part: _Parts) -> None:
    """Put a queue's pages in order, give the claims what they hold, and fill the indexes."""
    queue, now = part.queue, db.clock.now_ms()
    holders: dict[int, Claim] = {}
    for claim_id, record in part.claims.items():
        claim = Claim(claim_id, record.client_id)
        claim.created_at, claim.ttl_ms, claim.grace_ms = (
            record.created_at, record.ttl_ms, record.grace_ms,
        )  # fmt: skip
        claim.claimed_at, claim.deadline = record.created_at, record.created_at + record.ttl_ms
        queue.claims[claim_id] = claim
        holders.update(dict.fromkeys(record.message_ids, claim))
    for entry, claimed_at, lease in part.in_flight:
        holder = holders.get(entry.name)
        if holder is None:  # its claim's record is lost, or of a store without any
            holder = Claim(new_claim_id(), "unknown")
            holder.created_at, holder.deadline = claimed_at, lease
            holder.ttl_ms = lease - claimed_at
            queue.claims[holder.id] = holder
        entry.claim = holder
        holder.claimed_at = claimed_at
        holder.held[entry.position] = entry
        if lease != holder.deadline:
            holder.leases[entry.position] = lease
    for claim in queue.claims.values():
        index_claim(queue, claim, min((claim.deadline, *claim.leases.values())))
    for page in sorted(part.pages, key=lambda page: page.first):
        if page.first in part.cold:
            queue.adopt_cold(page, *part.cold[page.first])
            continue
        queue.adopt(page)
        for entry in page.entries.values():
            entry.delayed = entry.claim is None and entry.visible_at > now
            if entry.position != entry.id:
                queue.names[entry.name] = entry.position
            queue.index(entry)
    queue.keys.restore(part.keys)


async def _read_attempts(db: State, queues: Sequence[Queue]) -> None:
    """Read who held the entries whose attempts have ended."""
    wanted = {
        keys.attempts_key(entry.name, queue.raw): entry
        for queue in queues
        for page in queue.pages
        for entry in page.entries.values()
        if entry.attempts > (entry.claim is not None) or entry.past is not None
    }
    stored = await db.engine.get(list(wanted)) if wanted else {}
    for key, value in stored.items():
        try:
            if isinstance(value, Damage):
                raise CodecError(value.why)
            wanted[key].remember().attempts = decode_attempts(value)
        except CodecError as exc:
            db.damaged(Damage(key, str(exc)))


def count_shared(db: State) -> None:
    """Count who holds the messages that more than one queue was given."""
    holders: dict[int, int] = {}
    for queue in db.queues:
        for page in queue.pages:
            for entry in page.entries.values():
                if entry.past is not None and entry.past.shared:
                    holders[entry.id] = holders.get(entry.id, 0) + 1
    db.shared = {message_id: count for message_id, count in holders.items() if count > 1}


async def load_catalogue(db: State) -> None:
    """Read all records of the catalogue; damaged ones are named and left as they are."""
    prefix = keys.prefix(RecordType.RECORD)
    async for chunk in db.engine.scan(prefix, after_prefix(prefix)):
        for key, value in chunk:
            _read_catalogue(db, key, value)


async def reload_catalogue(db: State) -> None:
    """Bring what failed batches had changed of the catalogue back to what the engine holds."""
    wanted = db.catalogue.take_changed(is_in_doubt=db.engine.is_in_doubt)
    stored = await db.engine.get(list(wanted)) if wanted else {}
    for key in wanted:
        db.catalogue.remove(*keys.read_record_key(key))
        if key in stored:
            _read_catalogue(db, key, stored[key])


def _read_catalogue(db: State, key: bytes, value: Stored) -> None:
    if isinstance(value, Damage):
        db.damaged(value)
        return
    try:
        version, expires_at, text = bookkeeping.decode_record(value)
        db.catalogue.install(Record(*keys.read_record_key(key), text, version, expires_at))
    except CodecError as exc:
        db.damaged(Damage(key, str(exc)))

"""Reading the state from the engine: all of it at opening, some queues after a failure.

A new store gets its first records. Where the block of ids is lost, ids continue from the time in
microseconds, since they never run ahead of it. Where the secret of the message ids is lost, all
messages get new ids, and the old ones find nothing.
"""

import gc
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.models import QueueRef, Record
from zaqar_lite.storage.opendata.checkpoint import (
    EMPTY_ACTIVE,
    EMPTY_ENDED,
    entries_of,
    plain_summary,
)
from zaqar_lite.storage.opendata.due import index_claim
from zaqar_lite.storage.opendata.engine import REBUILT, Batch, Damage, Stored
from zaqar_lite.storage.opendata.entries import Claim, Entry, Page, Summary
from zaqar_lite.storage.opendata.format import (
    CodecError,
    after_prefix,
    bookkeeping,
    keys,
    records,
    utf8,
)
from zaqar_lite.storage.opendata.format.active import ActivePage, read_active
from zaqar_lite.storage.opendata.format.bookkeeping import KeyRecord, decode_queue_record
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.idempotency import read_record
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import Ids, IdTexts, State

logger = logging.getLogger(__name__)
_PER_QUEUE = (
    RecordType.CONFIG,
    RecordType.CLAIM,  # before the pages, which name no claims
    RecordType.ACTIVE,
    RecordType.DONE,
    RecordType.FAILED,
    RecordType.IDEMPOTENCY,
)
_EMPTY = {
    RecordType.ACTIVE: EMPTY_ACTIVE,
    RecordType.DONE: EMPTY_ENDED,
    RecordType.FAILED: EMPTY_ENDED,
}
_FIRST_SEGMENT = 1
T = TypeVar("T")


async def load_own_records(db: State) -> None:
    """Read the records of the store itself; those that are missing go into the next batch.

    Raises ConfigurationError: the store is of another format.
    """
    wanted = [keys.FORMAT, keys.STATE, keys.ID_BLOCK, keys.LOG_BLOCK, REBUILT]
    found = await db.engine.get(wanted)
    db.is_rebuilt = REBUILT in found
    if keys.FORMAT not in found and not db.is_rebuilt:
        await _create(db)
        found = await db.engine.get(wanted)
    marker = _read_own(db, found, keys.FORMAT, bytes)
    if marker is None:
        db.puts[keys.FORMAT] = utf8(bookkeeping.FORMAT_MARKER)
    elif marker != utf8(bookkeeping.FORMAT_MARKER):
        raise ConfigurationError(
            f"The store can't be opened: its format is {marker!r}, this server reads "
            f"{bookkeeping.FORMAT_MARKER!r}. Use the version that wrote it, and `zaqar-lite store "
            "export`."
        )
    state = _read_own(db, found, keys.STATE, bookkeeping.decode_state)
    if state is not None:
        db.clock.not_before(state.last_instant)
    block = _read_own(db, found, keys.ID_BLOCK, bookkeeping.decode_block)
    block = block or _read_own(db, found, keys.LOG_BLOCK, bookkeeping.decode_block)
    if block is None or db.is_rebuilt:  # of a damaged store it may be an old one
        block = max(sum(block or ()), db.clock.now_us()), 0
        db.puts[keys.ID_BLOCK] = db.puts[keys.LOG_BLOCK] = bookkeeping.encode_block(*block)
    db.ids = Ids(sum(block))
    if state is None:
        logger.error("the secret of the message ids is lost: messages have other ids from now on")
        state = bookkeeping.State(sum(block), 0, os.urandom(16))
    db.secret, db.id_texts = state.secret, IdTexts(state.secret)
    # In a rebuilt store, messages that no queue holds are put back, not replayed.
    db.routed = sum(block) if db.is_rebuilt else state.routed
    db.segments = await _segments(db, sum(block))
    db.log_start, number = db.segments[-1]
    db.log_prefix = keys.log_prefix(number)
    await _load_garbage(db)
    await load_kept_ids(db)


async def _create(db: State) -> None:
    """Write the records of a new store.

    Ids begin at the time in microseconds, so that a marker from an earlier store that was lost is
    before all messages of this one.
    """
    async for _ in db.rows(b"", b"\xff"):
        raise ConfigurationError(
            "The store can't be opened: it holds records and no format marker, so it is "
            "not one of this server's. Give the server a directory of its own."
        )
    start, now = db.clock.now_us(), db.clock.now_ms()
    block = bookkeeping.encode_block(start, 0)
    puts = {
        keys.FORMAT: utf8(bookkeeping.FORMAT_MARKER),
        keys.STATE: bookkeeping.encode_state(start, now, os.urandom(16)),
        keys.ID_BLOCK: block,
        keys.LOG_BLOCK: block,
        keys.log_segment_key(_FIRST_SEGMENT): bookkeeping.encode_segment(start, now),
        keys.log_listing_key(_FIRST_SEGMENT): b"",
    }
    await db.engine.commit(Batch(puts, ()))


def _read_own(
    db: State, found: Mapping[bytes, Stored], key: bytes, decode: Callable[[bytes], T]
) -> T | None:
    """Decode a record that every store has; None where it is lost, which is logged."""
    return db.decoded(key, found.get(key) or Damage(key, "it is missing"), decode)


async def _segments(db: State, next_id: int) -> list[tuple[int, int]]:
    """The first sequence and the number of the log's segments, in order.

    Where the record of a segment is lost, its first sequence follows from its first entry, which
    has its id.
    """
    starts: dict[int, int] = {}
    lost: list[int] = []
    async for key, value in db.rows(keys.LOG_SEGMENTS):
        number = int.from_bytes(key[-4:], "big")
        start = db.decoded(key, value, bookkeeping.decode_segment)
        if start is None:
            lost.append(number)
        else:
            starts[number] = start[0]
    if not starts and not lost:
        lost.append(_FIRST_SEGMENT)
    for number in lost:
        starts[number] = first = await _first_sequence(db, number, next_id)
        db.puts[keys.log_segment_key(number)] = bookkeeping.encode_segment(first, db.clock.now_ms())
        db.puts[keys.log_listing_key(number)] = b""
    return sorted((start, number) for number, start in starts.items())


async def _first_sequence(db: State, number: int, otherwise: int) -> int:
    async for key, value in db.rows(keys.log_prefix(number)):
        with suppress(CodecError):  # damage is logged when the message is read
            if isinstance(value, bytes):
                return records.decode_metadata(value).message_id - keys.read_log_entry_key(key)[2]
    return otherwise


async def _load_garbage(db: State) -> None:
    garbage = keys.prefix(RecordType.GARBAGE)
    async for key, value in db.rows(garbage):
        if isinstance(value, Damage):
            db.damaged(value)
        else:
            db.garbage.append(key)
        if len(key) > len(garbage):
            db.next_garbage = max(db.next_garbage, 1 + keys.read_message_id(key))


async def load(db: State) -> None:
    """Load all queues: their records, and bounds and summaries of their pages."""
    gc_was_on = gc.isenabled()
    gc.disable()  # it would examine millions of objects that stay again and again
    try:
        loading = _Loading(db)
        for kind in _PER_QUEUE:
            await loading.read(keys.prefix(kind), kind)
        loading.finish()
    finally:
        if gc_was_on:
            gc.enable()
    gc.freeze()


async def reload(db: State, refs: Sequence[QueueRef]) -> None:
    """Read these queues again, after a failed batch had changed them."""
    loading = _Loading(db)
    for ref in refs:
        db.queues.discard(ref)
        for kind in _PER_QUEUE:
            await loading.read(keys.queue_key(kind, keys.queue_id(ref)), kind)
    loading.finish()


class _Parts:
    """The parts of a queue that are put together at the end."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.holders: dict[int, Claim] = {}  # by the shown ids of what they hold
        self.pages: list[tuple[Page, Summary]] = []
        self.keys: list[tuple[bytes, KeyRecord]] = []


class _Loading:
    """Reads records of queues; damaged ones are named and kept as they are."""

    def __init__(self, db: State) -> None:
        self._db = db
        self._parts: dict[bytes, _Parts] = {}
        self._now = db.clock.now_ms()

    async def read(self, prefix: bytes, kind: RecordType) -> None:
        """Read the records of a type."""
        db, empty = self._db, _EMPTY.get(kind)
        async for chunk in db.engine.scan(prefix, after_prefix(prefix)):
            for key, value in chunk:
                if value == empty:
                    continue
                where: keys.QueueKey | None = None
                try:
                    where = keys.read_queue_key(key)
                    if isinstance(value, Damage):
                        db.damaged(value, kind, where)
                    elif kind is RecordType.CONFIG:
                        ref = keys.read_queue_id(where.queue)
                        db.queues.set_record(ref, decode_queue_record(ref, value))
                    else:
                        self._read(kind, where, value)
                except CodecError as exc:
                    db.damaged(Damage(key, str(exc)), kind, where)

    def _read(self, kind: RecordType, where: keys.QueueKey, value: bytes) -> None:
        part = self._parts.get(where.queue)
        if part is None:
            queue = self._db.queues.make(keys.read_queue_id(where.queue))
            part = self._parts[where.queue] = _Parts(queue)
        queue = part.queue
        if kind is RecordType.ACTIVE:
            self._read_page(part, keys.read_page(where.rest), read_active(value))
        elif kind is RecordType.CLAIM:
            _read_claim(part, where.rest.hex(), records.decode_claim(value))
        elif kind is RecordType.IDEMPOTENCY:
            part.keys.append((where.rest, read_record(where.rest, value)))
        else:
            history = queue.done if kind is RecordType.DONE else queue.failed
            history.restore_page(keys.read_page(where.rest), records.decode_ended(value))

    def _read_page(self, part: _Parts, number: int | None, stored: ActivePage) -> None:
        page = Page(number, 0)
        summary = plain_summary(page, stored, part.queue.moved, self._now)
        if summary is None:
            entries, in_flight = entries_of(page, stored, part.holders, self._now)
            if not entries:
                return
            for entry, claimed_at, lease in in_flight:
                _give(part.queue, entry, claimed_at, lease)
            part.queue.moved.update(
                (entry.shown_id, at) for at, entry in entries.items() if at != entry.id
            )
            page.entries, page.first = entries, next(iter(entries))
            page.set_bounds()
            summary = page.summarise() or Summary(len(entries))
            page.forget_entries()
        part.pages.append((page, summary))

    def finish(self) -> None:
        """Put the queues' pages in order, and fill their indexes."""
        for part in self._parts.values():
            queue = part.queue
            for page, summary in sorted(part.pages, key=lambda one: one[0].first):
                queue.adopt_cold(page, summary)
            for claim in queue.claims.values():
                index_claim(queue, claim, min((claim.deadline, *claim.leases.values())))
            queue.keys.restore(part.keys)
        count_shared(self._db)


def _read_claim(part: _Parts, claim_id: str, record: records.ClaimRecord) -> None:
    claim = Claim(claim_id, record.client_id)
    claim.created_at, claim.ttl_ms, claim.grace_ms = (
        record.created_at, record.ttl_ms, record.grace_ms,
    )  # fmt: skip
    claim.claimed_at, claim.deadline = record.created_at, record.created_at + record.ttl_ms
    part.queue.claims[claim_id] = claim
    part.holders.update(dict.fromkeys(record.message_ids, claim))


def _give(queue: Queue, entry: Entry, claimed_at: int, lease: int) -> None:
    """Let a claim hold an entry; a claim whose record is lost is made anew."""
    claim = entry.claim
    if claim is None:  # the record is lost, or another writer keeps none
        claim = entry.claim = Claim(new_claim_id(), "unknown")
        claim.created_at, claim.deadline = claimed_at, lease
        claim.ttl_ms = max(1, lease - claimed_at)
        queue.claims[claim.id] = claim
    claim.claimed_at = claimed_at
    claim.held[entry.position] = entry.shown_id
    if lease != claim.deadline:
        claim.leases[entry.position] = lease


def count_shared(db: State) -> None:
    """Count the holders of the messages that more than one queue was given."""
    holders: Counter[int] = Counter()
    for queue in db.queues:
        for page in queue.pages:
            if page.summary is not None:
                holders.update(page.summary.shared)
                continue
            holders.update(e.id for e in page.entries.values() if e.extras and e.extras.shared)
    db.shared = {message_id: count for message_id, count in holders.items() if count > 1}


async def load_kept_ids(db: State) -> None:
    """Read the ids that messages have kept from other stores, and forget those known so far."""
    found: dict[int, str] = {}
    async for key, value in db.rows(keys.prefix(RecordType.ADOPTED)):
        text = db.decoded(key, value, bytes.hex)
        if text is not None:
            found[keys.read_message_id(key)] = text
    db.id_texts.forget_adopted()
    db.id_texts.adopt(found)


async def load_catalogue(db: State) -> None:
    """Read all records of the catalogue; damaged ones are named and left as they are."""
    async for key, value in db.rows(keys.prefix(RecordType.RECORD)):
        _read_catalogue(db, key, value)


async def reload_catalogue(db: State, wanted: Collection[bytes]) -> None:
    """Read records of the catalogue again, which failed batches had changed."""
    stored = await db.engine.get(list(wanted)) if wanted else {}
    for key in wanted:
        db.catalogue.remove(*keys.read_record_key(key))
        if key in stored:
            _read_catalogue(db, key, stored[key])


def _read_catalogue(db: State, key: bytes, value: Stored) -> None:
    def read(data: bytes) -> Record:
        version, expires_at, text = bookkeeping.decode_record(data)
        return Record(*keys.read_record_key(key), text, version, expires_at)

    record = db.decoded(key, value, read)
    if record is not None:
        db.catalogue.put(record)

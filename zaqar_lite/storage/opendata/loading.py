"""Reading the working state from the engine: all of it at opening, some queues after a failure."""

import gc
from collections import Counter
from collections.abc import Collection, Sequence

from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.models import QueueRef, Record
from zaqar_lite.storage.opendata.checkpoint import (
    EMPTY_ACTIVE,
    EMPTY_ENDED,
    entries_of,
    plain_summary,
)
from zaqar_lite.storage.opendata.due import index_claim
from zaqar_lite.storage.opendata.engine import Damage, Stored
from zaqar_lite.storage.opendata.entries import Claim, Entry, Page, Summary
from zaqar_lite.storage.opendata.format import CodecError, after_prefix, bookkeeping, keys, records
from zaqar_lite.storage.opendata.format.active import ActivePage, read_active
from zaqar_lite.storage.opendata.format.bookkeeping import KeyRecord, decode_queue_record
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.idempotency import read_record
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import State

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

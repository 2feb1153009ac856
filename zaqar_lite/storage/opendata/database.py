"""The store as a whole: opening it, writing its batches, recovering it, closing it.

At the end is the management store. Its records are all in memory; that of a queue is stored as RFC
0001's configuration.
"""

import asyncio
import logging
from collections.abc import Iterable

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record, StoreOptions
from zaqar_lite.storage.opendata import loading
from zaqar_lite.storage.opendata.checkpoint import (
    EMPTY_ACTIVE,
    EMPTY_ENDED,
    encode_changes,
)
from zaqar_lite.storage.opendata.committer import Committer
from zaqar_lite.storage.opendata.engine import REBUILT, Batch, Engine, Unreadable
from zaqar_lite.storage.opendata.format import bookkeeping, keys
from zaqar_lite.storage.opendata.format.keys import PAYLOAD_PREFIX, RecordType
from zaqar_lite.storage.opendata.paging import evict_pages
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.recovery import put_back, replay
from zaqar_lite.storage.opendata.state import State
from zaqar_lite.storage.record_store import RecordStore

logger = logging.getLogger(__name__)
MOST_AT_ONCE = 20
"""Queues whose changes are encoded in one step of the event loop, each in up to 0.1 ms."""

_LAST_BATCH = 20.0
"""Seconds that closing waits for the last batch: a disk may hang."""


class Database(State):
    """The state over an engine that it opens and closes."""

    def __init__(self, engine: Engine, clock: Clock, options: StoreOptions) -> None:
        committer = Committer(engine, self._prepare, self._take, self._recover, self._announce)
        super().__init__(engine, clock, options, committer)
        self._written_touched: set[Queue] = set()
        self._written_ready: dict[QueueRef, int] = {}
        self._undone_queues: set[QueueRef] = set()  # changed by failed batches, to be read again
        self._undone_records: set[bytes] = set()
        self._users = 0
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Open the engine and load the state, for the first of the stores that opens."""
        async with self._opening:
            if self._users == 0:
                await self.engine.open()
                try:
                    await loading.load_own_records(self)
                    await loading.load(self)
                    await put_back(self)
                    await loading.load_catalogue(self)
                    await replay(self)
                    if self.is_rebuilt:
                        self.delete(REBUILT)
                        self.is_rebuilt = False
                    if self.puts or self.deletes or self.touched:
                        await self.committer.durable()
                except Unreadable as exc:
                    await self.engine.close()
                    why = f"The store can't be opened. {exc} {self.engine.way_out}"
                    raise ConfigurationError(why) from exc
                except BaseException:
                    await self.engine.close()
                    raise
            self._users += 1

    async def close(self) -> None:
        """Finish what is under way and close the engine, for the last of the stores that closes."""
        async with self._opening:
            if self._users == 0:
                return
            self._users -= 1
            if self._users:
                return
            finishing = asyncio.create_task(self._finish())
            await asyncio.wait({finishing}, timeout=_LAST_BATCH)
            if not finishing.done():
                logger.error("the last batch is not written after %g s: given up", _LAST_BATCH)
            await self.engine.close()
            await finishing
            for queue in self.queues:
                queue.forget_entries()

    async def _finish(self) -> None:
        try:
            for queue in self.queues:
                if queue.unrecorded_holds:
                    queue.write_holders(len(queue.unrecorded_holds))
                    self.touched.add(queue)
            if self.touched or self.puts:
                await self.committer.durable()
        except Unavailable as exc:
            logger.warning("closing without the last tidying: %s", exc)
        await self.committer.finish()

    async def _prepare(self) -> None:
        """Let waiting requests add to the batch what may, and encode most of a large one in steps.

        A post may have copies in thousands of queues. Between the steps others are answered. A
        queue that changes again meanwhile is touched again, so taking the batch encodes it again,
        and walks no other.
        """
        if self.shares.last_call(self.committer.awaited):
            await asyncio.sleep(0)  # they add their messages
        if len(self.touched) > MOST_AT_ONCE:
            for at, queue in enumerate(list(self.touched)):
                if at % MOST_AT_ONCE == 0:
                    await asyncio.sleep(0)
                self._encode(queue)
                self.touched.remove(queue)
                self.encoded.add(queue)

    def _take(self) -> Batch:
        """Encode everything that changed since the last batch."""
        evict_pages(self)
        for queue in self.touched:
            self._encode(queue)
        puts, deletes, touched = self.puts, self.deletes, self.touched | self.encoded
        routed = self.ids.next if self.routed is None else self.routed
        puts[keys.STATE] = bookkeeping.encode_state(routed, self.clock.now_ms(), self.secret)
        self.puts, self.deletes, self.touched, self.encoded = {}, {}, set(), set()
        self.written, self._written_touched = Batch(puts, list(deletes)), touched
        self._written_ready, self.ready_counts = self.ready_counts, {}
        self.shares.next_batch()
        return self.written

    def _encode(self, queue: Queue) -> None:
        if self.is_current(queue):
            encode_changes(self, queue)
            self.queues.agenda.changed(queue)

    def _forget_batches(self) -> None:
        """Undo in memory what failed batches had changed outside of queues: bodies and garbage."""
        for puts in (self.written.puts, self.puts):
            for key in puts:
                if key.startswith(PAYLOAD_PREFIX):
                    self.bodies.forget(keys.read_message_id(key))
        garbage = keys.prefix(RecordType.GARBAGE)
        for deletes in (self.written.deletes, self.deletes):
            self.garbage.extend(key for key in deletes if key.startswith(garbage))

    async def _recover(self) -> None:
        """Read again from the engine what failed batches had changed; called until it succeeds."""
        touched = self.touched | self.encoded | self._written_touched
        self._undone_queues.update(queue.ref for queue in touched)
        records = keys.prefix(RecordType.RECORD)
        for part in (self.written.puts, self.written.deletes, self.puts, self.deletes):
            self._undone_records.update(key for key in part if key.startswith(records))
        self._forget_batches()
        self.puts, self.deletes, self.touched, self.encoded = {}, {}, set(), set()
        self.written, self._written_touched = Batch({}, ()), set()
        self._written_ready, self.ready_counts = {}, {}
        self.unrouted_due = 0
        self.ids.leave_block()
        await loading.load_kept_ids(self)
        await loading.reload_catalogue(self, self._undone_records)
        await loading.reload(self, sorted(self._undone_queues))
        self._undone_queues, self._undone_records = set(), set()

    def _announce(self) -> None:
        """Tell the listener which queues have new ready messages by the batch just committed."""
        ready_counts, self._written_ready = self._written_ready, {}
        if self.listener is None:
            return
        for ref, count in ready_counts.items():
            if ref in self.watched:
                try:
                    self.listener(ref, count)
                except Exception:  # a hint must not fail the batch, which is durable
                    logger.exception("the listener failed for %s", ref)


class DatabaseUser:
    """One of the two stores over a database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def open(self) -> None:
        await self._db.open()

    async def close(self) -> None:
        await self._db.close()

    async def ping(self) -> None:
        self._db.committer.check_writable()


class OpenDataManagementStore(DatabaseUser, RecordStore):
    """The management store over RFC 0001's records."""

    def __init__(self, db: Database) -> None:
        DatabaseUser.__init__(self, db)
        RecordStore.__init__(self, db.queues.records, db.catalogue, db.clock)

    def _check_readable(self) -> None:
        self._db.committer.check_readable()

    def _check_writable(self) -> None:
        self._db.committer.check_writable()

    async def _queues_visible(self, refs: Iterable[QueueRef]) -> None:
        db = self._db
        await db.committer.visible(max(map(db.queues.epoch, refs), default=0))

    async def _records_visible(self) -> None:
        await self._db.committer.visible(self._db.catalogue.epoch)

    async def _durable(self) -> None:
        await self._db.committer.durable()

    def _next_version(self) -> int:
        return self._db.ids.take(1, self._db.puts)

    def _put_queue(self, record: QueueRecord) -> None:
        """Store a queue's record; a new queue gets the root of each of its lists, as in the RFC."""
        db, config = self._db, bookkeeping.encode_queue_record(record)
        is_new = db.queues.records.get(record.queue) is None
        queue = db.queues.make(record.queue)
        db.put_queue(queue, record, config)
        if not is_new:
            return
        if None not in queue.numbered and None not in queue.damaged_pages:
            db.puts[keys.queue_key(RecordType.ACTIVE, queue.raw)] = EMPTY_ACTIVE
        for history in (queue.done, queue.failed):
            if not history:
                db.put(keys.queue_key(history.kind, queue.raw), EMPTY_ENDED)

    def _delete_queue(self, ref: QueueRef) -> None:
        queue = self._db.queues.make(ref)
        self._db.remove_record(queue)
        self._db.changed(queue)

    def _put_record(self, record: Record) -> None:
        self._db.put_record(record)

    def _delete_record(self, record: Record) -> None:
        self._db.delete_record(record)

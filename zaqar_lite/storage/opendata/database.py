"""The store as a whole: opening it, writing its batches, recovering it, closing it.

A new store gets its first records. Where the block of ids is lost, ids continue from the time in
microseconds, since they never run ahead of it. Where the secret of the message ids is lost, all
messages get new ids, and the old ones find nothing.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.storage.opendata import loading
from zaqar_lite.storage.opendata.checkpoint import encode_ahead, encode_changes
from zaqar_lite.storage.opendata.committer import Committer
from zaqar_lite.storage.opendata.engine import REBUILT, Batch, Damage, Engine, Stored, Unreadable
from zaqar_lite.storage.opendata.format import CodecError, bookkeeping, keys, utf8
from zaqar_lite.storage.opendata.format.keys import PAYLOAD_PREFIX, RecordType
from zaqar_lite.storage.opendata.format.records import decode_metadata
from zaqar_lite.storage.opendata.paging import evict_pages
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.recovery import put_back, replay
from zaqar_lite.storage.opendata.state import Ids, IdTexts, State

logger = logging.getLogger(__name__)
_FIRST_SEGMENT = 1
MOST_AT_ONCE = 20
"""Queues whose pages are encoded in one step of the event loop, each in up to 0.1 ms."""
T = TypeVar("T")


async def open_store(db: State) -> None:
    """Read the records of the store itself; those that are missing go into the next batch.

    Raises ConfigurationError: the store is of another format.
    """
    wanted = [keys.FORMAT, keys.STATE, keys.ID_BLOCK, keys.LOG_BLOCK, REBUILT]
    found = await db.engine.get(wanted)
    db.is_rebuilt = REBUILT in found
    if keys.FORMAT not in found and not db.is_rebuilt:
        await _create(db)
        found = await db.engine.get(wanted)
    marker = _read(db, found, keys.FORMAT, bytes)
    if marker is None:
        db.puts[keys.FORMAT] = utf8(bookkeeping.FORMAT_MARKER)
    elif marker != utf8(bookkeeping.FORMAT_MARKER):
        raise ConfigurationError(
            f"The store can't be opened: its format is {marker!r}, this server reads "
            f"{bookkeeping.FORMAT_MARKER!r}. Use the version that wrote it, and `zaqar-lite store "
            "export`."
        )
    state = _read(db, found, keys.STATE, bookkeeping.decode_state)
    if state is not None:
        db.clock.not_before(state.last_instant)
    block = _read(db, found, keys.ID_BLOCK, bookkeeping.decode_block)
    block = block or _read(db, found, keys.LOG_BLOCK, bookkeeping.decode_block)
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
    await loading.load_kept_ids(db)


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


def _read(
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
                return decode_metadata(value).message_id - keys.read_log_entry_key(key)[2]
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


_LAST_BATCH = 20.0
"""Seconds that closing waits for the last batch: a disk may hang."""


class Database(State):
    """The state over an engine that it opens and closes."""

    def __init__(self, engine: Engine, clock: Clock, options: StoreOptions) -> None:
        committer = Committer(engine, self._prepare, self._take, self._recover, self._announce)
        super().__init__(engine, clock, options, committer)
        self._written_touched: set[Queue] = set()
        self._written_ready: dict[QueueRef, int] = {}
        self._users = 0
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Open the engine and load the state, for the first of the stores that opens."""
        async with self._opening:
            if self._users == 0:
                await self.engine.open()
                try:
                    await open_store(self)
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

        A post may have copies in thousands of queues. Between the steps others are answered; a page
        that changes again meanwhile is encoded again when the batch is taken.
        """
        if self.shares.last_call(self.committer.awaited):
            await asyncio.sleep(0)  # they add their messages
        if len(self.touched) > MOST_AT_ONCE:
            await encode_ahead(self, MOST_AT_ONCE)

    def _take(self) -> Batch:
        """Encode everything that changed since the last batch."""
        evict_pages(self)
        for queue in self.touched:
            if self.is_current(queue):
                encode_changes(self, queue)
                self.queues.agenda.changed(queue)
        puts, deletes, touched = self.puts, self.deletes, self.touched
        routed = self.ids.next if self.routed is None else self.routed
        puts[keys.STATE] = bookkeeping.encode_state(routed, self.clock.now_ms(), self.secret)
        self.puts, self.deletes, self.touched = {}, {}, set()
        self.written, self._written_touched = Batch(puts, list(deletes)), touched
        self._written_ready, self.ready_counts = self.ready_counts, {}
        self.shares.next_batch()
        return self.written

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
        """Read again from the engine what failed batches had changed."""
        refs = {queue.ref for queue in self.touched | self._written_touched}
        changed = [self.written.puts, self.written.deletes, self.puts, self.deletes]
        records = keys.prefix(RecordType.RECORD)
        lost = {key for part in changed for key in part if key.startswith(records)}
        self._forget_batches()
        self.puts, self.deletes, self.touched = {}, {}, set()
        self.written, self._written_touched = Batch({}, ()), set()
        self._written_ready, self.ready_counts = {}, {}
        self.unrouted_due = 0
        self.ids.leave_block()
        await loading.load_kept_ids(self)
        await loading.reload_catalogue(self, lost)
        await loading.reload(self, sorted(refs))

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

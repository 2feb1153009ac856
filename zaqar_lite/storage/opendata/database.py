"""The store as a whole: opening it, writing its batches, recovering it, closing it."""

import asyncio
import logging

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.storage.opendata import loading
from zaqar_lite.storage.opendata.checkpoint import encode_changes
from zaqar_lite.storage.opendata.committer import Committer
from zaqar_lite.storage.opendata.engine import Batch, Engine
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.bookkeeping import encode_state
from zaqar_lite.storage.opendata.format.keys import PAYLOAD_PREFIX, RecordType
from zaqar_lite.storage.opendata.opening import open_store
from zaqar_lite.storage.opendata.paging import cool
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.replay import replay
from zaqar_lite.storage.opendata.restoring import put_back
from zaqar_lite.storage.opendata.state import State

logger = logging.getLogger(__name__)
_LAST_BATCH = 20.0
"""Seconds that closing waits for what is being written: a disk may hang."""


class Database(State):
    """The state over an engine that it opens and closes."""

    def __init__(self, engine: Engine, clock: Clock, options: StoreOptions) -> None:
        committer = Committer(engine, self._take, self._recover, self._tell)
        super().__init__(engine, clock, options, committer)
        self._written_touched: set[Queue] = set()
        self._written_news: dict[QueueRef, int] = {}
        self._in_doubt: set[QueueRef] = set()  # what a batch changes that may still be stored
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
                    self._forget_empty_claims()
                    await replay(self)
                    if self.puts or self.touched:
                        await self.committer.durable()
                    if self.engine.was_rebuilt:
                        await self.engine.forget_rebuild()
                except BaseException:
                    await self.engine.close()
                    raise
            self._users += 1

    def _forget_empty_claims(self) -> None:
        """Let claims be over that hold nothing, unless what they hold may be in a lost page."""
        for queue in self.queues:
            if queue.claims and not queue.damaged_pages:
                queue.forget_empty_claims()
                if queue.changed_claims:
                    self.touched.add(queue)

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
            if self.touched or self.puts:
                await self.committer.durable()
        except Unavailable as exc:
            logger.warning("closing without the last tidying: %s", exc)
        await self.committer.finish()

    def _take(self) -> Batch:
        """Encode everything that changed since the last batch."""
        cool(self)
        puts, deletes, touched = self.puts, self.deletes, self.touched
        for queue in touched:
            if self.is_current(queue):
                encode_changes(self, queue, puts, deletes)
                self.queues.agenda.changed(queue)
        puts[keys.STATE] = encode_state(self.ids.next, self.clock.now_ms(), self.secret)
        self.puts, self.deletes, self.touched = {}, {}, set()
        self.written, self._written_touched = Batch(puts, list(deletes)), touched
        self._written_news, self.news = self.news, {}
        self.catalogue.begin_batch()
        return self.written

    def _forget_batches(self) -> None:
        """Forget what is elsewhere in memory of the batches that failed: bodies, and garbage."""
        for puts in (self.written.puts, self.puts):
            for key in puts:
                if key.startswith(PAYLOAD_PREFIX):
                    self.bodies.forget(keys.read_message_id(key))
        garbage = keys.prefix(RecordType.GARBAGE)
        for deletes in (self.written.deletes, self.deletes):
            self.garbage.extend(key for key in deletes if key.startswith(garbage))

    async def _recover(self) -> None:
        """Bring every queue that a failed batch had changed back to what the engine holds."""
        refs = {queue.ref for queue in self.touched | self._written_touched} | self._in_doubt
        self._in_doubt = refs if self.engine.is_in_doubt else set()
        self._forget_batches()
        self.puts, self.deletes, self.touched = {}, {}, set()
        self.written, self._written_touched = Batch({}, ()), set()
        self._written_news, self.news = {}, {}
        self.unrouted_due = 0
        self.ids.forget_stored()
        await loading.reload_catalogue(self)
        await loading.reload(self, sorted(refs))

    def _tell(self) -> None:
        """Tell the listener what the batch that is durable now made ready."""
        told, self._written_news = self._written_news, {}
        if self.listener is None:
            return
        for ref, count in told.items():
            if ref in self.watched:
                try:
                    self.listener(ref, count)
                except Exception:  # the batch is durable whatever becomes of a hint
                    logger.exception("who waits for %s was not told", ref)

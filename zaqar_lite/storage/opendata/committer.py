"""Group commit: the changes of all concurrent operations become durable in one batch.

How much each project may add to a batch is bounded (`sql/shares.py`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.opendata.engine import Batch, Engine

logger = logging.getLogger(__name__)
_BACK_OFF = 1.0


class Committer:
    """One coroutine that takes the gathered changes, commits them, and answers the operations.

    While a batch is written, the next one gathers. An operation changes the memory first and then
    waits, so everything it relied on is in its own batch or an earlier one. When a batch fails, all
    changes since the last good one are undone: `recover` reads the state again from the engine, all
    waiting operations get the error, and writes are refused for a moment. Where that state can't be
    read, all operations are refused until it can. A batch that takes longer
    than the engine's patience goes on being written; waiting operations fail, and new ones are
    refused, until it is done.
    """

    def __init__(
        self,
        engine: Engine,
        prepare: Callable[[], Awaitable[None]],
        take: Callable[[], Batch],
        recover: Callable[[], Awaitable[None]],
        announce: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._prepare = prepare
        self._take = take
        self._recover = recover
        self._announce = announce
        self._waiting: list[asyncio.Future[None]] = []
        self._writing: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._recovering = self._closing = False
        self._began: float | None = None  # when the batch that is being written was begun
        self._is_late = False  # it takes longer than the engine's patience
        self._watch: asyncio.TimerHandle | None = None
        self._refused: Unavailable | None = None
        self._refused_until = 0.0
        self.failures = 0
        """How many batches have failed."""
        self.epoch = 1
        """The number of the batch that gathers."""
        self.committed = 0
        """The number of the last batch that is durable."""

    def check_readable(self) -> None:
        """Refuse to read while the memory differs from the engine.

        Raises Unavailable: a write failed, and what it had changed in memory is being undone.
        """
        if self._recovering:
            raise Unavailable("A write failed; the store returns to its last good state.")

    def check_writable(self) -> None:
        """Refuse to write shortly after a write failed, and while one takes too long.

        Raises Unavailable: says why that write failed, or for how long it has been waited for.
        """
        self.check_readable()
        if self._is_late:
            raise self._stalled()
        if self._refused is not None:
            if asyncio.get_running_loop().time() < self._refused_until:
                raise Unavailable(self._refused.shown, retry_after=self._refused.retry_after)
            self._refused = None

    @property
    def awaited(self) -> int:
        """How many operations wait for the batch that gathers."""
        return len(self._waiting)

    @property
    def is_refusing(self) -> bool:
        """Whether writes are refused now."""
        try:
            self.check_writable()
        except Unavailable:
            return True
        return False

    def durable(self) -> "asyncio.Future[None]":
        """Wait until everything applied so far is durable.

        Raises Unavailable: a write failed, or the batch before is being written for too long.
        """
        self.check_readable()
        if self._is_late:
            raise self._stalled()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if self._task is None:
            self._task = loop.create_task(self._run(), name="opendata-committer")
        return future

    async def visible(self, epoch: int) -> None:
        """Wait until the batch `epoch` is durable: what a reader saw must not go away again."""
        if epoch <= self.committed:
            return
        self.check_readable()
        if self._is_late:
            raise self._stalled()
        if epoch == self.epoch:
            await self.durable()
        else:
            future = asyncio.get_running_loop().create_future()
            self._writing.append(future)
            await future

    async def finish(self) -> None:
        """Wait until nothing is being written; used before closing."""
        self._closing = True
        while self._task is not None:
            await asyncio.wait({self._task})
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _run(self) -> None:
        try:
            while self._waiting:
                writing = self.epoch
                try:
                    await self._prepare()
                    self._writing, self._waiting = self._waiting, []
                    batch = self._take()
                    self.epoch += 1
                    await self._commit(batch)
                except Unavailable as exc:
                    await self._fail(exc)
                except Exception:
                    # A bug, such as a value that no record can hold, must not fail later batches.
                    logger.exception("a batch can't be written")
                    await self._fail(Unavailable("The store can't write this; try again."))
                else:
                    self.committed = writing
                    _settle(self._writing, None)
                    self._announce()
        except BaseException as exc:
            _settle([*self._writing, *self._waiting], exc)
            self._waiting = []
            raise
        finally:
            self._task = None

    async def _commit(self, batch: Batch) -> None:
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        if self._watch is None:
            self._watch = loop.call_later(self._engine.patience, self._look)
        try:
            await self._engine.commit(batch)
        finally:
            self._began, self._is_late = None, False

    def _look(self) -> None:
        """Check whether a batch takes too long; one timer serves all batches of some seconds."""
        self._watch = None
        if self._began is None:
            return
        loop = asyncio.get_running_loop()
        ends = self._began + self._engine.patience
        if loop.time() < ends:
            self._watch = loop.call_at(ends, self._look)
            return
        self._is_late, stalled = True, self._stalled()
        logger.error("%s", stalled)
        _settle([*self._writing, *self._waiting], stalled)  # the memory holds what the batch holds
        self._writing, self._waiting = [], []

    def _stalled(self) -> Unavailable:
        """The error for operations that would wait for a batch that takes too long."""
        waited = asyncio.get_running_loop().time() - (self._began or 0)
        return Unavailable(
            f"The store's disk has not answered for {waited:.0f} s{self._engine.complaint}; what "
            "was sent meanwhile may be stored later.",
            retry_after=5,
        )

    async def _fail(self, exc: Unavailable) -> None:
        logger.error("a batch was not written: %s", exc)
        self._refused = exc
        self.failures += 1
        failed, self._waiting = [*self._writing, *self._waiting], []
        self._writing = []
        self._recovering = True
        try:
            await self._try_to_recover()
        finally:
            self._refused_until = asyncio.get_running_loop().time() + _BACK_OFF
            self.committed = self.epoch
            self.epoch += 1
            _settle(failed, exc)
        while self._recovering and not self._closing:  # until then all operations are refused
            await asyncio.sleep(_BACK_OFF)
            await self._try_to_recover()

    async def _try_to_recover(self) -> None:
        try:
            await self._recover()
        except Unavailable as unread:
            logger.error("the last good state can't be read yet: %s", unread)
        else:
            self._recovering = False


def _settle(futures: "list[asyncio.Future[None]]", exc: BaseException | None) -> None:
    for future in futures:
        if future.done():
            continue  # its caller went away
        if exc is None:
            future.set_result(None)
        else:
            future.set_exception(exc)

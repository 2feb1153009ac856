"""Startup: the stores are opened, and one that does not answer yet is waited for.

The server listens meanwhile: an orchestrator sees a process that lives and is not ready, and a
store that comes back needs nobody to restart anything. Only a configuration that can never work
ends the server.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.service.background import Worker, cancelled
from zaqar_lite.storage.store import Store

logger = logging.getLogger("zaqar_lite")
_PATIENCE = 3.0
_PAUSE = 1.0
_LOG_EVERY = 60.0


@dataclass(eq=False, repr=False)
class Startup:
    """Open the stores in the background, `prepare` what lies in them, then start the workers.

    A worker that this server does not need is None.
    """

    stores: Sequence[Store]
    workers: Sequence[Worker | None]
    prepare: Callable[[], Awaitable[object]] | None = None

    def __post_init__(self) -> None:
        self._is_ready = False
        self._waits_for = ""
        self._first_failure = asyncio.Event()

    def check(self) -> None:
        """Return when the stores are open.

        Raises:
            Unavailable: they are not; nothing was done.
        """
        if not self._is_ready:
            raise Unavailable("The server has started, and waits for its store.")

    @asynccontextmanager
    async def running(self, fail: Callable[[BaseException], None]) -> AsyncIterator[None]:
        """Open the stores and sweep until the end of the block; then close them.

        The block begins when the stores are open, or when that takes longer than a few seconds.
        `fail` is called with an error that ends the waiting later.

        Raises:
            ConfigurationError: a store can never work as configured.
        """
        async with AsyncExitStack() as opened:
            opening = asyncio.create_task(self._open(opened), name="startup")
            try:
                await asyncio.wait({opening}, timeout=_PATIENCE)
                if opening.done():
                    opening.result()
                else:
                    opening.add_done_callback(lambda task: _tell(task, fail))
                yield
            finally:
                await cancelled(opening)
                self._is_ready = False
                for worker in filter(None, self.workers):
                    await worker.stop()

    async def _open(self, opened: AsyncExitStack) -> None:
        begun = time.monotonic()
        waiting = asyncio.create_task(self._log_waiting())
        try:
            for store in self.stores:
                await self._retried(partial(opened.enter_async_context, store))
            if self.prepare is not None:
                await self._retried(self.prepare)
        finally:
            waiting.cancel()
        for worker in filter(None, self.workers):
            worker.start()
        self._is_ready = True
        waited = time.monotonic() - begun
        if waited > _PATIENCE:
            logger.info("the store is open after %.0f s: requests are served now", waited)

    async def _retried(self, act: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await act()
            except Unavailable as exc:
                if not self._waits_for:
                    self._first_failure.set()
                self._waits_for = str(exc)
                await asyncio.sleep(_PAUSE)
            else:
                return

    async def _log_waiting(self) -> None:
        await asyncio.sleep(_PATIENCE)
        while True:
            self._first_failure.clear()
            why = self._waits_for or "it has neither opened nor failed yet"
            logger.warning("waiting for the store (requests get 503): %s", why)
            with suppress(TimeoutError):  # the first failure says what is wrong
                await asyncio.wait_for(self._first_failure.wait(), _LOG_EVERY)


def _tell(task: "asyncio.Task[None]", fail: Callable[[BaseException], None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        fail(error)

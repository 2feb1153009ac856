"""Work that a process repeats in the background for as long as it lives."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from logging import DEBUG, WARNING
from typing import Any, Protocol

from zaqar_lite.domain.errors import QueueChanged, RecordChanged, ZaqarLiteError

logger = logging.getLogger(__name__)


class LoggedErrors:
    """Log what goes wrong in a block, and go on behind it: it is tried again, or was a courtesy.

    That another writer was faster is nobody's concern. Of blocks that end in the same way one after
    the other, because a store is away for example, only the first is a warning, and the first that
    succeeds again is logged, too.
    """

    __slots__ = ("_told", "_what")

    def __init__(self, what: str) -> None:
        self._what, self._told = what, ""

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """End it; only what ends a task or the process goes further."""
        is_race = isinstance(error, QueueChanged | RecordChanged)
        before, self._told = self._told, "" if error is None or is_race else str(error)
        if isinstance(error, ZaqarLiteError):
            is_news = not is_race and self._told != before
            logger.log(WARNING if is_news else DEBUG, "%s: %s", self._what, error)
        elif isinstance(error, Exception):
            logger.error("%s failed", self._what, exc_info=error)
        elif error is None and before:
            logger.info("%s: works again", self._what)
        return isinstance(error, Exception)


class Background:
    """Repeat a step in a task of the event loop.

    `step` answers how long to rest before the next one, in seconds. Where it answers nothing, while
    the store is away, and after a bug, which must not end the work for the life of the process, the
    rest is `rest` seconds. `name` names the work in the log and the task.
    """

    def __init__(
        self, name: str, step: Callable[[], Awaitable[float | None]], *, rest: float
    ) -> None:
        self._name = name
        self._errors = LoggedErrors(name)
        self._step = step
        self._rest = rest
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin; idempotent."""
        self._stopped = False
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """End the step under way and all later ones; idempotent."""
        # A cancellation at the moment of a wake is lost in `wait_for` (Python 3.11): the loop ends.
        self._stopped = True
        await cancelled(self._task)
        self._task = None

    def wake(self) -> None:
        """End the rest: there is something to do."""
        self._woken.set()

    async def _run(self) -> None:
        while not self._stopped:
            self._woken.clear()
            rest: float | None = None
            with self._errors:
                rest = await self._step()
            rest = self._rest if rest is None else rest
            if rest <= 0:
                await asyncio.sleep(0)
                continue
            try:
                await asyncio.wait_for(self._woken.wait(), rest)
            except TimeoutError:
                continue


async def cancelled(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel tasks and return once they have ended; None is a task that was never begun."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


class Worker(Protocol):
    """What runs in the background while the stores are open; either method may be left out."""

    def start(self) -> None:
        """Begin, in tasks of the running event loop."""
        return

    async def stop(self) -> None:
        """End; idempotent."""
        return


class BackgroundWorker(Worker):
    """A part of the server whose work goes on in the background, from `start` to `stop`."""

    _work: Background

    def start(self) -> None:
        """Begin, in a task of the running event loop."""
        self._work.start()

    async def stop(self) -> None:
        """End the step under way and all later ones; idempotent."""
        await self._work.stop()

"""What follows a commit: it is begun before the answer leaves, and cannot fail or hold it up.

What it would do is noted durably in the step that was committed (a queue's `due`, its outbox, an
intent), so whatever fails here is done by the sweep.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from zaqar_lite.domain.errors import Unavailable

logger = logging.getLogger(__name__)
_PATIENCE = 0.5
"""Seconds for which an answer waits for what follows it, where another node is slow."""


class FollowUps:
    """The tasks that outlive the call which began them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[bool]] = set()

    async def run(
        self, work: Coroutine[Any, Any, object], patience: float | None = _PATIENCE
    ) -> bool:
        """Do the work, or leave it to go on after a moment; answer whether it is done.

        The moment is `patience` in seconds; None waits until the work has ended.
        """
        task = self.begin(work)
        await asyncio.wait({task}, timeout=patience)
        return task.done() and task.result()

    def begin(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[bool]:
        """Do the work in the background; the task answers whether it was done."""
        task = asyncio.create_task(_survive(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End what still runs; the sweep does it."""
        await asyncio.sleep(0)  # what has just been begun must begin, or it could not tidy up
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _survive(work: Coroutine[Any, Any, object]) -> bool:
    try:
        await work
    except Unavailable as exc:
        logger.warning("the sweep will finish what a call began: %s", exc)
    except Exception:
        # A bug here must not take the answer of what was committed with it.
        logger.exception("what follows a commit failed")
    else:
        return True
    return False

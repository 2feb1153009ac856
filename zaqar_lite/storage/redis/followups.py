"""Work that follows a commit: it starts before the answer is sent, and cannot fail or delay it.

The committed step has stored what is to be done (a queue's `due`, its outbox, an intent), so the
sweep does whatever fails here.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from zaqar_lite.domain.errors import Unavailable

logger = logging.getLogger(__name__)
_PATIENCE = 0.5
"""Seconds for which an answer waits for its follow-up, if another node is slow."""


class FollowUps:
    """Tasks that may outlive the call that started them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[bool]] = set()

    async def run(
        self, work: Coroutine[Any, Any, object], patience: float | None = _PATIENCE
    ) -> bool:
        """Do the work for up to `patience` seconds, then in the background; return if it is done.

        Without `patience` wait until the work has ended.
        """
        task = self.begin(work)
        await asyncio.wait({task}, timeout=patience)
        return task.done() and task.result()

    def begin(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[bool]:
        """Do the work in the background; the task returns whether it succeeded."""
        task = asyncio.create_task(_survive(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel what still runs; the sweep will do it."""
        await asyncio.sleep(0)  # let new tasks start: one that has not can't clean up
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

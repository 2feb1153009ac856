"""Limit the long work that a process sends to Redis at once, so that short scripts need not wait.

Redis runs one script after the other: a short one waits for everything that was sent before it. So
a process sends its next long script only when Redis has answered the previous one, and the scripts
of other requests run in between. Waiting projects take turns, however much work each has waiting.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SHORT_POST = 20
"""Posts of up to so many messages are sent at once: they take as long as a claim of twenty."""
PART_SIZE = 100
"""Messages of a long post that one step stores, in under 1 ms; many such steps follow."""
CAPACITY = 100
"""Total cost of the long work in progress; the last one that finds room may exceed it."""


class FairLimiter:
    """Limit the long work in progress, and let waiting projects take turns."""

    def __init__(self) -> None:
        self._room = CAPACITY
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def slot(self, project: str, cost: int) -> AsyncIterator[None]:
        """Wait until there is room for work of a project; `cost` is its number of messages."""
        if self._waiting or self._room <= 0:
            await self._wait(project, cost)
        else:
            self._room -= cost
        try:
            yield
        finally:
            self._leave(cost)

    async def _wait(self, project: str, cost: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(project, deque()).append((cost, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given room before it was cancelled
                self._leave(cost)
            raise

    def _leave(self, cost: int) -> None:
        self._room += cost
        while self._waiting and self._room > 0:
            project = next(iter(self._waiting))
            queue = self._waiting.pop(project)
            cost, turn = queue.popleft()
            if queue:
                self._waiting[project] = queue  # behind the other projects
            if not turn.done():
                self._room -= cost
                turn.set_result(None)

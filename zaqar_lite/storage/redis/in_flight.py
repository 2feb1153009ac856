"""How much long work is on its way to Redis at once, so that short scripts wait for little of it.

Redis runs one script after the other: whatever is on its way before a short one is what that one
waits for. So this process sends the next long script only when Redis has answered the one before,
and what other requests sent meanwhile has its turn in between. Projects that wait have their turns
one after the other, however much each of them has waiting.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SHORT = 20
"""Messages up to which a post is sent at once: it takes as long as a claim of twenty."""
WHOLE = 250
"""Messages up to which a post is one script: 1 to 2 ms."""
PART = 100
"""Messages of a longer post that one script stores: under 1 ms, because many such follow."""
ROOM = 100
"""Messages that longer posts on their way have in all, but for the last of them."""


class InFlight:
    """The long work on its way, and who waits to send theirs."""

    def __init__(self) -> None:
        self._room = ROOM
        self._lines: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def work(self, project: str, cost: int) -> AsyncIterator[None]:
        """Wait until there is room for work of a project; it costs so many messages."""
        if self._lines or self._room <= 0:
            await self._wait(project, cost)
        else:
            self._room -= cost
        try:
            yield
        finally:
            self._leave(cost)

    async def _wait(self, project: str, cost: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(project, deque()).append((cost, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had its turn, and went away
                self._leave(cost)
            raise

    def _leave(self, cost: int) -> None:
        self._room += cost
        while self._lines and self._room > 0:
            project = next(iter(self._lines))
            line = self._lines.pop(project)
            cost, turn = line.popleft()
            if line:
                self._lines[project] = line  # behind the others
            if not turn.done():
                self._room -= cost
                turn.set_result(None)

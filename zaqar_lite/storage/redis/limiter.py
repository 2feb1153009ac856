"""Let the long scripts of a process run one at a time, so that short ones need not wait for many.

Redis runs one script after the other: a short one waits for everything that was sent before it. So
a process sends its next long script only when Redis has answered the previous one, and the scripts
of other requests run in between. Waiting projects take turns, however much work each has waiting.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

FEW_STORED = 20
"""Messages that a short script stores at most."""
FEW_TAKEN = 50
"""Messages that a short script finds, claims, settles or deletes at most: 0.3 ms."""
FEW_BYTES = 32_768
"""Bytes that a short script is given at most: Lua copies them, which takes 1 ms for a megabyte."""


def is_long(count: int, data: Sequence[bytes]) -> bool:
    """Whether a script that stores so many messages, given these bytes, is long."""
    return count > FEW_STORED or sum(map(len, data)) > FEW_BYTES


class FairTurns:
    """Give one holder the turn at a time, and waiting projects their turns in a circle."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, project: str) -> AsyncIterator[None]:
        """Wait for the turn of a project, and hold it in the `with` block."""
        if self._is_taken:
            await self._wait(project)
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, project: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(project, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given the turn before its end
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the turn to the first who waits; it stays taken until nobody does."""
        while self._waiting:
            project = next(iter(self._waiting))
            queue = self._waiting.pop(project)
            turn = queue.popleft()
            if queue:
                self._waiting[project] = queue  # behind the other projects
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False

"""Let few long scripts of a process run at a time, so that short ones need not wait for many.

Redis runs one script after the other: a short one waits for everything that was sent before it. So
a process sends a long script only when Redis has answered all but one of those before, and the
scripts of other requests run in between. (With one at a time Redis is idle while its answer is on
its way: claims of 100 were a quarter slower, and others' p99 was the same.) Waiting projects take
turns, however much work each has waiting.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

LONG_AT_ONCE = 2
"""Long scripts that are sent to a node at a time."""
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
    """Give `most` holders the turn at a time, and waiting projects their turns in a circle."""

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self._taken = 0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, project: str) -> AsyncIterator[None]:
        """Wait for the turn of a project, and hold it in the `with` block."""
        if self._taken >= self._most:
            await self._wait(project)
        else:
            self._taken += 1
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
        """Give a turn to the first who waits; it is free when nobody does."""
        while self._waiting:
            project = next(iter(self._waiting))
            queue = self._waiting.pop(project)
            turn = queue.popleft()
            if queue:
                self._waiting[project] = queue  # behind the other projects
            if not turn.done():
                turn.set_result(None)
                return
        self._taken -= 1

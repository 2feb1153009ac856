"""Long work is done in steps, between which the requests of others go on."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
_LOCKS = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()
"""Who holds its loop's lock has the turn."""
STEP = 500
"""How many messages one step reads, checks or prepares: 1 to 3 ms."""
_ROUNDS = 4
_SLICE = 0.002
"""Seconds of work after which other requests have their turn."""


class Turns:
    """Lets all long work of an event loop take turns, one step at a time.

    Between two steps the event loop makes several rounds: it reads the requests that arrived during
    a step, runs what they do, and answers them. So most requests wait for one step only, however
    many large requests there are, in the store or above it.
    """

    async def wait(self) -> None:
        """Wait for the next turn, which lasts until the caller awaits something."""
        async with _LOCKS.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)

    def slices(self) -> "Slices":
        """Begin long work of one request whose parts take nobody knows how long."""
        return Slices(self)

    async def steps(self, items: Sequence[T]) -> AsyncIterator[tuple[int, Sequence[T]]]:
        """Cut items into steps, which take turns with other long work; a few are one step at once.

        A step is the index of its first item, and its items.
        """
        if len(items) <= STEP:
            yield 0, items
            return
        for first in range(0, len(items), STEP):
            await self.wait()
            yield first, items[first : first + STEP]


class Slices:
    """Long work of one request, in slices of some milliseconds between which others go on."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._ends = time.monotonic() + _SLICE

    async def take_turns(self) -> None:
        """Let others go on, when this slice has lasted long enough."""
        if time.monotonic() >= self._ends:
            await self._turns.wait()
            self._ends = time.monotonic() + _SLICE

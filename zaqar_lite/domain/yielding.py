"""Long work is done in steps, which take turns, and between which the requests of others go on.

Between two steps the event loop makes several rounds: it reads the requests that arrived during a
step, runs what they do, and answers them. So most requests wait for one step only, however many
large requests there are, in the store or above it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
_LOCKS = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()
"""Who holds its loop's lock has the turn."""
STEP = 100
"""How many messages one step prepares: up to 0.5 ms."""
_ROUNDS = 4
_SLICE = 0.0004
"""Seconds of work after which other requests have their turn."""


async def next_turn() -> None:
    """Wait for the next turn, which lasts until the caller awaits something."""
    async with _LOCKS.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)


async def in_steps(items: Sequence[T]) -> AsyncIterator[tuple[int, Sequence[T]]]:
    """Cut items into steps, which take turns with other long work; a few are one step at once.

    A step is the index of its first item, and its items.
    """
    if len(items) <= STEP:
        yield 0, items
        return
    await next_turn()
    slices = Slices()
    for first in range(0, len(items), STEP):
        await slices.next_turn()
        yield first, items[first : first + STEP]


class Slices:
    """Long work of one request whose parts take nobody knows how long, in slices of some time."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + _SLICE

    async def next_turn(self) -> None:
        """Let others go on, when this slice has lasted long enough."""
        if time.monotonic() >= self._ends:
            await next_turn()
            self._ends = time.monotonic() + _SLICE

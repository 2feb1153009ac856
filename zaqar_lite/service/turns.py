"""Long work in steps: whatever its size and its number, the others wait for one step of it."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
STEP = 500
"""Messages that one step reads, checks or prepares: 1 to 3 ms."""


class Turns:
    """Turns of all long work in this process: one step of it at a time.

    Between two steps the event loop goes round twice. In the first round it reads the requests that
    came during a step, in the second it answers them: they wait for that one step and no other.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Wait for the next turn; it lasts until the caller waits for anything."""
        async with self._lock:
            await asyncio.sleep(0)
            await asyncio.sleep(0)


def cut(items: Sequence[T]) -> Sequence[tuple[int, Sequence[T]]]:
    """Cut items into steps: the index of the first, and the items."""
    return [(first, items[first : first + STEP]) for first in range(0, len(items), STEP)]

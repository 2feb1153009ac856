"""Long work is done in steps, so that other requests wait for at most one step of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from zaqar_lite.domain.turns import Turns

T = TypeVar("T")
STEP = 500
"""How many messages one step reads, checks or prepares: 1 to 3 ms."""


async def in_steps(
    items: Sequence[T], turns: Turns | None = None
) -> AsyncIterator[tuple[int, Sequence[T]]]:
    """Cut items into steps, before each of which others go on; a few items are one step at once.

    A step is the index of its first item, and its items.
    With `turns`, all long work that uses these takes them one step after the other.
    """
    if len(items) <= STEP:
        yield 0, items
        return
    for first in range(0, len(items), STEP):
        await (asyncio.sleep(0) if turns is None else turns.wait())
        yield first, items[first : first + STEP]

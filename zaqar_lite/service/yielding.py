"""Long work is done in steps, so that other requests wait for at most one step of it."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
STEP = 500
"""How many messages one step reads, checks or prepares: 1 to 3 ms."""


def cut(items: Sequence[T]) -> Sequence[tuple[int, Sequence[T]]]:
    """Cut items into steps; each is the index of its first item, and its items."""
    return [(first, items[first : first + STEP]) for first in range(0, len(items), STEP)]

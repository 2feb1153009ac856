"""A sorted index that takes many values in a row at once."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sortedcontainers import SortedList

T = TypeVar("T")
LONG_RUN = 500
"""From so many values on, they become parts of their own instead of joining the last part."""


class Run(SortedList[T]):
    """A sorted list to which many larger values can be appended in one step.

    Its base class adds them one by one or sorts the whole list again. In a post of 5,000 messages
    that took longer than everything else, and every other request waited for it.
    """

    def add_run(self, values: Sequence[T]) -> None:
        """Add sorted values; in one step when all are above the list's last value."""
        if not values:
            return
        inner: Any = self  # its parts of about a thousand, the last value of each, and their index
        maxes = inner._maxes
        if maxes and values[0] < maxes[-1]:
            for value in values:
                self.add(value)
            return
        inner._len += len(values)
        inner._index.clear()
        if maxes and len(values) < LONG_RUN:
            inner._lists[-1].extend(values)
            maxes[-1] = values[-1]
            inner._expand(len(maxes) - 1)
            return
        parts = [list(values[n : n + inner._load]) for n in range(0, len(values), inner._load)]
        inner._lists.extend(parts)
        maxes.extend(part[-1] for part in parts)

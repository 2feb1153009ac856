"""A sorted index that takes many values in a row at once."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sortedcontainers import SortedList

T = TypeVar("T")
LONG_RUN = 500
"""From so many values on, adding them as parts of their own is faster than one by one."""


class Run(SortedList[T]):
    """A sorted list to which thousands of larger values can be appended in one step.

    Its base class adds them one by one or sorts the whole list again. In a post of 5,000 messages
    that took longer than everything else, and every other request waited for it.
    """

    def add_run(self, values: Sequence[T]) -> None:
        """Add sorted values; as whole parts when all are above the list's last value."""
        inner: Any = self  # its lists of a thousand, the last value of each, and its index of them
        if len(values) < LONG_RUN or (inner._maxes and values[0] < inner._maxes[-1]):
            for value in values:
                self.add(value)
            return
        parts = [list(values[n : n + inner._load]) for n in range(0, len(values), inner._load)]
        inner._lists.extend(parts)
        inner._maxes.extend(part[-1] for part in parts)
        inner._len += len(values)
        inner._index.clear()

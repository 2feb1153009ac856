"""A sorted index that takes many values in a row at once."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sortedcontainers import SortedList

T = TypeVar("T")
LONG_RUN = 500
"""So many values in a row are worth parts of their own in an index, whose parts have a thousand."""


class Run(SortedList[T]):
    """A sorted list that grows at its end, by one value or by thousands in one step.

    Its base puts in one after the other, or sorts all anew: a post of 5,000 messages held up
    everybody for longer by that than by everything else.
    """

    def add_run(self, values: Sequence[T]) -> None:
        """Let in values that are in order: as they are where all are above what is there."""
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

"""Positions by the instant at which their entries expire."""

from collections.abc import Sequence

from sortedcontainers import SortedList


class Deadlines:
    """An index of (instant, position), made for many entries that expire at one instant.

    What was posted at once expires at once: a sorted index of the instants alone is changed once
    for all of it, which halves what it costs to delete a batch.
    """

    __slots__ = ("_at", "_instants")

    def __init__(self) -> None:
        self._at: dict[int, int | set[int]] = {}
        self._instants: SortedList[int] = SortedList()

    def add(self, instant: int, position: int) -> None:
        """Let a position in."""
        there = self._at.get(instant)
        if there is None:
            self._at[instant] = position
            self._instants.add(instant)
        elif isinstance(there, int):
            self._at[instant] = {there, position}
        else:
            there.add(position)

    def add_all(self, instant: int, positions: Sequence[int]) -> None:
        """Let positions in that have one instant."""
        there = self._at.get(instant)
        if there is None:
            self._at[instant] = set(positions)
            self._instants.add(instant)
        elif isinstance(there, int):
            self._at[instant] = {there, *positions}
        else:
            there.update(positions)

    def remove(self, instant: int, position: int) -> None:
        """Take a position out that is in."""
        there = self._at[instant]
        if not isinstance(there, int):
            there.remove(position)
            if there:
                return
        del self._at[instant]
        self._instants.remove(instant)

    @property
    def first(self) -> int | None:
        """The first instant."""
        return self._instants[0] if self._instants else None

    def due(self, now: int) -> int | None:
        """A position whose instant has come."""
        if not self._instants or self._instants[0] > now:
            return None
        there = self._at[self._instants[0]]
        if isinstance(there, int):
            return there
        position = there.pop()  # goes on from its last place; an iteration would begin at the front
        there.add(position)
        return position

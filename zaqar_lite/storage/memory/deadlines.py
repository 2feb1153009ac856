"""Positions by the instant at which their entries expire."""

from collections.abc import Sequence

from sortedcontainers import SortedList


class Deadlines:
    """A sorted index of (instant, position) in which many entries may share one instant.

    The messages of a post expire at one instant. Only the instants are sorted, so a post or a
    deletion of its messages changes the sorted list once: this halves the cost of deleting a batch.
    """

    __slots__ = ("_at", "_instants")

    def __init__(self) -> None:
        self._at: dict[int, int | set[int]] = {}
        self._instants: SortedList[int] = SortedList()

    def add(self, instant: int, position: int) -> None:
        """Add a position."""
        known = self._at.get(instant)
        if known is None:
            self._at[instant] = position
            self._instants.add(instant)
        elif isinstance(known, int):
            self._at[instant] = {known, position}
        else:
            known.add(position)

    def add_all(self, instant: int, positions: Sequence[int]) -> None:
        """Add positions that share an instant."""
        known = self._at.get(instant)
        if known is None:
            self._at[instant] = set(positions)
            self._instants.add(instant)
        elif isinstance(known, int):
            self._at[instant] = {known, *positions}
        else:
            known.update(positions)

    def remove(self, instant: int, position: int) -> None:
        """Remove a position, which must be in the index."""
        known = self._at[instant]
        if not isinstance(known, int):
            known.remove(position)
            if known:
                return
        del self._at[instant]
        self._instants.remove(instant)

    @property
    def first(self) -> int | None:
        """The earliest instant; None when the index is empty."""
        return self._instants[0] if self._instants else None

    def due(self, now: int) -> int | None:
        """A position with an instant that has come, which stays in the index; None without one."""
        if not self._instants or self._instants[0] > now:
            return None
        known = self._at[self._instants[0]]
        if isinstance(known, int):
            return known
        position = known.pop()  # an iteration would pass the empty slots at the front each time
        known.add(position)
        return position

"""The lists of done and of failed messages of a queue: appended to, and trimmed from the front.

In memory are the pages' extents and the last page; the others are read when somebody asks.
"""

from typing import NamedTuple

from zaqar_lite.storage.opendata.entries import PAGE_SIZE
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.format.records import Ended


class Extent(NamedTuple):
    """A full page: its number (None is the root) and when its last message ended."""

    number: int | None
    last_ended_at: int


class History:
    """Done or failed messages; `changed` holds the numbers of the pages that differ on disk."""

    def __init__(self, kind: RecordType) -> None:
        self.kind = kind
        self.full: list[Extent] = []
        self.number: int | None = None
        self.tail: list[Ended] = []
        self.changed: set[int | None] = set()
        self.filled: dict[int | None, list[Ended]] = {}
        """Full pages that are not on disk as they are, for the next batch."""

    def __bool__(self) -> bool:
        return bool(self.full or self.tail)

    def append(self, ended: Ended) -> None:
        """Add a message at the end."""
        if len(self.tail) >= PAGE_SIZE:
            self.full.append(Extent(self.number, self.tail[-1].ended_at))
            if self.number in self.changed:
                self.filled[self.number] = self.tail
            self.tail = []
            self.number = (self.number or 0) + 1
        self.tail.append(ended)
        self.changed.add(self.number)

    def restore_page(self, number: int | None, items: list[Ended]) -> None:
        """Take over a page of the store; they come in order of their number, the root first."""
        if self.tail:
            self.full.append(Extent(self.number, self.tail[-1].ended_at))
        if items:
            self.number, self.tail = number, items

    def is_full(self, number: int | None) -> bool:
        """Whether a page became full since the last batch."""
        return number in self.filled

    def drop_first(self) -> int | None:
        """Forget the first full page; answer its number."""
        extent = self.full.pop(0)
        self.changed.add(extent.number)
        self.filled.pop(extent.number, None)
        return extent.number

    def trim_tail(self, cutoff: int) -> list[Ended]:
        """Forget what ended up to `cutoff` in the last page; answer it."""
        gone = [item for item in self.tail if item.ended_at <= cutoff]
        if gone:
            self.tail = self.tail[len(gone) :]
            self.changed.add(self.number)
        return gone

    def numbers(self, after: int | None) -> list[int | None]:
        """The numbers of the pages from the one `after` stands for (0 is the root; None: all)."""
        known = [extent.number for extent in self.full]
        known.append(self.number)
        return [number for number in known if after is None or (number or 0) >= after]

"""Pages that are only on disk: beyond a number of messages, a queue keeps just its head in memory.

A cold page is a count, a priority and the earliest deadline; its entries are in its record. Only a
page of entries that simply wait can be cold: ready, never claimed, all of one priority, nothing
beyond the RFC's fields. The last page never is.

Loading waits for the engine, and others may act meanwhile. So an operation asks again and again
what it needs that is cold, and acts in the same step of the event loop in which the answer is
nothing.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from zaqar_lite.storage.opendata.entries import UNKNOWN, Entry, Page
from zaqar_lite.storage.opendata.format.active import rows_of_five

_RECENT = 8


class ColdPages:
    """The cold pages of one queue, by the ready key of their first entry, and who came in late."""

    def __init__(self) -> None:
        self.count = 0
        """How many entries are in cold pages."""
        self.loaded: deque[Page] = deque()
        """Pages that were cold once, the longest ago first."""
        self._heap: list[tuple[int, Page]] = []

    def add(self, page: Page, count: int, priority: int) -> None:
        """Let a page be cold; its entries are forgotten."""
        page.cold = count
        page.entries = {}
        self.count += count
        heappush(self._heap, (priority << 64 | page.first, page))

    def remove(self, page: Page) -> None:
        """Let a page be cold no more."""
        self.count -= page.cold
        page.cold = 0

    def first(self) -> tuple[int, Page] | None:
        """The cold page that is next to be claimed, and the ready key of its first entry."""
        heap = self._heap
        while heap and not heap[0][1].cold:
            heappop(heap)
        return heap[0] if heap else None

    def clear(self) -> None:
        """Forget all."""
        self.count = 0
        self.loaded.clear()
        self._heap.clear()


def may_be_cold(page: Page) -> bool:
    """Whether all entries of a page simply wait, with one priority."""
    priority = -1
    for entry in page.entries.values():
        if entry.claim is not None or entry.delayed or entry.past is not None:
            return False
        if not entry.is_plain or entry.attempts or priority not in (-1, entry.priority):
            return False
        priority = entry.priority
    return priority >= 0


def summary(fields: Sequence[int], now: int) -> tuple[int, int, int, int] | None:
    """Count, first position, priority and earliest deadline of a record that may stay cold."""
    rows = list(rows_of_five(fields))
    first_id, priority = rows[0][0], rows[0][1]
    for _, of_this, visible_at, _, attempts in rows:
        if attempts or of_this != priority or visible_at > now:
            return None
    return len(rows), first_id, priority, min(row[3] for row in rows)


def entries_of(page: Page, fields: Iterable[int]) -> dict[int, Entry]:
    """Make the entries of a cold page from its record's fields."""
    return {
        message_id: Entry(
            message_id, message_id, page, priority, visible_at, deadline, 0, UNKNOWN, None, None
        )
        for message_id, priority, visible_at, deadline, _ in rows_of_five(list(fields))
    }


def candidates(pages: Sequence[Page], loaded: deque[Page]) -> list[Page]:
    """Pages to look at first when memory is short: loaded long ago, or filled just now."""
    return [*list(loaded)[:_RECENT], *reversed(pages[-1 - _RECENT : -1])]

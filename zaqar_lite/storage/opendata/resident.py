"""Which pages of all queues are in memory: the longest unused make room for others."""

from collections import OrderedDict
from collections.abc import Iterator

from zaqar_lite.storage.opendata.entries import Page
from zaqar_lite.storage.opendata.queue import Queue

ENTRY_BYTES = 400
"""About what an entry takes in memory, with what it points to."""
_PAGE_BYTES = 1_000


class Resident:
    """Pages with entries in memory, by when they were last loaded or written."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """How many bytes the pages may take."""
        self.size = 0
        """How many bytes they take, about."""
        self._pages: OrderedDict[Page, tuple[Queue, int]] = OrderedDict()

    def use(self, page: Page, queue: Queue) -> None:
        """Note that a page was loaded or written now."""
        size = _PAGE_BYTES + len(page.entries) * ENTRY_BYTES
        self.forget(page)
        self._pages[page] = queue, size
        self.size += size

    def forget(self, page: Page) -> None:
        """Note that a page is not in memory any more."""
        known = self._pages.pop(page, None)
        if known is not None:
            self.size -= known[1]

    def oldest(self, most: int) -> Iterator[tuple[Page, Queue]]:
        """The pages that were not used for longest, at most so many, while there are too many.

        Each is noted as used now; who lets one go forgets it.
        """
        for _ in range(min(most, len(self._pages))):
            if self.size <= self.limit:
                return
            page, (queue, _) = next(iter(self._pages.items()))
            self._pages.move_to_end(page)
            yield page, queue

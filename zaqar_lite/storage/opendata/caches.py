"""What stays in memory while there is room: pages of all queues, and the latest bodies."""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence

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


_OVERHEAD = 150


class Bodies:
    """The bodies of the latest messages, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._order: deque[tuple[int, int, int]] = deque()  # first id, how many, bytes
        self._bodies: dict[int, bytes] = {}
        self.get = self._bodies.get
        """The body of a message id, or None."""

    def keep(self, first: int, bodies: Sequence[bytes]) -> None:
        """Keep the bodies of ids in a row until others need the room."""
        count = len(bodies)
        size = sum(map(len, bodies)) + count * _OVERHEAD
        self._bodies.update(zip(range(first, first + count), bodies, strict=True))
        self._order.append((first, count, size))
        self._size += size
        while self._size > self._limit:
            oldest, count, size = self._order.popleft()
            for message_id in range(oldest, oldest + count):
                self._bodies.pop(message_id, None)
            self._size -= size

    def forget(self, message_id: int) -> None:
        """Forget the body of a message that is gone."""
        self._bodies.pop(message_id, None)

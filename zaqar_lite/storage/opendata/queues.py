"""All queues in memory: the sweep's agenda, and the caches of pages and bodies."""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.opendata.entries import NEVER, Page
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.records import QueueRecords

_SLACK = 1_000


class Agenda:
    """The queues that the sweep is to visit: those that changed, and a heap of others by instant.

    A queue is in the heap for `Queue.visit_at`, the next instant at which something in it may be
    due. Items for other instants are skipped, and removed once they are most of the heap.
    """

    def __init__(self) -> None:
        self.visits = 0
        """How many queues were handed out (for tests)."""
        self._changed: deque[Queue] = deque()
        self._heap: list[tuple[int, int, Queue]] = []
        self._numbers = count()
        self._most = _SLACK

    def changed(self, queue: Queue) -> None:
        """Let the next sweep visit a queue, whether or not something is due in it."""
        if not queue.is_scheduled:
            queue.is_scheduled = True
            self._changed.append(queue)

    def note(self, queue: Queue, at: int) -> None:
        """Let a sweep visit a queue at an instant or earlier."""
        if at < queue.visit_at:
            queue.visit_at = at
            heappush(self._heap, (at, next(self._numbers), queue))
            if len(self._heap) > self._most:
                self._heap = [item for item in self._heap if item[2].visit_at == item[0]]
                heapify(self._heap)
                self._most = 2 * len(self._heap) + _SLACK

    def next(self, now: int) -> Queue | None:
        """The next queue to visit, each once; None when there is none at this instant."""
        if self._changed:
            queue = self._changed.popleft()
            queue.is_scheduled = False
            self.visits += 1
            return queue
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, queue = heappop(heap)
            if queue.visit_at == at:
                queue.visit_at = NEVER
                self.visits += 1
                return queue
        return None


class Queues:
    """The queues by name, and their records with all indexes.

    A queue that has nothing but its record rests: only the record is kept in memory, and the queue
    is made again when an operation asks for it.
    """

    def __init__(self) -> None:
        self._queues: dict[QueueRef, Queue] = {}
        self.records = QueueRecords()
        self.agenda = Agenda()

    def __iter__(self) -> Iterator[Queue]:
        """The queues that are not at rest."""
        return iter(list(self._queues.values()))

    def refs(self) -> list[QueueRef]:
        """All queues, in order, also those at rest."""
        return sorted({*self._queues, *self.records.refs()})

    def get(self, ref: QueueRef) -> Queue | None:
        """The queue of this name, whether or not it has a record."""
        queue = self._queues.get(ref)
        if queue is None and self.records.get(ref) is not None:
            return self.make(ref)
        return queue

    def epoch(self, ref: QueueRef) -> int:
        """The last batch that has a change of a queue or its record; 0 for a queue at rest."""
        queue = self._queues.get(ref)
        return 0 if queue is None else queue.epoch

    def is_current(self, queue: Queue) -> bool:
        """Whether a queue was not replaced since the caller found it."""
        return self._queues.get(queue.ref) is queue

    def make(self, ref: QueueRef) -> Queue:
        """The queue of this name; made when there is none."""
        queue = self._queues.get(ref)
        if queue is None:
            queue = self._queues[ref] = Queue(ref)
            queue.record = self.records.get(ref)
            self.agenda.changed(queue)
        return queue

    def rest(self, queue: Queue) -> None:
        """Keep only the record of a queue, if it has one."""
        self._queues.pop(queue.ref, None)

    def set_record(self, ref: QueueRef, record: QueueRecord | None) -> None:
        """Replace or remove a queue's record; a queue at rest stays so."""
        if record is None:
            self.records.remove(ref)
        else:
            self.records.put(record)
        queue = self._queues.get(ref)
        if queue is not None:
            queue.record = record

    def discard(self, ref: QueueRef) -> None:
        """Forget a queue, its entries and its record; no error when there is none."""
        self.records.remove(ref)
        queue = self._queues.pop(ref, None)
        if queue is not None:
            queue.forget_entries()


ENTRY_BYTES = 400
"""About what an entry takes in memory, with what it points to."""
_PAGE_BYTES = 1_000


class PageCache:
    """The pages in memory, ordered by when they were last loaded or written."""

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
        """The least recently used pages, at most `most`, while the cache is over its limit.

        Each becomes the most recently used; the caller forgets those that it evicts.
        """
        for _ in range(min(most, len(self._pages))):
            if self.size <= self.limit:
                return
            page, (queue, _) = next(iter(self._pages.items()))
            self._pages.move_to_end(page)
            yield page, queue


_OVERHEAD = 150


class BodyCache:
    """The bodies of the latest messages, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._order: deque[tuple[int, int, int]] = deque()  # first id, how many, bytes
        self._bodies: dict[int, bytes] = {}
        self.get = self._bodies.get
        """The body of a message id, or None."""

    def keep(self, first: int, bodies: Sequence[bytes]) -> None:
        """Keep the bodies of ids in a row until newer ones need the room."""
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

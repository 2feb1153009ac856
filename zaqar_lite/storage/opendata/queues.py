"""All queues and records in memory: their indexes, the sweep's agenda, and the caches.

Records that are neither queues nor messages are all in memory, by kind, project and name. Changes
of them go into the batch at once; when it fails, they are read again.
"""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import NamedTuple

from sortedcontainers import SortedDict, SortedList

from zaqar_lite.domain.metadata import FILTER, dead_letter_target
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record
from zaqar_lite.storage.opendata.entries import NEVER, Page
from zaqar_lite.storage.opendata.queue import Queue

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
    """Queues by name, the names of each project in order, and indexes of their metadata.

    A queue that has nothing but its record rests: only the record is kept in memory, and the queue
    is made again when an operation asks for it.
    """

    def __init__(self) -> None:
        self._queues: dict[QueueRef, Queue] = {}
        self._resting: dict[QueueRef, QueueRecord] = {}
        self._names: dict[str, list[str]] = {}
        self._sources: dict[QueueRef, set[str]] = {}
        self._filtered: dict[str, set[str]] = {}
        self._exposing: dict[QueueRef, None] = {}
        self.agenda = Agenda()

    def __iter__(self) -> Iterator[Queue]:
        """The queues that are not at rest."""
        return iter(list(self._queues.values()))

    def refs(self) -> list[QueueRef]:
        """All queues, in order, also those at rest."""
        return sorted([*self._queues, *self._resting])

    def get(self, ref: QueueRef) -> Queue | None:
        """The queue of this name, whether or not it has a record."""
        queue = self._queues.get(ref)
        if queue is None and ref in self._resting:
            return self.make(ref)
        return queue

    def is_current(self, queue: Queue) -> bool:
        """Whether a queue was not replaced since the caller found it."""
        return self._queues.get(queue.ref) is queue

    def make(self, ref: QueueRef) -> Queue:
        """The queue of this name; made when there is none."""
        queue = self._queues.get(ref)
        if queue is None:
            queue = self._queues[ref] = Queue(ref)
            queue.record = self._resting.pop(ref, None)
            self.agenda.changed(queue)
        return queue

    def rest(self, queue: Queue) -> None:
        """Keep only the record of a queue, if it has one."""
        if self._queues.pop(queue.ref, None) is not None and queue.record is not None:
            self._resting[queue.ref] = queue.record

    def restore(self, record: QueueRecord) -> None:
        """Take over a queue's record from the store; a queue with nothing else is at rest."""
        queue = self._queues.get(record.ref)
        self._index(record.ref, None if queue is None else queue.record, record)
        if queue is None:
            self._resting[record.ref] = record
        else:
            queue.record = record

    def discard(self, ref: QueueRef) -> None:
        """Forget a queue; no error when there is none."""
        queue = self.get(ref)
        if queue is not None:
            self.set_record(queue, None)
            del self._queues[ref]

    def record(self, ref: QueueRef) -> QueueRecord | None:
        """The record of a queue; a queue at rest stays so."""
        queue = self._queues.get(ref)
        return self._resting.get(ref) if queue is None else queue.record

    def epoch(self, ref: QueueRef) -> int:
        """The last batch that has a change of a queue; 0 for a queue at rest."""
        queue = self._queues.get(ref)
        return 0 if queue is None else queue.epoch

    def set_record(self, queue: Queue, record: QueueRecord | None) -> None:
        """Replace a queue's record and its places in the indexes."""
        self._index(queue.ref, queue.record, record)
        queue.record = record

    def _index(self, ref: QueueRef, before: QueueRecord | None, record: QueueRecord | None) -> None:
        project = ref.project
        if before is not None:
            self._unindex(before)
        if record is not None:
            if before is None:
                self._enter_name(project, ref.name)
            target = dead_letter_target(record.metadata)
            if target is not None:
                self._sources.setdefault(QueueRef(project, target), set()).add(ref.name)
            if record.metadata.get(FILTER) is not None:
                self._filtered.setdefault(project, set()).add(ref.name)
            if record.exposing:
                self._exposing[ref] = None
        elif before is not None:
            names = self._names[project]
            del names[bisect_left(names, ref.name)]

    def _enter_name(self, project: str, name: str) -> None:
        names = self._names.setdefault(project, [])
        if names and name < names[-1]:
            insort(names, name)
        else:
            names.append(name)

    def _unindex(self, record: QueueRecord) -> None:
        ref = record.ref
        target = dead_letter_target(record.metadata)
        if target is not None:
            self._sources[QueueRef(ref.project, target)].discard(ref.name)
        self._filtered.get(ref.project, set()).discard(ref.name)
        self._exposing.pop(ref, None)

    def names(self, project: str) -> list[str]:
        """The names of a project's queues that have a record, in order."""
        return self._names.get(project, [])

    def names_after(self, project: str, marker: str | None, count: int) -> list[str]:
        """The first names of a project's queues after `marker`, in order."""
        names = self._names.get(project, [])
        start = 0 if marker is None else bisect_right(names, marker)
        return names[start : start + count]

    def sources(self, target: QueueRef) -> list[str]:
        """The queues whose dead-letter queue this is."""
        return sorted(self._sources.get(target, ()))

    def filtered(self, project: str) -> list[QueueRecord]:
        """The records of a project's queues that have a filter."""
        names = self._filtered.get(project)
        if not names:
            return []  # most projects: this is asked at every post
        records = (self.record(QueueRef(project, name)) for name in names)
        return [record for record in records if record is not None]

    def all_filtered(self) -> list[QueueRecord]:
        """The records of all projects' queues that have a filter."""
        return [record for project in sorted(self._filtered) for record in self.filtered(project)]

    def exposing(self) -> list[QueueRecord]:
        """The records that are exposing."""
        records = (self.record(ref) for ref in self._exposing)
        return [record for record in records if record is not None]


Name = tuple[str, str]
"""Project and name, the order of a kind's records."""


class _End(NamedTuple):
    expires_at: int
    kind: str
    name: Name


def is_live(record: Record, now: int) -> bool:
    """Whether a record has not expired."""
    return record.expires_at is None or record.expires_at > now


class Catalogue:
    """The records of a database, and an index of those that expire by their end."""

    def __init__(self) -> None:
        self.epoch = 0
        """The last batch that has a change of a record: readers wait for it."""
        self.examined = 0
        """How many records listings have looked at (for tests)."""
        self._kinds: dict[str, SortedDict[Name, Record]] = {}
        self._ends: SortedList[_End] = SortedList()
        self._changed: set[bytes] = set()
        self._written: set[bytes] = set()

    def get(self, kind: str, project: str, name: str, now: int) -> Record | None:
        """The record, unless it has expired."""
        record = self._kinds.get(kind, _NONE).get((project, name))
        return record if record is not None and is_live(record, now) else None

    def after(self, kind: str, cursor: Name | None, count: int) -> list[Record]:
        """The first records of a kind behind a cursor, in order."""
        records = self._kinds.get(kind, _NONE)
        following = records.irange(cursor, inclusive=(False, True))
        found = [records[name] for name in islice(following, count)]
        self.examined += len(found)
        return found

    def all(self) -> list[Record]:
        """All records, in order."""
        return [record for kind in sorted(self._kinds) for record in self._kinds[kind].values()]

    def expired(self, now: int, count: int) -> Sequence[Record]:
        """The first records that have expired."""
        over = islice(self._ends.irange(None, _End(now + 1, "", ("", "")), (True, False)), count)
        return [self._kinds[end.kind][end.name] for end in over]

    def begin_batch(self) -> None:
        """Note that the changes so far are in the batch that is being written."""
        self._written, self._changed = self._changed, set()

    def take_changed(self) -> set[bytes]:
        """The keys that failed batches had changed; they are to be read again."""
        wanted = self._changed | self._written
        self._changed, self._written = set(), set()
        return wanted

    def note(self, key: bytes, epoch: int) -> None:
        """Note that a batch has a change of a record."""
        self._changed.add(key)
        self.epoch = epoch

    def install(self, record: Record) -> None:
        """Enter a record in place of the one there is."""
        self.remove(record.kind, record.project, record.name)
        name = record.project, record.name
        self._kinds.setdefault(record.kind, SortedDict())[name] = record
        if record.expires_at is not None:
            self._ends.add(_End(record.expires_at, record.kind, name))

    def remove(self, kind: str, project: str, name: str) -> None:
        """Forget a record; no error when there is none."""
        records = self._kinds.get(kind, _NONE)
        record = records.pop((project, name), None)
        if record is None:
            return
        if not records:
            del self._kinds[kind]
        if record.expires_at is not None:
            self._ends.remove(_End(record.expires_at, kind, (project, name)))


_NONE: SortedDict[Name, Record] = SortedDict()


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

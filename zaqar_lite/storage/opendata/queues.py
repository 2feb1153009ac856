"""All queues in memory, the indexes over their records, and which of them the sweep visits when."""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from zaqar_lite.domain.metadata import FILTER, dead_letter_target
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.opendata.entries import NEVER
from zaqar_lite.storage.opendata.format.keys import RecordType, queue_key, read_page
from zaqar_lite.storage.opendata.queue import Queue

_SLACK = 1_000


class Agenda:
    """The queues that changed since the sweep's last visit, and a heap of those that wait.

    A queue waits in the heap for `Queue.visit_at`, the next instant at which something in it may
    be due. What it noted for other instants is passed over, and goes once it is most of the heap.
    """

    def __init__(self) -> None:
        self.visits = 0
        """How many queues were handed out (for tests)."""
        self._changed: deque[Queue] = deque()
        self._heap: list[tuple[int, int, Queue]] = []
        self._numbers = count()
        self._most = _SLACK

    def changed(self, queue: Queue) -> None:
        """Let the next sweep visit a queue, whatever is due there."""
        if not queue.is_noted:
            queue.is_noted = True
            self._changed.append(queue)

    def note(self, queue: Queue, at: int) -> None:
        """Let a sweep visit a queue at an instant, or before."""
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
            queue.is_noted = False
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


_BEYOND = 1 << 32  # pages: more than are lost with one place of a disk


def _keep_lost_pages(queue: Queue, after: bytes, until: bytes) -> None:
    root = queue_key(RecordType.ACTIVE, queue.raw)
    if after < root < until:
        queue.damaged_page(None)
    last = root + b"\xff" * 8
    if after < last < until:  # and no page behind them tells how many there were
        number = (read_page(after[len(root) :]) or 0) if after.startswith(root) else 0
        queue.damaged_page(number + _BEYOND)


class Queues:
    """Queues by name; the names of a project in order; records by what is asked about them.

    A queue of which nothing but the record is left rests: only the record is kept, and the queue is
    made anew when somebody asks for it.
    """

    def __init__(self) -> None:
        self._queues: dict[QueueRef, Queue] = {}
        self._resting: dict[QueueRef, QueueRecord] = {}
        self._names: dict[str, list[str]] = {}
        self._sources: dict[QueueRef, set[str]] = {}
        self._filtered: dict[str, set[str]] = {}
        self._exposing: dict[QueueRef, None] = {}
        self._lost: set[tuple[bytes, bytes]] = set()
        self.agenda = Agenda()

    def __iter__(self) -> Iterator[Queue]:
        """The queues that do not rest."""
        return iter(list(self._queues.values()))

    def refs(self) -> list[QueueRef]:
        """All queues there are, in order."""
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
            for after, until in self._lost:
                _keep_lost_pages(queue, after, until)
        return queue

    def rest(self, queue: Queue) -> None:
        """Keep no more than the record of a queue, if it has one."""
        if self._queues.pop(queue.ref, None) is not None and queue.record is not None:
            self._resting[queue.ref] = queue.record

    def restore(self, record: QueueRecord) -> None:
        """Take over the record of a queue, which rests until there is more to know of it."""
        queue = self._queues.get(record.ref)
        self._index(record.ref, None if queue is None else queue.record, record)
        if queue is None:
            self._resting[record.ref] = record
        else:
            queue.record = record

    def lose_pages(self, after: bytes, until: bytes) -> None:
        """Never write over the pages between two keys: nobody knows which ones there are."""
        self._lost.add((after, until))
        for ref in list(self._resting):
            self.make(ref)
        for queue in self._queues.values():
            _keep_lost_pages(queue, after, until)

    def discard(self, ref: QueueRef) -> None:
        """Forget a queue; no error when there is none."""
        queue = self.get(ref)
        if queue is not None:
            self.set_record(queue, None)
            del self._queues[ref]

    def record(self, ref: QueueRef) -> QueueRecord | None:
        """The record of a queue; one that rests goes on resting."""
        queue = self._queues.get(ref)
        return self._resting.get(ref) if queue is None else queue.record

    def epoch(self, ref: QueueRef) -> int:
        """The last batch that holds a change of a queue; 0 where it is long durable."""
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

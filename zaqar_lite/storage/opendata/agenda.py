"""Which queues the sweep visits, and when: idle ones cost nothing, however many there are."""

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import count

from zaqar_lite.storage.opendata.entries import NEVER
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

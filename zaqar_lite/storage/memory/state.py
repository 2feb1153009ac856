"""The state that the two memory stores share: queues, records, and when to sweep each queue."""

from heapq import heappop, heappush

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.refusals import queue_changed
from zaqar_lite.domain.turns import Turns
from zaqar_lite.storage.memory.entries import Entry
from zaqar_lite.storage.memory.queue import Queue
from zaqar_lite.storage.records import Catalogue, QueueRecords

_DAY = 86_400_000
"""Milliseconds."""


class State:
    """The state that the two stores of one `create` share.

    Positions and versions are never used twice, so a queue that was dropped and made again
    continues after the positions of the old one. `discarded` holds entries that purges removed: the
    sweep frees them in bounded steps. `catalogue` holds all records except those of queues.
    `adopted` holds, for each queue and each source of adopted messages,
    the last batch number and when that is forgotten, in the order of these instants.
    """

    def __init__(self) -> None:
        self.queues: dict[QueueRef, Queue] = {}
        self.records = QueueRecords()
        self.catalogue = Catalogue()
        self.discarded: list[dict[int, Entry]] = []
        self.turns = Turns()
        self.adopted: dict[tuple[QueueRef, str], tuple[int, int]] = {}
        self._due: list[tuple[int, QueueRef]] = []
        self._last_position = 0
        self._last_version = 0

    def take_positions(self, count: int, now_us: int) -> int:
        """Allocate `count` consecutive positions; return the first."""
        first = max(self._last_position + 1, now_us)
        self._last_position = first + count - 1
        return first

    def next_version(self, now_us: int) -> int:
        """Allocate the next version of a queue's record."""
        self._last_version = max(self._last_version + 1, now_us)
        return self._last_version

    def queue(self, ref: QueueRef) -> Queue:
        """The queue to write to; it is made if it does not exist."""
        queue = self.queues.get(ref)
        if queue is None:
            queue = self.queues[ref] = Queue()
        return queue

    def schedule_sweep(self, ref: QueueRef, queue: Queue, instant: int) -> None:
        """Have the queue swept at `instant`, or earlier if it is scheduled so."""
        if queue.sweep_at is None or instant < queue.sweep_at:
            queue.sweep_at = instant
            heappush(self._due, (instant, ref))

    def sweep_if_empty(self, ref: QueueRef, queue: Queue) -> None:
        """Have an empty queue swept now: that removes it unless a message is posted before."""
        if queue.is_empty and self.queues.get(ref) is queue:
            self.schedule_sweep(ref, queue, 0)

    def add(self, ref: QueueRef, entry: Entry, delay_expires_at: int) -> None:
        """Add an entry to a queue, and have the queue swept when the entry is due."""
        queue = self.queue(ref)
        queue.add(entry, delay_expires_at)
        self.schedule_sweep(ref, queue, min(entry.expires_at, delay_expires_at or entry.expires_at))

    def take_due_queue(self, now: int) -> QueueRef | None:
        """Take the next due queue off the schedule; the caller sweeps and schedules it again."""
        while self._due and self._due[0][0] <= now:
            instant, ref = heappop(self._due)
            queue = self.queues.get(ref)
            if queue is not None and queue.sweep_at == instant:
                queue.sweep_at = None
                return ref
        return None

    def sweep_again(self, ref: QueueRef, now: int) -> None:
        """Have a queue swept again whose sweep failed."""
        queue = self.queues.get(ref)
        if queue is not None:
            self.schedule_sweep(ref, queue, now)

    def discard(self, entries: dict[int, Entry]) -> None:
        """Keep the entries of a purged queue until the sweep frees them in steps."""
        if entries:
            self.discarded.append(entries)

    def free_discarded(self, limit: int) -> int:
        """Free up to `limit` discarded entries; return how many."""
        count = 0
        while self.discarded and count < limit:
            entries = self.discarded[-1]
            while entries and count < limit:
                _, entry = entries.popitem()
                if entry.shared is not None:
                    entry.shared.holders -= 1
                count += 1
            if not entries:
                self.discarded.pop()
        return count

    def is_new_batch(self, ref: QueueRef, source: str, number: int, now: int) -> bool:
        """Whether the queue has not adopted this batch of the source yet; note it for a day."""
        last, _ = self.adopted.get((ref, source), (0, 0))
        if number <= last:
            return False
        self.adopted.pop((ref, source), None)
        self.adopted[ref, source] = number, now + _DAY
        return True

    def forget_sources(self, now: int, limit: int) -> int:
        """Forget up to `limit` sources of adopted messages after their day; return how many."""
        count = 0
        while self.adopted and count < limit:
            key = next(iter(self.adopted))
            if self.adopted[key][1] > now:
                break
            del self.adopted[key]
            count += 1
        return count

    def check_version(self, ref: QueueRef, version: int | None) -> None:
        """Compare the record's version with the one that the caller has read; 0 means no record.

        Raises:
            QueueChanged: the record is at another version.
        """
        if version is None:
            return
        record = self.records.get(ref)
        if version != (0 if record is None else record.version):
            raise queue_changed(ref)

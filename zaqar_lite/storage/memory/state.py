"""What the two stores of the memory driver share: all queues, their records, and what is due."""

from heapq import heappop, heappush
from typing import TypeVar

from sortedcontainers import SortedDict, SortedList

from zaqar_lite.domain.errors import QueueChanged
from zaqar_lite.domain.metadata import FILTER, dead_letter_target
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record
from zaqar_lite.storage.memory.entries import Entry
from zaqar_lite.storage.memory.queue import Queue


class State:
    """All that the two stores of one `create` share.

    Positions and versions are never used twice in one state, so that a queue that was dropped and
    made again begins where the old one ended. `discarded` holds what purges removed: its memory
    is given back by the sweep in bounded steps. `others` holds the records that are no queue's, by
    kind, then by project and name. `adopted` is the last number of each source that came in.
    """

    def __init__(self) -> None:
        self.queues: dict[QueueRef, Queue] = {}
        self.records: dict[QueueRef, QueueRecord] = {}
        self.sources: dict[QueueRef, set[str]] = {}
        self.filtered: dict[str, set[str]] = {}
        self.exposing: dict[QueueRef, None] = {}
        self.discarded: list[dict[int, Entry]] = []
        self.others: dict[str, SortedDict[tuple[str, str], Record]] = {}
        self.record_ends: SortedList[tuple[int, str, tuple[str, str]]] = SortedList()
        self.adopted: dict[tuple[QueueRef, str], int] = {}
        self._due: list[tuple[int, QueueRef]] = []
        self._names: dict[str, SortedList[str]] = {}
        self._last_position = 0
        self._last_version = 0

    def take_positions(self, count: int, now_us: int) -> int:
        """Take `count` positions in a row; answer the first."""
        first = max(self._last_position + 1, now_us)
        self._last_position = first + count - 1
        return first

    def next_version(self, now_us: int) -> int:
        """Take the next version of a queue's record."""
        self._last_version = max(self._last_version + 1, now_us)
        return self._last_version

    def queue(self, ref: QueueRef) -> Queue:
        """The queue to write to; made when there is none."""
        queue = self.queues.get(ref)
        if queue is None:
            queue = self.queues[ref] = Queue()
        return queue

    def note(self, ref: QueueRef, queue: Queue, instant: int) -> None:
        """Let the sweep come to a queue at `instant`, or before."""
        if queue.noted is None or instant < queue.noted:
            queue.noted = instant
            heappush(self._due, (instant, ref))

    def close(self, ref: QueueRef, queue: Queue) -> None:
        """Let the sweep forget a queue that nothing is left of, unless somebody posts before."""
        if queue.is_empty and self.queues.get(ref) is queue:
            self.note(ref, queue, 0)

    def next_to_sweep(self, now: int) -> QueueRef | None:
        """Take the next queue with something to sweep, which is to be noted again afterwards."""
        while self._due and self._due[0][0] <= now:
            instant, ref = heappop(self._due)
            queue = self.queues.get(ref)
            if queue is not None and queue.noted == instant:
                queue.noted = None
                return ref
        return None

    def put_off(self, ref: QueueRef, now: int) -> None:
        """Let the sweep come again to a queue that it could not sweep."""
        queue = self.queues.get(ref)
        if queue is not None:
            self.note(ref, queue, now)

    def discard(self, entries: dict[int, Entry]) -> None:
        """Let go of a purged queue's entries, by and by."""
        if entries:
            self.discarded.append(entries)

    def give_back(self, limit: int) -> int:
        """Free up to `limit` discarded entries; answer how many."""
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

    def check_version(self, ref: QueueRef, version: int | None) -> None:
        """Compare the version that a caller decided by; 0 stands for no record.

        Raises:
            QueueChanged: the record is at another version.
        """
        if version is None:
            return
        record = self.records.get(ref)
        if version != (0 if record is None else record.version):
            raise QueueChanged(f"The queue {ref.name!r} is not at version {version} any more.")

    def names(self, project: str) -> "SortedList[str]":
        """The names of a project's queues, in order."""
        return self._names.get(project, _NO_NAMES)

    def put_record(self, record: QueueRecord) -> None:
        """Store a record in place of the one there is, and index it."""
        ref = record.ref
        self.remove_record(ref)
        self.records[ref] = record
        self._names.setdefault(ref.project, SortedList()).add(ref.name)
        target = dead_letter_target(record.metadata)
        if target is not None:
            self.sources.setdefault(QueueRef(ref.project, target), set()).add(ref.name)
        if record.metadata.get(FILTER) is not None:
            self.filtered.setdefault(ref.project, set()).add(ref.name)
        if record.exposing:
            self.exposing[ref] = None

    def remove_record(self, ref: QueueRef) -> None:
        """Remove a record from the table and from every index; no error when there is none."""
        record = self.records.pop(ref, None)
        if record is None:
            return
        self._names[ref.project].remove(ref.name)
        if not self._names[ref.project]:
            del self._names[ref.project]
        target = dead_letter_target(record.metadata)
        if target is not None:
            _discard(self.sources, QueueRef(ref.project, target), ref.name)
        _discard(self.filtered, ref.project, ref.name)
        self.exposing.pop(ref, None)


_NO_NAMES: SortedList[str] = SortedList()
_K = TypeVar("_K")


def _discard(index: dict[_K, set[str]], key: _K, name: str) -> None:
    """Take a name out of an index, and the key with its last name."""
    names = index.get(key, set())
    names.discard(name)
    if not names:
        index.pop(key, None)

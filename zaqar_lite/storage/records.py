"""Records that are all in memory, with an index for each question that the service asks.

Drivers that keep their records in memory share them, and the store over them (`record_store.py`).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from sortedcontainers import SortedDict, SortedList

from zaqar_lite.domain.metadata import FILTER, dead_letter_target
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record


class QueueRecords:
    """The records of queues by project and name, and indexes of their metadata."""

    def __init__(self) -> None:
        self._records: dict[QueueRef, QueueRecord] = {}
        self._names: dict[str, list[str]] = {}
        self._sources: dict[QueueRef, set[str]] = {}
        self._filtered: dict[str, set[str]] = {}
        self._exposing: dict[QueueRef, None] = {}
        self.get = self._records.get
        """The record of a queue, or None."""

    def refs(self) -> list[QueueRef]:
        """The queues that have a record."""
        return list(self._records)

    def put(self, record: QueueRecord) -> None:
        """Enter a record in place of the one there is."""
        queue = record.queue
        before = self._records.get(queue)
        if before is None:
            names = self._names.setdefault(queue.project, [])
            if names and queue.name < names[-1]:
                insort(names, queue.name)
            else:
                names.append(queue.name)  # at opening they come in order
        else:
            self._unindex(before)
        self._records[queue] = record
        target = dead_letter_target(record.metadata)
        if target is not None:
            self._sources.setdefault(QueueRef(queue.project, target), set()).add(queue.name)
        if record.metadata.get(FILTER) is not None:
            self._filtered.setdefault(queue.project, set()).add(queue.name)
        if record.exposing:
            self._exposing[queue] = None

    def remove(self, queue: QueueRef) -> None:
        """Forget a record; no error when there is none."""
        record = self._records.pop(queue, None)
        if record is None:
            return
        self._unindex(record)
        names = self._names[queue.project]
        del names[bisect_left(names, queue.name)]
        if not names:
            del self._names[queue.project]

    def _unindex(self, record: QueueRecord) -> None:
        queue = record.queue
        target = dead_letter_target(record.metadata)
        if target is not None:
            _discard(self._sources, QueueRef(queue.project, target), queue.name)
        _discard(self._filtered, queue.project, queue.name)
        self._exposing.pop(queue, None)

    def names(self, project: str) -> Sequence[str]:
        """The names of a project's queues, in order."""
        return self._names.get(project, ())

    def names_after(self, project: str, marker: str | None, count: int) -> Sequence[str]:
        """The first names of a project's queues after `marker`, in order."""
        names = self.names(project)
        start = 0 if marker is None else bisect_right(names, marker)
        return names[start : start + count]

    def sources(self, target: QueueRef) -> list[str]:
        """The queues whose dead-letter queue this is, in order."""
        return sorted(self._sources.get(target, ()))

    def filtered(self, project: str) -> list[QueueRecord]:
        """The records of a project's queues that have a filter."""
        names = self._filtered.get(project)
        if not names:
            return []  # most projects: this is asked at every post
        return [self._records[QueueRef(project, name)] for name in names]

    def all_filtered(self) -> list[QueueRecord]:
        """The records of all projects' queues that have a filter."""
        return [record for project in sorted(self._filtered) for record in self.filtered(project)]

    def exposing(self, limit: int) -> list[QueueRecord]:
        """The first records that are exposing."""
        return [self._records[queue] for queue in islice(self._exposing, limit)]


def _discard(index: "dict[Any, set[str]]", key: object, name: str) -> None:
    """Remove a name from an index, and its key when no name is left."""
    names = index.get(key, set())
    names.discard(name)
    if not names:
        index.pop(key, None)


Name = tuple[str, str]
"""Project and name, the order of a kind's records."""


class _End(NamedTuple):
    expires_at: int
    kind: str
    name: Name


class Catalogue:
    """The records that are not queues, and an index of those that expire by their end."""

    def __init__(self) -> None:
        self.epoch = 0
        """The last batch that has a change of a record, where a driver writes batches."""
        self.examined = 0
        """How many records listings have looked at (for tests)."""
        self._kinds: dict[str, SortedDict[Name, Record]] = {}
        self._ends: SortedList[_End] = SortedList()

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

    def expired(self, now: int, count: int) -> list[Record]:
        """The first records that have expired."""
        over = islice(self._ends.irange(None, _End(now + 1, "", ("", "")), (True, False)), count)
        return [self._kinds[end.kind][end.name] for end in over]

    def put(self, record: Record) -> None:
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


def is_live(record: Record, now: int) -> bool:
    """Whether a record has not expired."""
    return record.expires_at is None or record.expires_at > now

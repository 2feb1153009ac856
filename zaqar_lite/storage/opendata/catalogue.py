"""Records that are neither queues nor messages: all of them in memory, by kind, project and name.

A record of the store is a version, an end, and the value as it is. What changed goes into the batch
at once; when that fails, the records it had changed are read again.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from sortedcontainers import SortedDict, SortedList

from zaqar_lite.domain.models import Record

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
    """The records of a database, with those that end in the order of their ends."""

    def __init__(self) -> None:
        self.epoch = 0
        """The last batch that holds a change of a record: who reads waits for it."""
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
        return [records[name] for name in islice(following, count)]

    def all(self) -> list[Record]:
        """All records, in order."""
        return [record for kind in sorted(self._kinds) for record in self._kinds[kind].values()]

    def expired(self, now: int, count: int) -> Sequence[Record]:
        """The first records whose end has come."""
        over = islice(self._ends.irange(None, _End(now + 1, "", ("", "")), (True, False)), count)
        return [self._kinds[end.kind][end.name] for end in over]

    def begin_batch(self) -> None:
        """Note that what has changed so far is being written."""
        self._written, self._changed = self._changed, set()

    def take_changed(self, *, is_in_doubt: bool) -> set[bytes]:
        """The keys of what failed batches had changed, to be read again.

        While one of them may still be stored, the next call looks at them again.
        """
        wanted = self._changed | self._written
        self._changed, self._written = set(), wanted if is_in_doubt else set()
        return wanted

    def note(self, key: bytes, epoch: int) -> None:
        """Note a change of a record in a batch: its readers wait for that."""
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

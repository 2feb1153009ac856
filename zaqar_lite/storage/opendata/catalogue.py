"""Records that are neither queues nor messages: all of them in memory, by kind, project and name.

A record of the store is a version, an end, and the value as it is. What changed goes into the batch
at once; when that fails, the records it had changed are read again.
"""

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from sortedcontainers import SortedDict, SortedList

from zaqar_lite.domain.models import Record
from zaqar_lite.storage.opendata.engine import Damage
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.bookkeeping import decode_record, encode_record
from zaqar_lite.storage.opendata.format.encoding import CodecError, after_prefix
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.loading import damaged

if TYPE_CHECKING:
    from zaqar_lite.storage.opendata.database import Database

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

    def put(self, db: "Database", record: Record) -> None:
        """Write a record, in memory and into the batch."""
        key = keys.record_key(record.kind, record.project, record.name)
        value = encode_record(record.version, record.expires_at, record.value)
        self._install(record)
        db.put(key, value)
        self._note(db, key)

    def delete(self, db: "Database", record: Record) -> None:
        """Remove a record, from memory and with the batch."""
        key = keys.record_key(record.kind, record.project, record.name)
        self._remove(record.kind, (record.project, record.name))
        db.delete(key)
        self._note(db, key)

    def begin_batch(self) -> None:
        """Note that what has changed so far is being written."""
        self._written, self._changed = self._changed, set()

    async def load(self, db: "Database") -> None:
        """Read all records; damaged ones are named and left as they are."""
        prefix = keys.prefix(RecordType.RECORD)
        async for chunk in db.engine.scan(prefix, after_prefix(prefix)):
            for key, value in chunk:
                self._read(db, key, value)

    async def reload(self, db: "Database") -> None:
        """Bring what failed batches had changed back to what the engine holds.

        While one of them may still be stored, the next call looks at it again.
        """
        wanted = self._changed | self._written
        self._changed = set()
        self._written = wanted if db.engine.is_in_doubt else set()
        stored = await db.engine.get(list(wanted)) if wanted else {}
        for key in wanted:
            kind, project, name = keys.read_record_key(key)
            self._remove(kind, (project, name))
            if key in stored:
                self._read(db, key, stored[key])

    def _note(self, db: "Database", key: bytes) -> None:
        self._changed.add(key)
        self.epoch = db.committer.epoch

    def _read(self, db: "Database", key: bytes, value: bytes | Damage) -> None:
        if isinstance(value, Damage):
            damaged(db, value)
            return
        try:
            version, expires_at, text = decode_record(value)
            self._install(Record(*keys.read_record_key(key), text, version, expires_at))
        except CodecError as exc:
            damaged(db, Damage(key, str(exc)))

    def _install(self, record: Record) -> None:
        name = record.project, record.name
        self._remove(record.kind, name)
        self._kinds.setdefault(record.kind, SortedDict())[name] = record
        if record.expires_at is not None:
            self._ends.add(_End(record.expires_at, record.kind, name))

    def _remove(self, kind: str, name: Name) -> None:
        records = self._kinds.get(kind, _NONE)
        record = records.get(name)
        if record is None:
            return
        del records[name]
        if not records:
            del self._kinds[kind]
        if record.expires_at is not None:
            self._ends.remove(_End(record.expires_at, kind, name))


_NONE: SortedDict[Name, Record] = SortedDict()

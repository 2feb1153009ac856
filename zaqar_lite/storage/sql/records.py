"""The management store: records of queues, and of every other kind."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from zaqar_lite.domain.errors import RecordChanged
from zaqar_lite.domain.json_values import holds_all
from zaqar_lite.domain.metadata import FILTER, dead_letter_target
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record, RecordBound
from zaqar_lite.domain.refusals import queue_changed, too_many_queues
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.sql import entries
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.queues import SET_RECORD

_QUEUE = "SELECT project, name, metadata, version, exposing FROM queue"
_MOST_PROJECTS = 10_000
"""Projects of which is remembered which queues have a filter, or how many records there are."""
_RECORD = "SELECT kind, project, name, value, version, ends FROM record"


class SqlManagementStore(ManagementStore):
    """The management store over the tables `queue` and `record`."""

    finds_filters = True

    def __init__(self, db: Database) -> None:
        self._db = db

    async def open(self) -> None:
        await self._db.open()

    async def close(self) -> None:
        await self._db.close()

    async def ping(self) -> None:
        self._db.check_writable()

    async def create_queue(
        self, queue: QueueRef, metadata: Mapping[str, Any], *, max_queues: int
    ) -> tuple[QueueRecord, bool]:
        known = await self.get_queue(queue)
        if known is not None:
            return known, False
        return await self._db.write(_create, queue, metadata, max_queues)

    async def get_queue(self, queue: QueueRef) -> QueueRecord | None:
        return await self._db.read(queue, _get, queue)

    async def update_queue(self, record: QueueRecord) -> QueueRecord:
        return await self._db.write(_update, record)

    async def delete_queue(self, queue: QueueRef, *, version: int) -> None:
        await self._db.write(_delete, queue, version)

    async def list_queues(
        self,
        project: str,
        *,
        marker: str | None = None,
        limit: int,
        name_contains: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Sequence[QueueRecord]:
        is_filtered = name_contains is not None or bool(metadata)
        step = MAX_EXAMINED // 5 if is_filtered else min(limit, MAX_EXAMINED)
        found: list[QueueRecord] = []
        while True:
            records, marker = await self._db.look(
                _page, project, marker, step, name_contains, metadata or {}
            )
            epoch = self._db.epoch
            found += records
            if len(found) >= limit or marker is None or (found and not is_filtered):
                break
            await next_turn()
        await self._db.visible(epoch)
        return found[:limit]

    async def count_queues(self, project: str) -> int:
        return await self._db.read(QueueRef(project, ""), _count, project)

    async def dead_letter_sources(self, target: QueueRef, *, limit: int) -> Sequence[str]:
        return await self._db.read(target, _sources, target, limit)

    async def exposing_queues(self, *, limit: int) -> Sequence[QueueRecord]:
        return await self._db.read(
            QueueRef("", ""), _select, "INDEXED BY exposing WHERE exposing = 1 LIMIT ?", (limit,)
        )

    async def filtered_queues(self, project: str) -> Sequence[QueueRecord]:
        known = self._db.filtered.get(project)
        if known is not None:
            return known
        return await self._db.read(QueueRef(project, ""), _filtered, project)

    async def put_record(
        self,
        kind: str,
        project: str,
        name: str,
        value: bytes,
        *,
        expected: int | None,
        ttl_ms: int | None = None,
        bounds: Sequence[RecordBound] = (),
    ) -> Record:
        return await self._db.write(
            _put_at, kind, project, name, value, expected=expected, ttl_ms=ttl_ms, bounds=bounds
        )

    async def get_record(self, kind: str, project: str, name: str) -> Record | None:
        record = await self._db.read(QueueRef("", ""), find, kind, project, name)
        await self._db.visible(self._db.records_epoch)
        return record

    async def delete_record(
        self, kind: str, project: str, name: str, *, expected: int | None = None
    ) -> bool:
        return await self._db.write(_remove, kind, project, name, expected)

    async def list_records(
        self,
        kind: str,
        project: str | None = None,
        *,
        after: tuple[str, str] | None = None,
        limit: int,
    ) -> Sequence[Record]:
        found: list[Record] = []
        start, step = after or ("", ""), min(MAX_EXAMINED, limit)
        if project is not None:
            start = max(start, (project, ""))
        while True:
            records = await self._db.read(QueueRef("", ""), _records, kind, project, start, step)
            now = self._db.clock.now_ms()
            found += [one for one in records if one.expires_at is None or one.expires_at > now]
            if len(found) >= limit or len(records) < step:
                break
            start = records[-1].project, records[-1].name
            await next_turn()
        await self._db.visible(self._db.records_epoch)
        return found[:limit]

    async def sweep_records(self, limit: int) -> int:
        if not await self._db.read(QueueRef("", ""), _has_expired):
            return 0
        return await self._db.write(_expire, limit)


def _create(
    db: Database, ref: QueueRef, metadata: Mapping[str, Any], max_queues: int
) -> tuple[QueueRecord, bool]:
    known = _get(db, ref)
    if known is not None:
        return known, False
    if _count(db, ref.project) >= max_queues:
        raise too_many_queues(max_queues)
    db.check_growth()
    db.count_queues(ref.project, 1)
    return _store(db, QueueRecord(ref, metadata, 0)), True


def _get(db: Database, ref: QueueRef) -> QueueRecord | None:
    queue = db.queue(ref)
    return None if queue is None else queue.record


def _store(db: Database, record: QueueRecord) -> QueueRecord:
    """Store a record under the next version. A copy: the caller may change its metadata."""
    text = json.dumps(record.metadata)
    metadata = json.loads(text)
    stored = QueueRecord(record.queue, metadata, db.take_version(), record.exposing)
    queue = db.make_queue(record.queue)
    db.touch(queue)
    queue.set_record(stored)
    db.filtered.pop(record.queue.project, None)
    has_filter, letters = metadata.get(FILTER) is not None, dead_letter_target(metadata)
    values = (stored.version, text, stored.exposing, has_filter, letters, queue.number)
    db.execute(SET_RECORD, values)
    return stored


def _update(db: Database, record: QueueRecord) -> QueueRecord:
    stored = _get(db, record.queue)
    if stored is None or stored.version != record.version:
        raise queue_changed(record.queue)
    return _store(db, record)


def _delete(db: Database, ref: QueueRef, version: int) -> None:
    queue = db.queue(ref)
    if queue is None or queue.record is None:
        return
    if queue.version != version:
        raise queue_changed(ref)
    db.touch(queue)
    queue.set_record(None)
    db.filtered.pop(ref.project, None)
    db.count_queues(ref.project, -1)
    db.execute(SET_RECORD, (0, "{}", 0, 0, None, queue.number))


def _filtered(db: Database, project: str) -> Sequence[QueueRecord]:
    if len(db.filtered) >= _MOST_PROJECTS:
        db.filtered.clear()
    clause = "INDEXED BY filtered WHERE has_filter = 1 AND project = ? ORDER BY name"
    found = db.filtered[project] = _select(db, clause, (project,))
    return found


def _select(db: Database, clause: str, values: Sequence[Any]) -> list[QueueRecord]:
    return [_record(*row) for row in db.execute(f"{_QUEUE} {clause}", values)]


def _record(project: str, name: str, metadata: str, version: int, exposing: int) -> QueueRecord:
    return QueueRecord(QueueRef(project, name), json.loads(metadata), version, bool(exposing))


def _page(  # noqa: PLR0917 - as `list_queues` has it
    db: Database,
    project: str,
    marker: str | None,
    step: int,
    name_contains: str | None,
    metadata: Mapping[str, Any],
) -> tuple[list[QueueRecord], str | None]:
    """The records that match among the next ones, and after which name there may be more."""
    rows = db.execute(
        f"{_QUEUE} INDEXED BY recorded WHERE version > 0 AND project = ? AND name > ?"
        " ORDER BY name LIMIT ?",
        (project, marker or "", step),
    ).fetchall()
    keys = [json.dumps(key) for key in metadata]  # as the text of a record has them
    matching = (
        _record(*row)
        for row in rows
        if (name_contains is None or name_contains in row[1]) and all(key in row[2] for key in keys)
    )
    found = [record for record in matching if holds_all(record.metadata, metadata)]
    return found, rows[-1][1] if len(rows) == step else None


def _count(db: Database, project: str) -> int:
    return int(db.execute("SELECT queues FROM project WHERE name = ?", (project,)).get or 0)


def _sources(db: Database, target: QueueRef, limit: int) -> list[str]:
    rows = db.execute(
        "SELECT name FROM queue INDEXED BY dead_letter_source WHERE project = ?"
        " AND dead_letter_queue = ? ORDER BY name LIMIT ?",
        (*target, limit),
    )
    return [name for (name,) in rows]


def find(db: Database, kind: str, project: str, name: str) -> Record | None:
    """A live record of another kind."""
    row = db.execute(
        f"{_RECORD} WHERE kind = ? AND project = ? AND name = ?", (kind, project, name)
    ).fetchone()
    record = None if row is None else Record(*row)
    if record is None or record.expires_at is None or record.expires_at > db.clock.now_ms():
        return record
    return None


def put(
    db: Database, kind: str, project: str, name: str, value: bytes, *, ttl_ms: int | None = None
) -> Record:
    """Write a record in place of the one there is."""
    ends = None if ttl_ms is None else db.clock.now_ms() + ttl_ms
    record = Record(kind, project, name, value, db.take_version(), ends)
    db.records_epoch = db.epoch
    db.execute(
        "INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?, ?)",
        (kind, project, name, value, record.version, ends),
    )
    return record


def _put_at(
    db: Database,
    kind: str,
    project: str,
    name: str,
    value: bytes,
    *,
    expected: int | None,
    ttl_ms: int | None,
    bounds: Sequence[RecordBound],
) -> Record:
    known = find(db, kind, project, name)
    _check_version(kind, name, known, expected)
    if known is None:
        db.check_growth()
        for bound in bounds:
            _check_bound(db, kind, project, bound)
        for of in (project, None):
            if (kind, of) in db.record_counts:
                db.record_counts[kind, of] += 1
    return put(db, kind, project, name, value, ttl_ms=ttl_ms)


def _check_bound(db: Database, kind: str, project: str, bound: RecordBound) -> None:
    """Refuse a new record where there are as many as the bound allows.

    They are counted when the bound seems to be reached. What is remembered of the last count is
    never too low: only who makes a record changes it.
    """
    of = (kind, None if bound.of_server else project)
    if not bound.prefix and db.record_counts.get(of, bound.most) < bound.most:
        return
    values: list[Any] = [kind, db.clock.now_ms()]
    within = ""
    if not bound.of_server:
        within += " AND project = ?3"
        values.append(project)
    if bound.prefix:
        within += " AND name >= ?4 AND name < ?5"
        values += [bound.prefix, bound.prefix + "\U0010ffff"]
    # The column `ends` lies behind the values, so the index tells which records have ended.
    (count,) = db.execute(
        f"SELECT (SELECT count(*) FROM record WHERE kind = ?1{within}) - (SELECT count(*) FROM"
        f" record INDEXED BY ending_record WHERE ends <= ?2 AND kind = ?1{within})",
        values,
    ).fetchone()
    if count >= bound.most:
        raise bound.reached
    if not bound.prefix:
        if len(db.record_counts) >= _MOST_PROJECTS:
            db.record_counts.clear()
        db.record_counts[of] = count


def _check_version(kind: str, name: str, known: Record | None, expected: int | None) -> None:
    """Compare the version that a writer has seen; 0 stands for no record."""
    if expected is not None and expected != (0 if known is None else known.version):
        raise RecordChanged(f"The {kind} {name!r} was changed or deleted meanwhile.")


def _remove(db: Database, kind: str, project: str, name: str, expected: int | None) -> bool:
    known = find(db, kind, project, name)
    if known is None:
        return False
    _check_version(kind, name, known, expected)
    db.records_epoch = db.epoch
    db.execute(
        "DELETE FROM record WHERE kind = ? AND project = ? AND name = ?", (kind, project, name)
    )
    return True


def _records(
    db: Database, kind: str, project: str | None, after: tuple[str, str], limit: int
) -> list[Record]:
    """The records of a kind after a name, expired ones too."""
    if project is None:
        clause, values = "(project, name) > (?, ?) ORDER BY project, name", after
    else:
        name = after[1] if after[0] == project else "\U0010ffff" * 64
        clause, values = "project = ? AND name > ? ORDER BY name", (project, name)
    rows = db.execute(f"{_RECORD} WHERE kind = ? AND {clause} LIMIT ?", (kind, *values, limit))
    return [Record(*row) for row in rows]


def _has_expired(db: Database) -> bool:
    first = "SELECT min(ends) FROM record INDEXED BY ending_record WHERE ends IS NOT NULL"
    return entries.first_of(db, first, ()) <= db.clock.now_ms()


def _expire(db: Database, limit: int) -> int:
    db.execute(
        "DELETE FROM record WHERE (kind, project, name) IN (SELECT kind, project, name FROM record"
        " INDEXED BY ending_record WHERE ends IS NOT NULL AND ends <= ? ORDER BY ends LIMIT ?)",
        (db.clock.now_ms(), limit),
    )
    db.records_epoch = db.epoch
    return int(db.connection.changes())

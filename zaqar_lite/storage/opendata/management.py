"""Queue records of the embedded store: in memory, with RFC 0001's configuration as checkpoint."""

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from zaqar_lite.domain.errors import LimitReached, QueueChanged, RecordChanged
from zaqar_lite.domain.json_values import holds_all
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.opendata.checkpoint import EMPTY_ACTIVE, EMPTY_ENDED
from zaqar_lite.storage.opendata.database import DatabaseUser
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.bookkeeping import encode_queue_record
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.queues import is_live

_FEW = 16
"""Records that a listing looks at at once even where fewer are asked for: some may have expired."""


class OpenDataManagementStore(DatabaseUser, ManagementStore):
    """The management store over RFC 0001's records."""

    finds_filters = True

    async def create_queue(
        self, ref: QueueRef, metadata: Mapping[str, Any], *, max_queues: int
    ) -> tuple[QueueRecord, bool]:
        db = self._db
        db.committer.check_readable()
        record = await self.get_queue(ref)
        if record is not None:
            return record, False
        db.committer.check_writable()
        if len(db.queues.names(ref.project)) >= max_queues:
            raise LimitReached(f"The project has {max_queues} queues, as many as it may have.")
        stored = self._version(QueueRecord(ref, metadata, 0))
        config = encode_queue_record(stored)
        queue = db.queues.make(ref)
        self._put(queue, stored, config)
        if None not in queue.numbered and None not in queue.damaged_pages:
            db.puts[keys.queue_key(RecordType.ACTIVE, queue.raw)] = EMPTY_ACTIVE
        for kind, history in ((RecordType.DONE, queue.done), (RecordType.FAILED, queue.failed)):
            if not history:
                key = keys.queue_key(kind, queue.raw)
                db.puts[key] = EMPTY_ENDED
                db.deletes.pop(key, None)
        await db.committer.durable()
        return stored, True

    async def get_queue(self, ref: QueueRef) -> QueueRecord | None:
        db = self._db
        db.committer.check_readable()
        record = db.queues.record(ref)
        await db.committer.visible(db.queues.epoch(ref))
        return record

    async def update_queue(self, record: QueueRecord) -> QueueRecord:
        db = self._db
        queue = db.queue_to_change(record.ref, None)
        if queue is None or queue.record is None or queue.record.version != record.version:
            raise QueueChanged(f"The queue {record.ref.name!r} changed or was deleted meanwhile.")
        stored = self._version(record)
        self._put(queue, stored, encode_queue_record(stored))
        await db.committer.durable()
        return stored

    async def delete_queue(self, ref: QueueRef, *, version: int) -> None:
        db = self._db
        queue = db.queue_to_change(ref, None)
        if queue is None or queue.record is None:
            return
        if queue.record.version != version:
            raise QueueChanged(f"The queue {ref.name!r} changed meanwhile.")
        db.remove_record(queue)
        db.changed(queue)
        await db.committer.durable()

    async def list_queues(
        self,
        project: str,
        *,
        marker: str | None = None,
        limit: int,
        name_contains: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Sequence[QueueRecord]:
        db = self._db
        found: list[QueueRecord] = []
        epoch = 0
        while True:
            db.committer.check_readable()
            names = db.queues.names_after(project, marker, MAX_EXAMINED)
            for name in names:
                if name_contains is not None and name_contains not in name:
                    continue
                ref = QueueRef(project, name)
                record = db.queues.record(ref)
                if record is None or not holds_all(record.metadata, metadata or {}):
                    continue
                found.append(record)
                epoch = max(epoch, db.queues.epoch(ref))
                if len(found) == limit:
                    break
            if len(found) == limit or len(names) < MAX_EXAMINED:
                break
            marker = names[-1]
            await asyncio.sleep(0)
        await db.committer.visible(epoch)
        return found

    async def count_queues(self, project: str) -> int:
        self._db.committer.check_readable()
        return len(self._db.queues.names(project))

    async def dead_letter_sources(self, target: QueueRef, *, limit: int) -> Sequence[str]:
        self._db.committer.check_readable()
        return self._db.queues.sources(target)[:limit]

    async def exposing_queues(self, *, limit: int) -> Sequence[QueueRecord]:
        self._db.committer.check_readable()
        return self._db.queues.exposing()[:limit]

    async def filtered_queues(self, project: str) -> Sequence[QueueRecord]:
        self._db.committer.check_readable()
        return self._db.queues.filtered(project)

    async def put_record(
        self,
        kind: str,
        project: str,
        name: str,
        value: bytes,
        *,
        expected: int | None,
        ttl_ms: int | None = None,
    ) -> Record:
        db = self._db
        db.committer.check_writable()
        self._check_record(kind, project, name, expected)
        expires_at = None if ttl_ms is None else db.clock.now_ms() + ttl_ms
        version = db.ids.take(1, db.puts)
        record = Record(kind, project, name, value, version, expires_at)
        db.put_record(record)
        await db.committer.durable()
        return record

    async def get_record(self, kind: str, project: str, name: str) -> Record | None:
        db = self._db
        db.committer.check_readable()
        record = db.catalogue.get(kind, project, name, db.clock.now_ms())
        await db.committer.visible(db.catalogue.epoch)
        return record

    async def delete_record(
        self, kind: str, project: str, name: str, *, expected: int | None = None
    ) -> bool:
        db = self._db
        db.committer.check_writable()
        record = db.catalogue.get(kind, project, name, db.clock.now_ms())
        if record is None:
            await db.committer.visible(db.catalogue.epoch)
            return False
        self._check_record(kind, project, name, expected)
        db.delete_record(record)
        await db.committer.durable()
        return True

    async def list_records(
        self,
        kind: str,
        project: str | None = None,
        *,
        after: tuple[str, str] | None = None,
        limit: int,
    ) -> Sequence[Record]:
        db = self._db
        found: list[Record] = []
        if project is not None:
            after = max(after or (project, ""), (project, ""))
        while True:
            db.committer.check_readable()
            step = min(MAX_EXAMINED, max(limit - len(found), _FEW))
            records = db.catalogue.after(kind, after, step)
            mine = [one for one in records if project is None or one.project == project]
            now = db.clock.now_ms()
            found += [one for one in mine if is_live(one, now)]
            if len(found) >= limit or len(mine) < step:
                break
            after = records[-1].project, records[-1].name
            await asyncio.sleep(0)
        await db.committer.visible(db.catalogue.epoch)
        return found[:limit]

    async def sweep_records(self, limit: int) -> int:
        db = self._db
        db.committer.check_writable()
        expired = db.catalogue.expired(db.clock.now_ms(), limit)
        for record in expired:
            db.delete_record(record)
        if expired:
            await db.committer.durable()
        return len(expired)

    def _check_record(self, kind: str, project: str, name: str, expected: int | None) -> None:
        """Compare the version that a writer has seen; 0 stands for no record."""
        if expected is None:
            return
        db = self._db
        record = db.catalogue.get(kind, project, name, db.clock.now_ms())
        if expected != (0 if record is None else record.version):
            raise RecordChanged(f"The {kind} {name!r} was changed or deleted meanwhile.")

    def _version(self, record: QueueRecord) -> QueueRecord:
        """Give a record the next version; the caller may change its metadata later."""
        return QueueRecord(
            record.ref,
            deepcopy(dict(record.metadata)),
            self._db.ids.take(1, self._db.puts),
            record.exposing,
        )

    def _put(self, queue: Queue, record: QueueRecord, config: bytes) -> None:
        db = self._db
        db.queues.set_record(queue, record)
        key = keys.queue_key(RecordType.CONFIG, queue.raw)
        db.puts[key] = config
        db.deletes.pop(key, None)
        db.changed(queue)

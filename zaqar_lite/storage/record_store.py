"""The management store over records that are all in memory (`records.py`).

A driver adds where versions come from, what it does with a change, and when that is durable.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import RecordChanged
from zaqar_lite.domain.json_values import holds_all
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record, RecordBound
from zaqar_lite.domain.refusals import queue_changed, too_many_queues
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.records import Catalogue, QueueRecords, is_live

_FEW = 16
"""Records that a listing looks at at once even where fewer are asked for: some may have expired."""


class RecordStore(ManagementStore):
    """The management store over records that are all in memory."""

    finds_filters = True

    def __init__(self, queues: QueueRecords, catalogue: Catalogue, clock: Clock) -> None:
        self._queues = queues
        self._catalogue = catalogue
        self._clock = clock

    # -- what a driver adds --

    def _check_readable(self) -> None:
        """Raise Unavailable where records can't be read now."""

    def _check_writable(self) -> None:
        """Raise Unavailable where records can't be written now."""

    async def _queues_visible(self, refs: Iterable[QueueRef]) -> None:
        """Wait until what was read of these queues' records is durable, whatever others change."""

    async def _records_visible(self) -> None:
        """Wait until what was read of the other records is durable."""

    async def _durable(self) -> None:
        """Wait until the changes made so far are durable."""

    @abstractmethod
    def _next_version(self) -> int:
        """Take a version that no record had."""

    @abstractmethod
    def _put_queue(self, record: QueueRecord) -> None:
        """Store a queue's record. Raises Invalid: it can't be stored; nothing has changed."""

    @abstractmethod
    def _delete_queue(self, queue: QueueRef) -> None:
        """Remove a queue's record."""

    @abstractmethod
    def _put_record(self, record: Record) -> None:
        """Store a record of another kind."""

    @abstractmethod
    def _delete_record(self, record: Record) -> None:
        """Remove a record of another kind."""

    # -- queues --

    async def create_queue(
        self, queue: QueueRef, metadata: Mapping[str, Any], *, max_queues: int
    ) -> tuple[QueueRecord, bool]:
        """Create a queue unless it exists; see the seam."""
        self._check_readable()
        record = self._queues.get(queue)
        if record is not None:
            await self._queues_visible((queue,))
            return record, False
        self._check_writable()
        if len(self._queues.names(queue.project)) >= max_queues:
            raise too_many_queues(max_queues)
        return await self._store(QueueRecord(queue, metadata, 0)), True

    async def get_queue(self, queue: QueueRef) -> QueueRecord | None:
        """Read a queue's record; see the seam."""
        self._check_readable()
        record = self._queues.get(queue)
        await self._queues_visible((queue,))
        return record

    async def update_queue(self, record: QueueRecord) -> QueueRecord:
        """Replace a record at its version; see the seam."""
        self._check_writable()
        stored = self._queues.get(record.queue)
        if stored is None or stored.version != record.version:
            raise queue_changed(record.queue)
        return await self._store(record)

    async def _store(self, record: QueueRecord) -> QueueRecord:
        """Store a copy of a record under the next version: the caller may change its metadata."""
        metadata = deepcopy(dict(record.metadata))
        stored = QueueRecord(record.queue, metadata, self._next_version(), record.exposing)
        self._put_queue(stored)
        await self._durable()
        return stored

    async def delete_queue(self, queue: QueueRef, *, version: int) -> None:
        """Delete a record at its version; see the seam."""
        self._check_writable()
        stored = self._queues.get(queue)
        if stored is None:
            return
        if stored.version != version:
            raise queue_changed(queue)
        self._delete_queue(queue)
        await self._durable()

    async def list_queues(
        self,
        project: str,
        *,
        marker: str | None = None,
        limit: int,
        name_contains: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Sequence[QueueRecord]:
        """List a project's queues by name; see the seam."""
        wanted = metadata or {}
        found: list[QueueRecord] = []
        while True:
            self._check_readable()
            names = self._queues.names_after(project, marker, MAX_EXAMINED)
            for name in names:
                record = self._queues.get(QueueRef(project, name))
                if record is None or (name_contains is not None and name_contains not in name):
                    continue
                if holds_all(record.metadata, wanted):
                    found.append(record)
                    if len(found) == limit:
                        break
            if len(found) == limit or len(names) < MAX_EXAMINED:
                break
            marker = names[-1]
            await asyncio.sleep(0)  # other requests run between two steps
        await self._queues_visible(record.queue for record in found)
        return found

    async def count_queues(self, project: str) -> int:
        """Count a project's queues; see the seam."""
        self._check_readable()
        return len(self._queues.names(project))

    async def dead_letter_sources(self, target: QueueRef, *, limit: int) -> Sequence[str]:
        """Name the queues with this dead-letter queue; see the seam."""
        self._check_readable()
        return self._queues.sources(target)[:limit]

    async def exposing_queues(self, *, limit: int) -> Sequence[QueueRecord]:
        """Find the exposing queues; see the seam."""
        self._check_readable()
        return self._queues.exposing(limit)

    async def filtered_queues(self, project: str) -> Sequence[QueueRecord]:
        """Find the queues with a filter; see the seam."""
        self._check_readable()
        return self._queues.filtered(project)

    # -- other records --

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
        """Write a record at its expected version; see the seam."""
        self._check_writable()
        self._check_version(kind, project, name, expected)
        if bounds and self._catalogue.get(kind, project, name, self._clock.now_ms()) is None:
            self._check_bounds(kind, project, bounds)
        expires_at = None if ttl_ms is None else self._clock.now_ms() + ttl_ms
        record = Record(kind, project, name, value, self._next_version(), expires_at)
        self._put_record(record)
        await self._durable()
        return record

    async def get_record(self, kind: str, project: str, name: str) -> Record | None:
        """Read a live record; see the seam."""
        self._check_readable()
        record = self._catalogue.get(kind, project, name, self._clock.now_ms())
        await self._records_visible()
        return record

    async def delete_record(
        self, kind: str, project: str, name: str, *, expected: int | None = None
    ) -> bool:
        """Delete a record; see the seam."""
        self._check_writable()
        record = self._catalogue.get(kind, project, name, self._clock.now_ms())
        if record is None:
            await self._records_visible()
            return False
        self._check_version(kind, project, name, expected)
        self._delete_record(record)
        await self._durable()
        return True

    async def list_records(
        self,
        kind: str,
        project: str | None = None,
        *,
        after: tuple[str, str] | None = None,
        limit: int,
    ) -> Sequence[Record]:
        """List live records; see the seam."""
        found: list[Record] = []
        if project is not None:
            after = max(after or (project, ""), (project, ""))
        while True:
            self._check_readable()
            step = min(MAX_EXAMINED, max(limit - len(found), _FEW))
            records = self._catalogue.after(kind, after, step)
            mine = [one for one in records if project is None or one.project == project]
            now = self._clock.now_ms()
            found += [one for one in mine if is_live(one, now)]
            if len(found) >= limit or len(mine) < step:
                break
            after = records[-1].project, records[-1].name
            await asyncio.sleep(0)  # other requests run between two steps
        await self._records_visible()
        return found[:limit]

    async def sweep_records(self, limit: int) -> int:
        """Remove expired records; see the seam."""
        self._check_writable()
        expired = self._catalogue.expired(self._clock.now_ms(), limit)
        for record in expired:
            self._delete_record(record)
        if expired:
            await self._durable()
        return len(expired)

    def _check_bounds(self, kind: str, project: str, bounds: Sequence[RecordBound]) -> None:
        """Compare the live records of a kind with the bounds of a new one."""
        now = self._clock.now_ms()
        live = [one for one in self._catalogue.all() if one.kind == kind and is_live(one, now)]
        for bound in bounds:
            within = [one for one in live if one.name.startswith(bound.prefix)]
            if not bound.of_server:
                within = [one for one in within if one.project == project]
            if len(within) >= bound.most:
                raise bound.reached

    def _check_version(self, kind: str, project: str, name: str, expected: int | None) -> None:
        """Compare the version that a writer has seen; 0 stands for no record."""
        if expected is None:
            return
        record = self._catalogue.get(kind, project, name, self._clock.now_ms())
        if expected != (0 if record is None else record.version):
            raise RecordChanged(f"The {kind} {name!r} was changed or deleted meanwhile.")

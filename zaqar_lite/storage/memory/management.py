"""Queue records in memory, with an index for each question that the service asks."""

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any

from sortedcontainers import SortedDict

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import LimitReached, QueueChanged, RecordChanged
from zaqar_lite.domain.json_values import holds_all
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.memory.state import State


class MemoryManagementStore(ManagementStore):
    """The reference management store."""

    finds_filters = True

    def __init__(self, shared: State, clock: Clock) -> None:
        self._state = shared
        self._clock = clock

    async def open(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def close(self) -> None:
        """Do nothing: the state goes with the stores."""

    async def ping(self) -> None:
        """Do nothing: the store always answers."""

    async def create_queue(
        self, ref: QueueRef, metadata: Mapping[str, Any], *, max_queues: int
    ) -> tuple[QueueRecord, bool]:
        """Create a queue unless it exists; see the seam."""
        record = self._state.records.get(ref)
        if record is not None:
            return record, False
        if len(self._state.names(ref.project)) >= max_queues:
            raise LimitReached(f"The project has {max_queues} queues, as many as it may have.")
        return self._put(QueueRecord(ref, metadata, 0)), True

    async def get_queue(self, ref: QueueRef) -> QueueRecord | None:
        """Read a queue's record; see the seam."""
        return self._state.records.get(ref)

    async def update_queue(self, record: QueueRecord) -> QueueRecord:
        """Replace a record at its version; see the seam."""
        stored = self._state.records.get(record.ref)
        if stored is None or stored.version != record.version:
            raise QueueChanged(f"The queue {record.ref.name!r} changed or was deleted meanwhile.")
        return self._put(record)

    async def delete_queue(self, ref: QueueRef, *, version: int) -> None:
        """Delete a record at its version; see the seam."""
        stored = self._state.records.get(ref)
        if stored is None:
            return
        if stored.version != version:
            raise QueueChanged(f"The queue {ref.name!r} changed meanwhile.")
        self._state.remove_record(ref)

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
            following = self._state.names(project).irange(marker, inclusive=(False, True))
            names = list(islice(following, MAX_EXAMINED))
            for name in names:
                record = self._state.records[QueueRef(project, name)]
                if (name_contains is None or name_contains in name) and holds_all(
                    record.metadata, wanted
                ):
                    found.append(record)
                    if len(found) == limit:
                        return found
            if len(names) < MAX_EXAMINED:
                return found
            marker = names[-1]
            await asyncio.sleep(0)  # other requests run between two steps

    async def count_queues(self, project: str) -> int:
        """Count a project's queues; see the seam."""
        return len(self._state.names(project))

    async def dead_letter_sources(self, target: QueueRef, *, limit: int) -> Sequence[str]:
        """Name the queues with this dead-letter queue; see the seam."""
        return sorted(self._state.sources.get(target, ()))[:limit]

    async def exposing_queues(self, *, limit: int) -> Sequence[QueueRecord]:
        """Find the exposing queues; see the seam."""
        return [self._state.records[ref] for ref in islice(self._state.exposing, limit)]

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
        """Write a record at its expected version; see the seam."""
        now_us = self._clock.now_us()
        self._check_record(kind, project, name, expected)
        expires_at = None if ttl_ms is None else now_us // 1000 + ttl_ms
        version = self._state.next_version(now_us)
        record = Record(kind, project, name, value, version, expires_at)
        self._forget(kind, (project, name))
        self._state.others.setdefault(kind, SortedDict())[project, name] = record
        if expires_at is not None:
            self._state.record_ends.add((expires_at, kind, (project, name)))
        return record

    async def get_record(self, kind: str, project: str, name: str) -> Record | None:
        """Read a live record; see the seam."""
        record = self._state.others.get(kind, _NONE).get((project, name))
        return record if record is not None and self._is_live(record) else None

    async def delete_record(
        self, kind: str, project: str, name: str, *, expected: int | None = None
    ) -> bool:
        """Delete a record; see the seam."""
        if await self.get_record(kind, project, name) is None:
            return False
        self._check_record(kind, project, name, expected)
        self._forget(kind, (project, name))
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
            records = self._state.others.get(kind, _NONE)
            keys = list(islice(records.irange(after, inclusive=(False, True)), MAX_EXAMINED))
            for key in keys:
                if project is not None and key[0] != project:
                    return found
                if self._is_live(records[key]):
                    found.append(records[key])
                    if len(found) == limit:
                        return found
            if len(keys) < MAX_EXAMINED:
                return found
            after = keys[-1]
            await asyncio.sleep(0)  # other requests run between two steps

    async def sweep_records(self, limit: int) -> int:
        """Remove expired records; see the seam."""
        now = self._clock.now_ms()
        count = 0
        while self._state.record_ends and count < limit and self._state.record_ends[0][0] <= now:
            _, kind, key = self._state.record_ends[0]
            self._forget(kind, key)
            count += 1
        return count

    def _forget(self, kind: str, key: tuple[str, str]) -> None:
        record = self._state.others.get(kind, _NONE).pop(key, None)
        if record is not None and record.expires_at is not None:
            self._state.record_ends.remove((record.expires_at, kind, key))

    def _is_live(self, record: Record) -> bool:
        return record.expires_at is None or record.expires_at > self._clock.now_ms()

    def _check_record(self, kind: str, project: str, name: str, expected: int | None) -> None:
        """Compare the version that a writer has seen; 0 stands for no record."""
        if expected is None:
            return
        record = self._state.others.get(kind, _NONE).get((project, name))
        if expected != (record.version if record is not None and self._is_live(record) else 0):
            raise RecordChanged(f"The {kind} {name!r} was changed or deleted meanwhile.")

    async def filtered_queues(self, project: str) -> Sequence[QueueRecord]:
        """Find the queues with a filter; see the seam."""
        return [
            self._state.records[QueueRef(project, name)]
            for name in self._state.filtered.get(project, ())
        ]

    def _put(self, record: QueueRecord) -> QueueRecord:
        """Store a copy of a record under the next version: the caller may change its metadata."""
        stored = QueueRecord(
            record.ref,
            deepcopy(dict(record.metadata)),
            self._state.next_version(self._clock.now_us()),
            record.exposing,
        )
        self._state.put_record(stored)
        return stored


_NONE: SortedDict[tuple[str, str], Record] = SortedDict()

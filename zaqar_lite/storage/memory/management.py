"""Queue records in memory, with an index for each question that the service asks."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import LimitReached, QueueChanged
from zaqar_lite.domain.json_values import is_same
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.base import ManagementStore
from zaqar_lite.storage.memory.state import State


class MemoryManagementStore(ManagementStore):
    """The reference management store."""

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
        names = self._state.names(project).irange(marker, inclusive=(False, True))
        found = (
            self._state.records[QueueRef(project, name)]
            for name in names
            if name_contains is None or name_contains in name
        )
        wanted = metadata or {}
        return list(islice((r for r in found if _has(r.metadata, wanted)), limit))

    async def count_queues(self, project: str) -> int:
        """Count a project's queues; see the seam."""
        return len(self._state.names(project))

    async def dead_letter_sources(self, target: QueueRef, *, limit: int) -> Sequence[str]:
        """Name the queues with this dead-letter queue; see the seam."""
        return sorted(self._state.sources.get(target, ()))[:limit]

    async def exposing_queues(self, *, limit: int) -> Sequence[QueueRecord]:
        """Find the exposing queues; see the seam."""
        return [self._state.records[ref] for ref in islice(self._state.exposing, limit)]

    async def filtered_queues(self, project: str) -> Sequence[QueueRecord]:
        """Find the queues with a filter; see the seam."""
        return [
            self._state.records[QueueRef(project, name)]
            for name in self._state.filtered.get(project, ())
        ]

    def _put(self, record: QueueRecord) -> QueueRecord:
        """Store a record under the next version; later changes of the caller's metadata are his."""
        stored = QueueRecord(
            record.ref,
            deepcopy(dict(record.metadata)),
            self._state.next_version(self._clock.now_us()),
            record.exposing,
        )
        self._state.put_record(stored)
        return stored


def _has(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(key in metadata and is_same(metadata[key], wanted[key]) for key in wanted)

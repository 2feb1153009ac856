"""The management store: records under their queue's lock, listed by name."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.json_values import holds_all
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.domain.refusals import queue_changed, too_many_queues
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.kind_records import KindRecords
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import together


class SwiftManagementStore(KindRecords):
    """Queue records as objects."""

    expires_alone = True

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._records = backend.records

    async def create_queue(
        self, queue: QueueRef, metadata: Mapping[str, Any], *, max_queues: int
    ) -> tuple[QueueRecord, bool]:
        """Create a queue unless it exists; see the seam.

        The project's lock is taken first, so that racing creators can't pass the limit.
        """
        known = await self._records.get(queue)
        if known is not None:
            return known, False

        async def create(_: Lease) -> tuple[QueueRecord, bool]:
            async with self._connection.locks.hold(
                self._connection.containers.queue(queue)
            ) as lease:
                record = await self._records.get(queue)
                if record is not None:
                    return record, False
                if await self._records.count(queue.project) >= max_queues:
                    raise too_many_queues(max_queues)
                return await self._records.put(QueueRecord(queue, metadata, 0), lease), True

        return await self._connection.locks.run(
            self._connection.containers.project(queue.project), create
        )

    async def get_queue(self, queue: QueueRef) -> QueueRecord | None:
        """Read a queue's record; see the seam."""
        return await self._records.get(queue)

    async def update_queue(self, record: QueueRecord) -> QueueRecord:
        """Replace a record at its version; see the seam."""

        async def update(lease: Lease) -> QueueRecord:
            stored = await self._records.get(record.queue)
            if stored is None or stored.version != record.version:
                raise queue_changed(record.queue)
            container = self._connection.containers.queue(record.queue)
            await self._connection.tails.note_version(container, 0, lease)
            changed = await self._records.put(record, lease)
            with suppress(Unavailable):  # then it is read from the record
                await self._connection.tails.note_version(container, changed.version, lease)
            return changed

        return await self._connection.locked(record.queue, update)

    async def delete_queue(self, queue: QueueRef, *, version: int) -> None:
        """Delete a record at its version; see the seam."""

        async def delete(lease: Lease) -> None:
            stored = await self._records.get(queue)
            if stored is None:
                return
            if stored.version != version:
                raise queue_changed(queue)
            container = self._connection.containers.queue(queue)
            await self._connection.tails.note_version(container, 0, lease)
            await self._records.remove(queue, lease)

        await self._connection.locked(queue, delete)

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
        found: list[QueueRecord] = []
        waiting: list[QueueRef] = []

        async def fetch() -> None:
            records = await together(*(self._records.get(queue) for queue in waiting))
            found.extend(
                r for r in records if r is not None and holds_all(r.metadata, metadata or {})
            )
            waiting.clear()

        async for name, _ in self._records.names(project, after=marker, first=limit):
            if name_contains is None or name_contains in name:
                waiting.append(QueueRef(project, name))
            if len(waiting) >= limit:
                await fetch()
                if len(found) >= limit:
                    return found[:limit]
        await fetch()
        return found[:limit]

    async def count_queues(self, project: str) -> int:
        """Count a project's queues; see the seam."""
        return await self._records.count(project)

    async def dead_letter_sources(self, target: QueueRef, *, limit: int) -> Sequence[str]:
        """Name the queues with this dead-letter queue, from the listing; see the seam."""
        found: list[str] = []
        async for name, dead_letter_queue in self._records.names(
            target.project, after=None, first=self._connection.objects.page
        ):
            if dead_letter_queue == target.name:
                found.append(name)
            if len(found) == limit:
                break
        return found

    async def exposing_queues(self, *, limit: int) -> Sequence[QueueRecord]:
        """Find the exposing queues; see the seam."""
        return await self._records.exposing(limit)

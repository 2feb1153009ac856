"""Queue records: one object each, under the queue's lock whenever one is changed.

The name is '=' and the queue's name, because '.' and '..' can't stand alone in a path. A record's
content type shows what is asked of many at once: its version and its dead-letter queue. Which
queues are exposing is told by empty objects in a container of their own; the record decides.
"""

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.metadata import dead_letter_target
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.domain.refusals import queue_changed
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.layout import Containers
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import Objects, together

_MAX_CACHED = 10_000
_REST_MS = 10_000
"""How long it is believed that no queue is exposing: another process may have switched one off."""


class Records:
    """Read and write records; a process that is alone remembers what it read or wrote."""

    def __init__(
        self, objects: Objects, containers: Containers, clock: Clock, *, shared: bool
    ) -> None:
        self._objects = objects
        self._containers = containers
        self._clock = clock
        self._shared = shared
        self._cache: OrderedDict[QueueRef, QueueRecord] = OrderedDict()
        self._last_version = 0
        self._changes = 0
        self._none_exposing_until = 0

    async def get(self, queue: QueueRef) -> QueueRecord | None:
        """Read a record in its newest version."""
        known = self._cache.get(queue)
        if known is not None:
            return known
        changes = self._changes
        reply = await self._objects.get(self._containers.project(queue.project), f"={queue.name}")
        if not reply.found:
            return None
        record = _decode(reply.body)
        if changes == self._changes:  # else what was read may be older than what is remembered
            self._remember(record)
        return record

    async def check(self, queue: QueueRef, version: int) -> None:
        """Compare the version that a caller decided by; 0 stands for no record.

        Raises:
            QueueChanged: the record is at another version.
        """
        record = await self.get(queue)
        if version != (0 if record is None else record.version):
            raise queue_changed(queue)

    async def put(self, record: QueueRecord, lease: Lease) -> QueueRecord:
        """Write a record at its next version, under the lock."""
        self._last_version = max(self._last_version, record.version) + 1
        self._last_version = max(self._last_version, self._clock.now_us())
        encoded = _encode(replace(record, version=self._last_version))
        stored = _decode(encoded)  # the caller may change its own later
        if stored.exposing:
            self._none_exposing_until = 0
            await self._objects.put(*self._exposing(stored.queue), encoded, lease)
        target = dead_letter_target(stored.metadata)
        kind = layout.content_type("record", v=stored.version, dlq=target or "")
        container = self._containers.project(stored.queue.project)
        self._forget(stored.queue)
        await self._objects.put(container, f"={stored.queue.name}", kind, encoded, lease)
        if record.version and not stored.exposing:
            await self._unlist(stored.queue, lease)
        self._changes += 1
        self._remember(stored)
        return stored

    async def remove(self, queue: QueueRef, lease: Lease) -> None:
        """Delete a record, under the lock; no error when there is none."""
        self._forget(queue)
        container = self._containers.project(queue.project)
        await self._objects.remove(container, f"={queue.name}", lease)
        await self._unlist(queue, lease)
        self._forget(queue)

    async def _unlist(self, queue: QueueRef, lease: Lease) -> None:
        """Take a queue off the list of the exposing ones; where that fails its record decides."""
        container, name, _ = self._exposing(queue)
        with suppress(Unavailable):
            await self._objects.remove(container, name, lease)

    async def count(self, project: str) -> int:
        """How many records a project has."""
        return await self._objects.count(self._containers.project(project))

    async def names(
        self, project: str, *, after: str | None, first: int
    ) -> AsyncIterator[tuple[str, str | None]]:
        """The names of a project's queues, each with its dead-letter queue's, in order."""
        container = self._containers.project(project)
        marker = "" if after is None else f"={after}"
        async for page in self._objects.pages(container, after=marker, first=first):
            for entry in page:
                yield entry.name[1:], layout.parameters(entry.content_type).get("dlq")

    async def exposing(self, limit: int) -> Sequence[QueueRecord]:
        """The records that are exposing; where there are none, that is known for a while."""
        found: list[QueueRecord] = []
        if self._clock.now_ms() < self._none_exposing_until:
            return found
        changes = self._changes
        async for page in self._objects.pages(self._containers.exposing, first=limit):
            bodies = await together(
                *(self._objects.get(self._containers.exposing, entry.name) for entry in page)
            )
            refs = [_decode(reply.body).queue for reply in bodies if reply.found]
            records = await together(*(self.get(queue) for queue in refs))
            found += [record for record in records if record is not None and record.exposing]
            if len(found) >= limit:
                break
        if not found and changes == self._changes:
            self._none_exposing_until = self._clock.now_ms() + _REST_MS
        return found[:limit]

    def _exposing(self, queue: QueueRef) -> tuple[str, str, str]:
        container = self._containers.project(queue.project)
        return (
            self._containers.exposing,
            f"{container}={queue.name}",
            layout.content_type("exposing"),
        )

    def _forget(self, queue: QueueRef) -> None:
        self._changes += 1
        self._cache.pop(queue, None)

    def _remember(self, record: QueueRecord) -> None:
        if self._shared:
            return
        self._cache[record.queue] = record
        if len(self._cache) > _MAX_CACHED:
            self._cache.popitem(last=False)


def _encode(record: QueueRecord) -> bytes:
    return json.dumps(
        {
            "project": record.queue.project,
            "name": record.queue.name,
            "version": record.version,
            "exposing": record.exposing,
            "metadata": dict(record.metadata),
        }
    ).encode()


def _decode(data: bytes) -> QueueRecord:
    found: dict[str, Any] = json.loads(data)
    queue = QueueRef(found["project"], found["name"])
    return QueueRecord(queue, found["metadata"], found["version"], found["exposing"])

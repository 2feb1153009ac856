"""What the two stores of one `create` share: connection, locks, queue records, what is known.

A queue's record is one object, changed under the queue's lock. Its name is '=' and the queue's,
because '.' and '..' can't stand alone in a path. Its content type shows what is asked of many at
once: version and dead-letter queue. Which queues are exposing is told by empty objects in a
container of their own; the record decides.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.domain.metadata import dead_letter_target
from zaqar_lite.domain.models import QueueRecord, QueueRef, StoreOptions
from zaqar_lite.domain.refusals import queue_changed
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.connection import Swift
from zaqar_lite.storage.swift.layout import Containers
from zaqar_lite.storage.swift.locks import Lease, Locks, SharedLocks
from zaqar_lite.storage.swift.objects import PAGE, Objects, together
from zaqar_lite.storage.swift.options import AuthError, SwiftOptions
from zaqar_lite.storage.swift.tail import Hints, Tail, Tails

MAX_SKEW_S = 2.0
"""Seconds by which the clock of a process may differ from Swift's where several share the store."""
MAX_SKEW_ALONE_S = 120.0
"""The same for a process that is alone: only the broom's slack depends on it."""
T = TypeVar("T")
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
            name, kind = self._exposing(stored.queue), layout.content_type("exposing")
            await self._objects.put(self._containers.exposing, name, kind, encoded, lease)
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
        with suppress(Unavailable):
            await self._objects.remove(self._containers.exposing, self._exposing(queue), lease)

    async def count(self, project: str) -> int:
        """How many records a project has."""
        return await self._objects.count(self._containers.project(project))

    async def names(
        self, project: str, *, after: str | None = None, first: int = PAGE
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

    def _exposing(self, queue: QueueRef) -> str:
        return f"{self._containers.project(queue.project)}={queue.name}"

    def _forget(self, queue: QueueRef) -> None:
        self._changes += 1
        self._cache.pop(queue, None)

    def _remember(self, record: QueueRecord) -> None:
        if self._shared:
            return
        self._cache[record.queue] = record
        if len(self._cache) > _MAX_CACHED:
            self._cache.popitem(last=False)


class Backend:
    """One account, opened by the first of its stores and closed by the last."""

    def __init__(self, options: SwiftOptions, limits: StoreOptions, clock: Clock) -> None:
        self.clock = clock
        self.limits = limits
        self.shared = options.shared
        self.longest_call = options.patience + options.timeout + 5
        """Seconds after which a request that was begun has ended, one way or the other."""
        self.swift = Swift(
            options.auth,
            connections=options.connections,
            timeout=options.timeout,
            patience=options.patience,
        )
        self.containers = Containers(options.prefix)
        self.objects = Objects(self.swift, clock)
        self.locks = (
            Locks()
            if options.coordination_url is None
            else SharedLocks(options.coordination_url, options.lease, options.prefix)
        )
        self.tails = Tails(self.objects, clock, shared=self.shared, lease=options.lease)
        self.hints = Hints(self.tails, clock)
        self.records = Records(self.objects, self.containers, clock, shared=self.shared)
        self._users: set[object] = set()

    async def open(self, user: object) -> None:
        """Connect for `user`, and check what can be checked; idempotent.

        Raises:
            ConfigurationError: the account is refused, or the clocks differ too much.
            Unavailable: Swift or the coordination service does not answer.
        """
        self._users.add(user)
        if len(self._users) > 1:
            return
        try:
            self.swift.open()
            await self.locks.open()
            with suppress(AuthError):  # then the call tells why, and tries again
                await asyncio.to_thread(self.swift.auth.token)
            await self.swift.call("HEAD")  # whether it answers; signing does without
            await self.swift.prepare_signing((self.containers.exposing, "=probe"))
            self._check_clock()
        except BaseException:
            await self.close(user)
            raise

    async def close(self, user: object) -> None:
        """Disconnect when `user` is the last; idempotent."""
        self._users.discard(user)
        if not self._users:
            await self.locks.close()
            self.swift.close()

    async def ping(self) -> None:
        """Return when Swift and the coordination service answer."""
        await self.swift.call("HEAD")
        await self.locks.ping()

    async def check(self, queue: QueueRef, version: int | None, tail: Tail) -> Tail:
        """Compare the version that a caller decided by with the queue's, which the tail may tell.

        Answers the tail, with the version where that was read from the record.

        Raises:
            QueueChanged: the record is at another version.
        """
        if version is None or (self.shared and version and tail.version == version):
            return tail
        await self.records.check(queue, version)
        return replace(tail, version=version) if self.shared else tail

    async def locked(
        self,
        queue: QueueRef | str,
        work: Callable[[Lease], Awaitable[T]],
        *,
        within: str | None = None,
        exclusive: bool = False,
    ) -> T:
        """Do `work` under the lock of a queue, or of a name, if this process's clock is right.

        The lock `within` is taken first. Where the work is `exclusive` its outcome holds only if
        the lock was never lost.

        Raises:
            Unavailable: no lock, or a clock that could cut the leases of other processes.
        """
        name = queue if isinstance(queue, str) else self.containers.queue(queue)
        skew = self.swift.fence.skew
        if self.shared and abs(skew) > MAX_SKEW_S:
            raise Unavailable(
                f"The clock of this server differs from Swift's by {skew:.0f} s, so its deadlines "
                "can't be trusted: synchronise it (NTP).",
                retry_after=30,
            )
        return await self.locks.run(name, work, within=within, exclusive=exclusive)

    def _check_clock(self) -> None:
        most = MAX_SKEW_S if self.shared else MAX_SKEW_ALONE_S
        if abs(self.swift.fence.skew) > most:
            raise ConfigurationError(
                f"The clock of this machine differs from Swift's by {self.swift.fence.skew:.0f} s; "
                f"at most {most:.0f} s are allowed: synchronise it (NTP)."
            )


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

"""What the two stores of one `create` share: the connection, the locks, what is known of queues."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.storage.swift.connection import Swift
from zaqar_lite.storage.swift.hints import Hints
from zaqar_lite.storage.swift.layout import Containers
from zaqar_lite.storage.swift.locks import Lease, Locks, SharedLocks
from zaqar_lite.storage.swift.objects import Objects
from zaqar_lite.storage.swift.options import SwiftOptions
from zaqar_lite.storage.swift.records import Records
from zaqar_lite.storage.swift.tail import Tail, Tails

MAX_SKEW_S = 2.0
"""Seconds by which the clock of a process may differ from Swift's where several share the store."""
MAX_SKEW_ALONE_S = 120.0
"""The same for a process that is alone: only the broom's slack depends on it."""
T = TypeVar("T")


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
        self.hints = Hints(self.tails)
        self.records = Records(self.objects, self.containers, clock, shared=self.shared)
        self._users: set[object] = set()

    async def open(self, user: object) -> None:
        """Connect for `user`, and check what can be checked; idempotent.

        Raises:
            ConfigurationError: the clocks differ too much.
            Unavailable: Swift or the coordination service does not answer.
        """
        self._users.add(user)
        if len(self._users) > 1:
            return
        try:
            self.swift.open()
            await self.locks.open()
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
        also: QueueRef | None = None,
        exclusive: bool = False,
    ) -> T:
        """Do `work` under the lock of a queue, or of a name, if this process's clock is right.

        `also` is another queue whose lock is held too. Where the work is `exclusive` its outcome
        holds only if the lock was never lost.

        Raises:
            Unavailable: no lock, or a clock that could cut the leases of other processes.
        """
        name = queue if isinstance(queue, str) else self.containers.queue(queue)
        other = None if also is None else self.containers.queue(also)
        skew = self.swift.fence.skew
        if self.shared and abs(skew) > MAX_SKEW_S:
            raise Unavailable(
                f"The clock of this server differs from Swift's by {skew:.0f} s, so its deadlines "
                "can't be trusted: synchronise it (NTP).",
                retry_after=30,
            )
        return await self.locks.run(name, work, also=other, exclusive=exclusive)

    def _check_clock(self) -> None:
        most = MAX_SKEW_S if self.shared else MAX_SKEW_ALONE_S
        if abs(self.swift.fence.skew) > most:
            raise ConfigurationError(
                f"The clock of this machine differs from Swift's by {self.swift.fence.skew:.0f} s; "
                f"at most {most:.0f} s are allowed: synchronise it (NTP)."
            )

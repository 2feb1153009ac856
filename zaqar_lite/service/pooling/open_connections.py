"""The open stores of the pools: each is opened when it is first needed, and anew when it changes.

A store that does not answer is tried again after a few seconds at the earliest; what needs it
meanwhile fails with Unavailable without waiting.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zaqar_lite.domain.addresses import without_secrets
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.service.background import cancelled
from zaqar_lite.service.pooling.pools import Pool
from zaqar_lite.storage.base import Listener, MessageStore

logger = logging.getLogger(__name__)
Make = Callable[[Pool], MessageStore]
"""Makes the store of a pool, not yet opened; raises ConfigurationError."""
_PAUSE = 3.0
"""Seconds between two attempts to open a store."""


@dataclass(eq=False)
class _Connection:
    """A pool, the task that opens its store, and when that failed (monotonic clock)."""

    pool: Pool
    opening: "asyncio.Task[MessageStore]"
    failed_at: float | None = None

    @property
    def store(self) -> MessageStore | None:
        """The store, if it is open."""
        if self.failed_at is not None or not self.opening.done() or self.opening.cancelled():
            return None
        return self.opening.result()


@dataclass(eq=False, repr=False)
class OpenConnections:
    """Open and close the stores of pools."""

    make: Make
    listener: Listener | None = None

    def __post_init__(self) -> None:
        self._connections: dict[str, _Connection] = {}

    def stores(self) -> Mapping[str, MessageStore]:
        """The stores that are open, by the names of their pools."""
        found = {name: one.store for name, one in self._connections.items()}
        return {name: store for name, store in found.items() if store is not None}

    async def store(self, pool: Pool) -> MessageStore:
        """The open store of a pool.

        Raises:
            Unavailable: it does not answer, or can't be opened as it is configured.
        """
        connection = self._connections.get(pool.name)
        if connection is not None and connection.pool is pool and connection.store is not None:
            return connection.store
        return await asyncio.shield(await self.begin(pool))

    async def begin(self, pool: Pool) -> "asyncio.Task[MessageStore]":
        """Begin to open a pool's store, unless it is open or failed to open a moment ago."""
        found = self._connections.get(pool.name)
        if found is not None and (found.pool.uri, found.pool.options) != (pool.uri, pool.options):
            await self.forget(pool.name)
            found = None
        failed_at = None if found is None else found.failed_at
        if found is None or (failed_at is not None and time.monotonic() - failed_at >= _PAUSE):
            opening = asyncio.create_task(self._open(pool), name="pool")
            opening.add_done_callback(_log)
            found = self._connections[pool.name] = _Connection(pool, opening)
        found.pool = pool
        return found.opening

    async def forget(self, name: str) -> None:
        """Close the store of a pool that was deleted or has another store now."""
        connection = self._connections.pop(name, None)
        if connection is not None:
            await cancelled(connection.opening)
            if connection.store is not None:
                await connection.store.close()

    async def close(self) -> None:
        """Close all stores."""
        for name in list(self._connections):
            await self.forget(name)

    async def _open(self, pool: Pool) -> MessageStore:
        try:
            store = self.make(pool)
            if self.listener is not None:
                store.listen(self.listener)
            await store.open()
        except BaseException as exc:
            connection = self._connections.get(pool.name)
            if connection is not None and connection.opening is asyncio.current_task():
                connection.failed_at = time.monotonic()
            if not isinstance(exc, ConfigurationError | Unavailable):
                raise
            why = without_secrets(str(exc), pool.uri)
            raise Unavailable(f"The pool {pool.name!r} can't be reached.", detail=why) from exc
        return store


def _log(task: "asyncio.Task[MessageStore]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("a pool is not open: %s", error)

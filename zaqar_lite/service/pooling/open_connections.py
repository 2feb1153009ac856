"""The open stores of the pools: each is opened when it is first needed, and anew when it changes.

A store that does not answer is tried again after a few seconds at the earliest; what needs it
meanwhile fails with Unavailable without waiting.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

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


class _PoolStore:
    """A pool with its store, if that is open."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.store: MessageStore | None = None
        self.opening: asyncio.Task[MessageStore] | None = None
        self.failed_at = float("-inf")

    def is_of(self, pool: Pool) -> bool:
        """Whether a pool has this store: the same URI with the same options."""
        return (self.pool.uri, self.pool.options) == (pool.uri, pool.options)


class OpenConnections:
    """Open and close the stores of pools."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._pool_stores: dict[str, _PoolStore] = {}
        self.listener: Listener | None = None

    def is_open(self, name: str) -> bool:
        """Whether a pool's store is open."""
        entry = self._pool_stores.get(name)
        return entry is not None and entry.store is not None

    def stores(self) -> Mapping[str, MessageStore]:
        """The stores that are open, by the names of their pools."""
        return {
            name: entry.store
            for name, entry in self._pool_stores.items()
            if entry.store is not None
        }

    async def store(self, pool: Pool) -> MessageStore:
        """The open store of a pool.

        Raises:
            Unavailable: it does not answer, or can't be opened as it is configured.
        """
        entry = self._pool_stores.get(pool.name)
        if entry is not None and entry.store is not None and entry.pool is pool:
            return entry.store
        if entry is None or not entry.is_of(pool):
            await self.forget(pool.name)
            entry = self._pool_stores.setdefault(pool.name, _PoolStore(pool))
        entry.pool = pool
        if entry.store is not None:
            return entry.store
        if entry.opening is None:
            if time.monotonic() - entry.failed_at < _PAUSE:
                raise _unavailable(pool, "it did not answer a moment ago")
            entry.opening = asyncio.create_task(self._open(entry), name="pool")
        return await asyncio.shield(entry.opening)

    def begin(self, pool: Pool) -> None:
        """Begin to open a pool's store, unless it is open or failed to open a moment ago."""
        entry = self._pool_stores.get(pool.name)
        if entry is None or not entry.is_of(pool):
            entry = None
        if entry is not None and (
            entry.store is not None
            or entry.opening is not None
            or time.monotonic() - entry.failed_at < _PAUSE
        ):
            return
        task = asyncio.create_task(self.store(pool), name="pool")
        task.add_done_callback(_log)

    async def forget(self, name: str) -> None:
        """Close the store of a pool that was deleted or has another store now."""
        entry = self._pool_stores.pop(name, None)
        if entry is None:
            return
        await cancelled(entry.opening)
        if entry.store is not None:
            await entry.store.close()

    async def close(self) -> None:
        """Close all stores."""
        for name in list(self._pool_stores):
            await self.forget(name)

    async def _open(self, entry: _PoolStore) -> MessageStore:
        pool = entry.pool
        try:
            store = self._make(pool)
            if self.listener is not None:
                store.listen(self.listener)
            await store.open()
        except (ConfigurationError, Unavailable) as exc:
            entry.failed_at = time.monotonic()
            raise _unavailable(pool, without_secrets(str(exc), pool.uri)) from exc
        else:
            entry.store = store
            return store
        finally:
            entry.opening = None


def _unavailable(pool: Pool, why: str) -> Unavailable:
    return Unavailable(f"The pool {pool.name!r} can't be reached.", detail=why)


def _log(task: "asyncio.Task[MessageStore]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("a pool is not open: %s", error)

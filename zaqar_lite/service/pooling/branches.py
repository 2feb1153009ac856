"""The stores of the pools: made and opened when they are first needed, and again when they change.

A pool whose store does not answer is asked again at most once in a few seconds; who needs it
meanwhile is told Unavailable at once.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from zaqar_lite.domain.addresses import without_secrets
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.service.pooling.pool import Pool
from zaqar_lite.storage.base import Listener, MessageStore

logger = logging.getLogger(__name__)
Make = Callable[[Pool], MessageStore]
"""Makes the store of a pool, not yet opened; raises ConfigurationError."""
_PAUSE = 3.0
"""Seconds between two attempts to open a store."""


class _Branch:
    """A pool with its store, if that is open."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.store: MessageStore | None = None
        self.opening: asyncio.Task[MessageStore] | None = None
        self.failed_at = float("-inf")

    def is_of(self, pool: Pool) -> bool:
        """Whether it is this pool's, as far as its store is concerned."""
        return (self.pool.uri, self.pool.options) == (pool.uri, pool.options)


class Branches:
    """Open and close the stores of pools."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._branches: dict[str, _Branch] = {}
        self.listener: Listener | None = None

    def is_open(self, name: str) -> bool:
        """Whether a pool's store is open."""
        branch = self._branches.get(name)
        return branch is not None and branch.store is not None

    def stores(self) -> Mapping[str, MessageStore]:
        """The stores that are open, by the names of their pools."""
        return {
            name: branch.store
            for name, branch in self._branches.items()
            if branch.store is not None
        }

    async def store(self, pool: Pool) -> MessageStore:
        """The open store of a pool.

        Raises:
            Unavailable: it does not answer, or can't be opened as it is configured.
        """
        branch = self._branches.get(pool.name)
        if branch is not None and branch.store is not None and branch.pool is pool:
            return branch.store
        if branch is None or not branch.is_of(pool):
            await self.forget(pool.name)
            branch = self._branches.setdefault(pool.name, _Branch(pool))
        branch.pool = pool
        if branch.store is not None:
            return branch.store
        if branch.opening is None:
            if time.monotonic() - branch.failed_at < _PAUSE:
                raise _unavailable(pool, "it did not answer a moment ago")
            branch.opening = asyncio.create_task(self._open(branch), name="pool")
        return await asyncio.shield(branch.opening)

    def begin(self, pool: Pool) -> None:
        """Begin to open a pool's store, unless it is open, or was tried a moment ago."""
        branch = self._branches.get(pool.name)
        if branch is None or not branch.is_of(pool):
            branch = None
        if branch is not None and (
            branch.store is not None
            or branch.opening is not None
            or time.monotonic() - branch.failed_at < _PAUSE
        ):
            return
        task = asyncio.create_task(self.store(pool), name="pool")
        task.add_done_callback(_log)

    async def forget(self, name: str) -> None:
        """Close the store of a pool that is no more, or is another one."""
        branch = self._branches.pop(name, None)
        if branch is None:
            return
        if branch.opening is not None:
            branch.opening.cancel()
            await asyncio.gather(branch.opening, return_exceptions=True)
        if branch.store is not None:
            await branch.store.close()

    async def close(self) -> None:
        """Close all stores."""
        for name in list(self._branches):
            await self.forget(name)

    async def _open(self, branch: _Branch) -> MessageStore:
        pool = branch.pool
        try:
            store = self._make(pool)
            if self.listener is not None:
                store.listen(self.listener)
            await store.open()
        except (ConfigurationError, Unavailable) as exc:
            branch.failed_at = time.monotonic()
            raise _unavailable(pool, without_secrets(str(exc), pool.uri)) from exc
        else:
            branch.store = store
            return store
        finally:
            branch.opening = None


def _unavailable(pool: Pool, why: str) -> Unavailable:
    return Unavailable(f"The pool {pool.name!r} can't be reached.", detail=why)


def _log(task: "asyncio.Task[MessageStore]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("a pool is not open: %s", error)

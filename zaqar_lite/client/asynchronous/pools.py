"""Pools and flavors: the async client's methods."""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from zaqar_lite.client.asynchronous.calls import AsyncCalls
from zaqar_lite.client.endpoints import pools
from zaqar_lite.client.pools import Flavor, Pool, PoolDrain


class AsyncPools(AsyncCalls):
    """Make, list, change and delete pools and flavors; for operators of the server."""

    async def create_pool(
        self,
        name: str,
        uri: str,
        *,
        weight: int = 100,
        flavor: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a pool, or replace the one of this name.

        Args:
            name: the name of the pool.
            uri: the address of its message store with its credentials, which are never shown again.
            weight: its share of new queues, from 0 (none) on.
            flavor: the flavor that it serves alone.
            options: its driver's settings by name.
        """
        await self.call(pools.create_pool(name, uri, weight, flavor, options))

    def list_pools(self) -> AsyncIterator[Pool]:
        """Yield the server's pools by name, page by page."""
        return self._items(pools.list_pools)

    async def get_pool(self, name: str) -> Pool:
        """Return a pool with the names of its options."""
        return await self.call(pools.get_pool(name))

    async def update_pool(self, name: str, **changes: Any) -> Pool:  # noqa: ANN401 - by field
        """Change `uri`, `weight`, `flavor` or `options` of a pool; a flavor of '' takes it out."""
        return await self.call(pools.update_pool(name, changes))

    async def delete_pool(self, name: str) -> None:
        """Delete a pool in which no queue lies; an absent one is no error."""
        await self.call(pools.delete_pool(name))

    async def drain_pool(self, name: str) -> PoolDrain:
        """Begin to move the queues of a pool of weight 0 to others; they serve meanwhile."""
        return await self.call(pools.drain_pool(name))

    async def get_pool_drain(self, name: str) -> PoolDrain:
        """Return how far the drain of a pool is, or how it ended."""
        return await self.call(pools.get_pool_drain(name))

    async def create_flavor(self, name: str, pool_list: Iterable[str]) -> None:
        """Make a flavor of these pools, or replace the one of this name."""
        await self.call(pools.create_flavor(name, pool_list))

    def list_flavors(self) -> AsyncIterator[Flavor]:
        """Yield the project's flavors by name, page by page."""
        return self._items(pools.list_flavors)

    async def get_flavor(self, name: str) -> Flavor:
        """Return a flavor."""
        return await self.call(pools.get_flavor(name))

    async def update_flavor(self, name: str, pool_list: Iterable[str]) -> Flavor:
        """Give a flavor other pools."""
        return await self.call(pools.update_flavor(name, pool_list))

    async def delete_flavor(self, name: str) -> None:
        """Delete a flavor; an absent one is no error."""
        await self.call(pools.delete_flavor(name))

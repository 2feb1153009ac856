# Generated from asynchronous/pools.py by tests/generate_sync.py; change it there.
"""Pools and flavors: the sync client's methods."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from zaqar_lite.client.endpoints import pools
from zaqar_lite.client.pools import Flavor, Pool, PoolDrain
from zaqar_lite.client.sync.calls import SyncCalls


class SyncPools(SyncCalls):
    """Make, list, change and delete pools and flavors; for operators of the server."""

    def create_pool(
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
        self.call(pools.create_pool(name, uri, weight, flavor, options))

    def list_pools(self) -> Iterator[Pool]:
        """Yield the server's pools by name, page by page."""
        return self._items(pools.list_pools)

    def get_pool(self, name: str) -> Pool:
        """Return a pool with the names of its options."""
        return self.call(pools.get_pool(name))

    def update_pool(self, name: str, **changes: Any) -> Pool:  # noqa: ANN401 - by field
        """Change `uri`, `weight`, `flavor` or `options` of a pool; a flavor of '' takes it out."""
        return self.call(pools.update_pool(name, changes))

    def delete_pool(self, name: str) -> None:
        """Delete a pool in which no queue lies; an absent one is no error."""
        self.call(pools.delete_pool(name))

    def drain_pool(self, name: str) -> PoolDrain:
        """Begin to move the queues of a pool of weight 0 to others; they serve meanwhile."""
        return self.call(pools.drain_pool(name))

    def get_pool_drain(self, name: str) -> PoolDrain:
        """Return how far the drain of a pool is, or how it ended."""
        return self.call(pools.get_pool_drain(name))

    def create_flavor(self, name: str, pool_list: Iterable[str]) -> None:
        """Make a flavor of these pools, or replace the one of this name."""
        self.call(pools.create_flavor(name, pool_list))

    def list_flavors(self) -> Iterator[Flavor]:
        """Yield the project's flavors by name, page by page."""
        return self._items(pools.list_flavors)

    def get_flavor(self, name: str) -> Flavor:
        """Return a flavor."""
        return self.call(pools.get_flavor(name))

    def update_flavor(self, name: str, pool_list: Iterable[str]) -> Flavor:
        """Give a flavor other pools."""
        return self.call(pools.update_flavor(name, pool_list))

    def delete_flavor(self, name: str) -> None:
        """Delete a flavor; an absent one is no error."""
        self.call(pools.delete_flavor(name))

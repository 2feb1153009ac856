"""Pools and flavors: the async client's methods."""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from zaqar_lite.client.arguments import takes, texts
from zaqar_lite.client.asynchronous.calls import AsyncCalls
from zaqar_lite.client.endpoints.paths import with_query
from zaqar_lite.client.endpoints.resources import ask, list_page, path_of, tell
from zaqar_lite.client.pools import Flavor, Pool, PoolDrain
from zaqar_lite.client.records import reader

_POOL = reader(Pool)
_DRAIN = reader(PoolDrain)
_FLAVOR = reader(Flavor, pools="pool_list")


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
        takes("options", options, Mapping)
        wanted: dict[str, object] = {"uri": uri, "weight": weight, "options": dict(options or {})}
        if flavor is not None:
            wanted["flavor"] = flavor
        await self.call(tell("PUT", path_of("pools", name), wanted))

    def list_pools(self) -> AsyncIterator[Pool]:
        """Yield the server's pools by name, page by page."""
        return self._items(lambda marker: list_page("/v2/pools", "pools", _POOL, marker=marker))

    async def get_pool(self, name: str) -> Pool:
        """Return a pool with the names of its options."""
        return await self.call(ask("GET", with_query(path_of("pools", name), detailed=True), _POOL))

    async def update_pool(self, name: str, **changes: Any) -> Pool:  # noqa: ANN401 - by field
        """Change `uri`, `weight`, `flavor` or `options` of a pool; a flavor of '' takes it out."""
        return await self.call(ask("PATCH", path_of("pools", name), _POOL, changes))

    async def delete_pool(self, name: str) -> None:
        """Delete a pool in which no queue lies; an absent one is no error."""
        await self.call(tell("DELETE", path_of("pools", name)))

    async def drain_pool(self, name: str) -> PoolDrain:
        """Begin to move the queues of a pool of weight 0 to others; they serve meanwhile."""
        return await self.call(ask("POST", path_of("pools", name, "drain"), _DRAIN))

    async def get_pool_drain(self, name: str) -> PoolDrain:
        """Return how far the drain of a pool is, or how it ended."""
        return await self.call(ask("GET", path_of("pools", name, "drain"), _DRAIN))

    async def create_flavor(self, name: str, pool_list: Iterable[str]) -> None:
        """Make a flavor of these pools, or replace the one of this name."""
        wanted = {"pool_list": texts("pool_list", pool_list)}
        await self.call(tell("PUT", path_of("flavors", name), wanted))

    def list_flavors(self) -> AsyncIterator[Flavor]:
        """Yield the project's flavors by name, page by page."""
        return self._items(
            lambda marker: list_page(
                "/v2/flavors", "flavors", _FLAVOR, marker=marker, detailed=True
            )
        )

    async def get_flavor(self, name: str) -> Flavor:
        """Return a flavor."""
        return await self.call(ask("GET", path_of("flavors", name), _FLAVOR))

    async def update_flavor(self, name: str, pool_list: Iterable[str]) -> Flavor:
        """Give a flavor other pools."""
        wanted = {"pool_list": texts("pool_list", pool_list)}
        return await self.call(ask("PATCH", path_of("flavors", name), _FLAVOR, wanted))

    async def delete_flavor(self, name: str) -> None:
        """Delete a flavor; an absent one is no error."""
        await self.call(tell("DELETE", path_of("flavors", name)))

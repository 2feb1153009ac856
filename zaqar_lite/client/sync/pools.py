# Generated from asynchronous/pools.py by tests/generate_sync.py; change it there.
"""Pools and flavors: the sync client's methods."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from zaqar_lite.client.arguments import takes, texts
from zaqar_lite.client.endpoints.paths import with_query
from zaqar_lite.client.endpoints.resources import ask, list_page, path_of, tell
from zaqar_lite.client.pools import Flavor, Pool, PoolDrain
from zaqar_lite.client.records import reader
from zaqar_lite.client.sync.calls import SyncCalls

_POOL = reader(Pool)
_DRAIN = reader(PoolDrain)
_FLAVOR = reader(Flavor, pools="pool_list")


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
        takes("options", options, Mapping)
        wanted: dict[str, object] = {"uri": uri, "weight": weight, "options": dict(options or {})}
        if flavor is not None:
            wanted["flavor"] = flavor
        self.call(tell("PUT", path_of("pools", name), wanted))

    def list_pools(self) -> Iterator[Pool]:
        """Yield the server's pools by name, page by page."""
        return self._items(lambda marker: list_page("/v2/pools", "pools", _POOL, marker=marker))

    def get_pool(self, name: str) -> Pool:
        """Return a pool with the names of its options."""
        return self.call(ask("GET", with_query(path_of("pools", name), detailed=True), _POOL))

    def update_pool(self, name: str, **changes: Any) -> Pool:  # noqa: ANN401 - by field
        """Change `uri`, `weight`, `flavor` or `options` of a pool; a flavor of '' takes it out."""
        return self.call(ask("PATCH", path_of("pools", name), _POOL, changes))

    def delete_pool(self, name: str) -> None:
        """Delete a pool in which no queue lies; an absent one is no error."""
        self.call(tell("DELETE", path_of("pools", name)))

    def drain_pool(self, name: str) -> PoolDrain:
        """Begin to move the queues of a pool of weight 0 to others; they serve meanwhile."""
        return self.call(ask("POST", path_of("pools", name, "drain"), _DRAIN))

    def get_pool_drain(self, name: str) -> PoolDrain:
        """Return how far the drain of a pool is, or how it ended."""
        return self.call(ask("GET", path_of("pools", name, "drain"), _DRAIN))

    def create_flavor(self, name: str, pool_list: Iterable[str]) -> None:
        """Make a flavor of these pools, or replace the one of this name."""
        wanted = {"pool_list": texts("pool_list", pool_list)}
        self.call(tell("PUT", path_of("flavors", name), wanted))

    def list_flavors(self) -> Iterator[Flavor]:
        """Yield the project's flavors by name, page by page."""
        return self._items(
            lambda marker: list_page(
                "/v2/flavors", "flavors", _FLAVOR, marker=marker, detailed=True
            )
        )

    def get_flavor(self, name: str) -> Flavor:
        """Return a flavor."""
        return self.call(ask("GET", path_of("flavors", name), _FLAVOR))

    def update_flavor(self, name: str, pool_list: Iterable[str]) -> Flavor:
        """Give a flavor other pools."""
        wanted = {"pool_list": texts("pool_list", pool_list)}
        return self.call(ask("PATCH", path_of("flavors", name), _FLAVOR, wanted))

    def delete_flavor(self, name: str) -> None:
        """Delete a flavor; an absent one is no error."""
        self.call(tell("DELETE", path_of("flavors", name)))

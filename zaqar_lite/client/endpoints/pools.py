"""Pools and flavors."""

from collections.abc import Iterable, Mapping
from typing import Any

from zaqar_lite.client.arguments import takes, texts
from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.endpoints.requests import ask, path_of, tell, with_query
from zaqar_lite.client.models import Flavor, Pool, PoolDrain
from zaqar_lite.client.serialization import reader
from zaqar_lite.client.steps import Pages, Steps, listing, method

_POOL = reader(Pool)
_DRAIN = reader(PoolDrain)
_FLAVOR = reader(Flavor, pools="pool_list")


class Pools(BaseClient):
    """Make, list, change and delete pools and flavors; for operators of the server."""

    @method
    def create_pool(
        self,
        name: str,
        uri: str,
        *,
        weight: int = 100,
        flavor: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Steps[None]:
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
        return self._exchange(tell("PUT", path_of("pools", name), wanted))

    @listing
    def list_pools(self) -> Pages[Pool]:
        """Yield the server's pools by name, page by page."""
        return self._pages("/v2/pools", "pools", _POOL)

    @method
    def get_pool(self, name: str) -> Steps[Pool]:
        """Return a pool with the names of its options."""
        return self._exchange(ask("GET", with_query(path_of("pools", name), detailed=True), _POOL))

    @method
    def update_pool(self, /, name: str, **changes: Any) -> Steps[Pool]:  # noqa: ANN401 - by field
        """Change `uri`, `weight`, `flavor` or `options` of a pool; a flavor of '' takes it out."""
        return self._exchange(ask("PATCH", path_of("pools", name), _POOL, changes))

    @method
    def delete_pool(self, name: str) -> Steps[None]:
        """Delete a pool in which no queue lies; an absent one is no error."""
        return self._exchange(tell("DELETE", path_of("pools", name)))

    @method
    def drain_pool(self, name: str) -> Steps[PoolDrain]:
        """Begin to move the queues of a pool of weight 0 to others; each is frozen meanwhile."""
        return self._exchange(ask("POST", path_of("pools", name, "drain"), _DRAIN))

    @method
    def get_pool_drain(self, name: str) -> Steps[PoolDrain]:
        """Return how far the drain of a pool is, or how it ended."""
        return self._exchange(ask("GET", path_of("pools", name, "drain"), _DRAIN))

    @method
    def create_flavor(self, name: str, pool_list: Iterable[str]) -> Steps[None]:
        """Make a flavor of these pools, or replace the one of this name."""
        wanted = {"pool_list": texts("pool_list", pool_list)}
        return self._exchange(tell("PUT", path_of("flavors", name), wanted))

    @listing
    def list_flavors(self) -> Pages[Flavor]:
        """Yield the project's flavors by name, page by page."""
        return self._pages("/v2/flavors", "flavors", _FLAVOR, detailed=True)

    @method
    def get_flavor(self, name: str) -> Steps[Flavor]:
        """Return a flavor."""
        return self._exchange(ask("GET", path_of("flavors", name), _FLAVOR))

    @method
    def update_flavor(self, name: str, pool_list: Iterable[str]) -> Steps[Flavor]:
        """Give a flavor other pools."""
        wanted = {"pool_list": texts("pool_list", pool_list)}
        return self._exchange(ask("PATCH", path_of("flavors", name), _FLAVOR, wanted))

    @method
    def delete_flavor(self, name: str) -> Steps[None]:
        """Delete a flavor; an absent one is no error."""
        return self._exchange(tell("DELETE", path_of("flavors", name)))

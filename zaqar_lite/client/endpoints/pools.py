"""Pools and flavors of the server."""

from collections.abc import Iterable, Mapping
from typing import Any

from zaqar_lite.client import encoding
from zaqar_lite.client.arguments import takes, texts
from zaqar_lite.client.bodies import dumps
from zaqar_lite.client.endpoints.pages import page_of
from zaqar_lite.client.endpoints.paths import segment, with_query
from zaqar_lite.client.endpoints.queues import JSON_TYPE, nothing
from zaqar_lite.client.pools import Flavor, Pool, PoolDrain
from zaqar_lite.client.wire import Call, Page, Request, Response


def create_pool(
    name: str, uri: str, weight: int, flavor: str | None, options: Mapping[str, Any] | None
) -> Call[None]:
    """Make a pool, or replace the one there is."""
    takes("options", options, Mapping)
    document: dict[str, object] = {"uri": uri, "weight": weight, "options": dict(options or {})}
    if flavor is not None:
        document["flavor"] = flavor
    return Call(Request("PUT", _path("pools", name), JSON_TYPE, dumps(document)), nothing)


def list_pools(marker: str | None) -> Call[Page[Pool]]:
    """List pools after `marker`."""
    path = with_query("/v2/pools", marker=marker)
    return Call(Request("GET", path, {}), page_of("pools", _pool))


def get_pool(name: str) -> Call[Pool]:
    """Show a pool."""
    path = with_query(_path("pools", name), detailed=True)
    return Call(Request("GET", path, {}), _read_pool)


def update_pool(name: str, changes: Mapping[str, Any]) -> Call[Pool]:
    """Change what is named of a pool."""
    request = Request("PATCH", _path("pools", name), JSON_TYPE, dumps(dict(changes)))
    return Call(request, _read_pool)


def delete_pool(name: str) -> Call[None]:
    """Delete a pool."""
    return Call(Request("DELETE", _path("pools", name), {}), nothing)


def drain_pool(name: str) -> Call[PoolDrain]:
    """Move the queues of a pool to others."""
    return Call(Request("POST", _path("pools", name) + "/drain", {}), _read_drain)


def get_pool_drain(name: str) -> Call[PoolDrain]:
    """Show how far the drain of a pool is."""
    return Call(Request("GET", _path("pools", name) + "/drain", {}), _read_drain)


def create_flavor(name: str, pools: Iterable[str]) -> Call[None]:
    """Make a flavor, or replace the one there is."""
    body = dumps({"pool_list": texts("pool_list", pools)})
    return Call(Request("PUT", _path("flavors", name), JSON_TYPE, body), nothing)


def list_flavors(marker: str | None) -> Call[Page[Flavor]]:
    """List flavors after `marker`."""
    path = with_query("/v2/flavors", marker=marker, detailed=True)
    return Call(Request("GET", path, {}), page_of("flavors", _flavor))


def get_flavor(name: str) -> Call[Flavor]:
    """Show a flavor."""
    return Call(Request("GET", _path("flavors", name), {}), _read_flavor)


def update_flavor(name: str, pools: Iterable[str]) -> Call[Flavor]:
    """Give a flavor other pools."""
    body = dumps({"pool_list": texts("pool_list", pools)})
    return Call(Request("PATCH", _path("flavors", name), JSON_TYPE, body), _read_flavor)


def delete_flavor(name: str) -> Call[None]:
    """Delete a flavor."""
    return Call(Request("DELETE", _path("flavors", name), {}), nothing)


def _path(kind: str, name: str) -> str:
    return f"/v2/{kind}/{segment(name, 'the name of a pool or a flavor')}"


def _read_pool(response: Response) -> Pool:
    return _pool(encoding.document(response))


def _pool(entry: Any) -> Pool:  # noqa: ANN401 - JSON is anything
    return Pool(
        entry["name"], entry["uri"], entry["weight"], entry.get("flavor"), entry.get("options")
    )


def _read_drain(response: Response) -> PoolDrain:
    entry = encoding.document(response)
    return PoolDrain(
        entry["pool"],
        entry["state"],
        entry["queues_left"],
        entry["messages_moved"],
        entry.get("problem"),
    )


def _read_flavor(response: Response) -> Flavor:
    return _flavor(encoding.document(response))


def _flavor(entry: Any) -> Flavor:  # noqa: ANN401 - JSON is anything
    pools, capabilities = entry.get("pool_list", ()), entry.get("capabilities", ())
    return Flavor(entry["name"], tuple(pools), tuple(capabilities))

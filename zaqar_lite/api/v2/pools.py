"""Pools and flavors: list, show, make, change and delete them."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from zaqar_lite.api import documents
from zaqar_lite.api.render import instant, next_page, yes_no
from zaqar_lite.api.request import (
    NO_CONTENT,
    Headers,
    Parameter,
    Refused,
    Request,
    Response,
    bad_body,
    warning,
)
from zaqar_lite.api.routes import MARKER, route
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import Limits
from zaqar_lite.service.pooling.drain import Drain, Drains
from zaqar_lite.service.pooling.placement import Placements
from zaqar_lite.service.pooling.pools import MAX_TEXT, MAX_WEIGHT, Flavor, Pool, PoolRegistry

_POOL_FIELDS = ("uri", "weight", "flavor", "options")
_SHOWN_NAMES, _SHOWN_NAME = 10, 64
"""How many unknown options a warning names, and how many characters of each."""
_FLAVOR_FIELDS = ("pool_list", "capabilities")


class PoolActions:
    """The actions under `/v2/pools`."""

    def __init__(self, registry: PoolRegistry, placements: Placements, limits: Limits) -> None:
        self._registry = registry
        self._placements = placements
        self._limits = limits

    @route(
        "GET /v2/pools -> Pools",
        "pools:get_all admin",
        (200,),
        (
            MARKER,
            Parameter("limit", "ListLimit", "How many to answer at most."),
            Parameter("detailed", "Flag", "Show the options too."),
        ),
    )
    async def list_pools(self, request: Request) -> Response:
        """List pools."""
        marker, limit, detailed = _page(request, self._limits.max_pools_per_page)
        pools = await self._registry.list_pools(marker, limit)
        shown = [_pool(pool, detailed=detailed) for pool in pools]
        return _listed(request, "pools", shown, limit, detailed=detailed)

    @route(
        "GET /v2/pools/{pool_name} -> Pool",
        "pools:get admin",
        (200, 404),
        (Parameter("detailed", "Flag", "Show the options too."),),
    )
    async def show_pool(self, request: Request) -> Response:
        """Show a pool."""
        detailed = request.flag("detailed")
        pool = await self._registry.pool(request.path_values[0])
        return Response(200, _pool(pool, detailed=detailed))

    @route(
        "PUT /v2/pools/{pool_name} NewPool",
        "pools:create admin",
        (201, 409),
        invalid_title="Unable to create pool",
    )
    async def create_pool(self, request: Request) -> Response:
        """Create a pool."""
        document = await documents.read_object(request)
        _check_known(document, _POOL_FIELDS)
        for name in ("uri", "weight"):
            if name not in document:
                raise bad_body(f"A pool needs {name!r}.")
        _check_pool(document)
        pool = Pool(
            _name(request),
            document["uri"],
            document["weight"],
            document.get("flavor") or None,
            document.get("options", {}),
        )
        unknown = await self._registry.put_pool(pool)
        made = _made("pools", pool.name)
        made.headers = (*made.headers, *_warning(unknown))
        return made

    @route(
        "PATCH /v2/pools/{pool_name} PoolChange -> Pool",
        "pools:update admin",
        (200, 404, 409),
        invalid_title="Unable to update pool",
    )
    async def update_pool(self, request: Request) -> Response:
        """Change a pool."""
        document = await documents.read_object(request)
        changes = {name: document[name] for name in _POOL_FIELDS if name in document}
        if not changes:
            raise bad_body(f"One of {', '.join(_POOL_FIELDS)} is needed.")
        _check_pool(changes)
        pool, unknown = await self._registry.change_pool(request.path_values[0], changes)
        return Response(200, _pool(pool, detailed=False), _warning(unknown))

    @route("DELETE /v2/pools/{pool_name}", "pools:delete admin", (204, 403))
    async def delete_pool(self, request: Request) -> Response:
        """Delete a pool."""
        await self._registry.delete_pool(request.path_values[0], self._placements.holds)
        return NO_CONTENT


class DrainActions:
    """The actions of `/v2/pools/{pool_name}/drain`."""

    def __init__(self, drains: Drains) -> None:
        self._drains = drains

    @route("POST /v2/pools/{pool_name}/drain -> Drain", "pools:drain admin", (202, 404, 409))
    async def drain_pool(self, request: Request) -> Response:
        """Move a pool's queues to others."""
        drain = await self._drains.begin(request.path_values[0])
        location = f"{_href('pools', drain.pool)}/drain".encode()
        return Response(202, _drain(drain), ((b"location", location),))

    @route("GET /v2/pools/{pool_name}/drain -> Drain", "pools:get_drain admin", (200, 404))
    async def show_pool_drain(self, request: Request) -> Response:
        """Tell how far a pool is drained."""
        return Response(200, _drain(await self._drains.get(request.path_values[0])))


class FlavorActions:
    """The actions under `/v2/flavors`."""

    def __init__(self, registry: PoolRegistry, limits: Limits) -> None:
        self._registry = registry
        self._limits = limits

    @route(
        "GET /v2/flavors -> Flavors",
        "flavors:get_all read",
        (200,),
        (
            MARKER,
            Parameter("limit", "ListLimit", "How many to answer at most."),
            Parameter("detailed", "Flag", "Show the capabilities too."),
        ),
    )
    async def list_flavors(self, request: Request) -> Response:
        """List flavors."""
        marker, limit, detailed = _page(request, self._limits.max_flavors_per_page)
        flavors = await self._registry.list_flavors(request.project, marker, limit)
        shown = [_flavor(flavor, detailed=detailed) for flavor in flavors]
        return _listed(request, "flavors", shown, limit, detailed=detailed)

    @route("GET /v2/flavors/{flavor_name} -> Flavor", "flavors:get read", (200, 404))
    async def show_flavor(self, request: Request) -> Response:
        """Show a flavor."""
        flavor = await self._registry.flavor(request.project, request.path_values[0])
        return Response(200, _flavor(flavor, detailed=True))

    @route(
        "PUT /v2/flavors/{flavor_name} NewFlavor",
        "flavors:create admin",
        (201,),
        invalid_title="Unable to create",
    )
    async def create_flavor(self, request: Request) -> Response:
        """Create a flavor."""
        document = await documents.read_object(request)
        _check_known(document, _FLAVOR_FIELDS)
        if not isinstance(document.get("capabilities", {}), dict):
            raise bad_body("'capabilities' must be an object.")
        pools = _pool_list(document)
        if not pools:
            raise Refused(400, "Unable to create", "Bad Request")
        name = _name(request)
        try:
            await self._registry.put_flavor(request.project, name, pools)
        except Invalid as exc:
            raise Invalid(f"Flavor {name} could not be created, error:{exc}") from exc
        return _made("flavors", name)

    @route(
        "PATCH /v2/flavors/{flavor_name} NewFlavor -> Flavor",
        "flavors:update admin",
        (200, 404),
        invalid_title="updatefail",
    )
    async def update_flavor(self, request: Request) -> Response:
        """Give a flavor other pools."""
        document = await documents.read_object(request)
        pools = _pool_list(document)
        name = request.path_values[0]
        await self._registry.flavor(request.project, name)
        if not pools:
            raise Refused(400, "updatefail", "Bad Request")
        try:
            flavor = await self._registry.put_flavor(request.project, name, pools)
        except Invalid as exc:
            raise Invalid(f"Flavor {name} could not be updated, error:{exc}") from exc
        return Response(200, _flavor(flavor, detailed=True))

    @route("DELETE /v2/flavors/{flavor_name}", "flavors:delete admin", (204,))
    async def delete_flavor(self, request: Request) -> Response:
        """Delete a flavor; the queues that have it stay where they are."""
        await self._registry.delete_flavor(request.project, request.path_values[0])
        return NO_CONTENT


def _name(request: Request) -> str:
    name = request.path_values[0]
    if len(name) > MAX_TEXT:
        raise bad_body(f"A name has at most {MAX_TEXT} characters.")
    return name


def _page(request: Request, most: int) -> tuple[str | None, int, bool]:
    """What a listing was asked for: its marker, its limit, and whether it is detailed."""
    limit = request.limit(most)
    return request.text("marker"), limit, request.flag("detailed")


def _listed(
    request: Request, key: str, shown: list[dict[str, Any]], limit: int, *, detailed: bool
) -> Response:
    pairs = (("limit", str(limit)), ("detailed", yes_no(detailed)))
    marker = shown[-1]["name"] if shown else ""
    links = next_page(request.path, shown, ("marker", marker), *pairs)
    at = request.path.encode() + (b"?" + request.query_string if request.query_string else b"")
    return Response(200, {key: shown, "links": links}, ((b"content-location", at),))


def _href(kind: str, name: str) -> str:
    """The path of a pool or a flavor, whose name may have any characters."""
    return f"/v2/{kind}/{quote(name, safe='')}"


def _made(kind: str, name: str) -> Response:
    return Response(201, b"", ((b"location", _href(kind, name).encode()),))


def _warning(unknown: Sequence[str]) -> Headers:
    """Tell which options are kept without being used."""
    if not unknown:
        return ()
    named = ", ".join(repr(name[:_SHOWN_NAME]) for name in unknown[:_SHOWN_NAMES])
    return warning(f"Kept and not used, since the pool's driver has no such options: {named}.")


def _check_known(document: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in document:
        if name not in known:
            raise bad_body(f"Unknown field {name!r}: {', '.join(known)} are known.")


def _check_pool(document: Mapping[str, Any]) -> None:
    uri, weight = document.get("uri", ""), document.get("weight", 0)
    flavor, options = document.get("flavor", ""), document.get("options", {})
    if not isinstance(uri, str) or len(uri) > MAX_TEXT:
        raise bad_body(f"'uri' must be a text of at most {MAX_TEXT} characters.")
    if not isinstance(weight, int) or isinstance(weight, bool) or not 0 <= weight <= MAX_WEIGHT:
        raise bad_body(f"'weight' must be an integer between 0 and {MAX_WEIGHT}.")
    if not isinstance(flavor, str) or len(flavor) > MAX_TEXT:
        raise bad_body(f"'flavor' must be a text of at most {MAX_TEXT} characters.")
    if not isinstance(options, dict):
        raise bad_body("'options' must be an object.")


def _pool_list(document: Mapping[str, Any]) -> list[str]:
    pools = document.get("pool_list")
    if not isinstance(pools, list) or not all(isinstance(name, str) for name in pools):
        raise bad_body("'pool_list' must be a list of the names of pools.")
    return pools


def _pool(pool: Pool, *, detailed: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "href": _href("pools", pool.name),
        "name": pool.name,
        "flavor": pool.flavor,
        "uri": pool.shown_uri,
        "weight": pool.weight,
    }
    if detailed:
        shown["options"] = pool.shown_options
    return shown


def _drain(drain: Drain) -> dict[str, Any]:
    return {
        "pool": drain.pool,
        "state": drain.state,
        "started_at": instant(drain.started_at),
        "ended_at": instant(drain.ended_at) if drain.ended_at else None,
        "queues_left": drain.queues,
        "messages_moved": drain.moved,
        "problem": drain.problem,
    }


def _flavor(flavor: Flavor, *, detailed: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "href": _href("flavors", flavor.name),
        "name": flavor.name,
        "pool_list": list(flavor.pools),
    }
    if detailed:
        shown["capabilities"] = list(flavor.capabilities)
    return shown

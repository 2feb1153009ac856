"""Pools and flavors: list, show, make, change and delete them."""

from collections.abc import Mapping
from typing import Any

from zaqar_lite.api import documents, query
from zaqar_lite.api.documents import bad_body
from zaqar_lite.api.http import NO_CONTENT, HttpError, Request, Response
from zaqar_lite.api.render import instant, to_json
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import Limits
from zaqar_lite.service.pooling.catalogue import Catalogue
from zaqar_lite.service.pooling.drains import Drain, Drains
from zaqar_lite.service.pooling.pool import MAX_TEXT, MAX_WEIGHT, Flavor, Pool
from zaqar_lite.service.pooling.registry import Registry

DEFAULT_LIMIT = 10
_POOL_FIELDS = ("uri", "weight", "flavor", "options")
_FLAVOR_FIELDS = ("pool_list", "capabilities")


class PoolHandlers:
    """The handlers under `/v2/pools`."""

    def __init__(self, registry: Registry, catalogue: Catalogue, limits: Limits) -> None:
        self._registry = registry
        self._catalogue = catalogue
        self._limits = limits

    async def list_pools(self, request: Request) -> Response:
        """List the pools."""
        marker, limit, detailed = _page(request, self._limits.max_pools_per_page)
        pools = await self._registry.list_pools(marker, limit)
        shown = [_pool(pool, detailed=detailed) for pool in pools]
        return _listed(request, "pools", shown, limit, detailed=detailed)

    async def get(self, request: Request) -> Response:
        """Show a pool, its URI without credentials."""
        detailed = query.boolean(query.parameters(request), "detailed")
        pool = await self._registry.pool(request.path_values[0])
        return Response(200, to_json(_pool(pool, detailed=detailed)))

    async def put(self, request: Request) -> Response:
        """Make a pool, or put it in place of the one there is."""
        document = documents.parse_object(await documents.read(request))
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
        await self._registry.put_pool(pool)
        return _made(request)

    async def patch(self, request: Request) -> Response:
        """Change some fields of a pool."""
        document = documents.parse_object(await documents.read(request))
        changes = {name: document[name] for name in _POOL_FIELDS if name in document}
        if not changes:
            raise bad_body(f"One of {', '.join(_POOL_FIELDS)} is needed.")
        _check_pool(changes)
        pool = await self._registry.change_pool(request.path_values[0], changes)
        return Response(200, to_json(_pool(pool, detailed=False)))

    async def delete(self, request: Request) -> Response:
        """Delete a pool in which no queue lies."""
        await self._registry.delete_pool(request.path_values[0], self._catalogue.holds)
        return NO_CONTENT


class DrainHandlers:
    """The handlers of `/v2/pools/{pool_name}/drain`."""

    def __init__(self, drains: Drains) -> None:
        self._drains = drains

    async def begin(self, request: Request) -> Response:
        """Begin to move the queues of a pool to others."""
        drain = await self._drains.begin(request.path_values[0])
        return Response(202, to_json(_drain(drain)), ((b"location", request.path.encode()),))

    async def get(self, request: Request) -> Response:
        """Tell how far that is."""
        return Response(200, to_json(_drain(await self._drains.get(request.path_values[0]))))


class FlavorHandlers:
    """The handlers under `/v2/flavors`."""

    def __init__(self, registry: Registry, limits: Limits) -> None:
        self._registry = registry
        self._limits = limits

    async def list_flavors(self, request: Request) -> Response:
        """List the project's flavors."""
        marker, limit, detailed = _page(request, self._limits.max_flavors_per_page)
        flavors = await self._registry.list_flavors(request.project, marker, limit)
        shown = [_flavor(flavor, detailed=detailed) for flavor in flavors]
        return _listed(request, "flavors", shown, limit, detailed=detailed)

    async def get(self, request: Request) -> Response:
        """Show a flavor with its pools and capabilities."""
        flavor = await self._registry.flavor(request.project, request.path_values[0])
        return Response(200, to_json(_flavor(flavor, detailed=True)))

    async def put(self, request: Request) -> Response:
        """Make a flavor, or put it in place of the one there is."""
        document = documents.parse_object(await documents.read(request))
        _check_known(document, _FLAVOR_FIELDS)
        if not isinstance(document.get("capabilities", {}), dict):
            raise bad_body("'capabilities' must be an object.")
        pools = _pool_list(document)
        if not pools:
            raise HttpError(400, "Unable to create", "Bad Request")
        name = _name(request)
        try:
            await self._registry.put_flavor(request.project, name, pools)
        except Invalid as exc:
            raise Invalid(f"Flavor {name} could not be created, error:{exc}") from exc
        return _made(request)

    async def patch(self, request: Request) -> Response:
        """Give a flavor other pools."""
        document = documents.parse_object(await documents.read(request))
        pools = _pool_list(document)
        name = request.path_values[0]
        await self._registry.flavor(request.project, name)
        if not pools:
            raise HttpError(400, "updatefail", "Bad Request")
        try:
            flavor = await self._registry.put_flavor(request.project, name, pools)
        except Invalid as exc:
            raise Invalid(f"Flavor {name} could not be updated, error:{exc}") from exc
        return Response(200, to_json(_flavor(flavor, detailed=True)))

    async def delete(self, request: Request) -> Response:
        """Delete a flavor; the queues that have it stay where they are."""
        await self._registry.delete_flavor(request.project, request.path_values[0])
        return NO_CONTENT


def _name(request: Request) -> str:
    name = request.path_values[0]
    if len(name) > MAX_TEXT:
        raise bad_body(f"A name has at most {MAX_TEXT} characters.")
    return name


def _page(request: Request, most: int) -> tuple[str | None, int, bool]:
    """The marker, the limit and whether it is detailed."""
    found = query.parameters(request)
    limit = query.whole(found, "limit", min(DEFAULT_LIMIT, most))
    if not 1 <= limit <= most:
        raise Invalid(f"Limit must be at least 1 and no greater than {most}.")
    return query.text(found, "marker"), limit, query.boolean(found, "detailed")


def _listed(
    request: Request, key: str, shown: list[dict[str, Any]], limit: int, *, detailed: bool
) -> Response:
    links = []
    if shown:
        pairs = [
            ("marker", shown[-1]["name"]),
            ("limit", str(limit)),
            ("detailed", query.flag(detailed)),
        ]
        links = [{"rel": "next", "href": query.link(request.path, pairs)}]
    at = request.path.encode()
    if request.query_string:
        at += b"?" + request.query_string
    return Response(200, to_json({key: shown, "links": links}), ((b"content-location", at),))


def _made(request: Request) -> Response:
    return Response(201, b"", ((b"location", request.path.encode()),))


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
        "href": f"/v2/pools/{pool.name}",
        "name": pool.name,
        "flavor": pool.flavor,
        "uri": pool.shown_uri,
        "weight": pool.weight,
    }
    if detailed:
        shown["options"] = dict.fromkeys(pool.options, "***")
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
        "href": f"/v2/flavors/{flavor.name}",
        "name": flavor.name,
        "pool_list": list(flavor.pools),
    }
    if detailed:
        shown["capabilities"] = list(flavor.capabilities)
    return shown

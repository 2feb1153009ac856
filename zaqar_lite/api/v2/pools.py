"""Pools and flavors: list, show, make, change and delete them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from zaqar_lite.api import documents
from zaqar_lite.api.render import instant
from zaqar_lite.api.request import Headers, Parameter, Refused, Request, Response, bad_body, warning
from zaqar_lite.api.resources import Resource
from zaqar_lite.api.routes import route
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.service.pooling.drain import Drain, Drains
from zaqar_lite.service.pooling.placement import Placements
from zaqar_lite.service.pooling.pools import MAX_TEXT, MAX_WEIGHT, Flavor, Pool, PoolRegistry

_SHOWN_NAMES, _SHOWN_NAME = 10, 64
"""How many unknown options a warning names, and how many characters of each."""
_Text = Annotated[str, Meta(max_length=MAX_TEXT)]
_Weight = Annotated[int, Meta(ge=0, le=MAX_WEIGHT)]


class NewPool(Struct, forbid_unknown_fields=True):
    """A pool that is to be made."""

    uri: _Text
    weight: _Weight
    flavor: _Text = ""
    options: dict[str, Any] = {}


class PoolChange(Struct, omit_defaults=True):
    """What is to be changed of a pool; one of these at least."""

    uri: _Text | UnsetType = UNSET
    weight: _Weight | UnsetType = UNSET
    flavor: _Text | UnsetType = UNSET
    options: dict[str, Any] | UnsetType = UNSET


class NewFlavor(Struct, forbid_unknown_fields=True):
    """A flavor that is to be made; its capabilities are those of its pools, whatever is given."""

    pool_list: list[str]
    capabilities: dict[str, Any] = {}


class FlavorChange(Struct):
    """The pools that a flavor is to have from now on."""

    pool_list: list[str]


@Resource(
    *("pool", "/v2/pools/{pool_name}", "pools", "admin", "admin"),
    detail=Parameter("detailed", "Flag", "Show the options too."),
    guards=("delete",),
)
@dataclass(eq=False, repr=False)
class PoolActions:
    """The actions under `/v2/pools`."""

    registry: PoolRegistry
    placements: Placements
    drains: Drains
    most: int

    @route(
        "PUT /v2/pools/{pool_name} NewPool",
        "pools:create admin",
        (201, 409),
        invalid_title="Unable to create pool",
        rel="pool",
    )
    async def create_pool(self, request: Request) -> Response:
        """Create a pool."""
        new = documents.read_struct(request, NewPool)
        pool = Pool(_name(request), new.uri, new.weight, new.flavor or None, new.options)
        unknown = await self.registry.put_pool(pool)
        return _made("pools", pool.name, _warning(unknown))

    @route(
        "PATCH /v2/pools/{pool_name} PoolChange -> Pool",
        "pools:update admin",
        (200, 404, 409),
        invalid_title="Unable to update pool",
        rel="pool",
    )
    async def update_pool(self, request: Request) -> Response:
        """Change a pool."""
        changes = msgspec.to_builtins(documents.read_struct(request, PoolChange))
        if not changes:
            raise bad_body(f"One of {', '.join(PoolChange.__struct_fields__)} is needed.")
        pool, unknown = await self.registry.change_pool(request.path_values[0], changes)
        return Response(200, self.shown(pool, detailed=False), _warning(unknown))

    @route(
        "POST /v2/pools/{pool_name}/drain -> Drain",
        "pools:drain admin",
        (202, 404, 409),
        rel="pool_drain",
    )
    async def drain_pool(self, request: Request) -> Response:
        """Move a pool's queues to others."""
        drain = await self.drains.begin(request.path_values[0])
        location = f"{_href('pools', drain.pool)}/drain".encode()
        return Response(202, _drain(drain), ((b"location", location),))

    @route(
        "GET /v2/pools/{pool_name}/drain -> Drain",
        "pools:get_drain admin",
        (200, 404),
        rel="pool_drain",
    )
    async def show_pool_drain(self, request: Request) -> Response:
        """Tell how far a pool is drained."""
        return Response(200, _drain(await self.drains.kind.get("", request.path_values[0])))

    async def page(self, request: Request, marker: str | None, limit: int) -> Sequence[Pool]:
        """Read some pools."""
        return await self.registry.kind.page("", marker, limit)

    async def find(self, request: Request) -> Pool:
        """Read a pool."""
        return await self.registry.kind.get("", request.path_values[0])

    async def remove(self, request: Request) -> None:
        """Delete a pool that holds no queue."""
        await self.registry.delete_pool(request.path_values[0], self.placements.holds)

    def shown(self, pool: Pool, *, detailed: bool) -> dict[str, Any]:
        """Write a pool."""
        shown: dict[str, Any] = {
            "href": _href("pools", pool.name),
            "name": pool.name,
            "flavor": pool.flavor,
            "uri": pool.shown_uri,
            "weight": pool.weight,
        }
        return {**shown, "options": pool.shown_options} if detailed else shown


@Resource(
    *("flavor", "/v2/flavors/{flavor_name}", "flavors", "read", "admin"),
    detail=Parameter("detailed", "Flag", "Show the capabilities too."),
    is_whole=True,
)
@dataclass(eq=False, repr=False)
class FlavorActions:
    """The actions under `/v2/flavors`; the queues of one that is deleted stay where they are."""

    registry: PoolRegistry
    most: int

    @route(
        "PUT /v2/flavors/{flavor_name} NewFlavor",
        "flavors:create admin",
        (201,),
        invalid_title="Unable to create",
        rel="flavor",
    )
    async def create_flavor(self, request: Request) -> Response:
        """Create a flavor."""
        new = documents.read_struct(request, NewFlavor)
        name = _name(request)
        await self._put(request, name, new.pool_list, "Unable to create", "created")
        return _made("flavors", name)

    @route(
        "PATCH /v2/flavors/{flavor_name} FlavorChange -> Flavor",
        "flavors:update admin",
        (200, 404),
        invalid_title="updatefail",
        rel="flavor",
    )
    async def update_flavor(self, request: Request) -> Response:
        """Give a flavor other pools."""
        change = documents.read_struct(request, FlavorChange)
        name = (await self.find(request)).name
        flavor = await self._put(request, name, change.pool_list, "updatefail", "updated")
        return Response(200, self.shown(flavor, detailed=True))

    async def page(self, request: Request, marker: str | None, limit: int) -> Sequence[Flavor]:
        """Read some flavors of the project."""
        return await self.registry.list_flavors(request.project, marker, limit)

    async def find(self, request: Request) -> Flavor:
        """Read a flavor."""
        return await self.registry.flavor(request.project, request.path_values[0])

    async def remove(self, request: Request) -> None:
        """Delete a flavor."""
        await self.registry.delete_flavor(request.project, request.path_values[0])

    def shown(self, flavor: Flavor, *, detailed: bool) -> dict[str, Any]:
        """Write a flavor."""
        shown: dict[str, Any] = {
            "href": _href("flavors", flavor.name),
            "name": flavor.name,
            "pool_list": list(flavor.pools),
        }
        return {**shown, "capabilities": list(flavor.capabilities)} if detailed else shown

    async def _put(
        self, request: Request, name: str, pools: Sequence[str], title: str, done: str
    ) -> Flavor:
        """Make or change a flavor; errors are in upstream's words."""
        if not pools:
            raise Refused(400, title, "Bad Request")
        try:
            return await self.registry.put_flavor(request.project, name, pools)
        except Invalid as exc:
            raise Invalid(f"Flavor {name} could not be {done}, error:{exc}") from exc


def _name(request: Request) -> str:
    name = request.path_values[0]
    if len(name) > MAX_TEXT:
        raise bad_body(f"A name has at most {MAX_TEXT} characters.")
    return name


def _href(kind: str, name: str) -> str:
    """The path of a pool or a flavor, whose name may have any characters."""
    return f"/v2/{kind}/{quote(name, safe='')}"


def _made(kind: str, name: str, more: Headers = ()) -> Response:
    return Response(201, b"", ((b"location", _href(kind, name).encode()), *more))


def _warning(unknown: Sequence[str]) -> Headers:
    """Tell which options are kept without being used."""
    if not unknown:
        return ()
    named = ", ".join(repr(name[:_SHOWN_NAME]) for name in unknown[:_SHOWN_NAMES])
    return warning(f"Kept and not used, since the pool's driver has no such options: {named}.")


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

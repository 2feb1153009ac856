"""The routes of pools and flavors, which are there in admin mode with pooling."""

from zaqar_lite.api.routes import Parameter, Route
from zaqar_lite.api.table.shared import MARKER
from zaqar_lite.api.v2.pools import DrainHandlers, FlavorHandlers, PoolHandlers
from zaqar_lite.domain.identity import Access, Verb

_POOL = "/v2/pools/{pool_name}"
_FLAVOR = "/v2/flavors/{flavor_name}"
_LIMIT = Parameter("limit", "ListLimit", "How many to answer at most.")
_POOL_DETAILED = Parameter("detailed", "Flag", "Show the names of the options too.")
_FLAVOR_DETAILED = Parameter("detailed", "Flag", "Show the capabilities too.")


def pool_routes(handlers: PoolHandlers, drains: DrainHandlers) -> tuple[Route, ...]:
    """The routes of pools."""
    return (
        Route(
            "GET",
            "/v2/pools",
            handlers.list_pools,
            "list_pools",
            "List pools",
            (200, 400, 503),
            Access("pools:get_all", Verb.ADMIN),
            (MARKER, _LIMIT, _POOL_DETAILED),
            answer="Pools",
        ),
        Route(
            "GET",
            _POOL,
            handlers.get,
            "show_pool",
            "Show a pool",
            (200, 404, 503),
            Access("pools:get", Verb.ADMIN),
            (_POOL_DETAILED,),
            answer="Pool",
        ),
        Route(
            "PUT",
            _POOL,
            handlers.put,
            "create_pool",
            "Create a pool",
            (201, 400, 409, 413, 503),
            Access("pools:create", Verb.ADMIN),
            body="NewPool",
            invalid_title="Unable to create pool",
        ),
        Route(
            "PATCH",
            _POOL,
            handlers.patch,
            "update_pool",
            "Change a pool",
            (200, 400, 404, 409, 413, 503),
            Access("pools:update", Verb.ADMIN),
            body="PoolChange",
            answer="Pool",
            invalid_title="Unable to update pool",
        ),
        Route(
            "DELETE",
            _POOL,
            handlers.delete,
            "delete_pool",
            "Delete a pool",
            (204, 403, 503),
            Access("pools:delete", Verb.ADMIN),
        ),
        Route(
            "POST",
            _POOL + "/drain",
            drains.begin,
            "drain_pool",
            "Move a pool's queues to others",
            (202, 404, 409, 503),
            Access("pools:drain", Verb.ADMIN),
            answer="Drain",
        ),
        Route(
            "GET",
            _POOL + "/drain",
            drains.get,
            "show_pool_drain",
            "Tell how far a pool is drained",
            (200, 404, 503),
            Access("pools:get_drain", Verb.ADMIN),
            answer="Drain",
        ),
    )


def flavor_routes(handlers: FlavorHandlers) -> tuple[Route, ...]:
    """The routes of flavors."""
    return (
        Route(
            "GET",
            "/v2/flavors",
            handlers.list_flavors,
            "list_flavors",
            "List flavors",
            (200, 400, 503),
            Access("flavors:get_all", Verb.READ),
            (MARKER, _LIMIT, _FLAVOR_DETAILED),
            answer="Flavors",
        ),
        Route(
            "GET",
            _FLAVOR,
            handlers.get,
            "show_flavor",
            "Show a flavor",
            (200, 404, 503),
            Access("flavors:get", Verb.READ),
            answer="Flavor",
        ),
        Route(
            "PUT",
            _FLAVOR,
            handlers.put,
            "create_flavor",
            "Create a flavor",
            (201, 400, 413, 503),
            Access("flavors:create", Verb.ADMIN),
            body="NewFlavor",
            invalid_title="Unable to create",
        ),
        Route(
            "PATCH",
            _FLAVOR,
            handlers.patch,
            "update_flavor",
            "Give a flavor other pools",
            (200, 400, 404, 413, 503),
            Access("flavors:update", Verb.ADMIN),
            body="NewFlavor",
            answer="Flavor",
            invalid_title="updatefail",
        ),
        Route(
            "DELETE",
            _FLAVOR,
            handlers.delete,
            "delete_flavor",
            "Delete a flavor",
            (204, 503),
            Access("flavors:delete", Verb.ADMIN),
        ),
    )

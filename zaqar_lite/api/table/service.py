"""The routes that are about no queue: versions, home document, ping, health."""

from zaqar_lite.api.routes import Route
from zaqar_lite.api.v2.service import ServiceHandlers
from zaqar_lite.domain.identity import Access, Verb


def service_routes(handlers: ServiceHandlers, *, admin: bool) -> tuple[Route, ...]:
    """The routes that are about no queue; health is there in admin mode only."""
    routes = [
        Route(
            "GET",
            "/",
            handlers.versions,
            "versions",
            "List the API versions",
            (300,),
            Access(None, None),
            public=True,
            needs_store=False,
        ),
        *(
            Route(
                "GET",
                path,
                handlers.home,
                name,
                "Show the home document",
                (200,),
                Access(None, None),
                needs_store=False,
            )
            for path, name in (("/v2/", "home"), ("/v2", "home_without_slash"))
        ),
        Route(
            "GET",
            "/v2/ping",
            handlers.ping,
            "ping",
            "Ping the store",
            (204, 503),
            Access("ping:get", None),
        ),
        Route(
            "HEAD",
            "/v2/ping",
            handlers.ping,
            "ping_head",
            "Ping the server",
            (204,),
            Access("ping:get", None),
            needs_store=False,
        ),
    ]
    if admin:
        routes.append(
            Route(
                "GET",
                "/v2/health",
                handlers.health,
                "health",
                "Check health",
                (200, 503),
                Access("health:get", Verb.ADMIN),
            )
        )
    return tuple(routes)

"""The service itself: versions, home document, ping, health, probes, metrics, depth of a queue."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from zaqar_lite.api.request import (
    INVALID_REQUEST,
    NO_CONTENT,
    VARIABLE,
    A,
    Parameter,
    Refused,
    Request,
    Response,
    Route,
)
from zaqar_lite.api.routes import route
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.health import Health, Readiness, Report
from zaqar_lite.service.metrics.metrics import MEDIA_TYPE, Metrics

VERSIONS = {
    "versions": [
        {
            "id": "2",
            "status": "CURRENT",
            "updated": "2014-9-24T04:06:47Z",
            "media-types": [
                {"base": "application/json", "type": "application/vnd.openstack.messaging-v2+json"}
            ],
            "links": [{"href": "/v2/", "rel": "self"}],
        }
    ]
}

TEXT = b"text/plain; charset=utf-8"
_STATES = ("ready", "delayed", "claimed")


def probe(path: str, statuses: tuple[int, ...], *parameters: Parameter) -> Callable[[A], A]:
    """The routes of a probe: GET, and HEAD as load balancers send it, whose body is left out."""

    def decorate(method: A) -> A:
        for verb, name in (("HEAD", f"{method.__name__}_head"), ("GET", method.__name__)):
            one = route(f"{verb} {path}", "", statuses, parameters)
            replace(one, name=name, rel=method.__name__)(method)
        return method

    return decorate


@dataclass(eq=False, repr=False)
class ServiceActions:
    """The actions that are about no queue: what is served, and whether it is."""

    service_health: Health
    readiness: Readiness
    home_document: Callable[[], dict[str, Any]]

    @route("GET /", "", (300,))
    async def versions(self, request: Request) -> Response:
        """List the API versions; 300 because upstream says so."""
        return Response(300, VERSIONS)

    @route("GET /v2/", "", (200,), needs_store=False)
    @route("GET /v2", "", (200,), needs_store=False, name="home_without_slash", rel="home")
    async def home(self, request: Request) -> Response:
        """Show the home document."""
        return Response(
            200,
            self.home_document(),
            ((b"cache-control", b"max-age=86400"),),
            media_type=b"application/json-home",
        )

    @route("GET /v2/ping", "ping:get", (204,))
    @route(
        "HEAD /v2/ping",
        "ping:get",
        (204,),
        needs_store=False,
        name="ping_head",
        rel="ping",
        summary="Ping the server",
    )
    async def ping(self, request: Request) -> Response:
        """Ping the store; HEAD is always 204."""
        if request.method != "HEAD":
            await self.service_health.store.ping()
        return NO_CONTENT

    @route("GET /v2/health", "health:get admin", (200,))
    async def health(self, request: Request) -> Response:
        """Check health."""
        shown = _shown(await self.service_health.report())
        pools = await self.service_health.pools()
        if pools is not None:
            found = {
                name: _UNREACHABLE if one is None else _shown(one) for name, one in pools.items()
            }
            shown = {**found, **shown, "catalog_reachable": True}
        return Response(200, shown)

    @probe("/livez", (200,))
    async def livez(self, request: Request) -> Response:
        """Tell whether the process works."""
        return Response(200, b"ok\n", media_type=TEXT)

    @probe(
        "/readyz",
        (200, 503),
        Parameter("verbose", "Text", "Say what was looked at, whatever its value."),
    )
    async def readyz(self, request: Request) -> Response:
        """Tell whether requests are served; with `verbose`, why."""
        checks = await self.readiness.checks()
        failed = any(check.problem for check in checks)
        lines = ["not ready" if failed else "ok"]
        if failed or b"verbose" in re.split(rb"[&=]", request.query_string):
            told = [(check.name, check.problem or check.warning or "ok") for check in checks]
            lines = [f"{name}: {text}" for name, text in told] + lines
        text = "".join(f"{line}\n" for line in lines)
        return Response(503 if failed else 200, text.encode(), media_type=TEXT)


_UNREACHABLE = {"storage_reachable": False}


def _shown(report: Report) -> dict[str, Any]:
    volume = report.volume
    return {
        "storage_reachable": True,
        "operation_status": {
            name: {
                "succeeded": outcome.succeeded,
                "seconds": outcome.seconds,
                "ref": outcome.reference,
            }
            for name, outcome in report.operations.items()
        },
        "message_volume": {
            "free": volume.ready + volume.delayed,
            "claimed": volume.claimed,
            "total": volume.total,
        },
        "capabilities": report.capabilities,
    }


@dataclass(eq=False, repr=False)
class MetricActions:
    """The actions that tell numbers: all of the server, or the depth of one queue."""

    server_metrics: Metrics

    @route("GET /metrics", "metrics:get admin", (200,), plain=True)
    async def metrics(self, request: Request) -> Response:
        """Show all metrics."""
        return _page(await self.server_metrics.page())

    @route(
        "GET /metrics/queues",
        "metrics:queue admin",
        (200, 400),
        (
            Parameter("project", "Text", "The queue's project."),
            Parameter("name", "Text", "The queue's name."),
        ),
        plain=True,
    )
    async def queue_metrics(self, request: Request) -> Response:
        """Show the metrics of a queue."""
        project, name = request.text("project"), request.text("name")
        if project is None or name is None:
            raise Refused(400, INVALID_REQUEST, "Both 'project' and 'name' are needed.")
        return _page(await self.server_metrics.queue_page(QueueRef(project, name)))

    @route(
        "GET /v2/queues/{queue_name}/depth -> Depth",
        "queues:depth read",
        (200,),
        (Parameter("state", "Text", "Comma list of the states that count (ready)."),),
        plain=True,
    )
    async def queue_depth(self, request: Request) -> Response:
        """Tell how deep a queue is."""
        states = request.parameters.get("state", ["ready"])
        unknown = [state for state in states if state not in _STATES]
        if unknown:
            raise Refused(
                400, INVALID_REQUEST, f"{unknown[0]!r} is no state: {', '.join(_STATES)} are."
            )
        counts = await self.server_metrics.depth(request.queue)
        depth = sum(int(counts[state]) for state in set(states))
        if _wants(request, b"text/plain") and not _wants(request, b"json"):
            return Response(200, b"%d\n" % depth, media_type=TEXT)
        return Response(200, {"depth": depth, **counts})


def _wants(request: Request, media_type: bytes) -> bool:
    return media_type in request.headers.get(b"accept", b"").lower()


def _page(text: str) -> Response:
    return Response(200, text.encode(), media_type=MEDIA_TYPE.encode())


_UPSTREAMS = {("queues", "limit"): "queue_limit"}
"""What upstream calls a variable of a resource, where that is not its name."""


def home_document(routes: Iterable[Route], limits: Limits) -> dict[str, Any]:
    """Write the home document: what there is, for clients that ask (zaqar-behaviour 11).

    It shows v2's routes, of which those of the same `rel` are one resource, the longest delay and
    the largest pages.
    """
    resources: dict[str, list[Route]] = {}
    for one in routes:
        if not one.template.startswith("/v2"):
            continue  # upstream's clients may join what they find here to a URL that ends with /v2
        resources.setdefault(one.rel, []).append(one)
    shown = {f"rel/{name}": _resource(name, group) for name, group in resources.items()}
    shown["rel/post_messages"]["hints"]["max-message-delay"] = limits.max_message_delay
    for name, most in (("messages", limits.page), ("post_claim", limits.claim)):
        hints = shown[f"rel/{name}"]["hints"]
        hints["max-limit"], hints["max-large-limit"] = most(large=False), most(large=True)
    return {"resources": shown}


def _resource(name: str, routes: list[Route]) -> dict[str, Any]:
    """Describe the methods of one path, which are one resource."""
    first, template = routes[0], routes[0].template
    asked = [one.name for route in routes for one in route.parameters if one.place == "query"]
    query = list(dict.fromkeys(asked))
    variables = [*VARIABLE.findall(template), *query]
    methods = [route.method for route in routes]
    shown = "text/plain" if first.plain else "application/json"
    shown = "text/event-stream" if first.streams else shown
    hints: dict[str, Any] = {"allow": methods, "formats": {shown: {}}}
    if "POST" in methods:
        hints["accept-post"] = ["application/json"]
    if not variables:
        return {"href": template, "hints": hints}
    if query:
        template += f"{{?{','.join(query)}}}"
    marked = {one: f"param/{_UPSTREAMS.get((name, one), one)}" for one in variables}
    return {"href-template": template, "href-vars": marked, "hints": hints}

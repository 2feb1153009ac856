"""The routes that an operator's tools call: probes, metrics, and the depth of a queue."""

import re

from zaqar_lite.api import query
from zaqar_lite.api.checks import queue_of
from zaqar_lite.api.http import HttpError, Request, Response
from zaqar_lite.api.render import to_json
from zaqar_lite.api.routes import INVALID_REQUEST, Parameter, Route
from zaqar_lite.domain.identity import Access, Verb
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.metrics.metrics import Metrics
from zaqar_lite.service.metrics.rendering import Page
from zaqar_lite.service.readiness import Readiness

TEXT = b"text/plain; charset=utf-8"
_OPEN = Access(None, None)
_STATES = ("ready", "delayed", "claimed")
_STATE = Parameter("state", "Text", "Comma list of the states that count (ready).")
_VERBOSE = Parameter("verbose", "Text", "Say what was looked at, whatever its value.")


class ProbeHandlers:
    """The handlers of probes: whether the process lives, and whether it serves."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    async def live(self, request: Request) -> Response:
        """Answer: the event loop turns. The store is not looked at."""
        return Response(200, b"ok\n", media_type=TEXT)

    async def ready(self, request: Request) -> Response:
        """Tell whether requests should be sent here: 200 or 503; with `verbose`, why."""
        checks = await self._readiness.checks()
        failed = any(check.problem for check in checks)
        lines = ["not ready" if failed else "ok"]
        if failed or b"verbose" in re.split(rb"[&=]", request.query_string):
            lines = [f"{check.name}: {check.problem or 'ok'}" for check in checks] + lines
        text = "".join(f"{line}\n" for line in lines)
        return Response(503 if failed else 200, text.encode(), media_type=TEXT)


def probe_routes(handlers: ProbeHandlers) -> tuple[Route, ...]:
    """The routes of probes, open to everybody: they tell nothing of any project."""
    return (
        Route(
            "GET",
            "/livez",
            handlers.live,
            "livez",
            "Tell whether the process works",
            (200,),
            _OPEN,
            public=True,
            needs_store=False,
        ),
        Route(
            "GET",
            "/readyz",
            handlers.ready,
            "readyz",
            "Tell whether requests are served",
            (200, 503),
            _OPEN,
            (_VERBOSE,),
            public=True,
            needs_store=False,
        ),
    )


class MetricHandlers:
    """The handlers that tell numbers: all of the server, or the depth of one queue."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def all(self, request: Request) -> Response:
        """Write all metrics, in the format that Accept asks for."""
        return _shown(await self._metrics.page(openmetrics=_wants(request, b"openmetrics")))

    async def queue(self, request: Request) -> Response:
        """Write the metrics of one queue, as they are now."""
        found = query.parameters(request)
        project, name = query.text(found, "project"), query.text(found, "name")
        if project is None or name is None:
            raise HttpError(400, INVALID_REQUEST, "Both 'project' and 'name' are needed.")
        openmetrics = _wants(request, b"openmetrics")
        queue = QueueRef(project, name)
        return _shown(await self._metrics.queue_page(queue, openmetrics=openmetrics))

    async def depth(self, request: Request) -> Response:
        """Count a queue's messages, as one number where Accept asks for plain text."""
        states = query.parameters(request).get("state", ["ready"])
        unknown = [state for state in states if state not in _STATES]
        if unknown:
            raise HttpError(
                400,
                INVALID_REQUEST,
                f"{unknown[0]!r} is no state: {', '.join(_STATES)} are.",
            )
        counts = await self._metrics.depth(queue_of(request))
        depth = sum(int(counts[state]) for state in set(states))
        if _wants(request, b"text/plain") and not _wants(request, b"json"):
            return Response(200, b"%d\n" % depth, media_type=TEXT)
        return Response(200, to_json({"depth": depth, **counts}))


def _wants(request: Request, media_type: bytes) -> bool:
    return media_type in request.headers.get(b"accept", b"").lower()


def _shown(page: Page) -> Response:
    return Response(200, page.text().encode(), media_type=page.media_type.encode())


def metric_routes(handlers: MetricHandlers, *, is_open: bool) -> tuple[Route, ...]:
    """The routes of numbers: one credential is enough; all metrics are open where nobody is asked.

    `is_open` says that nobody is.
    """
    return (
        Route(
            "GET",
            "/metrics",
            handlers.all,
            "metrics",
            "Show all metrics",
            (200, 503),
            Access("metrics:get", Verb.ADMIN),
            public=is_open,
            plain=True,
        ),
        Route(
            "GET",
            "/metrics/queues",
            handlers.queue,
            "queue_metrics",
            "Show the metrics of a queue",
            (200, 400, 503),
            Access("metrics:queue", Verb.ADMIN),
            (
                Parameter("project", "Text", "The queue's project."),
                Parameter("name", "Text", "The queue's name."),
            ),
            public=is_open,
            plain=True,
        ),
        Route(
            "GET",
            "/v2/queues/{queue_name}/depth",
            handlers.depth,
            "queue_depth",
            "Tell how deep a queue is",
            (200, 400, 503),
            Access("queues:depth", Verb.READ),
            (_STATE,),
            answer="Depth",
            plain=True,
        ),
    )

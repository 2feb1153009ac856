"""The routes that an operator's tools call: probes; they are no part of v2."""

import re

from zaqar_lite.api.http import Request, Response
from zaqar_lite.api.routes import Parameter, Route
from zaqar_lite.domain.identity import Access
from zaqar_lite.service.readiness import Readiness

TEXT = b"text/plain; charset=utf-8"
_OPEN = Access(None, None)
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

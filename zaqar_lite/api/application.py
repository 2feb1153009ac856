"""The application: `answer` takes a request, and gives back what it is answered.

Every request passes here, whichever transport brought it, so all of them pass the same checks, and
every error has the same form. `server` calls `answer` for HTTP and WebSocket, `asgi` for ASGI.
"""

import asyncio
import time
from collections.abc import Callable
from random import getrandbits
from typing import TYPE_CHECKING

from zaqar_lite.api import asgi
from zaqar_lite.api.access import FAILED, SLOW, log_request
from zaqar_lite.api.asgi import AsgiApp, Receive, Scope, Send
from zaqar_lite.api.auditing import Auditor
from zaqar_lite.api.call import INVALID_REQUEST, NAMING, Action, Call, Result, Route
from zaqar_lite.api.checks import Checks
from zaqar_lite.api.errors import to_result
from zaqar_lite.api.gate import Gate, LongRequests
from zaqar_lite.api.gateways import Gateways
from zaqar_lite.api.lifespan import Lifespan, serve_lifespan
from zaqar_lite.api.metering import Meter
from zaqar_lite.api.refused import Refused
from zaqar_lite.api.routes import OPEN_PATHS, OPENAPI_PATH, Node, RouteTree
from zaqar_lite.api.signed_queries import EVENTS, take_signature
from zaqar_lite.api.websocket.conversation import SocketHost
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.quotas import Quota
from zaqar_lite.service.metrics.metrics import Metrics
from zaqar_lite.service.quotas.concurrency_limits import ConnectionLimits

if TYPE_CHECKING:
    from zaqar_lite.api.tracing import RequestTraces

_PAGE = "/ui"
_STOPS = Unavailable("The server is stopping; whether this was carried out is not known.")


class Application:
    """Answer requests; `describe` serves the OpenAPI document over ASGI.

    With `answers_at_once` the store answers a request for messages without waiting, in most cases.
    """

    def __init__(
        self,
        tree: RouteTree,
        checks: Checks,
        *,
        gate: Gate | None,
        gateways: Gateways | None,
        meter: Meter,
        connected: ConnectionLimits,
        long_requests: LongRequests,
        describe: AsgiApp,
        lifespan: Lifespan,
        check_store: Callable[[], None],
        stop: Callable[[], None],
        drain: Callable[[], None],
        adopt: Callable[[Limits], None],
        metrics: Metrics,
        auditor: Auditor | None,
        access_log: bool,
        answers_at_once: bool,
    ) -> None:
        self._tree = tree
        self._checks = checks
        self._gate = gate
        self._gateways = gateways
        self._meter, self._rates = meter, meter.rates
        self._connected = connected
        self._long_requests = long_requests
        self._describe = describe
        self._lifespan = lifespan
        self._check_store = check_store
        self.stop = stop
        """Answer the requests that wait: the server is about to stop."""
        self.drain = drain
        """Tell probes that this process is not ready: it stops soon, and serves until then."""
        self.adopt = adopt
        """Let other limits hold from now on."""
        self.adopt_quotas: Callable[[Quota], None] = lambda _: None
        """Let other default quotas hold from now on."""
        self.reread: Callable[[], Callable[[], None]] = lambda: _nothing
        """Read the files that hold rules again; answer what takes them over, all at once."""
        self.metrics = metrics
        """What this server tells of itself."""
        self.page: AsgiApp | None = None
        """The page for people, under /ui."""
        self.traces: RequestTraces | None = None
        """Makes spans of the requests that are sampled."""
        self.sockets: SocketHost
        """What WebSockets say to."""
        self._auditor = auditor
        self._access_log = access_log
        self._answers_at_once = answers_at_once
        self._trusts_heads = gate is None and gateways is None

    def reopen(self) -> None:
        """Go on with the audit trail in a new file where the old one was moved away."""
        if self._auditor is not None:
            self._auditor.reopen()

    @property
    def tree(self) -> RouteTree:
        """Where every route is found."""
        return self._tree

    @property
    def routes(self) -> tuple[Route, ...]:
        """Every route that is served."""
        return self._tree.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request over ASGI, or run the lifespan."""
        if scope["type"] == "http":
            await asgi.serve(self.answer, scope, receive, send)
        elif scope["type"] == "lifespan":
            await serve_lifespan(self._lifespan, receive, send)
        else:  # our own server answers these itself: sockets.py
            await send({"type": "websocket.close"})

    async def answer(self, call: Call) -> Result:
        """Answer a request over HTTP. Every error becomes a result, and so does the server's stop.

        A stream that is the answer must be run, and `ended` called then.
        """
        call.request_id = _new_request_id()
        if call.route is None:  # else its head has been through all this before
            call.headers = dict(call.headers)
            found = await self._answer_elsewhere(call)
            if found is not None:
                return found
        result = await self._answer(call, None, None)
        if result.stream is not None:
            self._hold(call, result)
        return result

    async def perform(self, call: Call, node: Node, action: Action) -> Result:
        """Answer what came over another transport, and so names a route's place and no path.

        It passes every check that a request does, but those of a gateway, which its connection
        passed. The document of the result is left as it is.
        """
        call.request_id = _new_request_id()
        return await self._answer(call, node, action)

    async def _answer(self, call: Call, node: Node | None, action: Action | None) -> Result:
        """Let a request in, run its action, and tell the log and others how it was answered."""
        span = None if self.traces is None else self.traces.begin(call)
        started = time.perf_counter()
        route = call.route
        try:
            if route is None:
                result = await self._admit(call, node)
                route = call.route
            else:
                result = None
                self._check_store()
            if route is not None:
                call.most = route.largest_body
                if self._rates.is_on and call.project:
                    self._meter.admit(call, route)
            if self._connected.is_on and call.link is not None and call.project:
                await self._connected.serve(call.link, call.project)
            if route is not None:
                self.metrics.asked += route.hot
                result = await (action or route.action)(call)
                if action is None or self._rates.is_on:
                    result.body = result.text()
                    if self._rates.is_on:
                        self._meter.answered(call, route, len(result.body))
            assert result is not None  # noqa: S101 - without a route, `_admit` has answered
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 - a bug is a 500, logged
            # Cancelled at the end of `shutdown_timeout`, or by a second Ctrl-C. Were it raised, the
            # client would learn nothing.
            error = _STOPS if isinstance(exc, asyncio.CancelledError) else exc
            title = INVALID_REQUEST if route is None else route.invalid_title
            result = to_result(error, invalid_title=title, request_id=call.request_id)
            result.body = result.text()
        if call.record_act is not None:
            call.record_act(result)
        seconds = time.perf_counter() - started
        self.metrics.request("" if call.route is None else call.route.name, result.status, seconds)
        if self._access_log or seconds > SLOW or result.status >= FAILED:
            log_request(call, result.status, seconds, every=self._access_log)
        if self.traces is not None and span is not None:
            self.traces.end(span, call, result.status)
        return result

    async def _answer_elsewhere(self, call: Call) -> Result | None:
        """Answer what is for the page or the document, and guesses; None for any other request."""
        try:
            if call.path == OPENAPI_PATH:
                return await asgi.ask(self._describe, call)
            if self.page is not None and call.path.startswith(_PAGE):
                # The page is for a client that calls this server by one of its own names.
                self._checks.check_headers(call)
                return await asgi.ask(self.page, call)
        except Refused as exc:
            result = to_result(exc, invalid_title=INVALID_REQUEST, request_id="")
            result.body = result.text()
            return result
        refused = None if self._gate is None else self._gate.refuses(call)
        if refused is None or self._gate is None:
            return None
        # It is answered without a look at it; it is counted, and in no log.
        self.metrics.request("", refused.status, 0.0)
        await self._gate.be_late()
        refused.body = refused.text()
        return refused

    def _hold(self, call: Call, result: Result) -> None:
        """End a stream once its request would not be let in any more; count what is read of it."""
        stream, end, project = result.stream, call.end or _nothing, call.project
        assert stream is not None  # noqa: S101 - the caller has looked
        result.ended = self._long_requests.hold(call, lambda _: end())
        if self._rates.is_on:
            meter = self._meter
            result.stream = lambda write: stream(meter.counted(write, project))

    async def _admit(self, call: Call, node: Node | None) -> Result | None:
        """Find out who asks, for what, and whether it may now; `node` where that is known.

        It sets the call's route, or answers a request that needs none.
        """
        self._checks.check_headers(call)
        if call.query_string and call.path.endswith(EVENTS):
            take_signature(call)
        if self._gateways is not None and node is None:
            self._gateways.check_request(call)
        if self._gate is not None:
            await self._gate.admit(call)
        node = node or self._find(call)
        if call.method == "OPTIONS":
            return Result(200, b"", ((b"allow", node.allow()),))
        route = self._route(call, node)
        if b"url-signature" in call.headers:
            if route.names_queue:
                await self._checks.check_revoked(call)
        elif route.hot and self._trusts_heads and b"content-encoding" not in call.headers:
            self._keep(call, route)
        if call.size < 0 or b"content-encoding" in call.headers:
            await call.receive()  # now its length is known
        return None

    def _find(self, call: Call) -> Node:
        """Find the place that a request's path names, and fill in the path's values."""
        raw_path = call.head.raw_path
        if b"%" in raw_path and b"%2f" in raw_path.lower():
            raise Refused(400, INVALID_REQUEST, "A path may not hold an encoded slash (%2F).")
        place = self._tree.find(call.path)
        if place is None:
            raise Refused(404, "404 Not Found")
        node, call.path_values = place
        return node

    def _route(self, call: Call, node: Node) -> Route:
        """Find the route, and run the checks that need only what is known by now."""
        route = node.routes.get(call.method)
        if call.path not in OPEN_PATHS:
            self._checks.run(
                call,
                names_queue=call.path.startswith(NAMING),
                plain=route is not None and route.plain,
                streams=route is not None and route.streams,
            )
        if route is None:
            raise Refused(405, "405 Method Not Allowed", headers=((b"allow", node.allow()),))
        call.route, call.most = route, route.largest_body
        if self._auditor is not None:
            call.record_act = self._auditor.recorder(call, route)
        if self._gate is not None:
            self._gate.authorise(call, route)
        call.check_size(call.size)
        if route.needs_store:
            self._check_store()
        return route

    def _keep(self, call: Call, route: Route) -> None:
        """Keep with the head what it decides: the next request with the same one is let in by it.

        Only requests for messages are kept, so there is nothing to be told to the audit trail.
        """
        head = call.head
        head.path_values, head.project, head.client_id = (
            call.path_values,
            call.project,
            call.client_id,
        )
        head.parameters = call.parameters
        head.at_once = self._answers_at_once and "wait" not in head.parameters
        head.route = route


def _nothing() -> None:
    """Take over nothing."""


def _new_request_id() -> str:
    """A request id in OpenStack's form, a random UUID; it tells requests apart and is no secret."""
    digits = f"{getrandbits(128):032x}"
    return f"req-{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"

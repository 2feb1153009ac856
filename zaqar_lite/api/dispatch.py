"""The outermost ASGI application: match, check, answer.

Hot routes are answered here; the others go through FastAPI, which calls the same handlers with the
same request (`scope["zaqar.request"]`). So every request passes the same checks and every error
gets the same form, whichever way it took.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import getrandbits
from typing import TYPE_CHECKING

from zaqar_lite.api.access import FAILED, SLOW, log_request
from zaqar_lite.api.auditing import Auditor
from zaqar_lite.api.checks import Checks
from zaqar_lite.api.errors import to_response
from zaqar_lite.api.gate import Gate
from zaqar_lite.api.gateways import Gateways
from zaqar_lite.api.http import (
    EXCHANGE,
    Exchange,
    HttpError,
    Receive,
    Request,
    Response,
    Scope,
    Send,
)
from zaqar_lite.api.lifespan import Lifespan, serve_lifespan
from zaqar_lite.api.metering import Meter
from zaqar_lite.api.routes import (
    INVALID_REQUEST,
    NAMING,
    OPEN_PATHS,
    Handler,
    Node,
    Route,
    RouteTree,
)
from zaqar_lite.api.signed_queries import EVENTS, take_signature
from zaqar_lite.api.streaming import Streaming
from zaqar_lite.api.websocket.conversation import Sockets
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.quotas import Quota
from zaqar_lite.service.connected import Connected, Link
from zaqar_lite.service.identity.standing import Standing
from zaqar_lite.service.metrics.metrics import Metrics

if TYPE_CHECKING:
    from zaqar_lite.api.tracing import RequestTraces

Framework = Callable[[Scope, Receive, Send], Awaitable[None]]
_NO_CONTENT_STATUSES = (204, 304)
_PAGE = "/ui"


class Dispatcher:
    """Serve v2 over ASGI: hot routes here, the others and the OpenAPI document by `framework`."""

    def __init__(
        self,
        tree: RouteTree,
        checks: Checks,
        *,
        gate: Gate | None,
        gateways: Gateways | None,
        meter: Meter,
        connected: Connected,
        standing: Standing,
        framework: Framework,
        framework_paths: frozenset[str],
        lifespan: Lifespan,
        check_store: Callable[[], None],
        stop: Callable[[], None],
        drain: Callable[[], None],
        adopt: Callable[[Limits], None],
        metrics: Metrics,
        auditor: Auditor | None,
        access_log: bool,
    ) -> None:
        self._tree = tree
        self._checks = checks
        self._gate = gate
        self._gateways = gateways
        self._meter, self._rates = meter, meter.rates
        self._streaming = Streaming(meter)
        self._connected = connected
        self._standing = standing
        self._framework = framework
        self._framework_paths = framework_paths
        self._lifespan = lifespan
        self._check_store = check_store
        self.stop = stop
        """Answer the requests that wait: the server is about to stop."""
        self.drain = drain
        """Tell who asks that this process is not ready: it stops soon, and serves till then."""
        self.adopt = adopt
        """Let other limits hold from now on."""
        self.adopt_quotas: Callable[[Quota], None] = lambda _: None
        """Let other default quotas hold from now on."""
        self.reread: Callable[[], Callable[[], None]] = lambda: _nothing
        """Read the files that hold rules again; answer what takes them over, all at once."""
        self.metrics = metrics
        """What this server tells of itself."""
        self.page: Framework | None = None
        """The page for people, under /ui."""
        self.traces: RequestTraces | None = None
        """Makes spans of the requests that are sampled."""
        self.sockets: Sockets | None = None
        """What WebSockets say to."""
        self._auditor = auditor
        self._access_log = access_log

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
        """Answer one request, or run the lifespan."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await serve_lifespan(self._lifespan, receive, send)
            else:  # our own server answers these itself: sockets.py
                await send({"type": "websocket.close"})
            return
        # Left in the scope, which it knows, it would be garbage that counting does not find.
        exchange: Exchange | None = scope.pop(EXCHANGE, None)
        if scope["path"] in self._framework_paths:
            await self._framework(scope, receive, send)
            return
        if self.page is not None and scope["path"].startswith(_PAGE):
            await self._show_page(self.page, scope, receive, send)
            return
        request = Request(
            scope["method"], scope["path"], scope["query_string"], dict(scope["headers"]), receive
        )
        request.request_id = _new_request_id()
        span = None if self.traces is None else self.traces.begin(request)
        started = time.perf_counter()
        status = await self._serve(request, scope, send, exchange)
        seconds = (request.streams_since or time.perf_counter()) - started
        self.metrics.request(request.route, status, seconds)
        if self._access_log or seconds > SLOW or status >= FAILED:
            log_request(self._tree, request, status, seconds, every=self._access_log)
        if self.traces is not None and span is not None:
            self.traces.end(span, request, status)

    async def _show_page(self, page: Framework, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the page, to whoever calls this server by a name of its own."""
        sent = scope["headers"]
        request = Request(scope["method"], scope["path"], b"", dict(sent), receive)
        try:
            self._checks.check_headers(request, sent)
        except HttpError as exc:
            response = to_response(exc, invalid_title=INVALID_REQUEST, request_id="")
            await write(send, response.status, header_list(request, response), response.body)
        else:
            await page(scope, receive, send)

    async def _serve(
        self, request: Request, scope: Scope, send: Send, exchange: Exchange | None
    ) -> int:
        try:
            found = await self._admit(request, scope, None if exchange is None else exchange.link)
        except Exception as exc:  # noqa: BLE001 - the outermost handler: a bug is a 500, logged
            response = _refusal(request, exc)
        else:
            if isinstance(found, Response):
                response = found
            elif found.hot:
                response = await answer(request, found)
                if self._rates.is_on:
                    self._meter.answered(request, found, len(response.body))
            else:
                scope["zaqar.request"] = request
                await self._framework(scope, request.receive, send)
                if self._rates.is_on:
                    self._meter.answered(request, found, request.answered)
                return request.status
        headers = header_list(request, response)
        if response.stream is not None:
            assert isinstance(found, Route)  # noqa: S101 - nothing else streams
            release = self._hold(request, found)
            try:
                await self._streaming.send(request, response, headers, send, exchange)
            finally:
                release()
            return response.status
        body = b"" if request.method == "HEAD" else response.body
        if exchange is None:
            await write(send, response.status, headers, body)
            return response.status
        await exchange.answer(response.status, headers, body)
        if exchange.unsent and response.undo is not None:
            with suppress(Unavailable):  # then its lease lapses
                await response.undo()
        return response.status

    def _hold(self, request: Request, route: Route) -> Callable[[], None]:
        """End a stream soon after its request would not be let in any more; answer what lets go."""
        gate, is_signed = self._gate, b"url-signature" in request.headers

        async def may() -> bool:
            if not is_signed:
                return gate is None or await gate.still_admits(request, route)
            try:
                await self._checks.check_revoked(request)
            except HttpError:
                return False
            return True

        if request.end is None or (gate is None and not is_signed):
            return _nothing
        return self._standing.hold(may, request.end)

    async def perform(
        self, request: Request, scope: Scope, node: Node, handler: Handler, link: Link
    ) -> Response:
        """Answer what came over another transport, and so names a route's place and no path.

        It passes every check that a request does, but those of a gateway, which its connection
        passed. `scope` has its headers and where it came from.
        """
        request.request_id = _new_request_id()
        span = None if self.traces is None else self.traces.begin(request)
        started = time.perf_counter()
        try:
            found = await self._admit(request, scope, link, node)
        except Exception as exc:  # noqa: BLE001 - the outermost handler: a bug is a 500, logged
            response = _refusal(request, exc)
        else:
            if isinstance(found, Response):
                response = found
            else:
                response = await answer(request, found, handler)
                if self._rates.is_on:
                    self._meter.answered(request, found, len(response.body))
        seconds = time.perf_counter() - started
        self.metrics.request(request.route, response.status, seconds)
        if self._access_log or seconds > SLOW or response.status >= FAILED:
            log_request(self._tree, request, response.status, seconds, every=self._access_log)
        if self.traces is not None and span is not None:
            self.traces.end(span, request, response.status)
        return response

    async def _admit(
        self, request: Request, scope: Scope, link: Link | None, node: Node | None = None
    ) -> Route | Response:
        """Find out who asks, for what, and whether it may now; `node` where that is known."""
        self._checks.check_headers(request, scope["headers"])
        if request.path.endswith(EVENTS) and request.query_string:
            take_signature(request)
        if self._gateways is not None and node is None:
            self._gateways.check(request, scope)
        if self._gate is not None:
            await self._gate.admit(request, _address(scope))
        if node is None:
            node = self._find(request, scope)
        if self._auditor is not None:
            request.address = _address(scope)
        found = self._route(request, node)
        if isinstance(found, Route):
            if b"url-signature" in request.headers and found.names_queue:
                await self._checks.check_revoked(request)
            if self._rates.is_on and request.project:
                self._meter.admit(request, found)
        if link is not None and self._connected.is_on and request.project:
            await self._connected.serve(link, request.project)
        return found

    def _find(self, request: Request, scope: Scope) -> Node:
        """Find the place that a request's path names, and fill in the path's values."""
        raw_path: bytes = scope.get("raw_path") or b""
        if b"%" in raw_path and b"%2f" in raw_path.lower():
            raise HttpError(400, INVALID_REQUEST, "A path may not hold an encoded slash (%2F).")
        place = self._tree.find(request.path)
        if place is None:
            raise HttpError(404, "404 Not Found")
        node, request.path_values = place
        return node

    def _route(self, request: Request, node: Node) -> Route | Response:
        """Find the route and run its checks; OPTIONS is answered here."""
        route = node.routes.get(request.method)
        if request.method == "OPTIONS":
            return Response(200, b"", ((b"allow", node.allow()),))
        if request.path not in OPEN_PATHS:
            self._checks.run(
                request,
                names_queue=request.path.startswith(NAMING),
                plain=route is not None and route.plain,
                streams=route is not None and route.streams,
            )
        if route is None:
            raise HttpError(405, "405 Method Not Allowed", headers=((b"allow", node.allow()),))
        request.route = route.name
        if self._auditor is not None:
            request.tell = self._auditor.teller(request, route)
        if self._gate is not None:
            self._gate.authorise(request, route)
        route.check_size(request.content_length)
        if route.needs_store:
            self._check_store()
        return route


def _nothing() -> None:
    """Take over nothing."""


def _address(scope: Scope) -> str:
    """Where a request comes from; empty for a socket that has no address."""
    client = scope.get("client")
    return client[0] if client else ""


def _new_request_id() -> str:
    """A request id in OpenStack's form, a random UUID; it tells requests apart and is no secret."""
    digits = f"{getrandbits(128):032x}"
    return f"req-{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def _refusal(request: Request, error: Exception) -> Response:
    """Answer what was not let in, and tell the audit trail if it would have managed something."""
    response = to_response(error, invalid_title=INVALID_REQUEST, request_id=request.request_id)
    if request.tell is not None:
        request.tell(response)
    return response


async def answer(request: Request, route: Route, handler: Handler | None = None) -> Response:
    """Call a route's handler, or another one, and tell the audit trail how a managing act ended.

    Every error becomes an answer, and so does the server's stop.
    """
    try:
        response = await (handler or route.handler)(request)
    except asyncio.CancelledError:
        # At the end of `shutdown_timeout`, or by a second Ctrl-C. Were it raised, uvicorn would
        # take it for a bug: a traceback in the log, and 500 for the client.
        stops = Unavailable("The server is stopping; whether this was carried out is not known.")
        response = to_response(
            stops, invalid_title=route.invalid_title, request_id=request.request_id
        )
    except Exception as exc:  # noqa: BLE001 - the outermost handler: a bug is a 500, logged
        response = to_response(
            exc, invalid_title=route.invalid_title, request_id=request.request_id
        )
    if request.tell is not None:
        request.tell(response)
    return response


def header_list(request: Request, response: Response) -> list[tuple[bytes, bytes]]:
    """All headers of a response; without a body there is no Content-Type, for 204 no length."""
    headers = [(b"x-openstack-request-id", request.request_id.encode())]
    if response.body or response.stream is not None:
        headers.append((b"content-type", response.media_type))
    if response.stream is not None:
        return [*headers, *response.headers]
    if response.status not in _NO_CONTENT_STATUSES:
        headers.append((b"content-length", b"%d" % len(response.body)))
    headers.extend(response.headers)
    return headers


async def write(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Send an answer to a server that is not ours, in two parts."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

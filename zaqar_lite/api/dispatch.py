"""The outermost ASGI application: match, check, answer.

Every route is answered here, so every request passes the same checks and every error has the same
form. FastAPI serves the OpenAPI document alone: passing through it doubles what a request costs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import getrandbits
from typing import TYPE_CHECKING

from zaqar_lite.api.access import FAILED, SLOW, log_request
from zaqar_lite.api.auditing import Auditor
from zaqar_lite.api.call import Action, Call, Refused, Result, Write
from zaqar_lite.api.checks import Checks
from zaqar_lite.api.errors import to_result
from zaqar_lite.api.gate import Gate, LongRequests
from zaqar_lite.api.gateways import Gateways
from zaqar_lite.api.http import (
    EXCHANGE,
    Exchange,
    Receive,
    Request,
    Scope,
    Send,
    address_of,
    header_list,
    write,
)
from zaqar_lite.api.lifespan import Lifespan, serve_lifespan
from zaqar_lite.api.metering import Meter
from zaqar_lite.api.routes import (
    INVALID_REQUEST,
    NAMING,
    OPEN_PATHS,
    OPENAPI_PATH,
    Node,
    Route,
    RouteTree,
)
from zaqar_lite.api.signed_queries import EVENTS, take_signature
from zaqar_lite.api.websocket.conversation import SocketHost
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.quotas import Quota
from zaqar_lite.service.metrics.metrics import Metrics
from zaqar_lite.service.quotas.connected import Connected, Link

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from zaqar_lite.api.tracing import RequestTraces

Framework = Callable[[Scope, Receive, Send], Awaitable[None]]
_PAGE = "/ui"
_STOPS = Unavailable("The server is stopping; whether this was carried out is not known.")


class Dispatcher:
    """Serve v2 over ASGI; `describe` serves the OpenAPI document."""

    def __init__(
        self,
        tree: RouteTree,
        checks: Checks,
        *,
        gate: Gate | None,
        gateways: Gateways | None,
        meter: Meter,
        connected: Connected,
        long_requests: LongRequests,
        describe: Framework,
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
        self.page: Framework | None = None
        """The page for people, under /ui."""
        self.traces: RequestTraces | None = None
        """Makes spans of the requests that are sampled."""
        self.sockets: SocketHost | None = None
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
        path = scope["path"]
        if path == OPENAPI_PATH:
            await self._describe(scope, receive, send)
            return
        if self.page is not None and path.startswith(_PAGE):
            await self._show_page(self.page, scope, receive, send)
            return
        request = Request(
            scope["method"], path, scope["query_string"], dict(scope["headers"]), receive
        )
        request.exchange = exchange
        request.request_id = _new_request_id()
        if self._gate is not None:
            refused = self._gate.refuses(request, address_of(scope))
            if refused is not None:
                await self._refuse(request, refused, self._gate, send, exchange)
                return
        span = None if self.traces is None else self.traces.begin(request)
        started = time.perf_counter()
        result = await self._serve(request, scope, send, exchange)
        self._tell(request, result.status, started, span)
        if result.stream is not None:
            await self._stream(request, result, send, exchange)

    async def _refuse(
        self, request: Request, result: Result, gate: Gate, send: Send, exchange: Exchange | None
    ) -> None:
        """Answer what is refused without a look; it is counted, and in no log."""
        self.metrics.request("", result.status, 0.0)
        await gate.be_late()
        body = result.text()
        headers = header_list(request, result, body)
        body = b"" if request.method == "HEAD" else body
        await write(send, result.status, headers, body, exchange)

    def _tell(self, call: Call, status: int, started: float, span: "Span | None") -> None:
        """Tell the metrics, the log and the traces of a call that was answered, or now streams."""
        seconds = time.perf_counter() - started
        self.metrics.request(call.route, status, seconds)
        if self._access_log or seconds > SLOW or status >= FAILED:
            log_request(self._tree, call, status, seconds, every=self._access_log)
        if self.traces is not None and span is not None:
            self.traces.end(span, call, status)

    async def _show_page(self, page: Framework, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the page, to a client that calls this server by one of its own names."""
        sent = scope["headers"]
        request = Request(scope["method"], scope["path"], b"", dict(sent), receive)
        try:
            self._checks.check_headers(request, sent)
        except Refused as exc:
            result = to_result(exc, invalid_title=INVALID_REQUEST, request_id="")
            body = result.text()
            await write(send, result.status, header_list(request, result, body), body)
        else:
            await page(scope, receive, send)

    async def _serve(
        self, request: Request, scope: Scope, send: Send, exchange: Exchange | None
    ) -> Result:
        """Answer a request, but for a stream: `_stream` writes that."""
        try:
            found = await self._admit(request, scope, None if exchange is None else exchange.link)
        except Exception as exc:  # noqa: BLE001 - the outermost handler: a bug is a 500, logged
            result = _refusal(request, exc)
            body = result.text()
        else:
            if isinstance(found, Result):
                result, body = found, b""
            else:
                self.metrics.asked += found.hot
                result, body = await answer(request, found)
                if self._rates.is_on:
                    self._meter.answered(request, found, len(body))
        if result.stream is not None:
            return result
        headers = header_list(request, result, body)
        if request.method == "HEAD":
            body = b""
        await write(send, result.status, headers, body, exchange)
        if exchange is not None and exchange.unsent and result.undo is not None:
            with suppress(Unavailable):  # then its lease lapses
                await result.undo()
        return result

    async def _stream(
        self,
        request: Request,
        result: Result,
        send: Send,
        exchange: Exchange | None,
    ) -> None:
        """Send an answer part by part; what is read of it counts against the project's rates.

        On our own connections it goes on behind the request, of which it keeps nothing.
        """
        stream, end = result.stream, request.end or _nothing
        assert stream is not None  # noqa: S101 - the caller has looked
        release = self._long_requests.hold(request, lambda _: end())
        headers = header_list(request, result, b"")
        if exchange is not None:
            send_part: Write = exchange.write
            if self._rates.is_on:
                send_part = self._meter.counted(send_part, request.project)
            await exchange.stream(result.status, headers, stream(send_part), release)
            return

        async def send_to(part: bytes) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": True})

        try:
            await send({"type": "http.response.start", "status": result.status, "headers": headers})
            await stream(send_to)
            await send({"type": "http.response.body", "body": b""})
        finally:
            release()

    async def perform(
        self, call: Call, scope: Scope, node: Node, action: Action, link: Link
    ) -> Result:
        """Answer what came over another transport, and so names a route's place and no path.

        It passes every check that a request does, but those of a gateway, which its connection
        passed. `scope` has its headers and where it came from.
        """
        call.request_id = _new_request_id()
        span = None if self.traces is None else self.traces.begin(call)
        started = time.perf_counter()
        try:
            found = await self._admit(call, scope, link, node)
        except Exception as exc:  # noqa: BLE001 - the outermost handler: a bug is a 500, logged
            result = _refusal(call, exc)
        else:
            if isinstance(found, Result):
                result = found
            else:
                self.metrics.asked += found.hot
                is_metered = self._rates.is_on
                result, body = await answer(call, found, action, is_written=is_metered)
                if is_metered:
                    self._meter.answered(call, found, len(body))
        self._tell(call, result.status, started, span)
        return result

    async def _admit(
        self, call: Call, scope: Scope, link: Link | None, node: Node | None = None
    ) -> Route | Result:
        """Find out who asks, for what, and whether it may now; `node` where that is known."""
        self._checks.check_headers(call, scope["headers"])
        if call.query_string and call.path.endswith(EVENTS):
            take_signature(call)
        if self._gateways is not None and node is None:
            self._gateways.check_request(call, scope)
        if self._gate is not None:
            await self._gate.admit(call, address_of(scope))
        if node is None:
            node = self._find(call, scope)
        if self._auditor is not None:
            call.address = address_of(scope)
        found = self._route(call, node)
        if isinstance(found, Route):
            if b"url-signature" in call.headers and found.names_queue:
                await self._checks.check_revoked(call)
            if self._rates.is_on and call.project:
                self._meter.admit(call, found)
        if link is not None and self._connected.is_on and call.project:
            await self._connected.serve(link, call.project)
        return found

    def _find(self, call: Call, scope: Scope) -> Node:
        """Find the place that a request's path names, and fill in the path's values."""
        raw_path: bytes = scope.get("raw_path") or b""
        if b"%" in raw_path and b"%2f" in raw_path.lower():
            raise Refused(400, INVALID_REQUEST, "A path may not hold an encoded slash (%2F).")
        place = self._tree.find(call.path)
        if place is None:
            raise Refused(404, "404 Not Found")
        node, call.path_values = place
        return node

    def _route(self, call: Call, node: Node) -> Route | Result:
        """Find the route and run its checks; OPTIONS is answered here."""
        route = node.routes.get(call.method)
        if call.method == "OPTIONS":
            return Result(200, b"", ((b"allow", node.allow()),))
        if call.path not in OPEN_PATHS:
            self._checks.run(
                call,
                names_queue=call.path.startswith(NAMING),
                plain=route is not None and route.plain,
                streams=route is not None and route.streams,
            )
        if route is None:
            raise Refused(405, "405 Method Not Allowed", headers=((b"allow", node.allow()),))
        call.route = route.name
        if self._auditor is not None:
            call.record_act = self._auditor.recorder(call, route)
        if self._gate is not None:
            self._gate.authorise(call, route)
        route.check_size(call.size)
        if route.needs_store:
            self._check_store()
        return route


def _nothing() -> None:
    """Take over nothing."""


def _new_request_id() -> str:
    """A request id in OpenStack's form, a random UUID; it tells requests apart and is no secret."""
    digits = f"{getrandbits(128):032x}"
    return f"req-{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def _refusal(call: Call, error: Exception) -> Result:
    """Answer what was not let in, and tell the audit trail if it would have managed something."""
    result = to_result(error, invalid_title=INVALID_REQUEST, request_id=call.request_id)
    if call.record_act is not None:
        call.record_act(result)
    return result


async def answer(
    call: Call, route: Route, action: Action | None = None, *, is_written: bool = True
) -> tuple[Result, bytes]:
    """Run a route's action, or another one, and tell the audit trail how a managing act ended.

    The result is there twice: as it is, and its document as text where it is to be written. Every
    error becomes a result, and so does the server's stop.
    """
    try:
        result = await (action or route.action)(call)
        text = result.text() if is_written else b""
    except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 - a bug is a 500, logged
        # Cancelled at the end of `shutdown_timeout`, or by a second Ctrl-C. Were it raised, uvicorn
        # would take it for a bug: a traceback in the log, and 500 for the client.
        error = _STOPS if isinstance(exc, asyncio.CancelledError) else exc
        result = to_result(error, invalid_title=route.invalid_title, request_id=call.request_id)
        text = result.text()
    if call.record_act is not None:
        call.record_act(result)
    return result, text

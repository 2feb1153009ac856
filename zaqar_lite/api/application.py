"""The application: `answer` takes a request, and gives back what it is answered.

Every request passes here, whichever transport brought it, so all of them pass the same checks, and
every error has the same form. `server` calls `answer` for HTTP and WebSocket, `asgi` for ASGI.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import InitVar, dataclass, field
from functools import partial
from random import getrandbits
from typing import TYPE_CHECKING

from zaqar_lite.api import asgi
from zaqar_lite.api.asgi import AsgiApp, Lifespan, Receive, Scope, Send, serve_lifespan
from zaqar_lite.api.auditing import Auditor
from zaqar_lite.api.authentication import RequestAuthentication, TrustedProxies, take_signature
from zaqar_lite.api.checks import Checks
from zaqar_lite.api.errors import to_response
from zaqar_lite.api.request import (
    INVALID_REQUEST,
    NAMING,
    Check,
    Dialect,
    Refused,
    Request,
    Response,
    Route,
    Stream,
    Write,
    do_nothing,
)
from zaqar_lite.api.routes import OPEN_PATHS, OPENAPI_PATH, Node, RouteTree
from zaqar_lite.api.websocket.conversation import SocketHost
from zaqar_lite.domain.errors import Denied, Unavailable
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.quotas import Quota
from zaqar_lite.domain.topics import is_topic
from zaqar_lite.service.metrics.metrics import Metrics
from zaqar_lite.service.quotas.concurrency_limits import ConnectionLimits
from zaqar_lite.service.quotas.rate_limits import READ, RateLimits

if TYPE_CHECKING:
    from zaqar_lite.api.tracing import RequestTraces

_PAGE = "/ui"
_READING, _ALLOWS_READING = ("GET", "HEAD"), ((b"allow", b"GET, HEAD"),)
_access = logging.getLogger("zaqar_lite.access")
_SLOW = 0.5
"""Seconds of work that make a request slow; time that it asked to wait does not count."""
_FAILED = 400
_NO_SQS = {
    "__type": "UnsupportedOperation",
    "message": "This server does not speak the protocol of SQS: start it with --sqs.",
}
_CALLER = re.compile(rb"req-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TRACE = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_STOPS = Unavailable("The server is stopping; whether this was carried out is not known.")


@dataclass(eq=False, repr=False)
class Application:
    """Answer requests; `describe` writes the OpenAPI document.

    `check_store` raises Unavailable until the stores are open.
    """

    tree: RouteTree
    checks: Checks
    authentication: RequestAuthentication | None
    proxies: TrustedProxies | None
    rates: RateLimits
    connection_limits: ConnectionLimits
    describe: Callable[[], Awaitable[bytes]]
    lifespan: Lifespan
    check_store: Callable[[], None]
    metrics: Metrics
    auditor: Auditor | None
    access_log: bool
    is_in_process: InitVar[bool]
    """Whether the store answers a request for messages without waiting, in most cases."""
    sockets: SocketHost = field(init=False)
    """What WebSockets say to."""
    stop: Callable[[], None]
    """Answer the requests that wait: the server is about to stop."""
    drain: Callable[[], None]
    """Tell probes that this process is not ready: it stops soon, and serves until then."""
    use_settings: Callable[[Limits, Quota], None]
    """Let other limits and default quotas hold from now on."""
    reread: Callable[[], Callable[[], None]] = lambda: do_nothing
    """Read the files that hold rules again; answer what takes them over, all at once."""
    page: AsgiApp | None = None
    """The page for people, under /ui."""
    dialect: Dialect | None = None
    """Another protocol that is spoken on the same port."""
    traces: "RequestTraces | None" = None
    """Makes spans of the requests that are sampled."""

    def __post_init__(self, is_in_process: bool) -> None:
        self._quotas = self.rates.quotas
        self._asked = getrandbits(40)
        self._is_quick = is_in_process
        who = None if self.authentication is None else self.authentication.admit
        through = None if self.proxies is None else self.proxies.check_request
        before = (self.checks.check_headers, take_signature, through, who)
        self._before: tuple[Check, ...] = tuple(one for one in before if one is not None)
        self._before_frames = tuple(one for one in self._before if one != through)
        # A dialect's path says nothing, so none of its requests is one that needs no gateway.
        gateway = None if self.proxies is None else self.proxies.check
        either = (self.checks.check_headers, gateway)
        self._before_dialect = tuple(one for one in either if one is not None)
        self._looks_again = self.proxies is not None or self.authentication is not None
        others = () if self.dialect is None else self.dialect.routes
        self._of_dialect = {one.name: self._checks_of_dialect(one) for one in others}
        self.routes: tuple[Route, ...] = (*self.tree.routes, *others)
        """Every route that is served."""
        for template, node in self.tree.nodes.items():
            node.otherwise = self._checks_of(template, node, None)
            for method, route in node.routes.items():
                node.checks[method] = self._checks_of(template, node, route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request over ASGI, or run the lifespan."""
        if scope["type"] == "http":
            await asgi.serve(self.answer, scope, receive, send)
        elif scope["type"] == "lifespan":
            await serve_lifespan(self.lifespan, receive, send)
        else:  # our own server answers these itself: sockets.py
            await send({"type": "websocket.close"})

    async def answer(self, request: Request) -> Response:  # noqa: PLR0912 - each request passes it
        """Answer a request. Every error becomes a result, and so does the server's stop.

        A stream that is the answer must be run. The document of what answers a frame is left as it
        is.
        """
        self._asked += 1
        request.number = self._asked
        dialect = request.dialect
        if request.route is not None and (
            request.size > request.most or (self._looks_again and not self._admits_again(request))
        ):
            request.forget_admission()
        if request.route is None and request.checks is None:
            request.headers = dict(request.headers)
            if self.dialect is not None and self.dialect.speaks(request):
                dialect = self.dialect
            elif (found := await self._answer_elsewhere(request)) is not None:
                return found
        span = None if self.traces is None else self.traces.begin(request)
        started = time.perf_counter()
        try:
            response = None
            if request.route is None or dialect is not None:  # else its head was let in before
                response = await self._admit(request, dialect)
            route = request.route
            if response is None and route is not None:
                if self._quotas.has_rates or self._quotas.has_connections:
                    await self._count(request, route)
                self.metrics.asked += route.hot
                response = await (request.action or route.action)(request)
                response.body = response.text() if request.checks is None else b""
                if self._quotas.has_rates and route.rate_kind == READ:
                    size = len(response.body or response.text())
                    self.rates.charge(request.project, READ, size)
            assert response is not None  # noqa: S101 - without a route, `_admit` has answered
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 - a bug is a 500, logged
            response = _refusal(exc, request, dialect)
        if self.auditor is not None:
            self.auditor.record(request, response)
        seconds = time.perf_counter() - started
        route = request.route
        self.metrics.request("" if route is None else route.name, response.status, seconds)
        if self.access_log or seconds > _SLOW or response.status >= _FAILED:
            _log(request, response.status, seconds, every=self.access_log)
        if self.traces is not None and span is not None:
            self.traces.end(span, request, response.status)
        if response.stream is not None and self._quotas.has_rates:
            response.stream = self._charge_stream(response.stream, request.project)
        return response

    def look_at(self, request: Request) -> None:
        """Tell by a head whether it is probably answered without waiting, and when it is begun.

        What asks for messages of a store in here waits for nothing. It runs without a task until it
        first waits, so nothing before that may use `asyncio.timeout`, which needs one.
        """
        path = request.path
        is_quick = path.startswith(NAMING) and ("/messages" in path or "/claims" in path)
        spoken = None if self.dialect is None else self.dialect.answers_at_once(request)
        if spoken is not None:
            request.reads_first, is_quick = True, spoken
        request.at_once = is_quick and self._is_quick and b"wait=" not in request.query_string

    def _admits_again(self, request: Request) -> bool:
        """Tell whether a request with a known head is let in by what its head does not decide."""
        if self.proxies is not None:
            request.headers = dict(request.headers)
            try:
                self.proxies.check(request)
            except Denied:
                return False
        return self.authentication is None or self.authentication.admits_again(request)

    async def _answer_elsewhere(self, request: Request) -> Response | None:
        """Answer what is for the page or the document, and guesses; None for any other request."""
        try:
            if request.path == OPENAPI_PATH:
                if request.method not in _READING:
                    raise Refused(405, "405 Method Not Allowed", headers=_ALLOWS_READING)
                return Response(200, None, body=await self.describe())
            if self.page is not None and request.path.startswith(_PAGE):
                # The page is for a client that calls this server by one of its own names.
                self.checks.check_headers(request)
                return await asgi.ask(self.page, request)
            who = self.authentication
            refused = None if who is None else await who.refuse(request)
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 - as in `answer`
            return _refusal(exc, request, None)
        if refused is not None:
            # It is answered without a look at it; it is counted, and in no log.
            self.metrics.request("", refused.status, 0.0)
            refused.body = refused.text()
        return refused

    def _charge_stream(self, stream: Stream, project: str) -> Stream:
        """The same stream, of which the project pays for what is read."""

        async def charged(write: Write) -> None:
            async def count_and_write(part: bytes) -> None:
                self.rates.charge(project, READ, len(part))
                await write(part)

            await stream(count_and_write)

        return charged

    async def _count(self, request: Request, route: Route) -> None:
        """Count a request by what it asks for, and its connection, for its project.

        Raises:
            TooMany: its project is too fast.
            QuotaReached: its project has too many other connections.
        """
        if not request.project:
            return
        kind = route.rate_kind
        if kind is not None and self._quotas.has_rates:
            self.rates.spend(request.project, kind, 0 if kind == READ else request.size)
        if request.link is not None:
            await self.connection_limits.serve(request.link, request.project)

    async def _admit(self, request: Request, dialect: Dialect | None) -> Response | None:
        """Find out who asks, for what, and whether it may now: one check after the other.

        They set the request's route; a request that needs none is answered.
        """
        if request.route is not None and dialect is not None:  # its head has been through the rest
            await dialect.admit(request)
            return None
        checks, before = request.checks, self._before
        if checks is not None:
            before = self._before_frames
        elif dialect is not None:
            before = self._before_dialect
        for check in before:
            if (waits := check(request)) is not None:
                await waits
        if dialect is not None:
            checks = self._of_dialect[dialect.find(request).name]
        elif checks is None:
            node = self._find(request)
            if request.method == "OPTIONS":
                return Response(200, b"", ((b"allow", node.allow()),))
            checks = node.checks.get(request.method, node.otherwise)
        for check in checks:
            if (waits := check(request)) is not None:
                await waits
        return None

    def _find(self, request: Request) -> Node:
        """Find the place that a request's path names, and fill in the path's values."""
        raw_path = request.raw_path
        if b"%" in raw_path and b"%2f" in raw_path.lower():
            raise Refused(400, INVALID_REQUEST, "A path may not hold an encoded slash (%2F).")
        place = self.tree.find(request.path)
        if place is None:
            raise Refused(404, "404 Not Found")
        node, request.path_values = place
        return node

    def _checks_of(self, template: str, node: Node, route: Route | None) -> tuple[Check, ...]:
        """What a request to a path must pass, in upstream's order, where `route` answers it.

        Where none does, the last check refuses. A check of what is switched off is left out.
        """
        found = () if template in OPEN_PATHS else self.checks.of(template, route)
        if route is None:
            told = _NO_SQS if self.dialect is None else None
            return (*found, partial(_refuse_method, node, told))
        enter = partial(_enter, route)
        authorise = None if self.authentication is None else self.authentication.authorise
        store = self._need_store if route.needs_store else None
        revoked = self.checks.check_revoked if route.names_queue else None
        keep = partial(self._keep, route) if route.hot else None
        more = (enter, authorise, _check_size, store, revoked, keep, _read_if_taken)
        return (*found, *(check for check in more if check is not None))

    def _checks_of_dialect(self, route: Route) -> tuple[Check, ...]:
        """What a request of a dialect must pass: it is read before it is known who sends it."""
        assert self.dialect is not None  # noqa: S101 - the route is its own
        authorise = None if self.authentication is None else self.authentication.authorise
        keep = partial(self._keep, route, dialect=self.dialect) if route.hot else None
        found = (
            *(partial(_enter, route), _check_size, self._need_store, keep, Request.read),
            *(self.dialect.admit, authorise),
        )
        return tuple(check for check in found if check is not None)

    def _need_store(self, _: Request) -> None:
        self.check_store()

    def _keep(self, route: Route, request: Request, *, dialect: Dialect | None = None) -> None:
        """Keep by the head that it was let in, and as what.

        The next request with such a head is let in by it, unless `_admits_again` says no. Only
        requests for messages are kept, so there is nothing to be told to the audit trail. A
        signature may be revoked, and a length that is not in the head must be checked.
        """
        found, who = request.known, self.authentication
        if found is None:
            return
        found.reads_first = True
        if request.is_signed or b"content-encoding" in request.headers:
            return
        if who is not None and (dialect is not None or not who.keep(request, found)):
            return
        found.path_values, found.queue = request.path_values, request.queue
        found.project, found.client_id = request.project, request.client_id
        found.route, found.most, found.dialect = route, route.largest_body, dialect
        found.is_read, found.given = True, request.parameters


def _refusal(
    error: Exception | asyncio.CancelledError, request: Request, dialect: Dialect | None
) -> Response:
    """Answer an error, in the form of the protocol that was spoken."""
    if isinstance(error, asyncio.CancelledError):  # `shutdown_timeout` is over, or a second Ctrl-C
        error = _STOPS
    if dialect is not None:
        response = dialect.to_response(error, request)
    else:
        title = INVALID_REQUEST if request.route is None else request.route.invalid_title
        response = to_response(error, invalid_title=title, request_id=request.request_id)
    response.body = response.text()
    return response


def _log(request: Request, status: int, seconds: float, *, every: bool) -> None:
    """Log a request if that is asked for, if it was slow, or, at debug level, if it failed."""
    if seconds > _SLOW + request.waits:
        level, text = logging.WARNING, "slow request"
    elif every:
        level, text = logging.INFO, "request"
    elif status >= _FAILED and _access.isEnabledFor(logging.DEBUG):
        level, text = logging.DEBUG, "request"
    else:
        return
    route = request.route
    fields = {
        "request_id": request.request_id,
        "method": request.method,
        "path": route.template if route else "unknown",
        "route": route.name if route else "unknown",
        "project": request.project,
        "queue": "" if is_topic(request.queue) else request.queue.name,
        "client": request.client_id,
        "status": status,
        "milliseconds": round(seconds * 1000, 3),
    }
    caller = request.headers.get(b"x-openstack-request-id", b"")
    if _CALLER.fullmatch(caller):
        fields["caller_request_id"] = caller.decode()
    trace = _TRACE.fullmatch(request.headers.get(b"traceparent", b""))
    if trace is not None:
        fields["trace_id"], fields["span_id"] = trace[1].decode(), trace[2].decode()
    _access.log(level, text, extra={"fields": fields})


def _enter(route: Route, request: Request) -> None:
    request.route, request.most = route, route.largest_body


def _refuse_method(node: Node, no_sqs: Mapping[str, object] | None, request: Request) -> None:
    """Refuse a method that a path has not; `no_sqs` is what clients of SQS are told instead."""
    told = no_sqs if b"x-amz-target" in request.headers else None
    allowed = ((b"allow", node.allow()),)
    raise Refused(405, "405 Method Not Allowed", headers=allowed, document=told)


def _check_size(request: Request) -> None:
    request.check_size(request.size)


def _read_if_taken(request: Request) -> Awaitable[object] | None:
    """Read the body that a route takes, and one whose length is known by that alone."""
    is_taken = request.route is not None and request.route.body is not None
    return request.read() if is_taken or request.size < 0 else None

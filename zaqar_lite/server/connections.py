"""HTTP connections whose input, memory and time are bounded.

uvicorn's httptools protocol has no such bounds: the head of a request may grow without limit, and
the server waits for ever for the rest of a request or for a client that does not read. It also goes
on reading after a request was answered before its body came, and could take the rest of that body
for the next request. `BoundedProtocol` adds the bounds; `zaqar_lite.api` answers the requests.
"""

import asyncio
import logging
import resource
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from zaqar_lite.api.gateways import names_of
from zaqar_lite.api.http import EXCHANGE, PEER_NAMES
from zaqar_lite.server.exchanges import HttpExchange, Signal
from zaqar_lite.server.refusals import FULL, NO_HTTP, TOO_LARGE, refuse_http
from zaqar_lite.server.seldom import Seldom
from zaqar_lite.server.sockets import SocketProtocol
from zaqar_lite.settings import Settings

logger = logging.getLogger("zaqar_lite")
_DISCARDED_BYTES = 8 * 1024 * 1024
_DISCARDED_SECONDS = 2.0
_PARSED = 8_192
"""Bytes that are parsed at a time: about sixty requests."""
_SPARE = 128
"""Connections above the bound that are answered 503; any others are closed without an answer."""
_AROUND_A_FRAME = 65_536
"""Bytes that a frame may have in addition to the largest document."""
_SOCKETS_PATH = b"/v2/ws"
_RESERVED_FILES = 2 * _SPARE
"""Open files besides the connections of clients: the store's, the listener and the spare ones."""
_ALL_TAKEN = "all %d connections are taken (max_connections): further clients are told 503"
_OF_UVICORN = ("Invalid HTTP request received.", "Unsupported upgrade request.")
"""What uvicorn logs of single requests."""
_SCOPE: Any = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "root_path": ""}
"""What the scopes of all requests have in common."""
_PAST: Any = {"method": ""}
"""Takes the place of the scope of an answered request, which would fill memory for nothing."""


def bound(settings: Settings) -> None:
    """Set the bounds of this process's connections and of what they log; raise its open files."""
    BoundedProtocol.max_head = settings.max_request_head
    BoundedProtocol.silence = settings.request_timeout
    BoundedProtocol.longest = settings.request_total_timeout
    BoundedProtocol.max_connections = _allow_files(settings.max_connections)
    BoundedProtocol.socket_port = settings.websocket_port
    largest = max(settings.max_messages_post_size, settings.max_queue_metadata)
    SocketProtocol.largest = largest + _AROUND_A_FRAME
    SocketProtocol.interval = settings.websocket_ping_interval
    SocketProtocol.silence = settings.request_timeout
    logger.addFilter(Seldom(_ALL_TAKEN))
    logging.getLogger("uvicorn.error").addFilter(Seldom(*_OF_UVICORN))


def _allow_files(connections: int) -> int:
    """Raise the limit of open files if it is too low; return how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _RESERVED_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    fitting = max(allowed - _RESERVED_FILES, 1)
    if fitting < connections:
        logger.warning(
            "%d connections at most, not max_connections (%d): this process may open %d files "
            "(ulimit -n)",
            fitting,
            connections,
            allowed,
        )
        return fitting
    return connections


def _do_nothing() -> None:
    """Do nothing when the connection ends, for a connection that is not counted."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose requests and answers are bounded in bytes and in time.

    * The head of a request may have `max_head` bytes. A client may pause for `silence` seconds in
      the middle of a request, and as long without reading anything of its answer. A whole request
      must arrive within `longest` seconds.
    * A request that is answered before its body was read is the last one, whether or not the body
      has come by then. The answer says `Connection: close`, 8 MiB or 2 s of input are passed over
      (closing at once would be a reset, which takes the answer from its reader), and nothing else
      is written.
    """

    # uvicorn's attributes fill a dictionary of the size that Python shares between instances: with
    # ours in it, each connection would have one of its own, of 1.2 KB.
    __slots__ = (
        "_answered_at", "_begun_at", "_behind", "_discarded", "_head_bytes", "_heard_at",
        "_is_for_sockets", "_last", "_looks_at", "_peer_names", "_read_at", "_timer",
        "_unparsed", "_unread_bytes", "lost", "on_lost", "project",
    )  # fmt: skip
    max_head = 262_144
    silence = 60.0
    longest = 300.0
    max_connections = 4_096
    socket_port: int | None = None
    """The port for WebSockets only, where their path is `/`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*arguments, **options)
        self.project, self.lost = "", False
        self.on_lost: Callable[[], None] = _do_nothing
        del self.pipeline  # an empty deque has 760 bytes
        self._behind: list[tuple[RequestResponseCycle, Any]] = []
        self._unparsed = b""
        self._head_bytes = 0
        self._heard_at = self._begun_at = self._read_at = 0.0
        self._answered_at = self._looks_at = 0.0
        self._unread_bytes = 0
        self._last: RequestResponseCycle | None = None
        self._discarded: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._peer_names: frozenset[str] = frozenset()
        self._is_for_sockets = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch the connection, or turn it away if there are too many."""
        super().connection_made(transport)
        self.flow._is_writable_event = Signal()
        self.flow._is_writable_event.set()
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            self._peer_names = names_of(secured.getpeercert())
        if self.socket_port is not None and self.server is not None:
            self._is_for_sockets = self.server[1] == self.socket_port
        self._heard_at = self.loop.time()
        self._watch(min(self.silence, self.timeout_keep_alive))
        if len(self.connections) > self.max_connections:
            self._turn_away()

    def connection_lost(self, exc: Exception | None) -> None:
        """End watching."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        self.lost = True
        self.on_lost()

    def data_received(self, data: bytes) -> None:
        """Parse data, or discard it if no request is answered any more."""
        if self._discarded is not None:
            self._discarded += len(data)
            if self._discarded > _DISCARDED_BYTES:
                self.transport.close()
            return
        self._heard_at = self.loop.time()
        if self._unparsed:
            self._unparsed += data
            self.flow.pause_reading()  # whoever reads a body lets the connection read on
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse requests until one has to wait for earlier answers; keep the rest for later.

        Otherwise a client that sends a thousand requests at once would delay all other clients
        while the server parses them.
        """
        for start in range(0, len(data), _PARSED):
            if self._behind:
                self._unparsed = data[start:]
                return
            part = data[start : start + _PARSED]
            super().data_received(part)
            if self.lost or self._discarded is not None or self._last is not None:
                return
            if self._reads_head:
                self._head_bytes += len(part)
                if self._head_bytes > self.max_head:
                    self._end_with(TOO_LARGE)
                    return
            elif self._head_bytes:
                self._head_bytes = 0

    def _read_on(self) -> None:
        """Parse what was kept when a request had to wait, and go on reading."""
        if self._unparsed:
            data, self._unparsed = self._unparsed, b""
            self._parse(data)
        if not self._behind:
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        """Begin the scope of a request, and note when its first byte came."""
        self.url, self.headers, self.expect_100_continue = b"", [], False
        scope: Any = _SCOPE.copy()  # half the time of a dictionary written out
        scope["server"] = self.server
        scope["client"] = self.client
        scope["scheme"] = self.scheme
        scope["headers"] = self.headers
        self.scope = scope
        self._begun_at = self._heard_at

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP."""
        self._end_with(NO_HTTP)

    def on_headers_complete(self) -> None:
        """Begin a request at once, or queue it behind earlier requests on this connection."""
        scope: Any = self.scope
        parser = self.parser
        version = parser.get_http_version()
        if version != "1.1":
            scope["http_version"] = version
        if parser.should_upgrade() and self._should_upgrade():
            scope["method"] = parser.get_method().decode("ascii")
            return
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["method"] = parser.get_method().decode("ascii")
        scope["raw_path"] = url.path
        scope["path"] = unquote(path) if "%" in path else path
        scope["query_string"] = url.query or b""
        if self._peer_names:
            scope[PEER_NAMES] = self._peer_names
        before = self._current
        self.cycle = scope[EXCHANGE] = HttpExchange(
            self,
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            False,
            self.server_state.default_headers,
            Signal(),
            self.expect_100_continue,
            version != "1.0" and parser.should_keep_alive(),
            self.on_response_complete,
        )
        app: Any = refuse_http if self._is_for_sockets else self.app
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, app)
        else:
            self.flow.pause_reading()
            self._behind.append((self.cycle, app))

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the protocol of WebSockets."""
        if self._timer is not None:
            self._timer.cancel()
        self.lost = True
        self.on_lost()
        super().handle_websocket_upgrade()

    def _should_upgrade(self) -> bool:
        """Whether a request becomes a WebSocket, which needs all earlier ones to be answered."""
        if not (self._is_answered and self._get_upgrade() == b"websocket"):
            return False
        path = self.url.partition(b"?")[0]
        return path == _SOCKETS_PATH or (self._is_for_sockets and path == b"/")

    def on_response_complete(self) -> None:
        """After an answer, begin the next request that has arrived, or wait for one.

        uvicorn sets a timer after every answer and cancels it at the next request. Here the timer
        that watches the connection also serves for keep-alive.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self._behind:  # what follows is read when the last of them has begun
            self._start_asgi_task(*self._behind.pop(0))
            if not self._behind:  # a stream: that its client leaves is seen only by reading
                self._read_on()
            return
        self._forget()
        self._answered_at = now = self.loop.time()
        if self._looks_at > now + 2 * self.timeout_keep_alive:
            self._watch(self.timeout_keep_alive)
        self._read_on()

    def go_on(self, body: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Write an answer in a task; a stopping server waits for it as for a request."""
        if not self._behind:
            self._forget()
        task = self.loop.create_task(body)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _forget(self) -> None:
        """Drop the head of the last request, which an idle connection or a stream does not need."""
        if self.scope is self.cycle.scope:
            self.scope = self.cycle.scope = _PAST
            self.headers = []

    def is_last(self, exchange: RequestResponseCycle) -> bool:
        """Whether this is the last answer: the body was not read, or what follows is not HTTP."""
        return exchange.more_body or bool(exchange.body) or exchange is self._last

    # uvicorn's annotations leave out that there is no scope and no cycle at first.

    @property
    def _reads_head(self) -> bool:
        scope: Any = self.scope
        return scope is not None and "method" not in scope

    @property
    def _current(self) -> RequestResponseCycle | None:
        return self.cycle

    @property
    def _is_answered(self) -> bool:
        return self._current is None or self.cycle.response_complete

    @property
    def _is_incomplete(self) -> bool:
        """Whether a request has begun to arrive and has not ended."""
        return self._reads_head or (not self._is_answered and self.cycle.more_body)

    def _end_with(self, answer: bytes) -> None:
        """Answer input that is no valid request, after earlier requests had theirs, and close."""
        if self._is_answered:
            self.transport.write(answer)
            self.discard()
        elif self._reads_head or not self.cycle.more_body:
            self._last = self.cycle
            self.flow.pause_reading()
        else:  # the body of the request that is being read
            begun = self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if not begun:
                self.transport.write(answer)
            self.discard()

    def _turn_away(self) -> None:
        logger.warning(_ALL_TAKEN, self.max_connections)
        if len(self.connections) > self.max_connections + _SPARE:
            self.transport.abort()
        else:
            self.transport.write(FULL)
            self.discard()

    def discard(self) -> None:
        """Write nothing more; discard what still arrives for a while, then close."""
        if self.transport.is_closing() or self._discarded is not None:
            return
        self._discarded, self._unparsed = 0, b""
        self._behind.clear()
        self.flow.resume_reading()
        if self.transport.can_write_eof():  # TLS can't end one direction alone
            self.transport.write_eof()
        self._watch(_DISCARDED_SECONDS)

    def _watch(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = self.loop.time() + seconds
        self._timer = self.loop.call_later(seconds, self._check)

    def _check(self) -> None:
        """Close the connection if its client is too slow; else set the timer for the next check."""
        now = self.loop.time()
        if self._is_stuck(now):
            self.transport.abort()
            return
        left = self.silence
        if self._discarded is not None:
            self.transport.close()
        elif self._is_answered or self.cycle.more_body:  # else it is the server that takes its time
            left = self._heard_at + self.silence - now
            if self._is_incomplete:
                left = min(left, self._begun_at + self.longest - now)
            elif self._current is not None:
                left = min(self.silence, self._answered_at + self.timeout_keep_alive - now)
            if left <= 0:
                self.transport.close()
                left = self.silence
        self._watch(min(left, self.longest))

    def _is_stuck(self, now: float) -> bool:
        """Whether the client has read nothing of a waiting answer for `silence` seconds."""
        waiting = self.transport.get_write_buffer_size()
        if waiting and waiting >= self._unread_bytes > 0:
            return now - self._read_at >= self.silence
        self._unread_bytes, self._read_at = waiting, now
        return False

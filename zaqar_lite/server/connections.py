"""HTTP connections: an asyncio protocol between a socket and `Application.answer`.

uvicorn makes a `HttpConnection` for each connection that it accepts, by its option `http`. Nothing
else of uvicorn is used on the way of a request: `http1` parses and writes.
"""

import asyncio
import logging
import resource
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any

import httptools
from msgspec.structs import replace

from zaqar_lite.api.application import Application
from zaqar_lite.api.request import Request, Response, bad_body, do_nothing
from zaqar_lite.server.http1 import (
    CONTINUE,
    FAILED,
    FULL,
    HEAD_END,
    LAST_CHUNK,
    LONGEST_KEPT,
    MAX_HEAD,
    NO_HTTP,
    SOCKETS_ONLY,
    TOO_LARGE,
    ChunkReader,
    ClientConnection,
    HeadReader,
    KnownHeads,
    ServerState,
    encode_chunk,
    encode_headers,
    encode_response,
)
from zaqar_lite.server.logs import LogThrottle
from zaqar_lite.server.sockets import SocketProtocol
from zaqar_lite.settings import Settings

logger = logging.getLogger("zaqar_lite")
_DISCARDED_BYTES = 8 * 1024 * 1024
_DISCARDED_SECONDS = 2.0
_AT_ONCE = 16
"""Requests of one connection that are answered before other connections have their turn."""
_UNREAD_BODY = 65_536
"""Bytes of a body that are kept before somebody reads it."""
_SPARE = 128
"""Connections above the bound that are answered 503; any others are closed without an answer."""
_AROUND_A_FRAME = 65_536
"""Bytes that a frame may have in addition to the largest document."""
_SOCKETS_PATH = b"/v2/ws"
_RESERVED_FILES = 2 * _SPARE
"""Open files besides the connections of clients: the store's, the listener and the spare ones."""
_ALL_TAKEN = "all %d connections are taken (max_connections): further clients are told 503"
NO_HTTP_LINE = "Invalid HTTP request received."
_NO_UPGRADE = "Unsupported upgrade request."


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


class HttpConnection(ClientConnection):
    """A connection: it reads requests, has them answered in their order, and writes the answers.

    * The head of a request may have 256 KiB, and so may what trails its body. A client may pause
      for `read_timeout` seconds in the middle of a request, and as long without reading anything of
      its answer. A whole request must arrive within `total_timeout` seconds.
    * One request is answered at a time; what follows it is not parsed meanwhile. An answer that
      needs not wait is made at once, without a task.
    * A request whose head is known, and lets it in, is begun once its body has come: most clients
      send the two one behind the other, and to begin it twice costs three times as much.
    * A request that is answered before its body was read is the last one, whether or not the body
      has come by then. The answer says `Connection: close`, 8 MiB or 2 s of input are passed over
      (closing at once would be a reset, which takes the answer from its reader), and nothing else
      is written.
    """

    application: Application
    heads: KnownHeads
    read_timeout: float
    total_timeout: float
    keep_alive: float
    most: int
    """How many connections a process has."""
    socket: type[SocketProtocol]
    """What becomes of a connection that is upgraded."""
    socket_port: int | None
    """The port for WebSockets alone, where their path is `/`."""
    _date: list[tuple[bytes, bytes]] | None = None
    _date_lines = b""
    __slots__ = (
        *("_answered_at", "_arrived", "_begun_at", "_body", "_chunks", "_closes", "_discarded"),
        *("_ends", "_gone", "_head", "_heard_at", "_is_busy", "_is_for_sockets"),
        *("_is_paused", "_is_whole", "_later", "_left", "_next", "_read_at", "_request"),
        *("_stops", "_timer", "_unparsed", "_unread_bytes", "_writable", "is_secure"),
    )

    def __init__(
        self,
        config: object,
        server_state: ServerState,
        app_state: object = None,
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(server_state)
        self.is_secure = self._is_for_sockets = False
        self._unparsed = b""
        """What follows the request that is answered, or begun once its body has come."""
        self._head: HeadReader | None = None
        """Reads a head whose end has not come."""
        self._chunks: ChunkReader | None = None
        """Reads the body of the last request if that comes in chunks."""
        self._later: asyncio.Handle | None = None
        self._is_paused = False
        self._next: Request | None = None
        """The request that came last, until it is begun to be answered."""
        self._request: Request | None = None
        """The request that came last, until its answer begins."""
        self._is_busy = False
        """Whether a request is being answered."""
        self._is_whole = True
        """Whether all of the last request has come."""
        self._left = 0
        """How many bytes of its body have not come, where that is known."""
        self._body = bytearray()
        self._arrived: asyncio.Future[bool] | None = None
        self._gone: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._closes = self._ends = self._stops = False
        self._unread_bytes = 0
        self._heard_at = self._begun_at = self._read_at = self._answered_at = 0.0
        self._discarded = -1
        """How many bytes were passed over; -1 as long as requests are answered."""
        self._timer: asyncio.TimerHandle | None = None

    # Called by the event loop, and `shutdown` by uvicorn.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to watch the connection, or turn it away if there are too many."""
        super().connection_made(transport)
        connections, most = self._server.connections, self.most
        self.is_secure = transport.get_extra_info("ssl_object") is not None
        if self.socket_port is not None:
            ours = transport.get_extra_info("sockname")
            self._is_for_sockets = ours[1] == self.socket_port
        self._heard_at = self._loop.time()
        self._watch(min(self.read_timeout, self.keep_alive))
        if len(connections) <= most:
            return
        logger.warning(_ALL_TAKEN, most)
        if len(connections) > most + _SPARE:
            self._transport.abort()
        else:
            self._transport.write(FULL)
            self._discard()

    def data_received(self, data: bytes) -> None:
        """Parse requests, and have them answered, until one has to wait; keep the rest for later.

        Otherwise a client that sends a thousand requests at once would delay all other clients.
        """
        if self._discarded >= 0:
            self._pass_over(data)
            return
        self._heard_at = self._loop.time()
        if self._unparsed:
            self._unparsed += data
            self._pause()
            return
        start, most, answered = 0, len(data), 0
        while start < most and not (self._discarded >= 0 or self._transport.is_closing()):
            if not self._is_whole:
                start = self._take_body(data, start)
                continue
            known, end = None, 0
            if self._head is None:
                is_enough = answered >= _AT_ONCE
                if is_enough or self._is_busy or self._writable is not None:
                    self._unparsed = data[start:]
                    if is_enough:
                        self._later = self._loop.call_soon(self._read_on)
                    return
                answered += 1
                end = data.find(HEAD_END, start, start + LONGEST_KEPT) + 4
            if end >= 4:
                head = data[start:end]
                known = self.heads.get(head) or self.heads.find_like(head)
            if known is None:
                start = self._parse_head(data, start)
                continue
            start, kept = end, known.known or known
            if most - end >= known.size:
                start += known.size
                self._run(replace(known, known=kept, document=data[end:start], source=self))
            else:
                self._begun_at = self._heard_at
                self._begin_request(replace(known, known=kept))
        if self._next is not None:
            self._start_next()  # even if its body has not come

    def pause_writing(self) -> None:
        """Begin no further answer: the client does not read the last one."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Go on answering."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None
        if not self._is_busy:
            self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """End watching, and tell everybody who waits for the client."""
        self._leave()
        if self._timer is not None:
            self._timer.cancel()
        if self._later is not None:
            self._later.cancel()
        self._next = None
        self._unparsed, self._head, self._chunks = b"", None, None
        self._end_body(is_whole=False)
        for waiting in (self._gone, self._writable):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    def shutdown(self) -> None:
        """Close the connection, after the answer that is being made, because the server stops."""
        if self._is_busy or self._next is not None:
            self._stops = True
        else:
            self._transport.close()

    # Reading.

    def _parse_head(self, data: bytes, start: int) -> int:
        """Parse a head, or a part of one; answer where that ends."""
        reader = self._head
        if reader is None:
            reader = self._head = HeadReader()
            self._begun_at = self._heard_at
        try:
            end = reader.feed(data, start)
        except httptools.HttpParserError:
            return self._refuse_input(data)
        if len(reader.data) > MAX_HEAD:
            self._end_with(TOO_LARGE)
        elif reader.request is not None:
            self._head = None
            self._take_head(reader, reader.request, data[end:])
            if self.lost:  # what follows is a WebSocket's
                return len(data)
        return end

    def _take_head(self, reader: HeadReader, request: Request, rest: bytes) -> None:
        """Begin the request of a head, or a WebSocket."""
        head = bytes(reader.data)
        if reader.upgrades and self._is_handshake(request):
            self._become_socket(head.lstrip() + rest)
            return
        self.application.look_at(request)
        if reader.upgrades:
            logger.warning(_NO_UPGRADE)  # it goes on with HTTP
        else:
            self.heads.keep(head, request)
        self._begin_request(request)

    def _begin_request(self, request: Request) -> None:
        """Take a request whose body follows, if it has one."""
        if request.route is not None and not self._waits_for_body(request):
            request.forget_admission()
        request.source = self
        self._request = self._next = request
        self._is_whole, self._left = not request.size, request.size
        self._body.clear()
        self._chunks = ChunkReader() if request.size < 0 else None
        if self._is_whole:
            self._start_next()

    def _take_body(self, data: bytes, start: int) -> int:
        """Take a part of the body of the request that began last; answer where it ends."""
        chunks, request = self._chunks, self._request
        if chunks is None:
            end = min(start + self._left, len(data))
            part, self._left = data[start:end], self._left - end + start
            self._is_whole = not self._left
        else:
            try:
                part, end = chunks.feed(data, start)
            except httptools.HttpParserError:
                return self._refuse_input(data)
            self._is_whole = chunks.is_whole
            if chunks.overhead > MAX_HEAD:
                self._end_with(TOO_LARGE)
                return end
        if self._is_whole:
            if request is not None:  # else it was answered without its body
                request.document = bytes(self._body + part) if self._body else part
            self._body.clear()
            self._end_body(is_whole=True)
            self._start_next()
        elif request is not None:
            self._gather(request, part)
        return end

    def _gather(self, request: Request, part: bytes) -> None:
        """Keep a part of the body of a request until it is whole."""
        self._body += part
        if self._arrived is None:
            if len(self._body) > _UNREAD_BODY:
                self._pause()
        elif request.size < 0 and len(self._body) > request.most:
            self._end_body(is_whole=False)

    def _refuse_input(self, data: bytes) -> int:
        """Refuse data that is no HTTP, and pass over the rest of it."""
        logger.warning(NO_HTTP_LINE)
        self._end_with(NO_HTTP)
        return len(data)

    def _end_body(self, *, is_whole: bool) -> None:
        """Tell who waits for the body of the last request that nothing more of it will come."""
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(is_whole)

    def _is_handshake(self, request: Request) -> bool:
        """Whether a request that asks for another protocol becomes a WebSocket."""
        path = request.raw_path
        is_ours = path == _SOCKETS_PATH or (self._is_for_sockets and path == b"/")
        return is_ours and request.headers[b"upgrade"].lower() == b"websocket"

    def _become_socket(self, handshake: bytes) -> None:
        """Hand the connection over to the protocol of WebSockets."""
        if self._timer is not None:
            self._timer.cancel()
        self._resume()
        self._leave()
        protocol = self.socket(self._server)
        protocol.connection_made(self._transport)
        self._transport.set_protocol(protocol)
        protocol.data_received(handshake)

    def _read_on(self) -> None:
        """Parse what was kept when a request had to wait, and go on reading."""
        self._later = None
        if self.lost:
            return
        self._start_next()
        if self._unparsed and not self._is_busy:
            data, self._unparsed = self._unparsed, b""
            self.data_received(data)
        if not self._unparsed:
            self._resume()

    def _pass_over(self, data: bytes) -> None:
        """Discard data, since no request is answered any more."""
        self._discarded += len(data)
        if self._discarded > _DISCARDED_BYTES:
            self._transport.close()

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused and not (self.lost or self._transport.is_closing()):
            self._is_paused = False
            self._transport.resume_reading()

    # Answering.

    def _start_next(self) -> None:
        """Begin to answer the request that has arrived, if there is still a client."""
        request = self._next
        if request is None or self._is_busy or self._writable is not None or self._is_closed:
            return
        if self._is_whole or not self._waits_for_body(request):
            self._next = None
            self._run(request)

    @staticmethod
    def _waits_for_body(request: Request) -> bool:
        """Whether a request is begun once its body has come."""
        is_small = 0 <= request.size <= _UNREAD_BODY
        return request.reads_first and is_small and b"expect" not in request.headers

    def _run(self, request: Request) -> None:
        """Have a request answered: at once if that needs no waiting, else in a task."""
        if self._is_for_sockets:
            self._transport.write(SOCKETS_ONLY)
            self._discard()
            return
        self._is_busy = True
        request.link, request.address, request.peer_names = self, self.address, self.peer_names
        request.is_secure = self.is_secure
        answering = self.application.answer(request)
        if request.at_once:
            try:
                waited = answering.send(None)
            except StopIteration as ended:
                self._respond(request, ended.value)
                return
            answering = _resumed(answering, waited)
        self._start(self._answer(request, answering))

    async def _answer(self, request: Request, answering: Coroutine[Any, Any, Response]) -> None:
        """Wait for an answer and write it, or undo what was done for a client that has gone."""
        response = await answering
        if self._writable is not None:
            await self._writable
        if not self._respond(request, response):
            await response.take_back()

    def _respond(self, request: Request, response: Response) -> bool:
        """Write an answer, or begin a stream; tell whether there is still a client."""
        transport = self._transport
        self._arrived = None
        if self.lost or self._discarded >= 0 or transport.is_closing():
            self._is_busy = False
            if response.stream is not None:
                self._begin_stream(response)
            return False
        self._ends = not request.is_read and request.size != 0
        self._closes = self._ends or self._stops or not request.keeps_alive
        date = self._server.default_headers
        if date is not HttpConnection._date:  # another list each second
            HttpConnection._date, HttpConnection._date_lines = date, encode_headers(date)
        try:
            more = HttpConnection._date_lines
            data, large = encode_response(request, response, more, closes=self._closes)
        except ValueError:
            logger.exception("request %s could not be answered", request.request_id)
            data, large, self._ends = FAILED, b"", True
        transport.write(data)
        if large:
            transport.write(large)
        self._request = None
        if response.stream is not None:
            self._begin_stream(response)
        else:
            self._end_answer()
        return True

    def _end_answer(self) -> None:
        """After an answer, begin the next request that has arrived, or wait for one."""
        self._is_busy, self._gone = False, None
        self._answered_at = self._loop.time()
        if self._ends:
            self._discard()
        elif self._closes or self._stops:
            self._transport.close()
        elif self._unparsed or self._is_paused:
            self._later = self._loop.call_soon(self._read_on)

    @property
    def _is_closed(self) -> bool:
        """Whether nothing more may be written."""
        return self.lost or self._discarded >= 0 or self._transport.is_closing()

    async def receive(self, request: Request) -> bytes:
        """Wait for the whole body of a request.

        Raises:
            Refused: the client has gone, or has sent too much.
        """
        if request is not self._request or self._is_whole:
            return request.document
        expects = request.headers.get(b"expect", b"").lower()
        if expects == b"100-continue" and not self._body:
            self._transport.write(CONTINUE)
        if request.size < 0:
            request.check_size(len(self._body))
        self._arrived = self._loop.create_future()
        self._resume()
        if not await self._arrived:
            if not self.lost:
                request.check_size(len(self._body))
            raise bad_body("The body is not as long as its Content-Length says.")
        return request.document

    def watch(self, gone: asyncio.Future[None]) -> Callable[[], object]:
        """Let `gone` be done once the client has gone; call the answer to stop that."""
        self._gone = gone
        if self.lost and not gone.done():
            gone.set_result(None)
        self._resume()
        return do_nothing

    # Streams.

    def _begin_stream(self, response: Response) -> None:
        """Let a task write a stream; it goes on behind the request, of which nothing is kept."""
        assert response.stream is not None  # noqa: S101 - the caller has looked
        self._start(response.stream(self._write_part)).add_done_callback(self._end_stream)

    def _end_stream(self, body: asyncio.Task[None]) -> None:
        if body.cancelled():  # the server stops, and can't wait for a slow reader
            self._transport.abort()
        elif (error := body.exception()) is not None:
            logger.error("unexpected error in a stream", exc_info=error)
            self._transport.close()
        elif not self._is_closed:
            self._transport.write(LAST_CHUNK)
            self._end_answer()

    async def _write_part(self, part: bytes) -> None:
        """Write a part of a stream, after waiting until the connection has room for it."""
        if self._writable is not None:
            await self._writable
        if part and not self._is_closed:  # an empty one is the end
            self._transport.write(encode_chunk(part))

    # Ends.

    def _end_with(self, answer: bytes) -> None:
        """Answer input that is no valid request, and close.

        It may be the body of the request that is being answered: then that has no other answer.
        """
        if not self._is_busy or self._request is not None:
            self._transport.write(answer)
        self._discard()
        self._end_body(is_whole=False)

    def _discard(self) -> None:
        """Write nothing more; discard what still arrives for a while, then close."""
        if self._transport.is_closing() or self._discarded >= 0:
            return
        self._discarded, self._unparsed = 0, b""
        self._next = None
        self._resume()
        if self._transport.can_write_eof():  # TLS can't end one direction alone
            self._transport.write_eof()
        self._watch(_DISCARDED_SECONDS)

    def _watch(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._check)

    def _check(self) -> None:
        """Close the connection if its client is too slow; else set the timer for the next check."""
        now = self._loop.time()
        if self._is_stuck(now):
            self._transport.abort()
            return
        left = timeout = self.read_timeout
        if self._discarded >= 0:
            self._transport.close()
        elif not self._is_busy or not self._is_whole:  # else it is the server that takes its time
            left = self._heard_at + timeout - now
            if not self._is_whole or (self._head is not None and self._head.has_begun):
                left = min(left, self._begun_at + self.total_timeout - now)
            elif self._answered_at:
                left = min(timeout, self._answered_at + self.keep_alive - now)
            if left <= 0:
                self._transport.close()
                left = timeout
        self._watch(min(left, self.total_timeout))

    def _is_stuck(self, now: float) -> bool:
        """Whether the client has read nothing of a waiting answer for `read_timeout` seconds."""
        waiting = self._transport.get_write_buffer_size()
        if waiting and waiting >= self._unread_bytes > 0:
            return now - self._read_at >= self.read_timeout
        self._unread_bytes, self._read_at = waiting, now
        return False


def connections_of(application: Application, settings: Settings) -> type[HttpConnection]:
    """The class of the connections of a server, as uvicorn's option `http` takes it.

    The open files of this process are raised if they are too few. What WebSockets take, and what
    clients can make the server log, is bounded too.
    """

    class Socket(SocketProtocol):
        """A WebSocket of this server."""

    class Served(HttpConnection):
        __slots__ = ()

    largest = max(settings.max_messages_post_size, settings.max_queue_metadata)
    Socket.sockets, Socket.largest = application.sockets, largest + _AROUND_A_FRAME
    Socket.interval, Socket.silence = settings.request_timeout / 3, settings.request_timeout
    Served.application, Served.heads, Served.socket = application, KnownHeads(), Socket
    Served.read_timeout, Served.keep_alive = settings.request_timeout, settings.keep_alive
    Served.total_timeout = 5 * settings.request_timeout
    Served.most = _allow_files(settings.max_connections)
    Served.socket_port = settings.websocket_port
    logger.addFilter(LogThrottle(_ALL_TAKEN, NO_HTTP_LINE, _NO_UPGRADE))
    return Served


@coroutine
def _resumed(
    begun: Coroutine[Any, Any, Response], waited: object
) -> Generator[object, object, Response]:
    """Go on, in a task, with a coroutine that has begun without one and waits for something."""
    response: Response
    try:
        yield waited
    except BaseException as error:  # noqa: BLE001 - a cancellation is the coroutine's too
        try:
            waited = begun.throw(error)
        except StopIteration as ended:
            response = ended.value
        else:
            response = yield from _resumed(begun, waited)
    else:
        response = yield from begun
    return response

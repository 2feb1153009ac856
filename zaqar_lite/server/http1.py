"""HTTP/1.1 as bytes: httptools' parser reads requests, and an answer is one piece, or two."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import unquote

import httptools
from msgspec.structs import replace

from zaqar_lite.api.asgi import NO_CONTENT
from zaqar_lite.api.request import (
    FIRST_DIGITS,
    LONGEST_LENGTH,
    Request,
    Response,
    do_nothing,
    request_of,
)
from zaqar_lite.service.caching import Cache


class ServerState(Protocol):
    """What all connections of a server share; uvicorn makes it."""

    connections: set[Any]
    """Each of them has a method `shutdown`, which is called when the server stops."""
    tasks: set[asyncio.Task[None]]
    """A server that stops waits for these."""
    default_headers: list[tuple[bytes, bytes]]
    """The headers of every answer: the date. It is another list when they change."""


class ClientConnection(asyncio.Protocol):
    """What a connection knows of its client, whichever protocol they speak."""

    __slots__ = ("_loop", "_server", "_transport", "address", "lost", "on_lost", "peer_names",
                 "project")  # fmt: skip

    def __init__(self, server_state: ServerState) -> None:
        self._server, self._loop = server_state, asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self.project, self.address, self.lost = "", "", False
        self.on_lost: Callable[[], None] = do_nothing
        self.peer_names: frozenset[str] = frozenset()
        """The names that the client's certificate is for, if it has shown one.

        They are host names and URIs, not its common name.
        """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note who the client is; a stopping server closes the connection from now on."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        secured = transport.get_extra_info("ssl_object")
        certificate = None if secured is None else secured.getpeercert()
        found = (certificate or {}).get("subjectAltName", ())
        self.peer_names = frozenset(name for kind, name in found if kind in ("DNS", "URI"))
        self._server.connections.add(self)

    def _leave(self) -> None:
        """Forget the client: it has gone, or another protocol goes on with it."""
        self.lost = True
        self._server.connections.discard(self)
        self.on_lost()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work in a task; a stopping server waits for it."""
        task = self._loop.create_task(work)
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)
        return task


_MOST_KEPT = 1_024
"""How many heads are kept."""
_SLASHES = 5
"""How many `/` the line `POST /v2/queues/NAME/messages HTTP/1.1` has; what lies below has an id."""
_UNIQUE = (
    *(b"idempotency-key", b"x-openstack-request-id", b"x-request-id"),
    *(b"traceparent", b"tracestate", b"baggage", b"b3", b"x-b3-traceid", b"x-b3-spanid"),
    *(b"x-b3-parentspanid", b"x-datadog-trace-id", b"x-datadog-parent-id", b"x-amzn-trace-id"),
    *(b"x-cloud-trace-context", b"cf-ray"),
    *(b"amz-sdk-invocation-id", b"amz-sdk-request", b"x-amz-content-sha256", b"x-amz-date"),
)
"""Headers of another value in each request: of clients, traces, proxies, and SDKs of SQS."""
_IDS = re.compile(rb"(?:(?<=/messages/)|(?<=/claims/)|(?<=[=,]))([0-9a-f]{32})(?=[ /?&,])")
"""The id of a message or a claim in the line of a request."""
_CUT = re.compile(
    rb"(\r\n(?:(?i:content-length|%b): ?"
    rb"|(?i:authorization): ?AWS4-HMAC-SHA256 (?>[!-~ ]*Signature=)(?=[0-9a-f]+\r)))"
    rb"([!-~]+(?: [!-~]+)*)(?=\r\n)" % b"|".join(_UNIQUE)
)
"""A value that clients write anew in each request, behind its header's name.

Only the last `Signature=` is tried: to try each of many took 4 ms. Nothing may stand behind the
signature, as a credential would be cut out with it.
"""
LONGEST_KEPT = 4_096
"""Bytes of a head that may be kept: a JWT often has two thousand."""
MAX_HEAD = 262_144
"""Bytes of a head, or of what trails a body."""
HEAD_END = b"\r\n\r\n"
_MOST_BLANK = 64
"""Bytes of blank lines before a head."""
_PARSED = 8_192
"""Bytes of chunks that are parsed at a time."""


class KnownHeads(Cache[bytes, Request]):
    """Requests by the bytes of their heads: most clients send the same one again and again.

    What a parser makes of a head that it reads from the first to the last byte depends on nothing
    else, so a head that is found here need not be parsed. A head is found by its bytes without its
    length, date and ids too, and it is as good as another in which these were cut out of the same
    places: what is found out of a head depends on none of them. Only heads of requests that leave
    the connection open, and whose bodies are sent unasked and have a Content-Length or are none,
    are kept. What is found must be copied.
    """

    def __init__(self) -> None:
        super().__init__(_MOST_KEPT)
        self._like: Cache[tuple[bytes, ...], tuple[Request, Sequence[tuple[bytes, bytes]]]]
        self._like = Cache(_MOST_KEPT)
        """Requests by what is left of their heads, and the names of what is cut, and its begin."""

    def find_like(self, data: bytes) -> Request | None:
        """A request whose head is not known by all of its bytes."""
        if (apart := _take_apart(data)) is None or (kept := self._like.get(apart.rest)) is None:
            return None
        found, names = kept
        values = zip(names, apart.values, strict=True)
        headers = {name: begin + value for (name, begin), value in values}
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > LONGEST_LENGTH:
            return None
        size, route = int(length), found.route
        if (size > 0) is not (found.size > 0):
            return None  # what was found out of the other is not true of this one
        other = replace(found, known=found, headers={**found.headers, **headers}, size=size)
        if apart.ids:
            other.raw_path, _, other.query_string = apart.target.partition(b"?")
            other.path = unquote(other.raw_path.decode("ascii"))
            if route is not None:
                parts = zip(route.template.split("/"), other.path.split("/"), strict=False)
                other.path_values = tuple([value for name, value in parts if name.startswith("{")])
                other.given = None
        return other

    def keep(self, data: bytes, request: Request) -> None:
        """Keep a head, unless it names a page, or what has an id of another form."""
        goes_on = request.keeps_alive and request.size >= 0 and b"expect" not in request.headers
        if not goes_on or len(data) > LONGEST_KEPT or (apart := _take_apart(data)) is None:
            return
        known = replace(request, source=None)
        request.known = known  # it does not name itself, as only the collector would free it then
        if not apart.ids and request.headers.keys().isdisjoint(_UNIQUE):
            self[data] = known
        is_odd = request.repeated or b"\r\n " in data or b"\r\n\t" in data
        if is_odd or apart.target.partition(b"?")[::2] != (request.raw_path, request.query_string):
            return
        if apart.ids or apart.values:
            names = [part[2:].partition(b":")[::2] for part in apart.before]
            self._like[apart.rest] = known, [(name.lower(), at.lstrip()) for name, at in names]


class _Apart(NamedTuple):
    """A head, taken apart: its target, what other requests have too, the ids and the values."""

    target: bytes
    rest: tuple[bytes, ...]
    ids: list[bytes]
    before: list[bytes]
    """What stands before each value."""
    values: list[bytes]


def _take_apart(data: bytes) -> _Apart | None:
    """Take a head apart; None where it names a page, or what has an id of another form."""
    end = data.find(b"\r")
    line, parts = data[:end], _CUT.split(data[end:])
    shown, values = _IDS.split(line), parts[2::3]
    ids = shown[1::2]
    is_one = b"ids=" in line or line.count(b"/") > _SLASHES
    if b"marker=" in line or (is_one and not ids):
        return None
    del shown[1::2], parts[2::3]
    target = line[line.find(b" ") + 1 : line.rfind(b" ")]
    return _Apart(target, (*shown, *parts), ids, parts[1::2], values)


class _Events:
    """What the parser tells of its input; nothing here leads back to it, so both are freed soon."""

    __slots__ = ("headers", "is_head", "is_whole", "part", "url")

    def __init__(self) -> None:
        self.url = self.part = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_head = self.is_whole = False

    def on_url(self, part: bytes) -> None:
        """Take a part of the target."""
        self.url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, without the blanks behind its value, which a proxy may have left out."""
        self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """End a head."""
        self.is_head = True

    def on_body(self, part: bytes) -> None:
        """Take a part of a body."""
        self.part += part

    def on_message_complete(self) -> None:
        """End a body."""
        self.is_whole = True


class HeadReader:
    """Parse the head of one request; any error of httptools means that it is no HTTP."""

    __slots__ = ("_events", "_parser", "data", "request", "upgrades")

    def __init__(self) -> None:
        self._events = _Events()
        self._parser = httptools.HttpRequestParser(self._events)
        self.data = bytearray()
        """What has come of the head."""
        self.request: Request | None = None
        """The request, once its head has come whole."""
        self.upgrades = False
        """Whether it asks for another protocol than HTTP."""

    @property
    def has_begun(self) -> bool:
        """Whether more than blank lines has come."""
        return bool(self.data.strip())

    def feed(self, data: bytes, start: int) -> int:
        """Parse up to the end of the head, or of the data; answer where that is.

        Blank lines before a head, of which a few may come, are a part of it.

        Raises:
            HttpParserError: that is no HTTP.
        """
        before, stop = len(self.data), data.find(HEAD_END, start, start + MAX_HEAD) + 4
        self.data += data[start : stop if stop >= 4 else start + MAX_HEAD]
        end = self.data.find(HEAD_END, max(before - 3, 0)) + 4
        if end >= 4:
            del self.data[end:]
        # The parser forgets whether the connection is kept with the last byte of a request.
        last = len(self.data) - 1
        self._parser.feed_data(bytes(self.data[before:last]))
        keeps_alive = self._parser.should_keep_alive()
        with suppress(httptools.HttpParserUpgrade):
            self._parser.feed_data(bytes(self.data[last:]))
        if self._events.is_head:
            self._make_request(keeps_alive=keeps_alive)
        elif end >= 4 and end > _MOST_BLANK:  # each pair of them is parsed by itself
            raise httptools.HttpParserError("so many blank lines")
        return start + len(self.data) - before

    def _make_request(self, *, keeps_alive: bool) -> None:
        parser, url = self._parser, httptools.parse_url(self._events.url)
        path = url.path or b"/"  # `http://host` has none
        if not path.isascii() or parser.get_method() == b"CONNECT":
            raise httptools.HttpParserInvalidURLError("it is no path")
        request = request_of(
            parser.get_method().decode("ascii"),
            path,
            url.query or b"",
            self._events.headers,
            keeps_alive=keeps_alive and parser.get_http_version() != "1.0",
        )
        if len(request.headers.get(b"content-length", b"")) > LONGEST_LENGTH:
            raise httptools.HttpParserInvalidURLError("a length of so many digits")
        if request.size < 0:
            # Whoever is in front must see the same bytes as the body. Old parsers let these pass.
            last = request.headers[b"transfer-encoding"].rpartition(b",")[2].strip()
            if b"content-length" in request.headers or last.lower() != b"chunked":
                raise httptools.HttpParserInvalidURLError("two lengths, or none")
        self.request, self.upgrades = request, parser.should_upgrade()


class ChunkReader:
    """Parse the chunks of one body; what trails it counts for nothing."""

    __slots__ = ("_events", "_parser", "_tail", "overhead")

    def __init__(self) -> None:
        self._events = _Events()
        self._parser = httptools.HttpRequestParser(self._events)
        self._parser.feed_data(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
        self._tail = b""
        """The last three bytes that were parsed."""
        self.overhead = 0
        """How many bytes came in a row that are no body."""

    @property
    def is_whole(self) -> bool:
        """Whether the body has come whole."""
        return self._events.is_whole

    def feed(self, data: bytes, start: int) -> tuple[bytes, int]:
        """Parse some of the data, no further than to an empty line, with which a body ends.

        It answers what that holds of the body, and where it has ended.

        Raises:
            HttpParserError: these are no chunks.
        """
        end, tail = min(start + _PARSED, len(data)), len(self._tail)
        if (at := (self._tail + data[start : start + 3]).find(HEAD_END)) < 0:
            tail, at = 0, data.find(HEAD_END, start, end) - start
        if at >= 0:
            end = start + at + 4 - tail
        self._tail, self._events.part = (self._tail + data[start:end])[-3:], b""
        self._parser.feed_data(data[start:end])
        part = self._events.part
        self.overhead = 0 if part else self.overhead + end - start
        return part, end


_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
_REQUEST_ID = b"x-openstack-request-id: %b" % FIRST_DIGITS.encode()
_CLOSE = b"connection: close\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def _refusal(status: bytes, title: bytes, description: bytes, more: bytes = b"") -> bytes:
    body = b'{"title":"%b","description":"%b"}' % (title, description)
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bconnection: close\r\n" % (
        status,
        more,
    )
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)


TOO_LARGE = _refusal(
    b"431 Request Header Fields Too Large",
    b"Request header too large",
    b"The request line and the headers have together more than 256 KiB, or what trails the body.",
)
NO_HTTP = _refusal(
    b"400 Bad Request",
    b"Bad request",
    b"This is not a valid HTTP/1.1 request. Usual causes: TLS to a port of plain HTTP, an unknown "
    b"method, a blank in the target, a target of more than 64 KiB, or a length that is wrong or "
    b"given twice.",
)
FULL = _refusal(
    b"503 Service Unavailable",
    b"Service temporarily unavailable",
    b"The server has too many connections. Please try again in a few seconds.",
    b"retry-after: 1\r\n",
)
SOCKETS_ONLY = _refusal(
    b"426 Upgrade Required",
    b"Upgrade required",
    b"This port is for WebSockets alone.",
    b"upgrade: websocket\r\n",
)
FAILED = _refusal(
    b"500 Internal Server Error",
    b"Internal server error",
    b"The answer could not be written; the log says why.",
)


_LARGE = 65_536
"""Bytes of a body that is written apart from its head: to copy 5 MB takes 0.7 ms."""


def encode_response(
    request: Request, response: Response, more: bytes, *, closes: bool
) -> tuple[bytes, bytes]:
    """Write an answer, or the head of a stream; `more` are header lines that it has besides.

    The second part is a large body, which is not copied; any other is in the first.

    Raises:
        ValueError: a header has a line break.
    """
    body, size = response.body, len(response.body)
    lines = _CLOSE if closes else b""
    for name, value in response.headers:
        if b"\n" in value or b"\r" in value:
            raise ValueError(f"the header {name.decode()} of an answer has a line break")
        lines += b"%b: %b\r\n" % (name, value)
    if response.stream is not None:
        lines += b"content-type: %b\r\n%b" % (response.media_type, _CHUNKED)
    elif size:
        lines += b"content-type: %b\r\ncontent-length: %d\r\n" % (response.media_type, size)
    elif response.status != NO_CONTENT:
        lines += b"content-length: 0\r\n"
    first = _STATUS_LINES[response.status]
    head = b"%b%b%b%012x\r\n%b\r\n" % (first, more, _REQUEST_ID, request.number, lines)
    if request.method == "HEAD":
        return head, b""
    return (head, body) if size > _LARGE else (head + body, b"")


def encode_chunk(part: bytes) -> bytes:
    """Write a part of a stream that is not empty."""
    return b"%x\r\n%b\r\n" % (len(part), part)


def encode_headers(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Write headers that every answer has."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])

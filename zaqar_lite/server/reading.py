"""Read requests from the bytes of a connection, by httptools' parser."""

import logging
from typing import Protocol

import httptools

from zaqar_lite.api.call import Head

_MOST_KEPT = 1_024
"""How many heads are kept; then all are forgotten."""
LONGEST_KEPT = 2_048
"""Bytes of a head that may be kept."""
NO_UPGRADE = "Unsupported upgrade request."
logger = logging.getLogger("zaqar_lite")


class Requests(Protocol):
    """What becomes of the requests that are read."""

    def begin_request(self, head: Head, *, expects_continue: bool) -> None:
        """Take a request whose body follows, if it has one."""

    def take_body(self, part: bytes) -> None:
        """Take a part of the body of the request that began last."""

    def end_request(self) -> None:
        """End the request that began last: it has come whole."""

    def upgrades(self, path: bytes) -> bool:
        """Whether the request that is read becomes a WebSocket."""


class Upgraded(Exception):
    """The connection is a WebSocket's from here on."""

    def __init__(self, handshake: bytes) -> None:
        super().__init__()
        self.handshake = handshake


class RequestReader:
    """Parse the bytes of one connection; any error of httptools means that they are no HTTP.

    `heads` are heads by their bytes: most clients send the same one again and again. What a parser
    makes of a head that it reads from the first to the last byte depends on nothing else, so a head
    that is found there need not be parsed. Only heads of requests that leave the connection open,
    and whose bodies have a Content-Length or are none, are kept there.
    """

    __slots__ = ("_begun", "_has_body", "_head", "_headers", "_heads", "_is_upgrade", "_parser",
                 "_requests", "_url", "reads_head")  # fmt: skip

    def __init__(self, requests: Requests, heads: dict[bytes, Head]) -> None:
        self._requests = requests
        self._heads = heads
        self._parser = httptools.HttpRequestParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._url = b""
        self._head: Head | None = None
        self._is_upgrade = self._has_body = False
        self._begun = 0
        self.reads_head = False
        """Whether it is in the middle of a head."""

    def feed(self, data: bytes) -> None:
        """Parse.

        Raises:
            HttpParserError: that is no HTTP.
            Upgraded: a WebSocket begins.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            if self._is_upgrade:
                lines = [b"%b: %b\r\n" % header for header in self._headers]
                first = b"%b %b HTTP/1.1\r\n" % (self._parser.get_method(), self._url)
                raise Upgraded(b"%b%b\r\n%b" % (first, b"".join(lines), rest)) from None
            logger.warning(NO_UPGRADE)  # it goes on with HTTP
            self._parser = httptools.HttpRequestParser(self)
            self.feed(rest)

    def feed_head(self, data: bytes) -> None:
        """Parse a head, from its first to its last byte, and keep it if it can be."""
        self._begin()
        self.feed(data)
        head = self._head
        if self._begun == 1 and head is not None and head.keeps_alive and not self._has_body:
            if len(self._heads) >= _MOST_KEPT:
                self._heads.clear()
            self._heads[data] = head

    def _begin(self) -> None:
        self._begun, self._head, self._has_body = 0, None, False

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._begun += 1
        self._url, self._headers = b"", []
        self._head, self.reads_head = None, True

    def on_url(self, part: bytes) -> None:
        """Take a part of the target."""
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Make the head of a request."""
        parser, url = self._parser, httptools.parse_url(self._url)
        self.reads_head = False
        if parser.should_upgrade() and self._wants_socket() and self._requests.upgrades(url.path):
            self._is_upgrade = True
            return
        head = Head(
            parser.get_method().decode("ascii"),
            url.path,
            url.query or b"",
            self._headers,
            keeps_alive=parser.get_http_version() != "1.0" and parser.should_keep_alive(),
        )
        expects = head.headers.get(b"expect", b"").lower() == b"100-continue"
        if not (expects or head.size < 0 or parser.should_upgrade()):
            self._head = head
        self._requests.begin_request(head, expects_continue=expects)

    def on_body(self, part: bytes) -> None:
        """Take a part of a body."""
        self._has_body = True
        self._requests.take_body(part)

    def on_message_complete(self) -> None:
        """End a request."""
        if not self._is_upgrade:
            self._requests.end_request()

    def _wants_socket(self) -> bool:
        named = dict(self._headers)
        tokens = named.get(b"connection", b"").lower().split(b",")
        upgrades = b"upgrade" in [token.strip() for token in tokens]
        return upgrades and named.get(b"upgrade", b"").lower() == b"websocket"

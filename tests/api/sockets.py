"""A client that writes bytes on a socket, and reads what comes back answer by answer."""

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import httptools

from tests.api.conftest import CLIENT_ID, PROJECT
from tests.server import ServerProcess
from zaqar_lite.api.request import Request
from zaqar_lite.server.http1 import HeadReader, KnownHeads

SENDER = {"Client-ID": CLIENT_ID, "X-Project-ID": PROJECT}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
"""The headers that ask for a WebSocket."""


class Answer(NamedTuple):
    """One answer as it was read; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's document."""
        return json.loads(self.body)


def request(
    method: str,
    path: str,
    body: bytes = b"",
    *,
    length: int | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """The bytes of a request; `length` is announced in place of the body's own."""
    named = {"Host": "127.0.0.1", **SENDER}
    if body or length is not None:
        named["Content-Length"] = str(len(body) if length is None else length)
    lines = [f"{name}: {text}" for name, text in {**named, **headers}.items()]
    lines.insert(0, f"{method} {path} HTTP/1.1")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class Raw:
    """A connection to a server; a context manager that closes it."""

    def __init__(self, server: ServerProcess, *, timeout: float = 30) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout)
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Write bytes."""
        self.socket.sendall(data)

    def send_until_refused(self, part: bytes, *, pause: float = 0) -> int:
        """Write this again and again, 64 MiB or a minute at most; answer how much was taken."""
        sent, deadline = 0, time.monotonic() + 60
        while sent < 64 << 20 and time.monotonic() < deadline:
            try:
                self.send(part)
            except ConnectionError:
                return sent
            sent += len(part)
            time.sleep(pause)
        raise AssertionError(f"nobody refused the {sent} bytes that were sent")

    def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Send a request and read its answer."""
        self.send(request(method, path, body, headers=headers))
        return self.answer()

    def answer(self) -> Answer:
        """Read one answer."""
        head = self._until(b"\r\n\r\n").decode("latin-1")
        first, *lines = head[:-4].split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        length = int(headers.get("content-length", "0"))
        while len(self._read) < length:
            self._more()
        body, self._read = self._read[:length], self._read[length:]
        return Answer(int(first.split()[1]), headers, body)

    def rest(self) -> bytes:
        """Read until the server closes: what it said beyond the answers that were read."""
        try:
            while part := self.socket.recv(65_536):
                self._read += part
        except ConnectionResetError:
            pass
        said, self._read = self._read, b""
        return said

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._read:
            self._more()
        end = self._read.index(mark) + len(mark)
        found, self._read = self._read[:end], self._read[end:]
        return found

    def _more(self) -> None:
        part = self.socket.recv(65_536)
        if not part:
            raise EOFError(f"closed in the middle of an answer: {self._read!r}")
        self._read += part


def established(port: int) -> int:
    """How many connections were made to a port of this machine that its server has not closed."""
    ours = f":{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    states = [state for _, local, _, state, *_ in map(str.split, lines) if local.endswith(ours)]
    return states.count("01") + states.count("08")  # the client has closed the latter


def chunked(method: str, path: str, *parts: bytes, **headers: str) -> bytes:
    """The bytes of a request whose body comes in chunks."""
    named = {"Transfer-Encoding": "chunked", **headers}
    sent = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return request(method, path, headers=named) + sent + b"0\r\n\r\n"


def parsed(data: bytes, heads: KnownHeads | None = None) -> list[Request]:
    """The request of a head, unless it is none; `heads` may keep it."""
    reader = HeadReader()
    with contextlib.suppress(httptools.HttpParserError):
        reader.feed(data, 0)
        if reader.request is not None and heads is not None and not reader.upgrades:
            heads.keep(bytes(reader.data), reader.request)
    return [] if reader.request is None else [reader.request]

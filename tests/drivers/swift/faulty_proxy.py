"""A proxy in front of the real Swift: it counts, and it fails as it is told to."""

import asyncio
import http.client
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from typing import Self, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from tests.local_http import LocalHandler, LocalServer
from tests.services import SwiftServer
from tests.services.process import free_port

T = TypeVar("T")
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Seen:
    """One request: `path` is what comes after the account, unquoted."""

    method: str
    path: str
    query: str

    @property
    def kind(self) -> str:
        """What is done to what: LIST, or the method and object, container or account."""
        if self.path.startswith("/auth"):
            return "AUTH"
        depth = len(self.path.strip("/").split("/")) if self.path.strip("/") else 0
        if self.method == "GET" and depth == 1:
            return "LIST"
        return f"{self.method} {('account', 'container')[depth] if depth < 2 else 'object'}"


@dataclass
class Fault:
    """What happens to requests of `method` whose path matches: the first `times` of them.

    `status` answers in Swift's place, `headers` with it. `cut` ends the connection instead of
    answering, before Swift sees the request or after it has done what was asked. `edit` changes
    the body of Swift's answer. `delay` lets the request wait for so many seconds, `pause` for an
    event, and `reached` tells that one does. `landed` tells what Swift answered in the end, also
    when nobody waited for it any more.
    """

    method: str
    pattern: str
    times: int = 1
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: str = ""
    edit: Callable[[bytes], bytes] | None = None
    delay: float = 0
    pause: threading.Event | None = None
    skip: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    hits: int = 0
    landed: list[int] = field(default_factory=list)

    def meets(self, seen: Seen) -> bool:
        """Whether it strikes now."""
        if self.times <= 0 or seen.method != self.method or not re.search(self.pattern, seen.path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        self.hits += 1
        self.reached.set()
        return True


class FaultyProxy:
    """Forward to Swift; `seen` is every request, `fault` plants what goes wrong.

    `ahead` is how many seconds Swift's clock is set forward, as far as its answers tell.
    """

    def __init__(self, server: SwiftServer) -> None:
        upstream = urlsplit(server.auth_url)
        self.upstream = (upstream.hostname or "", upstream.port or 80)
        self.seen: list[Seen] = []
        self.ahead = 0.0
        self.port = free_port()
        secret = urlsplit(server.url).netloc.rpartition("@")[0]
        self.url = f"swift+http://{secret}@127.0.0.1:{self.port}/auth/v1.0"
        self._faults: list[Fault] = []
        self._tokens: dict[str, str] = {}
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def start(self) -> Self:
        """Listen, again on the same port after `stop`."""
        self._server = _Server(self).__enter__()
        return self

    def stop(self) -> None:
        """Die: no new connection, and those there are end."""
        if self._server is not None:
            self._server.__exit__()
            self._server = None

    def fault(self, method: str, pattern: str, **what: object) -> Fault:
        """Plant a fault."""
        fault = Fault(method, pattern, **what)  # type: ignore[arg-type] # told by the caller
        with self._lock:
            self._faults.append(fault)
        return fault

    @asynccontextmanager
    async def paused(
        self, method: str, pattern: str, step: Awaitable[T], **what: object
    ) -> AsyncIterator[asyncio.Future[T]]:
        """Begin a step, and hold up its first such request while the context lasts."""
        go = threading.Event()
        fault = self.fault(method, pattern, pause=go, **what)
        doing = asyncio.ensure_future(step)
        try:
            assert await asyncio.to_thread(fault.reached.wait, 15)
            yield doing
        finally:
            go.set()

    def token_for(self, real: str) -> str:
        """A token of our own for one of Swift's, which would give out the same one again."""
        token = uuid4().hex
        self._tokens[token] = real
        return token

    def real_token(self, token: str) -> str | None:
        """Swift's token for one of ours; None when that has ended."""
        return self._tokens.get(token)

    def end_tokens(self) -> None:
        """Let all tokens end."""
        self._tokens.clear()

    async def sees(self, matches: Callable[[Seen], bool], count: int = 1) -> None:
        """Wait until `count` requests were seen that match."""
        for _ in range(2_000):
            if sum(map(matches, self.seen)) >= count:
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"not seen {count} times: {self.seen}")

    def heal(self) -> None:
        """Take all faults away."""
        with self._lock:
            self._faults.clear()

    def note(self, seen: Seen) -> Fault | None:
        """Count a request, and find what is to happen to it."""
        with self._lock:
            self.seen.append(seen)
            return next((fault for fault in self._faults if fault.meets(seen)), None)

    def kinds(self) -> dict[str, int]:
        """How many requests of each kind there were since the last time this was asked."""
        with self._lock:
            kinds: dict[str, int] = {}
            for seen in self.seen:
                kinds[seen.kind] = kinds.get(seen.kind, 0) + 1
            self.seen.clear()
        return kinds


class _Server(LocalServer):
    def __init__(self, proxy: FaultyProxy) -> None:
        self.proxy = proxy
        self.connections: set[socket.socket] = set()
        super().__init__(_Handler, proxy.port)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for connection in list(self.connections):
            connection.close() if connection.fileno() < 0 else _cut(connection)


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # it may have ended already
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(LocalHandler):
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)
        self._upstream = http.client.HTTPConnection(*self.server.proxy.upstream)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        self._upstream.close()
        super().finish()

    def respond(self) -> None:
        body = self.read()
        parts = urlsplit(self.path)
        place = re.sub(r"^/v1/[^/]+", "", parts.path)
        fault = self.server.proxy.note(Seen(self.command, unquote(place), parts.query))
        if fault is not None:
            time.sleep(fault.delay)
        if fault is not None and fault.pause is not None:
            fault.pause.wait(20)
        if fault is not None and fault.cut == "before":
            return self._end()
        if fault is not None and fault.status:
            headers = {"X-Trans-Id": "told by Swift itself", **fault.headers}
            return self._answer(fault.status, list(headers.items()), b"")
        forwarded = {
            key.lower(): value for key, value in self.headers.items() if key.lower() not in _HOP
        }
        if token := forwarded.pop("x-auth-token", None):
            real = self.server.proxy.real_token(token)
            if real is None:
                return self._answer(401, [], b"")
            forwarded["x-auth-token"] = real
        self._upstream.request(self.command, self.path, body or None, forwarded)
        response = self._upstream.getresponse()
        answer = response.read()
        if fault is not None:
            fault.landed.append(response.status)
        if fault is not None and fault.cut == "after":
            return self._end()
        if fault is not None and fault.edit is not None:
            answer = fault.edit(answer)
        length = response.headers["Content-Length"] if self.command == "HEAD" else None
        return self._answer(response.status, self._headers(response), answer, length)

    def _headers(self, response: http.client.HTTPResponse) -> list[tuple[str, str]]:
        """Swift's, with a token of ours and the time that it is to be there."""
        changed = {}
        if real := response.headers["X-Auth-Token"]:
            token = self.server.proxy.token_for(real)
            changed = {"X-Auth-Token": token, "X-Storage-Token": token}
        if date := response.headers["Date"]:
            there = parsedate_to_datetime(date).timestamp() + self.server.proxy.ahead
            changed["Date"] = formatdate(there, usegmt=True)
        return [(key, changed.get(key, value)) for key, value in response.getheaders()]

    def _answer(
        self,
        status: int,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        length: str | None = None,
    ) -> None:
        self.send_response_only(status)
        for key, value in headers:
            if key.lower() not in _HOP:
                self.send_header(key, value)
        if status != 204:
            self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _end(self) -> None:
        self.close_connection = True
        _cut(self.connection)

    do_HEAD = respond  # noqa: N815 - the library's name

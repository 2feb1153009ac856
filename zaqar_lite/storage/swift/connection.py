"""HTTP to Swift: worker threads with a connection each, token renewal, retries, the edge's errors.

Every request here can be repeated: a PUT and a POST carry the whole new content or state, and a
second DELETE answers 404, which is no error. So whatever may pass is tried again: a dead
connection, 401 (with a new token), 408, 409 (a newer timestamp is there), 429 and 498 (rate
limits) and every 5xx, until `patience` is over or the lock's writes must stop.
"""

import asyncio
import json
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from requests import RequestException
from swiftclient.client import http_connection
from swiftclient.exceptions import ClientException

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.swift.auth import Auth, AuthError

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_PASSING = frozenset({408, 409, 425, 429, 498})
_ANYTHING = frozenset(range(400, 500))
_INFO = "info"
UNBOUNDED = float("inf")


class Reply(NamedTuple):
    """What Swift answered; `headers` are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def found(self) -> bool:
        """Whether the object or container was there."""
        return self.status != 404


class Request(NamedTuple):
    """One request; `path` is container and object, not yet quoted."""

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str | int]
    headers: Mapping[str, str]
    body: bytes
    accept: frozenset[int]
    until: float


class Swift:
    """Send requests to one account.

    `connections` bounds the requests in flight; `timeout` is how long one of them may be silent,
    `patience` how long a call is repeated, both in seconds.
    """

    def __init__(self, auth: Auth, *, connections: int, timeout: float, patience: float) -> None:
        self._auth = auth
        self._connections = connections
        self._timeout = timeout
        self._patience = patience
        self._pool: ThreadPoolExecutor | None = None
        self._thread = threading.local()
        self._opened: list[Any] = []
        self.skew = 0.0
        """Seconds that this machine's clock is ahead of Swift's, as far as Date headers show."""

    def open(self) -> None:
        """Make the worker threads; idempotent."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._connections, thread_name_prefix="swift")

    def close(self) -> None:
        """Wait for what is in flight and close the connections; idempotent."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        for connection in self._opened:
            connection.close()
        self._opened.clear()
        self._thread = threading.local()

    async def call(
        self,
        method: str,
        *path: str,
        query: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        until: float = UNBOUNDED,
        accept: frozenset[int] = frozenset(),
    ) -> Reply:
        """Send a request until it is answered with success, 404 or a status of `accept`.

        `until` is the instant (monotonic seconds) from which on nothing may be sent any more.

        Raises:
            Unavailable: it was not, in time; or Swift refused in a way that no retry mends.
        """
        request = Request(method, path, query or {}, headers or {}, body, accept, until)
        give_up = time.monotonic() + self._patience
        pause = _FIRST_PAUSE
        while True:
            failure, wait = await self._attempt(request)
            if isinstance(failure, Reply):
                return failure
            pause = min(pause * 2, _LONGEST_PAUSE)
            wait = max(wait, random.uniform(pause / 2, pause))  # noqa: S311 - only spreads load
            if time.monotonic() + wait >= give_up:
                raise Unavailable(f"Swift does not serve {method}.", retry_after=5, detail=failure)
            await asyncio.sleep(wait)

    async def listing_limit(self) -> int | None:
        """The most entries of one listing, as `/info` tells; None where it tells nothing."""
        reply = await self.call("GET", _INFO, accept=_ANYTHING)
        with suppress(ValueError, AttributeError, TypeError):
            return int(json.loads(reply.body).get("swift", {}).get("container_listing_limit"))
        return None

    async def _attempt(self, request: Request) -> tuple[Reply | str, float]:
        """Send once: the reply, or what failed and how many seconds Swift asks us to wait."""
        if self._pool is None:
            raise Unavailable("The Swift store is closed.")
        try:
            reply = await asyncio.get_running_loop().run_in_executor(
                self._pool, self._send, request
            )
        except (RequestException, ClientException, AuthError, OSError) as exc:
            return f"{type(exc).__name__}: {exc}" if isinstance(exc, AuthError) else (
                type(exc).__name__
            ), 0.0
        status = reply.status
        late = status == 202 and request.method == "PUT" and len(request.path) > 1
        if (status < 300 and not late) or status == 404 or status in request.accept:
            return reply, 0.0
        if status == 401 or late or status in _PASSING or status >= 500:
            return f"it answers {status}", _retry_after(reply)
        raise Unavailable(f"Swift refuses {request.method} with status {status}.", retry_after=30)

    def _send(self, request: Request) -> Reply:
        """Send once over this thread's connection, with a new token where the old one ended."""
        url, token = self._auth.current()
        reply = self._send_with(url, token, request)
        if reply.status == 401:
            url, token = self._auth.renew(token)
            reply = self._send_with(url, token, request)
        return reply

    def _send_with(self, url: str, token: str, request: Request) -> Reply:
        parsed, connection = self._connection(url)
        root = "" if request.path == (_INFO,) else parsed.path.rstrip("/")
        target = "/".join([root, *(quote(part) for part in request.path)])
        if request.query:
            target += "?" + urlencode(request.query)
        headers = {**request.headers, "X-Auth-Token": token}
        if request.method in {"PUT", "POST"}:
            headers["Content-Length"] = str(len(request.body))
        _refuse_after(request.until)
        started = time.time()
        try:
            response = connection.request(request.method, target, request.body or None, headers)
            reply = Reply(response.status_code, response.headers, response.content)
        except BaseException:
            self._drop_connection()
            raise
        self._note_clock(reply, started)
        return reply

    def _connection(self, url: str) -> tuple[Any, Any]:
        known = getattr(self._thread, "connection", None)
        if known is not None and self._thread.url == url:
            return known  # type: ignore[no-any-return] # the library ships no types
        made = http_connection(url, timeout=self._timeout, **self._auth.tls)
        self._thread.connection, self._thread.url = made, url
        self._opened.append(made[1])
        return made[0], made[1]

    def _drop_connection(self) -> None:
        connection = self._thread.connection[1]
        self._thread.connection = None
        with suppress(ValueError):
            self._opened.remove(connection)
        connection.close()

    def _note_clock(self, reply: Reply, started: float) -> None:
        """Compare clocks: a Date header is cut to seconds, and set between start and end."""
        date = reply.headers.get("Date")
        if date is None:
            return
        with suppress(ValueError):
            there = parsedate_to_datetime(date).timestamp()
            ahead, behind = started - (there + 1), there - time.time()
            self.skew = ahead if ahead > 0 else -behind if behind > 0 else 0.0


def _refuse_after(until: float) -> None:
    """Refuse to send when the right to write is over.

    Asked in the worker thread just before the request: a process that is stopped and continued may
    have been anywhere before.
    """
    if time.monotonic() >= until:
        raise Unavailable(
            "Half of the lock's lease is over, so nothing more was written: Swift, the "
            "coordination service or this server is too slow."
        )


def _retry_after(reply: Reply) -> float:
    """The seconds that a rate limit asks for."""
    with suppress(ValueError):
        return min(float(reply.headers.get("Retry-After", 0)), 30.0)
    return 0.0

"""HTTP to Swift: worker threads with a connection each, token renewal, retries, the edge's errors.

Every request here can be repeated: a PUT and a POST carry the whole new content or state, and a
second DELETE answers 404, which is no error. So whatever may pass is tried again: a dead
connection, 401 (with a new token or key), 408, 409 (a newer timestamp is there), 429 and 498 (rate
limits) and every 5xx, until `patience` is over or the lock's writes must stop.

A write whose answer is lost may still be on its way: in a load balancer, or in a socket of a proxy
that hangs. Swift has no compare-and-swap, so a write that lands after the next operation on the
queue would undo that operation. So each write of an object is a temporary URL (Swift's filter
`tempurl`). When an answer is lost, the driver waits until the write can't land any more, and only
then repeats it or gives it up; the queue's lock is held until then. A write that Swift's proxy has
let in by then carries its timestamp, and Swift drops it where something newer is stored.

Where Swift gives no key to sign with, the wait is the same, but nothing refuses later writes.
"""

import asyncio
import hmac
import logging
import random
import secrets
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from requests import ConnectTimeout, RequestException
from swiftclient.client import http_connection
from swiftclient.exceptions import ClientException

from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.storage.swift.options import Auth, AuthError, root_cause

_log = logging.getLogger(__name__)
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_PASSING = frozenset({408, 409, 425, 429, 498})
_ANYTHING = frozenset(range(400, 500))
UNBOUNDED = float("inf")
KEY_HEADERS = ("X-Account-Meta-Temp-URL-Key", "X-Account-Meta-Temp-URL-Key-2")
_SLACK = 1.0
"""Seconds by which the clocks of Swift's proxies may differ."""


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

    @property
    def changes_object(self) -> bool:
        """Whether it writes an object, so that it must not land late."""
        return self.method in {"PUT", "POST", "DELETE"} and len(self.path) > 1


class Fence:
    """Sign writes by Swift's clock; `timeout` is how long a request may be silent."""

    def __init__(self, timeout: float) -> None:
        self._validity = timeout / 2 + 1
        self.lasts = self._validity + _SLACK
        """Seconds after which a write that was sent can't land any more."""
        self.key: bytes | None = None
        self._ahead = (float("-inf"), float("inf"))
        """Bounds of how many seconds this machine's clock is ahead of Swift's."""

    @property
    def skew(self) -> float:
        """Seconds that this machine's clock is ahead of Swift's, as far as that is certain."""
        low, high = self._ahead
        return low if low > 0 else min(high, 0.0)

    def note_clock(self, date: str | None, started: float) -> None:
        """Compare clocks: Swift set its Date, in whole seconds, between `started` and now."""
        if date is None:
            return
        with suppress(ValueError):
            swift_time = parsedate_to_datetime(date).timestamp()
            seen = (started - swift_time - 1, time.time() - swift_time)
            low, high = max(seen[0], self._ahead[0]), min(seen[1], self._ahead[1])
            self._ahead = (low, high) if low <= high else seen  # else a clock was set

    def sign(self, method: str, path: str, now: float) -> dict[str, Any]:
        """The query of a write to an object that is sent at `now` or never; nothing without a key.

        `path` is /v1/ACCOUNT/CONTAINER/OBJECT, not quoted.
        """
        if self.key is None:
            return {}
        high = self._ahead[1]
        ends = int(now - (high if high < float("inf") else 0) + self._validity)
        signed = hmac.new(self.key, f"{method}\n{ends}\n{path}".encode(), sha256)
        return {"temp_url_sig": signed.hexdigest(), "temp_url_expires": ends}


class _Lost(Exception):
    """The answer to a write is lost; the write may still land until the instant `until`."""

    def __init__(self, until: float, what: str) -> None:
        super().__init__(what)
        self.until = until


class Swift:
    """Send requests to one account.

    `connections` bounds the requests in flight; `timeout` is how long one of them may be silent,
    `patience` how long a call is repeated, both in seconds.
    """

    def __init__(self, auth: Auth, *, connections: int, timeout: float, patience: float) -> None:
        self.auth = auth
        self._connections = connections
        self._timeout = timeout
        self._patience = patience
        self._pool: ThreadPoolExecutor | None = None
        self._thread = threading.local()
        self._opened: list[Any] = []
        self.fence = Fence(timeout)

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

    async def prepare_signing(self, probe: tuple[str, str]) -> None:
        """Find or make the key that writes are signed with, and try it on an object `probe`."""
        try:
            if not await self._learn_key():
                made = {KEY_HEADERS[0]: secrets.token_hex(20)}
                await self.call("POST", headers=made, accept=_ANYTHING)
                await self._learn_key()  # another server may have made one meanwhile
            if self.fence.key is not None:
                await self.call("DELETE", *probe)
                return
        except Unavailable:
            self.fence.key = None
        _log.warning(
            "Swift takes no temporary URLs of ours (its filter tempurl, and the right to set a key "
            "of the account), so nothing stops a write that comes later than %.0f s",
            self.fence.lasts,
        )

    async def _learn_key(self) -> bool:
        reply = await self.call("HEAD")
        keys = [reply.headers[name] for name in KEY_HEADERS if reply.headers.get(name)]
        self.fence.key = keys[0].encode() if keys else None
        return bool(keys)

    async def _attempt(self, request: Request) -> tuple[Reply | str, float]:
        """Send once: the reply, or what failed and how many seconds there are to wait."""
        if self._pool is None:
            raise Unavailable("The Swift store is closed.")
        try:
            reply = await asyncio.get_running_loop().run_in_executor(
                self._pool, self._send, request
            )
        except _Lost as exc:
            await asyncio.sleep(max(0.0, exc.until - time.monotonic()))
            return str(exc), 0.0
        except (AuthError, ConfigurationError) as exc:
            return str(exc), 0.0
        except (RequestException, ClientException, OSError) as exc:
            return root_cause(exc), 0.0
        status = reply.status
        late = status == 202 and request.method == "PUT" and len(request.path) > 1
        if (status < 300 and not late) or status == 404 or status in request.accept:
            return reply, 0.0
        if status == 401 and request.changes_object and self.fence.key is not None:
            await self._learn_key()  # or it was on its way for too long, and is signed anew
        if status == 401 or late or status in _PASSING or status >= 500:
            return f"it answers {status}", _retry_after(reply)
        raise Unavailable(f"Swift refuses {request.method} with status {status}.", retry_after=30)

    def _send(self, request: Request) -> Reply:
        """Send once over this thread's connection, with a new token where the old one ended."""
        url, token = self.auth.token()
        reply = self._send_with(url, token, request)
        if reply.status == 401 and not (request.changes_object and self.fence.key):
            url, token = self.auth.token(stale=token)
            reply = self._send_with(url, token, request)
        return reply

    def _send_with(self, url: str, token: str, request: Request) -> Reply:
        parsed, connection = self._connection(url)
        root = parsed.path.rstrip("/")
        target = "/".join([root, *(quote(part) for part in request.path)])
        headers = {**request.headers}
        if request.method in {"PUT", "POST"}:
            headers["Content-Length"] = str(len(request.body))
        # A process may be stopped and continued between any two lines. So the clock that signs is
        # read first: whatever is sent long after it is refused here or there.
        started = time.time()
        if time.monotonic() >= request.until:
            raise Unavailable(
                "Half of the lock's lease is over, so nothing more was written: Swift, the "
                "coordination service or this server is too slow."
            )
        query = dict(request.query)
        if request.changes_object:
            account = root.rpartition("/")[2]
            query |= self.fence.sign(
                request.method, "/".join(["/v1", account, *request.path]), started
            )
        if "temp_url_sig" not in query:
            headers["X-Auth-Token"] = token
        if query:
            target += "?" + urlencode(query)
        lands_until = time.monotonic() + self.fence.lasts
        try:
            response = connection.request(request.method, target, request.body or None, headers)
            reply = Reply(response.status_code, response.headers, response.content)
        except BaseException as exc:
            self._drop_connection()
            if request.changes_object and not _was_never_sent(exc):
                raise _Lost(lands_until, root_cause(exc)) from exc
            raise
        self.fence.note_clock(reply.headers.get("Date"), started)
        passed_on = reply.status == 408 or reply.status >= 500
        if request.changes_object and passed_on and "X-Trans-Id" not in reply.headers:
            raise _Lost(lands_until, f"something before Swift answers {reply.status}")
        return reply

    def _connection(self, url: str) -> tuple[Any, Any]:
        known = getattr(self._thread, "connection", None)
        if known is not None and self._thread.url == url:
            return known  # type: ignore[no-any-return] # the library ships no types
        made = http_connection(url, timeout=self._timeout, **self.auth.tls)
        self._thread.connection, self._thread.url = made, url
        self._opened.append(made[1])
        return made[0], made[1]

    def _drop_connection(self) -> None:
        connection = self._thread.connection[1]
        self._thread.connection = None
        with suppress(ValueError):
            self._opened.remove(connection)
        connection.close()


def _was_never_sent(exc: BaseException) -> bool:
    """Whether a request failed before there was a connection to send it over."""
    return isinstance(exc, ConnectTimeout) or "NewConnectionError" in repr(exc)


def _retry_after(reply: Reply) -> float:
    """The seconds that a rate limit asks for."""
    with suppress(ValueError):
        return min(float(reply.headers.get("Retry-After", 0)), 30.0)
    return 0.0

"""One connection to one Redis node, shared by all calls of a process.

All calls of one turn of the event loop are sent in one write, and answers resolve their futures as
they are parsed: there is no task and no lock for each call. (A call that is awaited alone through a
general client costs about 250 microseconds of CPU; here it is a tenth of that.)
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

import hiredis

from zaqar_lite.storage.redis.address import Address
from zaqar_lite.storage.redis.faults import ConnectionLost, Fault, explain_at_start

MAX_PENDING = 20_000
"""Calls that may wait for an answer; more are refused, so that a stall cannot fill the memory."""
MAX_UNSENT = 64 << 20
"""Bytes that may wait to be sent; beyond them calls are refused, too."""


class Link(asyncio.Protocol):
    """A pipelined connection. It never reconnects: its owner opens another."""

    def __init__(self, timeout: float) -> None:
        """Make a link whose node must go on answering within `timeout` seconds."""
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=Fault)
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._heard = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._reason = "closed"

    @property
    def is_up(self) -> bool:
        """Whether calls may be sent."""
        return self._transport is not None

    def send(self, *words: str | bytes | int) -> "asyncio.Future[Any]":
        """Queue a command; the result of the future is the reply, or a Fault as a value.

        Raises:
            ConnectionLost: the link is down or full, and the command was not sent.
        """
        if self._transport is None:
            raise ConnectionLost(self._reason, sent=False)
        unsent = self._transport.get_write_buffer_size()
        if len(self._pending) >= MAX_PENDING or unsent > MAX_UNSENT:
            reason = f"{len(self._pending)} calls wait already, {unsent} bytes of them unsent"
            raise ConnectionLost(reason, sent=False)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(hiredis.pack_command(words))  # type: ignore[arg-type]  # its stub lists no unions
        future = self._loop.create_future()
        self._pending.append(future)
        return future

    def close(self, reason: str = "closed") -> None:
        """Close at once; waiting calls fail with ConnectionLost."""
        if self._transport is not None:
            self._reason = reason
            self._transport.abort()
            self._fail(reason)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is None or not out:
            return
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if len(self._pending) == len(out):  # nothing was waiting until now: the silence begins here
            self._heard = self._loop.time()
        if self._watch is None:
            self._watch = self._loop.call_later(self._timeout, self._check)

    def _check(self) -> None:
        """Close a connection that received nothing for the timeout although calls wait."""
        self._watch = None
        if not self._pending or self._transport is None:
            return
        left = self._heard + self._timeout - self._loop.time()
        if left <= 0:
            self.close(f"no answer for {self._timeout:g} s")
        else:
            self._watch = self._loop.call_later(left, self._check)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Resolve the oldest calls with the replies in `data`."""
        self._heard = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._resolve(reply)
        except (hiredis.ProtocolError, IndexError):
            self.close("the answer is not Redis's protocol")

    def _resolve(self, reply: Any) -> None:  # noqa: ANN401 - any reply
        future = self._pending.popleft()
        if not future.done():  # its caller may have gone
            future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all waiting calls."""
        self._fail(str(exc) if exc else "closed by Redis")

    def _fail(self, reason: str) -> None:
        self._transport = None
        self._reason = reason
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        unsent = len(self._out)
        self._out = []
        pending, self._pending = self._pending, deque()
        for index, future in enumerate(pending):
            if not future.done():
                sent = index < len(pending) - unsent
                future.set_exception(ConnectionLost(reason, sent=sent))


L = TypeVar("L", bound=Link)


async def connect(node: str | tuple[str, int], address: Address, make: Callable[[float], L]) -> L:
    """Open a link to a unix socket's path or a (host, port), log in, and choose the database.

    `make` makes the link from the timeout.

    Raises:
        ConnectionLost: there is no answer.
        ConfigurationError, Unavailable: Redis refuses.
    """
    try:
        async with asyncio.timeout(address.timeout):
            link = await _reach(node, address, make)
            try:
                await _greet(link, address.login, address.database)
            except BaseException:  # a server that takes the connection and does not answer, too
                link.close()
                raise
            return link
    except (OSError, ConnectionLost) as exc:  # TimeoutError too, and a refused certificate of ours
        place = node if isinstance(node, str) else f"{node[0]}:{node[1]}"
        raise ConnectionLost(f"{place}: {_why(exc, address)}", sent=False) from exc


def _why(failed: OSError | ConnectionLost, address: Address) -> str:
    """Say for the user why a connection could not be opened."""
    if isinstance(failed, TimeoutError):
        return "no answer in time"
    # A client has set up TLS 1.3 before the server judges its certificate, and the reset that
    # follows a refusal may overtake the alert that gives the reason.
    if address.tls and isinstance(failed, ConnectionLost | ConnectionResetError):
        return f"{failed} (does Redis know the authority of the client's certificate?)"
    return str(failed)


async def _reach(node: str | tuple[str, int], address: Address, make: Callable[[float], L]) -> L:
    loop = asyncio.get_running_loop()
    if isinstance(node, str):
        _, link = await loop.create_unix_connection(lambda: make(address.timeout), node)
    else:
        host, port = node
        _, link = await loop.create_connection(
            lambda: make(address.timeout), host, port, ssl=address.tls
        )
    return link


async def _greet(link: Link, login: tuple[str, ...], database: int) -> None:
    steps: list[tuple[str | int, ...]] = [("CLIENT", "SETNAME", "zaqar-lite")]
    if login:
        steps.insert(0, ("AUTH", *login))
    if database:
        steps.append(("SELECT", database))
    for reply in await asyncio.gather(*(link.send(*step) for step in steps)):
        if isinstance(reply, Fault) and reply.code != "LOADING":
            raise explain_at_start(reply)

"""Webhooks: one POST a delivery, over connections that are kept, never to where the guard says no.

No redirect is followed, no proxy of the environment is used, and no cookie is kept. At most 16 KiB
of an answer are read, in 64 pieces at most and a few KiB at a time.
"""

import asyncio
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from urllib.parse import urlsplit
from weakref import WeakSet, WeakValueDictionary

import aiohttp
from aiohappyeyeballs import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult

from zaqar_lite.push.guard import Guard, Refused
from zaqar_lite.service.delivery.attempt import Answer, Notification, Transport

_CONNECT = 5.0
_TOTAL = 20.0
_MOST_READ = 16_384
_MOST_PIECES = 64
"""Pieces of an answer, as they arrive or as its chunked encoding cuts it, that are read."""
_RECEIVED_AT_ONCE = 4_096
"""Bytes of an answer that may wait in the system. What waits is parsed in one step of the event
loop: 256 KiB of tiny chunks, or of `100 Continue`, took half a second of everybody's time.

Measured at 2, 4 and 8 KiB: an answer in tiny chunks takes 1.9, 1.8 and 2.2 ms of CPU; one of 15 KB
takes 0.9, 0.6 and 0.4 ms; one of 2 bytes costs the same at each. A buffer of 8 KiB makes the
longest step longer, and one of 2 KiB makes a useful answer dearer.
"""
_SHOWN = 1_024
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_DNS_CACHE = 10
_KEEP_ALIVE, _MOST_KEPT = 15.0, 1_000
"""Seconds for which a connection is kept, unless so many are open: clients need files, too."""
_MOST_NAMES, _MOST_OF_PROJECT = 64, 8
"""Names that are asked for at a time, and those of one project among them."""
_PROJECT = ContextVar("project", default="")
"""The project that a notification is of, for the task that resolves its host."""


class SystemResolver(AbstractResolver):
    """Ask the system for addresses, in threads of its own.

    A name whose servers are silent holds a thread for many seconds; the event loop has a handful of
    threads for everything, so half a dozen such names would hold up the deliveries to all others.
    Each project has its share of the threads, also while it has hundreds of such names.
    """

    def __init__(self) -> None:
        self._shares = WeakValueDictionary[str, asyncio.Semaphore]()
        self._threads = ThreadPoolExecutor(_MOST_NAMES, thread_name_prefix="names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Resolve a name."""
        look = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, 0)
        share = self._shares.setdefault(_PROJECT.get(), asyncio.Semaphore(_MOST_OF_PROJECT))
        async with share:
            found = await asyncio.get_running_loop().run_in_executor(
                self._threads, look, socket.AI_ADDRCONFIG
            )
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Leave the threads that still ask to end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class GuardedResolver(AbstractResolver):
    """Resolve names, and refuse an answer that holds an address which may not be dialled."""

    def __init__(self, guard: Guard, resolver: AbstractResolver, *, by_name: bool = False) -> None:
        self._guard = guard
        self._resolver = resolver
        self._by_name = by_name

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Resolve a name; a trailing dot keeps the search domains out."""
        absolute = host if host.endswith(".") or "." not in host else f"{host}."
        found = await self._resolver.resolve(absolute, port, family)
        for result in found:
            self._guard.check(result["host"], port, by_name=self._by_name)
            result["hostname"] = host
        return found

    async def close(self) -> None:
        """Close the resolver behind."""
        await self._resolver.close()


class Webhooks(Transport):
    """Send notifications by HTTP; a client session is opened with the first."""

    def __init__(
        self,
        guard: Guard,
        *,
        resolver: AbstractResolver | None = None,
        total: float = _TOTAL,
        connect: float = _CONNECT,
    ) -> None:
        self._guard = guard
        self._resolver = resolver or SystemResolver()
        self._timeout = aiohttp.ClientTimeout(total=total, sock_connect=connect)
        self._sessions: dict[tuple[bool, bool], aiohttp.ClientSession] = {}
        self._sockets = WeakSet[socket.socket]()

    async def send(self, notification: Notification) -> Answer:
        """POST a notification; whatever goes wrong is in the answer."""
        _PROJECT.set(notification.project)
        try:
            async with self._session(notification.subscriber).post(
                notification.subscriber,
                data=notification.body,
                headers=notification.headers,
                allow_redirects=False,
            ) as response:
                text = await _read(response)
                return Answer(
                    response.status,
                    text=text,
                    retry_after=_seconds(response.headers.get("Retry-After")),
                )
        except TimeoutError:
            return Answer(error="no answer in time")
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            refused = _refused(exc)
            if refused is not None:
                return Answer(error=f"refused: {refused}", refused=True)
            return Answer(error=_shown(exc))

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()
        await self._resolver.close()

    def _session(self, subscriber: str) -> aiohttp.ClientSession:
        """The session for hosts that are allowed by their name, or not; it may keep connections."""
        by_name = self._guard.allows_name(urlsplit(subscriber).hostname or "")
        keeps = len(self._sockets) < _MOST_KEPT
        session = self._sessions.get((by_name, keeps))
        if session is None:
            session = self._sessions[by_name, keeps] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,
                    ttl_dns_cache=_DNS_CACHE,
                    keepalive_timeout=_KEEP_ALIVE if keeps else None,
                    force_close=not keeps,
                    resolver=GuardedResolver(self._guard, self._resolver, by_name=by_name),
                    socket_factory=partial(self._make_socket, by_name=by_name),
                ),
                timeout=self._timeout,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return session

    def _make_socket(self, info: AddrInfoType, *, by_name: bool) -> socket.socket:
        """Make the socket of an address that is about to be dialled, unless it may not be."""
        family, kind, protocol, _, address = info
        self._guard.check(str(address[0]), int(address[1]), by_name=by_name)
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_AT_ONCE)
        return made


async def _read(response: aiohttp.ClientResponse) -> str:
    """Read an answer up to 16 KiB or 64 pieces, and show its first KiB.

    A longer one ends the connection: each piece costs about as much as a KiB, even if it holds one
    byte, and a project may have receivers that answer nothing else.
    """
    first = b""
    size = pieces = 0
    async for piece, _ in response.content.iter_chunks():
        size, pieces = size + len(piece), pieces + 1
        if len(first) < _SHOWN:
            first += piece
        if size >= _MOST_READ or pieces >= _MOST_PIECES:
            response.close()
            break
    # A control character takes six bytes in JSON: twenty such texts would not fit into a record.
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", first[:_SHOWN].decode("utf-8", "replace"))


def _refused(error: BaseException | None) -> str | None:
    """The guard's words, if it was the guard that ended the attempt."""
    while error is not None:
        if isinstance(error, Refused):
            return str(error)
        error = error.__cause__
    return None


def _shown(error: Exception) -> str:
    """What went wrong, without an address: the receiver's network is not everybody's to read."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the host's name can't be resolved"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "TLS failed: the certificate, or the protocol"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "no connection"
    if isinstance(error, aiohttp.InvalidURL):
        return "the URL can't be used"
    return "the connection broke before the answer was complete"


def _seconds(text: str | None) -> float | None:
    """Read Retry-After: seconds, or a date; None for anything else."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # a year or a zone may have any number of digits
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max((until - datetime.now(UTC)).total_seconds(), 0.0)

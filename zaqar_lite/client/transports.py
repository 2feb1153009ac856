"""The two sockets: urllib3 for the sync client, aiohttp for the async one.

Each is one method and `close`, so that a user can bring another. Neither retries, follows a
redirect or keeps a cookie: `exchange` decides which request is sent when.
Why these libraries: tests/client/http_libraries.py measures them; see api-ref, "The SDK".
"""

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from zaqar_lite.client.errors import Unreachable
from zaqar_lite.client.event_stream import LONGEST_SILENCE
from zaqar_lite.client.line import CURRENT, Line
from zaqar_lite.client.wire import Request, Response

if TYPE_CHECKING:
    import aiohttp
    import urllib3

_CLOSED = "it closed the connection without an answer"


class Transport(Protocol):
    """Send one request and bring its answer."""

    def send(self, base: str, request: Request) -> Response:
        """Send it; raise `Unreachable` when no answer came."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class AsyncTransport(Protocol):
    """Send one request and bring its answer, on an event loop."""

    async def send(self, base: str, request: Request) -> Response:
        """Send it; raise `Unreachable` when no answer came."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class Urllib3Transport:
    """Keep-alive connections of urllib3; any number of threads may share it."""

    def __init__(
        self, *, timeout: float, connections: int, ssl_context: ssl.SSLContext | None
    ) -> None:
        import urllib3  # noqa: PLC0415 - the async client does not need it

        from zaqar_lite.client.urllib3_lines import POOLS  # noqa: PLC0415

        self._timeout = timeout
        self._timeouts = urllib3.Timeout
        self._errors = urllib3.exceptions

        # A connection beyond `connections` is made when needed and closed after its answer.
        def manager() -> urllib3.PoolManager:
            made = urllib3.PoolManager(maxsize=connections, ssl_context=ssl_context)
            made.pool_classes_by_scheme = POOLS
            return made

        self._make_manager = manager
        self._open()

    def _open(self) -> None:
        """Begin without connections, in this process."""
        self._process = os.getpid()
        self._manager = self._make_manager()
        self._pools: dict[str, tuple[urllib3.HTTPConnectionPool, str]] = {}

    def send(self, base: str, request: Request) -> Response:
        """Send it; raise `Unreachable` when no answer came."""
        errors = self._errors
        if self._process != os.getpid():
            # After a fork both processes have the same connections; an answer would go to either.
            self._open()
        read = LONGEST_SILENCE if request.streams else self._timeout + request.wait
        timeout = self._timeouts(connect=self._timeout, read=read)
        pool, prefix = self._pools.get(base) or self._pool_of(base)
        try:
            with _waiting_on(request.line):
                answer = pool.urlopen(
                    request.method,
                    prefix + request.path,
                    body=request.body,
                    headers=_utf8(request.headers),
                    retries=False,
                    redirect=False,
                    timeout=timeout,
                    preload_content=not request.streams,
                )
        except (errors.NewConnectionError, errors.ConnectTimeoutError) as error:
            raise _unreachable(base, error, connected=False) from error
        except (errors.HTTPError, OSError) as error:
            raise _unreachable(base, error, connected=True) from error
        headers = {name.lower(): value for name, value in answer.headers.items()}
        if request.streams and answer.status == 200:
            return Response(200, headers, b"", Urllib3Stream(answer, base))
        return Response(answer.status, headers, answer.data)

    def _pool_of(self, base: str) -> "tuple[urllib3.HTTPConnectionPool, str]":
        """Return the server's pool, and what its paths begin with.

        A pool that is asked for by the address of each request costs a fifth more.
        """
        found = self._manager.connection_from_url(base), urlsplit(base).path
        self._pools[base] = found
        return found

    def close(self) -> None:
        """Close the connections."""
        self._pools.clear()
        self._manager.clear()


class Urllib3Stream:
    """A body that comes part by part."""

    def __init__(self, answer: "urllib3.BaseHTTPResponse", base: str) -> None:
        self._answer = answer
        self._base = base

    def __iter__(self) -> Iterator[bytes]:
        import urllib3  # noqa: PLC0415 - the async client does not need it

        try:
            yield from self._answer.stream()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"The stream of {self._base} was cut", _reason(error)) from error

    def close(self) -> None:
        """End it, and its connection."""
        self._answer.close()


class AiohttpStream:
    """A body that comes part by part."""

    def __init__(self, answer: "aiohttp.ClientResponse", base: str) -> None:
        self._answer = answer
        self._base = base

    async def __aiter__(self) -> AsyncIterator[bytes]:
        import aiohttp  # noqa: PLC0415 - the sync client does not need it

        try:
            async for part in self._answer.content.iter_any():
                yield part
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"The stream of {self._base} was cut", _reason(error)) from error

    async def close(self) -> None:
        """End it, and its connection."""
        self._answer.close()


class AiohttpTransport:
    """Keep-alive connections of aiohttp; those of an event loop are closed when it ends."""

    def __init__(
        self, *, timeout: float, connections: int, ssl_context: ssl.SSLContext | None
    ) -> None:
        import aiohttp  # noqa: PLC0415 - the sync client does not need it
        from yarl import URL  # noqa: PLC0415

        self._timeout = timeout
        self._connections = connections
        self._ssl = ssl_context
        self._sessions: dict[
            asyncio.AbstractEventLoop,
            tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession, None]],
        ] = {}
        self._url = URL
        self._timeouts = aiohttp.ClientTimeout
        self._no_connection = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
        self._no_answer = (aiohttp.ClientError, TimeoutError, OSError)

    async def send(self, base: str, request: Request) -> Response:
        """Send it; raise `Unreachable` when no answer came."""
        loop = asyncio.get_running_loop()
        session = self._sessions[loop][0] if loop in self._sessions else await self._open(loop)
        if request.streams:
            timeout = self._timeouts(sock_connect=self._timeout, sock_read=LONGEST_SILENCE)
        else:
            timeout = self._timeouts(total=self._timeout + request.wait)
        try:
            with _waiting_on(request.line):
                # encoded=True: the path is quoted, and quoting it twice would name another queue.
                answer = await session.request(
                    request.method,
                    self._url(base + request.path, encoded=True),
                    data=request.body,
                    headers=request.headers,
                    allow_redirects=False,
                    timeout=timeout,
                )
                headers = {name.lower(): value for name, value in answer.headers.items()}
                if request.streams and answer.status == 200:
                    return Response(200, headers, b"", AiohttpStream(answer, base))
                async with answer:
                    return Response(answer.status, headers, await answer.read())
        except self._no_connection as error:
            raise _unreachable(base, error, connected=False) from error
        except self._no_answer as error:
            raise _unreachable(base, error, connected=True) from error

    async def _open(self, loop: asyncio.AbstractEventLoop) -> "aiohttp.ClientSession":
        await self._close_those_of_closed_loops()
        keeper = self._keep_open(loop)
        session = await anext(keeper)
        self._sessions[loop] = session, keeper
        return session

    async def _keep_open(
        self, loop: asyncio.AbstractEventLoop
    ) -> "AsyncGenerator[aiohttp.ClientSession, None]":
        """Yield a session that is closed when this generator is: by `close`, or by its loop.

        A loop that ends closes its generators (`shutdown_asyncgens`), so that a client that is used
        in several loops, one after the other, leaves no connection open in any of them.
        """
        import aiohttp  # noqa: PLC0415

        from zaqar_lite.client.aiohttp_lines import Connector  # noqa: PLC0415

        session = aiohttp.ClientSession(
            connector=Connector(
                limit=self._connections, ssl=self._ssl if self._ssl is not None else True
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent",),
        )
        # aiohttp sends a DELETE again by itself when a kept connection breaks, and a pop must not
        # be. It has no public switch for this; a test holds ours to account.
        session._retry_connection = False
        try:
            yield session
        finally:
            self._sessions.pop(loop, None)
            await session.close()

    async def _close_those_of_closed_loops(self) -> None:
        """Forget the sessions of loops that have ended without closing their generators."""
        for loop in [one for one in self._sessions if one.is_closed()]:
            session, _ = self._sessions.pop(loop)
            await session.close()  # does nothing in the loop that is closed

    async def close(self) -> None:
        """Close the connections of this event loop."""
        await self._close_those_of_closed_loops()
        if (kept := self._sessions.get(asyncio.get_running_loop())) is not None:
            await kept[1].aclose()


@contextlib.contextmanager
def _waiting_on(line: Line | None) -> Iterator[None]:
    """Tell the line which connection its request uses, until the answer has come."""
    if line is None:
        yield
        return
    token = CURRENT.set(line)
    try:
        yield
    finally:
        CURRENT.reset(token)
        line.leave()


def _utf8(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers that http.client, which writes Latin-1, sends as UTF-8."""
    return {
        name: value if value.isascii() else value.encode().decode("latin-1")
        for name, value in headers.items()
    }


def _unreachable(base: str, error: BaseException, *, connected: bool) -> Unreachable:
    """Return the error of a request without an answer."""
    if any(map(_is_no_tls, _causes(error))):
        description = "it does not answer in TLS; is its address http:// instead of https://?"
        return Unreachable(f"No answer from {base}", description, sent=False, permanent=True)
    reason = _reason(error)
    if reason == _CLOSED and base.startswith("http://"):
        reason += "; if it speaks TLS, its address begins with https://"
    title = f"No answer from {base}" if connected else f"No connection to {base}"
    return Unreachable(title, reason, sent=connected)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _is_no_tls(error: BaseException) -> bool:
    # aiohttp's own TLS errors have no `reason`; what caused them does.
    return isinstance(error, ssl.SSLError) and _said(error, "reason") == "WRONG_VERSION_NUMBER"


def _said(error: BaseException, name: str) -> str | None:
    found: str | None = getattr(error, name, None)
    return found


def _reason(error: BaseException) -> str:
    """Return what the operating system said, else what the library says."""
    causes = tuple(_causes(error))
    for cause in causes:
        if refusal := _said(cause, "verify_message"):
            trust = "ssl_context, or --ca-file, says whom to trust"
            return f"its certificate is refused: {refusal} ({trust})"
    for cause in causes:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        if isinstance(cause, TimeoutError):
            return "it did not answer within the timeout"
        if isinstance(cause, ConnectionResetError) or str(cause) == "Server disconnected":
            return _CLOSED
    return str(error) or repr(error)

"""The async client's transport, over aiohttp."""

import asyncio
import ssl
from collections.abc import AsyncGenerator

import aiohttp
from aiohttp.client import ClientTimeout
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from zaqar_lite.client.calls import Request, Response
from zaqar_lite.client.errors import Unreachable
from zaqar_lite.client.long_polling import CURRENT
from zaqar_lite.client.transports import LONGEST_SILENCE, reason_of, unreachable, waiting_on


class _Connector(aiohttp.TCPConnector):
    """Connections of one client."""

    async def connect(
        self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout
    ) -> Connection:
        """Take a connection for a request."""
        connection = await super().connect(req, traces, timeout)
        waiting = CURRENT.get()
        if waiting is not None and connection.transport is not None:
            waiting.take(connection.transport.get_extra_info("socket"))
        return connection


class AiohttpStream:
    """A body that comes part by part."""

    def __init__(self, answer: aiohttp.ClientResponse, base: str) -> None:
        self._answer = answer
        self._base = base

    async def read(self) -> bytes:
        """Return the next part, nothing at the end."""
        try:
            return await self._answer.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"The stream of {self._base} was cut", reason_of(error)) from error

    async def close(self) -> None:
        """End it, and its connection."""
        self._answer.close()


class AiohttpTransport:
    """Keep-alive connections of aiohttp; those of an event loop are closed when it ends."""

    def __init__(
        self, *, timeout: float, connections: int, ssl_context: ssl.SSLContext | None
    ) -> None:
        self._timeout = timeout
        self._connections = connections
        self._ssl = ssl_context
        self._sessions: dict[
            asyncio.AbstractEventLoop,
            tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession, None]],
        ] = {}

    async def send(self, base: str, request: Request) -> Response:
        """Send it; raise `Unreachable` when no answer came."""
        loop = asyncio.get_running_loop()
        session = self._sessions[loop][0] if loop in self._sessions else await self._open(loop)
        if request.streams:
            timeout = aiohttp.ClientTimeout(sock_connect=self._timeout, sock_read=LONGEST_SILENCE)
        else:
            timeout = aiohttp.ClientTimeout(total=self._timeout + request.wait)
        try:
            with waiting_on(request.connection):
                # encoded=True: the path is quoted, and quoting it twice would name another queue.
                answer = await session.request(
                    request.method,
                    URL(base + request.path, encoded=True),
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
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise unreachable(base, error, connected=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(base, error, connected=True) from error

    async def _open(self, loop: asyncio.AbstractEventLoop) -> aiohttp.ClientSession:
        await self._close_those_of_closed_loops()
        keeper = self._keep_open(loop)
        session = await anext(keeper)
        self._sessions[loop] = session, keeper
        return session

    async def _keep_open(
        self, loop: asyncio.AbstractEventLoop
    ) -> AsyncGenerator[aiohttp.ClientSession, None]:
        """Yield a session that is closed when this generator is: by `close`, or by its loop.

        A loop that ends closes its generators (`shutdown_asyncgens`), so that a client that is used
        in several loops, one after the other, leaves no connection open in any of them.
        """
        session = aiohttp.ClientSession(
            connector=_Connector(
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
        for loop in [one for one in list(self._sessions) if one.is_closed()]:
            if (kept := self._sessions.pop(loop, None)) is not None:  # by no other thread
                await kept[0].close()  # does nothing in the loop that is closed

    async def close(self) -> None:
        """Close the connections of this event loop."""
        await self._close_those_of_closed_loops()
        if (kept := self._sessions.get(asyncio.get_running_loop())) is not None:
            await kept[1].aclose()

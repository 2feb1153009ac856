"""The sync client's transport, over urllib3."""

import os
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError
from urllib3.response import HTTPResponse

from zaqar_lite.client.calls import Request, Response
from zaqar_lite.client.errors import Unreachable
from zaqar_lite.client.long_polling import CURRENT
from zaqar_lite.client.transports import LONGEST_SILENCE, reason_of, unreachable, waiting_on


class _Connection(HTTPConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3's own
        """Tell whom waits which socket its answer comes on."""
        connection = CURRENT.get()
        if connection is not None:
            connection.take(self.sock)
        return super().getresponse()


class _TlsConnection(_Connection, HTTPSConnection):
    """The same over TLS."""


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


_POOLS = {"http": _Pool, "https": _TlsPool}


class Urllib3Transport:
    """Keep-alive connections of urllib3; any number of threads may share it."""

    def __init__(
        self, *, timeout: float, connections: int, ssl_context: ssl.SSLContext | None
    ) -> None:
        self._timeout = timeout
        self._connections = connections
        self._ssl_context = ssl_context
        self._open()

    def _open(self) -> None:
        """Begin without connections, in this process."""
        # A connection beyond `maxsize` is made when needed and closed after its answer.
        self._manager = urllib3.PoolManager(
            maxsize=self._connections, ssl_context=self._ssl_context
        )
        self._manager.pool_classes_by_scheme = _POOLS
        self._pools: dict[str, tuple[urllib3.HTTPConnectionPool, str]] = {}
        self._process = os.getpid()  # last: another thread takes what is there by then

    def send(self, base: str, request: Request) -> Response:
        """Send it; raise `Unreachable` when no answer came."""
        if self._process != os.getpid():
            # After a fork both processes have the same connections; an answer would go to either.
            self._open()
        read = LONGEST_SILENCE if request.streams else self._timeout + request.wait
        timeout = urllib3.Timeout(connect=self._timeout, read=read)
        pool, prefix = self._pools.get(base) or self._pool_of(base)
        try:
            with waiting_on(request.connection):
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
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise unreachable(base, error, connected=False) from error
        except (HTTPError, OSError) as error:
            raise unreachable(base, error, connected=True) from error
        headers = {name.lower(): value for name, value in answer.headers.items()}
        if request.streams and answer.status == 200:
            return Response(200, headers, b"", Urllib3Stream(answer, base))
        return Response(answer.status, headers, answer.data)

    def _pool_of(self, base: str) -> tuple[urllib3.HTTPConnectionPool, str]:
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

    def __init__(self, answer: urllib3.BaseHTTPResponse, base: str) -> None:
        self._answer = answer
        self._parts = answer.stream()
        self._base = base

    def read(self) -> bytes:
        """Return the next part, nothing at the end."""
        try:
            return next(self._parts, b"")
        except (HTTPError, OSError) as error:
            raise Unreachable(f"The stream of {self._base} was cut", reason_of(error)) from error

    def close(self) -> None:
        """End it, and its connection."""
        self._answer.close()


def _utf8(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers that http.client, which writes Latin-1, sends as UTF-8."""
    return {
        name: value if value.isascii() else value.encode().decode("latin-1")
        for name, value in headers.items()
    }

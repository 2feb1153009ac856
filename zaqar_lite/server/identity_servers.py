"""Servers that are asked who somebody is: Keystone, and an issuer's public keys (JWKS)."""

import asyncio
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.service.identity.keystone import Answer

_LARGEST = 1_048_576
_CONNECTIONS = 32


class KeystoneServer:
    """A Keystone server; `url` is that of its identity service, with or without `/v3`."""

    def __init__(self, url: str, *, ca_file: Path | None, timeout: float = 10.0) -> None:
        self._url = url.rstrip("/").removesuffix("/v3") + "/v3"
        try:
            self._ssl = ssl.create_default_context(cafile=ca_file)
        except OSError as exc:
            raise ConfigurationError(f"keystone_ca_file: {ca_file}: {exc.strerror}.") from None
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None
        self._stopped = False

    def start(self) -> None:
        """Allow requests; the first one opens a connection."""
        self._stopped = False

    async def stop(self) -> None:
        """Close the connections, and refuse requests until the next start. Idempotent."""
        self._stopped = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], document: object
    ) -> Answer:
        """Send a request; no redirect is followed.

        Raises:
            OSError: there is no answer in time, or one that is too large.
        """
        if self._stopped:
            raise OSError("this server is stopping")  # nobody would close the connection
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=self._ssl),
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        with _os_errors():
            async with self._session.request(
                method, self._url + path, headers=headers, json=document, allow_redirects=False
            ) as answer:
                body = await _read(answer)
        try:
            read = json.loads(body)
        except ValueError:
            read = None
        return Answer(answer.status, read, answer.headers.get("X-Subject-Token"))


_TIMEOUT = aiohttp.ClientTimeout(total=10)


class Jwks:
    """The JWKS of an issuer; `source` is a URL or the path of a file."""

    def __init__(self, source: str) -> None:
        self._source = source

    async def fetch(self) -> bytes:
        """Read the document: at most 1 MiB, without following redirects.

        Raises:
            OSError: the document can't be read now, or is larger.
        """
        if not self._source.startswith(("https://", "http://")):
            return await asyncio.to_thread(Path(self._source).read_bytes)
        with _os_errors():
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT, raise_for_status=True) as session,
                session.get(self._source, allow_redirects=False) as answer,
            ):
                return await _read(answer)


@contextmanager
def _os_errors() -> Iterator[None]:
    """Raise what aiohttp raises as OSError."""
    try:
        yield
    except TimeoutError:
        raise OSError("it does not answer in time") from None
    except aiohttp.ClientError as exc:
        raise OSError(str(exc) or type(exc).__name__) from None


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """Read an answer of less than 1 MiB; OSError if it is larger."""
    try:
        await answer.content.readexactly(_LARGEST)
    except asyncio.IncompleteReadError as exc:
        return exc.partial
    raise OSError("its answer is too large")

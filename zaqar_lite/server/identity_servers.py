"""Servers that are asked who somebody is: Keystone, and an issuer's public keys (JWKS)."""

import asyncio
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.service.identity.keystone import Account, Answer

_LARGEST = 1_048_576
_CONNECTIONS = 32


class Cloud(NamedTuple):
    """What an entry of clouds.yaml says: where Keystone is, our account there, and how TLS is."""

    url: str = ""
    account: Account | None = None
    tls: ssl.SSLContext | bool = True

    @classmethod
    def named(cls, name: str) -> "Cloud":
        """Read an entry, from where OpenStack's clients look for clouds.yaml.

        Raises:
            ConfigurationError: there is none, or it can't be used; shows no password.
        """
        try:
            from keystoneauth1.exceptions import ClientException  # noqa: PLC0415 - an extra
            from openstack.config import OpenStackConfig  # noqa: PLC0415
            from openstack.exceptions import ConfigException  # noqa: PLC0415
        except ModuleNotFoundError as exc:
            raise ConfigurationError(
                f"keystone_cloud needs the Python package {exc.name!r}: "
                "pip install 'zaqar-lite[keystone]'."
            ) from None
        try:
            region = OpenStackConfig().get_one(cloud=name)
        except (ConfigException, ClientException) as exc:
            raise ConfigurationError(f"keystone_cloud: {exc}") from None
        except TypeError as exc:  # keystoneauth names the field
            raise ConfigurationError(
                f"keystone_cloud: {name} in clouds.yaml does not fit its auth_type: {exc}"
            ) from None
        auth, account = region.get_auth_args(), None
        if not auth.get("auth_url"):
            raise ConfigurationError(f"keystone_cloud: {name} in clouds.yaml has no auth_url.")
        if auth.keys() & {"application_credential_id", "application_credential_name", "token"}:
            raise ConfigurationError(
                f"keystone_cloud: {name} in clouds.yaml has a token or an application credential: "
                "the server needs a username and a password there, or neither."
            )
        user = _named(auth, "user", "username")
        if user is not None:
            project = _named(auth, "project", "project_name")
            if project is None or "password" not in auth:
                raise ConfigurationError(
                    f"keystone_cloud: {name} in clouds.yaml needs a password and a project_name "
                    "for its user."
                )
            account = Account(user, auth["password"], project)
        return cls(auth["auth_url"], account, _tls(*region.get_requests_verify_args()))


def _named(auth: Mapping[str, str], kind: str, name: str) -> dict[str, Any] | None:
    """How Keystone finds a user or a project: by an id, or by a name in a domain."""
    if f"{kind}_id" in auth:
        return {"id": auth[f"{kind}_id"]}
    if name not in auth:
        return None
    domain = {"name": auth.get(f"{kind}_domain_name", "Default")}
    if f"{kind}_domain_id" in auth:
        domain = {"id": auth[f"{kind}_domain_id"]}
    return {"name": auth[name], "domain": domain}


def _tls(verify: str | bool | None, cert: str | tuple[str, str] | None) -> ssl.SSLContext | bool:
    """How TLS is spoken by a file of authorities, or none (False), and files of a certificate."""
    trusted = verify if isinstance(verify, str) else None
    shown = (cert,) if isinstance(cert, str) else cert or ()
    try:
        context = ssl.create_default_context(cafile=trusted)
        if shown:
            context.load_cert_chain(*shown)
    except OSError as exc:
        files = ", ".join((*shown, trusted or ""))
        raise ConfigurationError(f"keystone_cloud: {files}: {exc.strerror}.") from None
    if verify is False:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class KeystoneServer:
    """A Keystone server; `url` is that of its identity service, with or without `/v3`."""

    def __init__(self, url: str, tls: ssl.SSLContext | bool, *, timeout: float = 10.0) -> None:
        self._url = url.rstrip("/").removesuffix("/v3") + "/v3"
        self._tls = tls
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
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=self._tls),
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

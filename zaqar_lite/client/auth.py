"""How a client proves who it is: not at all, by a key, by Keystone, or by a pre-signed URL.

A plug-in is any object with the methods of `Auth`.
"""

import json
import math
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from zaqar_lite.client.errors import Unauthenticated, Unreachable, ZaqarError
from zaqar_lite.client.models import SignedURL

if TYPE_CHECKING:
    from keystoneauth1.session import Session


@runtime_checkable
class Auth(Protocol):
    """What the clients ask of an auth plug-in."""

    def headers(self) -> Mapping[str, str] | None:
        """Return the headers to send, without I/O; None when `login` must come first."""
        ...

    def login(self) -> None:
        """Fetch what `headers` needs; may block (the async client calls it in a thread)."""
        ...

    def forget(self) -> bool:
        """Drop what the server refused; return whether a new login could help."""
        ...

    def url(self) -> str | None:
        """Return where the service is, if the plug-in knows (after login); without I/O."""
        ...


class NoAuth:
    """Send no proof: for a server that trusts its network, as `zaqar-lite serve` by default."""

    _headers: Mapping[str, str] = {}

    def headers(self) -> Mapping[str, str]:
        """Return what proves it, which never changes."""
        return self._headers

    def login(self) -> None:
        """Do nothing."""

    def forget(self) -> bool:
        """Say that a login does not help."""
        return False

    def url(self) -> None:
        """Know no address."""


class KeyAuth(NoAuth):
    """Use a key (`zaqar-lite key create`); it belongs to a project, which need not be named."""

    def __init__(self, key: str) -> None:
        """Take the key's text.

        Raises:
            ValueError: it can't be one; the text is not repeated.
        """
        key = key.strip()
        if not key.isascii() or not key.isprintable() or not key or " " in key:
            message = "a key is a text such as zq_6b1f0d83c5e942a7_..., without spaces"
            raise ValueError(message)
        self._headers = {"Authorization": f"Bearer {key}"}


class SignedAuth(NoAuth):
    """Use a pre-signed permission (`Client.share`): its queue, paths, methods and time only."""

    def __init__(self, signed: SignedURL) -> None:
        self.signed = signed
        self._headers = signed.headers

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read what `zaqar-lite share` has printed.

        Raises:
            ValueError: it is something else.
            OSError: the file cannot be read.
        """
        try:
            return cls(SignedURL(**json.loads(Path(path).read_text(encoding="utf-8"))))
        except (ValueError, TypeError) as error:
            fields = ", ".join(SignedURL.__dataclass_fields__)
            message = f"{path} is not what `zaqar-lite share` prints, a JSON object of {fields}"
            raise ValueError(message) from error


class KeystoneAuth:
    """Use a Keystone v3 token through keystoneauth1 (`pip install 'zaqar-lite[keystone]'`).

    Make one with `password`, `application_credential`, `cloud` (clouds.yaml or OS_* variables),
    or from any keystoneauth1 session.
    """

    # A token is replaced this many seconds before it ends, so that it survives the request.
    MARGIN = 60.0

    def __init__(
        self,
        session: "Session",
        *,
        region: str | None = None,
        interface: str = "public",
        service_types: tuple[str, ...] = ("messaging", "message"),
        endpoint: str | None = None,
    ) -> None:
        self._session = session
        self._plugin: Any = session.auth  # what v3 plug-ins have, their base class does not declare
        self._region = region
        self._interface = interface
        self._service_types = service_types
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._headers: Mapping[str, str] | None = None
        self._until = 0.0
        self._url: str | None = None

    @classmethod
    def password(
        cls,
        auth_url: str,
        *,
        username: str,
        password: str,
        project_name: str,
        user_domain_name: str = "Default",
        project_domain_name: str = "Default",
        region: str | None = None,
    ) -> Self:
        """Log in by user name and password."""
        plugin = _keystone("keystoneauth1.identity.v3").Password(
            auth_url=auth_url,
            username=username,
            password=password,
            project_name=project_name,
            user_domain_name=user_domain_name,
            project_domain_name=project_domain_name,
        )
        return cls(_keystone("keystoneauth1.session").Session(auth=plugin), region=region)

    @classmethod
    def application_credential(
        cls,
        auth_url: str,
        *,
        credential_id: str,
        secret: str,
        region: str | None = None,
    ) -> Self:
        """Log in by an application credential."""
        plugin = _keystone("keystoneauth1.identity.v3").ApplicationCredential(
            auth_url=auth_url,
            application_credential_id=credential_id,
            application_credential_secret=secret,
        )
        return cls(_keystone("keystoneauth1.session").Session(auth=plugin), region=region)

    @classmethod
    def cloud(cls, name: str | None = None) -> Self:
        """Log in as clouds.yaml (or the OS_* variables) says, as every OpenStack client does.

        Raises:
            ZaqarError: there is no such cloud, or something is missing in what it says.
        """
        config = _keystone("openstack.config").OpenStackConfig
        unusable = (
            _keystone("openstack.exceptions").ConfigException,
            _keystone("keystoneauth1.exceptions").ClientException,
        )
        try:
            region = config().get_one(cloud=name)
            session = region.get_session()
        except unusable as error:
            raise ZaqarError("The cloud's configuration cannot be used", str(error)) from error
        return cls(
            session,
            region=region.get_region_name() or None,
            interface=region.get_interface("messaging") or "public",
            endpoint=region.get_endpoint("messaging") or None,
        )

    @cached_property
    def ssl_context(self) -> ssl.SSLContext | None:
        """How the session checks TLS (`cacert`, `verify`, `cert`); None for as usual.

        It is made once, in some 10 ms: many clients may share a login.

        Raises:
            ValueError: a file can't be used.
        """
        verify, cert = self._session.verify, self._session.cert
        if verify is True and cert is None:
            return None
        shown = [cert] if isinstance(cert, str) else cert or ()
        context = tls_context(verify if isinstance(verify, str) else None, shown)
        if verify is False:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def headers(self) -> Mapping[str, str] | None:
        """Return the token, or None when there is none that lasts."""
        return self._headers if time.time() < self._until else None

    def login(self) -> None:
        """Fetch a token and the service's address.

        Raises:
            Unauthenticated: Keystone refused.
            Unreachable: Keystone did not answer, or could not now.
        """
        exceptions = _keystone("keystoneauth1.exceptions")
        with self._lock:
            if self.headers() is not None:
                return
            if not hasattr(self._plugin, "get_access"):
                self._without_keystone()
                return
            try:
                access = self._plugin.get_access(self._session)
            except exceptions.ClientException as error:
                status = getattr(error, "http_status", 0)
                if isinstance(error, exceptions.ConnectFailure) or status == 429 or status >= 500:
                    raise Unreachable("Keystone does not answer", str(error), sent=False) from error
                raise Unauthenticated("Keystone refused", str(error), status=401) from error
            self._url = self._endpoint or self._find(access)
            # For a second at least: our clock may be ahead of Keystone's by a token's whole life.
            self._until = max(access.expires.timestamp() - self.MARGIN, time.time() + 1)
            headers = {"X-Auth-Token": access.auth_token}
            if access.project_id:
                headers["X-Project-ID"] = access.project_id
            self._headers = headers

    def _without_keystone(self) -> None:
        """Take what clouds.yaml says itself: `auth_type: none`, or a token with an endpoint."""
        self._headers = self._session.get_auth_headers() or {}
        self._url = self._endpoint
        for service_type in self._service_types:
            self._url = self._url or self._session.get_endpoint(service_type=service_type)
        self._until = math.inf

    def forget(self) -> bool:
        """Drop the token; a new login gets another."""
        with self._lock:
            self._plugin.invalidate()
            self._headers, self._until = None, 0.0
        return True

    def url(self) -> str | None:
        """Return the service's address in the catalogue."""
        return self._url

    def _find(self, access: Any) -> str | None:  # noqa: ANN401 - keystoneauth1 ships no types
        absent = _keystone("keystoneauth1.exceptions").CatalogException
        where = {"interface": self._interface, "region_name": self._region}
        for service_type in self._service_types:
            with suppress(absent):
                url: str = access.service_catalog.url_for(service_type=service_type, **where)
                return url
        return None


def tls_context(trusted: str | None, shown: Sequence[str] = ()) -> ssl.SSLContext:
    """Return whom TLS trusts (a file or a directory; None: as the system), and what it shows.

    `shown` are the files of a certificate and its key, or one file with both.

    Raises:
        ValueError: a file can't be used; the text names it.
    """
    file = trusted
    try:
        kind = "capath" if trusted is not None and Path(trusted).is_dir() else "cafile"
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, **{kind: trusted})
        if shown:
            file = shown[0]
            context.load_cert_chain(*shown)
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror
        message = f"{file} can't be read, or does not hold what TLS needs, in PEM: {why}"
        raise ValueError(message) from error
    return context


def _keystone(module: str) -> Any:  # noqa: ANN401 - these libraries ship no types
    """Import what only Keystone users need."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        message = f"Keystone needs {module.partition('.')[0]}: pip install 'zaqar-lite[keystone]'"
        raise ImportError(message) from error

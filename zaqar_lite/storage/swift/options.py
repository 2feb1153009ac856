"""The driver's settings, and tokens: auth v1, or Keystone v3 by clouds.yaml or OS_* settings.

    swift+http://USER:KEY@HOST:PORT/auth/v1.0      auth v1 (also swift+https); %3A for a colon
    swift+https:///?cloud=NAME                     a cloud of clouds.yaml
    swift+https:///?cloud=envvars                  the OS_* variables

Options after the question mark: `cacert` and `insecure=true` for TLS with auth v1; `prefix` (of the
containers' names), `connections`, `timeout`, `patience` and `lease`.
"""

import threading
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from requests import RequestException
from swiftclient.client import get_auth
from swiftclient.exceptions import ClientException

from zaqar_lite.domain.addresses import shown
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import StoreOptions

_NUMBERS = {"connections": 24.0, "timeout": 10.0, "patience": 15.0, "lease": 60.0}
_WORDS = ("prefix", "cacert", "insecure", "cloud")


class AuthError(Exception):
    """No token could be had now; the text holds no secret."""


def root_cause(exc: BaseException) -> str:
    """Tell what is behind an error of requests, whose own words are long and never twice alike."""
    return root_cause(exc.__context__) if exc.__context__ else f"{type(exc).__name__}: {exc}"


class Auth(ABC):
    """Hold the current storage URL and token of an account; shared by all worker threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: tuple[str, str] | None = None
        self.tls: dict[str, Any] = {}
        """How a connection checks the server: `cacert`, `insecure`."""

    def token(self, stale: str | None = None) -> tuple[str, str]:
        """The storage URL and a token other than `stale`.

        Of many threads that have none, or were refused one, the first asks for it.

        Raises:
            AuthError: the auth service does not answer, or can't say where the account is.
            ConfigurationError: it refuses the user or the key.
        """
        with self._lock:
            if self._known is None or self._known[1] == stale:
                self._known = None
                self._known = self._ask()
            return self._known

    @abstractmethod
    def _ask(self) -> tuple[str, str]: ...


class AuthV1(Auth):
    """Swift's TempAuth and its kind."""

    def __init__(
        self, url: str, user: str, key: str, *, timeout: float, tls: dict[str, Any]
    ) -> None:
        super().__init__()
        self._place, self.tls = shown(url), tls
        self._log_in = partial(get_auth, url, user, key, auth_version="1", timeout=timeout, **tls)

    def _ask(self) -> tuple[str, str]:
        try:
            url, token = self._log_in()
        except ClientException as exc:
            told = f"auth at {self._place} answers {exc.http_status or 'no status'}"
            if exc.http_status in {401, 403}:
                raise ConfigurationError(f"Swift refuses the URI's USER or KEY: {told}.") from exc
            raise AuthError(told) from exc
        except (RequestException, OSError) as exc:
            raise AuthError(f"auth at {self._place}: {root_cause(exc)}") from exc
        return url, token


class Keystone(Auth):
    """Keystone v3, by a cloud of openstacksdk's configuration (clouds.yaml, or OS_*)."""

    def __init__(self, cloud: str) -> None:
        super().__init__()
        try:
            # Only this class needs the extra "keystone".
            from keystoneauth1.exceptions import ClientException as KeystoneError  # noqa: PLC0415
            from keystoneauth1.exceptions import Unauthorized  # noqa: PLC0415
            from openstack.config import OpenStackConfig  # noqa: PLC0415
            from openstack.exceptions import SDKException  # noqa: PLC0415
        except ModuleNotFoundError as exc:
            raise ConfigurationError(
                f"Keystone needs the Python package {exc.name!r}: "
                "pip install 'zaqar-lite[swift,keystone]'."
            ) from exc
        self._refusal: type[Exception] = Unauthorized
        self._failures: tuple[type[Exception], ...] = (KeystoneError, RequestException, OSError)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the SDK's own plans, which are no user's
                region = OpenStackConfig(load_envvars=True).get_one(cloud=cloud)
                self._session = region.get_session()
        except (SDKException, KeystoneError) as exc:
            raise ConfigurationError(f"The store's cloud can't be used: {exc}") from exc
        self._interface = region.get_interface("object-store")
        self._region = region.get_region_name("object-store")
        insecure = region.config.get("verify") is False
        self.tls = {"insecure": insecure, "cacert": region.config.get("cacert")}

    def _ask(self) -> tuple[str, str]:
        try:
            self._session.invalidate()
            token = self._session.get_token()
            url = self._session.get_endpoint(
                service_type="object-store", interface=self._interface, region_name=self._region
            )
        except self._refusal as exc:
            raise ConfigurationError("Keystone refuses the account of the store's cloud.") from exc
        except self._failures as exc:
            raise AuthError(f"Keystone gives no token: {root_cause(exc)}") from exc
        if not token or not url:
            raise AuthError("Keystone's catalog has no object-store endpoint for this region")
        return url, token


@dataclass(frozen=True, slots=True)
class SwiftOptions:
    """How to reach Swift and the coordination service.

    `coordination_url` None means that this process is the only one. `lease` is how many seconds
    a lock outlives a holder that is gone; writes stop at half of it.
    """

    auth: Auth
    prefix: str
    connections: int
    timeout: float
    patience: float
    lease: float
    coordination_url: str | None

    @property
    def shared(self) -> bool:
        """Whether several server processes may use the store."""
        return self.coordination_url is not None


def read(uri: str, options: StoreOptions) -> SwiftOptions:
    """Read the URI and the server's options.

    Raises:
        ConfigurationError: says which part is wrong, and what to write.
    """
    parts = urlsplit(uri)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = query.keys() - _NUMBERS.keys() - set(_WORDS)
    if unknown:
        known = ", ".join((*_NUMBERS, *_WORDS))
        raise ConfigurationError(
            f"The Swift store has no option {min(unknown)!r}; there are {known}."
        )
    numbers = {name: _number(name, query.get(name), known) for name, known in _NUMBERS.items()}
    coordination = options.extra.get("coordination_url")
    if options.workers > 1 and not coordination:
        raise ConfigurationError(
            f"{options.workers} workers on Swift need a coordination URL: Swift has no "
            "compare-and-swap, so the lock that keeps a message from two claims must be outside. "
            "Set store_options.coordination_url to a tooz URL (redis://..., etcd3+http://..., "
            "file:///a/shared/directory), or use --workers 1."
        )
    url, lease = _with_lease(coordination, numbers["lease"]) if coordination else (None, 0.0)
    least = max(4 * numbers["timeout"], 5.0)
    if url is not None and lease < least:
        raise ConfigurationError(
            f"The lock's lease of {lease:g} s must be at least {least:g} s, four times the request "
            "timeout: a write that was sent at half of the lease must have ended when it is over. "
            "Raise 'lease', or lower 'timeout'."
        )
    return SwiftOptions(
        auth=_auth(parts, query, numbers["timeout"]),
        prefix=_prefix(query.get("prefix", "zaqar")),
        connections=int(numbers["connections"]),
        timeout=numbers["timeout"],
        patience=numbers["patience"],
        lease=lease,
        coordination_url=url,
    )


def _auth(parts: SplitResult, query: dict[str, str], timeout: float) -> Auth:
    if "cloud" in query:
        if parts.netloc or parts.path.strip("/"):
            raise ConfigurationError(
                "With cloud=NAME the cloud's configuration says where Swift is: write "
                "'swift+https:///?cloud=NAME' without a host."
            )
        return Keystone(query["cloud"])
    if not parts.hostname or not parts.username or parts.password is None:
        raise ConfigurationError(
            "The Swift store's URI must be swift+http://USER:KEY@HOST:PORT/auth/v1.0 (a colon "
            "in USER is written %3A), or swift+https:///?cloud=NAME for Keystone."
        )
    place = parts.netloc.rpartition("@")[2]
    is_insecure = query.get("insecure", "false").lower() == "true"
    return AuthV1(
        f"{parts.scheme.removeprefix('swift+')}://{place}{parts.path or '/auth/v1.0'}",
        unquote(parts.username),
        unquote(parts.password),
        timeout=timeout,
        tls={"insecure": is_insecure, "cacert": query.get("cacert")},
    )


def _number(name: str, text: str | None, default: float) -> float:
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1_000_000 or (name == "connections" and value < 1):
        raise ConfigurationError(f"The Swift option {name} must be a positive number.")
    return value


def _prefix(text: str) -> str:
    if not 1 <= len(text) <= 32 or not text.replace("-", "").replace("_", "").isalnum():
        raise ConfigurationError(
            "The Swift option prefix must be 1 to 32 letters, digits, '-' or '_'."
        )
    return text


def _with_lease(url: str, lease: float) -> tuple[str, float]:
    """Tell the coordination service the lease, unless its URL says one: then that is it."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    if "lock_timeout" in query:
        return url, _number("lock_timeout", query["lock_timeout"], lease)
    query["lock_timeout"] = str(int(lease))
    return urlunsplit(parts._replace(query=urlencode(query))), float(int(lease))

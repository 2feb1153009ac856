"""Tokens: Swift's own auth v1, or Keystone v3 by clouds.yaml or OS_* settings.

    swift+http://USER:KEY@HOST:PORT/auth/v1.0      auth v1 (also swift+https); %3A for a colon
    swift+https:///?cloud=NAME                     a cloud of clouds.yaml
    swift+https:///?cloud=envvars                  the OS_* variables

Options after the question mark: `cacert` and `insecure=true` for TLS with auth v1; `prefix` (of the
containers' names), `connections`, `timeout`, `patience` and `lease` are read in `options.py`.
"""

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from requests import RequestException
from swiftclient.client import get_auth
from swiftclient.exceptions import ClientException

from zaqar_lite.domain.addresses import shown
from zaqar_lite.domain.errors import ConfigurationError


class AuthError(Exception):
    """No token could be had now; the text holds no secret."""


class Auth(ABC):
    """Hold the current storage URL and token of an account; shared by all worker threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: tuple[str, str] | None = None
        self.tls: Mapping[str, Any] = {}
        """How a connection checks the server: `cacert`, `insecure`."""

    def current(self) -> tuple[str, str]:
        """The storage URL and the token, asked for at the first use.

        Raises:
            AuthError: the auth service does not answer, or refuses.
        """
        with self._lock:
            if self._known is None:
                self._known = self._ask()
            return self._known

    def renew(self, stale: str) -> tuple[str, str]:
        """A token other than `stale`: of many threads that were refused one asks for it."""
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
        self, url: str, user: str, key: str, *, timeout: float, tls: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._url, self._user, self._key = url, user, key
        self._timeout = timeout
        self.tls = tls

    def _ask(self) -> tuple[str, str]:
        try:
            url, token = get_auth(
                self._url,
                self._user,
                self._key,
                auth_version="1",
                timeout=self._timeout,
                **self.tls,
            )
        except ClientException as exc:
            status = exc.http_status or "no status"
            raise AuthError(f"auth at {shown(self._url)} answers {status}") from exc
        except (RequestException, OSError) as exc:
            raise AuthError(f"auth at {shown(self._url)} does not answer") from exc
        return url, token


class Keystone(Auth):
    """Keystone v3, by a cloud of openstacksdk's configuration (clouds.yaml, or OS_*)."""

    def __init__(self, cloud: str) -> None:
        super().__init__()
        try:
            # Only this class needs the extra "keystone".
            from keystoneauth1.exceptions import ClientException as KeystoneError  # noqa: PLC0415
            from openstack.config import OpenStackConfig  # noqa: PLC0415
            from openstack.exceptions import SDKException  # noqa: PLC0415
        except ModuleNotFoundError as exc:
            raise ConfigurationError(
                f"Keystone needs the Python package {exc.name!r}: "
                "pip install 'zaqar-lite[swift,keystone]'."
            ) from exc
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
        self.tls = _tls_of(region.config)

    def _ask(self) -> tuple[str, str]:
        try:
            self._session.invalidate()
            token = self._session.get_token()
            url = self._session.get_endpoint(
                service_type="object-store", interface=self._interface, region_name=self._region
            )
        except self._failures as exc:
            raise AuthError(f"Keystone gives no token: {type(exc).__name__}") from exc
        if not token or not url:
            raise AuthError("Keystone's catalog has no object-store endpoint for this region")
        return url, token


def _tls_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    cacert = config.get("cacert")
    return {"insecure": config.get("verify") is False, **({"cacert": cacert} if cacert else {})}

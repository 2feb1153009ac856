"""Make from the settings the providers that authenticate clients."""

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from zaqar_lite.api.authentication import TrustedProxies
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.service.background import Worker
from zaqar_lite.service.identity.authentication import Authenticator, Provider
from zaqar_lite.service.identity.keys import Keys
from zaqar_lite.service.identity.keystone import Keystone
from zaqar_lite.service.identity.trusts import Trusts
from zaqar_lite.settings import Settings, comma_list
from zaqar_lite.storage.management import ManagementStore

if TYPE_CHECKING:
    from zaqar_lite.server.identity_servers import KeystoneServer


class Authentication(NamedTuple):
    """What identifies clients, the workers that it needs, and what makes trusts in Keystone."""

    identity: Authenticator | None
    connections: Sequence[Worker]
    trusts: Trusts | None


def authentication(
    settings: Settings, keys: Keys | None, management: ManagementStore, clock: Clock
) -> Authentication:
    """Make the providers that `auth` names; there is no identity where headers are trusted.

    Raises:
        ConfigurationError: a library is not installed, or a file can't be read.
    """
    providers: list[Provider] = []
    trusts: Trusts | None = None
    connections: list[Worker] = []
    for name in settings.providers:
        if name == "jwt":
            providers.append(_tokens(settings))
        elif name == "keystone":
            keystone, server = _keystone(settings)
            connections.append(server)
            providers.append(keystone)
            if keystone.account is not None:
                trusts = Trusts(keystone, management, clock)
                connections.append(trusts)
        elif keys is not None:
            providers.append(keys)
    if not providers:
        return Authentication(None, (), None)
    identity = Authenticator(providers, settings.max_failed_logins, clock)
    if keys is not None:
        keys.changed = identity.forget
    return Authentication(identity, connections, trusts)


def trusted_proxies(settings: Settings) -> TrustedProxies | None:
    """The gateways whose headers are trusted; None where every client's headers are.

    Raises:
        ConfigurationError: a network can't be read.
    """
    if not settings.gateways and not settings.names_gateways:
        return None
    try:
        networks = [ipaddress.ip_network(one) for one in comma_list(settings.gateways)]
    except ValueError as exc:
        raise ConfigurationError(f"gateways: {exc}.") from None
    return TrustedProxies(
        networks=networks,
        secrets=comma_list(settings.gateway_secret or ""),
        names=frozenset(comma_list(settings.gateway_names)),
    )


def _keystone(settings: Settings) -> tuple[Keystone, "KeystoneServer"]:
    """The provider of Keystone's tokens, with the server's own account if it has one.

    Raises:
        ConfigurationError: clouds.yaml has no such entry, or one that can't be used.
    """
    # Its library takes long.
    from zaqar_lite.server.identity_servers import Cloud, KeystoneServer  # noqa: PLC0415

    cloud = Cloud() if settings.keystone_cloud is None else Cloud.named(settings.keystone_cloud)
    url = settings.keystone_url or cloud.url
    server = KeystoneServer(url, cloud.tls)
    keystone = Keystone(
        server.send,
        uri=settings.keystone_public_url or url,
        believed_for=settings.keystone_believed_for,
        service_roles=frozenset(("service",)),
        account=cloud.account,
    )
    return keystone, server


def _tokens(settings: Settings) -> Provider:
    """The provider of JWTs; its library is imported only here.

    Raises:
        ConfigurationError: the library is not installed.
    """
    from zaqar_lite.server.identity_servers import Jwks  # noqa: PLC0415 - its library takes long

    try:
        from zaqar_lite.service.identity.oidc import Issuer, OpenIdConnect  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        if exc.name != "jwt":
            raise
        raise ConfigurationError(
            "auth jwt needs the Python package 'jwt': pip install 'zaqar-lite[jwt]'."
        ) from None
    return OpenIdConnect(
        Issuer(
            settings.jwt_issuer or "",
            settings.jwt_audience or "",
            project_claim=settings.jwt_project_claim,
            roles_claim=settings.jwt_roles_claim,
        ),
        Jwks(settings.jwt_keys or "").fetch,
    )

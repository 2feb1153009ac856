"""Which gateways are believed when they say who sends a request, on a server that asks nobody."""

import hmac
import ipaddress
from collections.abc import Sequence
from functools import lru_cache

from zaqar_lite.api.call import Call
from zaqar_lite.api.routes import OPEN_PATHS
from zaqar_lite.domain.errors import Denied

_HEADER = b"x-gateway-secret"
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Gateways:
    """Let in only what comes through a gateway.

    Every condition that is set must hold: the client's address is in one of `networks`,
    X-Gateway-Secret is one of `secrets`, and the client's certificate is for one of `names`.
    """

    def __init__(
        self,
        *,
        networks: Sequence[Network],
        secrets: Sequence[str],
        names: frozenset[str],
    ) -> None:
        self._secrets = [secret.encode() for secret in secrets]
        self._names = names
        self._calls_from = lru_cache(maxsize=1_024)(lambda address: _is_in(address, networks))
        self._anywhere = not networks

    def check_request(self, call: Call) -> None:
        """Check a request; one for a public path, or with a signature, needs no gateway.

        The signature is verified by `Checks`, which every request passes later.

        Raises:
            Denied: it came through no gateway.
        """
        if call.path in OPEN_PATHS or b"url-signature" in call.headers:
            call.headers.pop(_HEADER, None)
        else:
            self.check(call)

    def check(self, call: Call) -> None:
        """Take the gateway's secret off a call, and refuse the call if it came through no gateway.

        A WebSocket is checked by this at its handshake, whatever its path and its headers: nobody
        verifies a signature there, and the frames that follow are not checked again.

        Raises:
            Denied: it came through no gateway.
        """
        given = call.headers.pop(_HEADER, b"")
        if not self._anywhere and not self._calls_from(call.address):
            raise Denied("it comes from no gateway's address")
        # Every secret is compared, so that the time does not tell which one is nearly right.
        if self._secrets and not sum(hmac.compare_digest(given, one) for one in self._secrets):
            raise Denied("it has no gateway's secret")
        if self._names and self._names.isdisjoint(call.peer_names):
            raise Denied("it has no gateway's certificate")


def _is_in(address: str, networks: Sequence[Network]) -> bool:
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    plain = getattr(known, "ipv4_mapped", None) or known
    return any(plain in network for network in networks)

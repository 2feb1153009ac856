"""The guard against requests into networks that are not the subscriber's to reach (SSRF).

It looks at the address that is dialled, at each connection: a name that resolved to a public
address when the subscription was made can mean the machine next door now. An answer of the name
service with one address that is refused is refused as a whole. The refusal never names the address:
what lies in the server's networks is not the subscriber's to learn.
"""

import ipaddress
import socket
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from urllib.parse import urlsplit

from zaqar_lite.domain.errors import ConfigurationError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_WELL_KNOWN = (80, 443)
_FIRST_FREE_PORT = 1_024
_PORTS = {"redis": 6_379, "mongodb": 27_017, "swift": 8_080}


class Refused(OSError):
    """The target may not be called; the text says nothing of its address."""


@lru_cache(maxsize=1)
def denied_networks() -> tuple[_Network, ...]:
    """The networks of `denied_networks.txt`."""
    text = (files(__package__) / "denied_networks.txt").read_text(encoding="ascii")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(ipaddress.ip_network(line) for line in lines if line)


class Guard:
    """Decide whether an address may be dialled.

    `allowed` holds networks, each with or without a port (`10.1.0.0/16`, `10.1.2.3/32:8080`,
    `[fd00::/8]:443`), and exact host names. `own_ports` are those of this server and its stores:
    on an address of this machine they are refused whatever is allowed.
    """

    def __init__(self, allowed: Iterable[str] = (), *, own_ports: Iterable[int] = ()) -> None:
        self._networks: list[tuple[_Network, int | None]] = []
        self._names: set[str] = set()
        self._own_ports = frozenset(own_ports)
        for text in filter(None, map(str.strip, allowed)):
            self._allow(text)

    def allows_name(self, host: str) -> bool:
        """Tell whether a host name is allowed whatever it resolves to."""
        return host.lower().rstrip(".") in self._names

    def check(self, host: str, port: int, *, by_name: bool = False) -> None:
        """Check an address as it is about to be dialled; `by_name` skips the networks.

        Raises:
            Refused: it may not be.
        """
        address = unwrap(ipaddress.ip_address(host.partition("%")[0]))
        if port in self._own_ports and is_own(address):
            raise Refused("the target is a port of this server")
        if any(
            allowed in (None, port) and address in network
            for network, allowed in self._networks
            if network.version == address.version
        ):
            return
        if port not in _WELL_KNOWN and port < _FIRST_FREE_PORT:
            raise Refused("the target's port is not allowed")
        if by_name:
            return
        if is_denied(address) or is_own(address):
            raise Refused("the target is in a network that may not be called")

    def refusal(self, subscriber: str) -> str | None:
        """Tell why a subscriber can't be called, as far as its URL shows that; None if it may be.

        Only an address, or `localhost`, shows it. What a name stands for can change until a message
        is delivered, so names are judged when they are dialled.
        """
        parts = urlsplit(subscriber)
        host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
        if not parts.scheme.endswith(("http", "https")) or self.allows_name(parts.hostname or ""):
            return None
        try:
            self.check(host, parts.port or (443 if parts.scheme.endswith("s") else 80))
        except Refused as error:
            return str(error)
        except ValueError:  # a name
            return None
        return None

    def _allow(self, text: str) -> None:
        network, port = _split_port(text)
        try:
            self._networks.append((ipaddress.ip_network(network), port))
        except ValueError:
            if port is not None or "/" in text or ":" in text:
                raise ConfigurationError(
                    f"delivery_allowed: {text!r} is no network, such as 10.1.0.0/16 or "
                    "10.1.2.3/32:8080, and no host name."
                ) from None
            self._names.add(text.lower().rstrip("."))


def unwrap(address: _Address) -> _Address:
    """The IPv4 address inside an IPv4-mapped one."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def is_denied(address: _Address) -> bool:
    """Tell whether an address is not public, or may lead to one that is not (NAT64, 6to4)."""
    address = unwrap(address)
    if not address.is_global or address.is_multicast:
        return True
    return any(
        address in network for network in denied_networks() if network.version == address.version
    )


def is_own(address: _Address) -> bool:
    """Tell whether an address is one of this machine: only those can be listened on."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _split_port(text: str) -> tuple[str, int | None]:
    """Cut the port off `10.0.0.0/8:80` or `[fd00::/8]:80`."""
    if text.startswith("["):
        network, _, port = text[1:].partition("]")
        return network, int(port[1:]) if port[1:].isdigit() else None
    network, colon, port = text.rpartition(":")
    if colon and "/" in network and port.isdigit() and "::" not in text:
        return network, int(port)
    return text, None


def port_of(uri: str) -> int:
    """The port of a store's URI; that of its scheme where it names none, 0 where it has none."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:  # several hosts, or none
        port, parts = None, urlsplit(uri.partition(":")[0] + ":")
    if port is not None:
        return port
    return next((port for scheme, port in _PORTS.items() if parts.scheme.startswith(scheme)), 0)

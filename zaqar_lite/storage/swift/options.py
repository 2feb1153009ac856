"""The driver's settings: what the URI says, and what the server adds."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.swift.auth import Auth, AuthV1, Keystone

_NUMBERS = {"connections": 24.0, "timeout": 10.0, "patience": 15.0, "lease": 60.0}
_WORDS = ("prefix", "cacert", "insecure", "cloud")


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
            "Set coordination_url to a tooz URL (redis://..., etcd3+http://..., "
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
        auth=_auth(parts.scheme.lower(), uri, query, numbers["timeout"]),
        prefix=_prefix(query.get("prefix", "zaqar")),
        connections=int(numbers["connections"]),
        timeout=numbers["timeout"],
        patience=numbers["patience"],
        lease=lease,
        coordination_url=url,
    )


def _auth(scheme: str, uri: str, query: dict[str, str], timeout: float) -> Auth:
    parts = urlsplit(uri)
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
    tls: dict[str, Any] = {"insecure": query.get("insecure", "false").lower() == "true"}
    if "cacert" in query:
        tls["cacert"] = query["cacert"]
    return AuthV1(
        f"{scheme.removeprefix('swift+')}://{place}{parts.path or '/auth/v1.0'}",
        unquote(parts.username),
        unquote(parts.password),
        timeout=timeout,
        tls=tls,
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

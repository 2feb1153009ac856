"""Read the URI of a Redis store."""

import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from zaqar_lite.domain.errors import ConfigurationError

_KINDS = {"redis+sentinel": ("sentinel", 26379), "redis+cluster": ("cluster", 6379)}
_OPTIONS = {"timeout", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "tls"}


@dataclass(frozen=True)
class Address:
    """Where the store is and how to log in.

    `hosts` are the nodes, or the sentinels, or the seeds of a cluster. `timeout` (seconds) is how
    long Redis may be silent while calls wait.
    """

    kind: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    login: tuple[str, ...] = field(default=(), repr=False)
    database: int = 0
    timeout: float = 5.0
    tls: ssl.SSLContext | None = None


def parse(uri: str) -> Address:
    """Read a URI of one of the five schemes.

    Raises:
        ConfigurationError: says which part is wrong and how to write it.
    """
    parts = urlsplit(uri)
    scheme = parts.scheme.lower()
    options = dict(parse_qsl(parts.query))
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise ConfigurationError(
            f"Unknown option {unknown[0]!r} in the Redis URI; there are {', '.join(_OPTIONS)}."
        )
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = (unquote(part) for part in credentials.partition(":"))
    login = tuple(part for part in (user, password) if part)
    if user and not password:
        raise ConfigurationError(
            "The Redis URI has a user without a password: write user:password@, or :password@."
        )
    timeout = _timeout(options.get("timeout", "5"))
    tls = _tls(options) if scheme == "rediss" or options.get("tls") == "true" else None
    if scheme == "unix":
        path = unquote(hosts + parts.path)
        if not path:
            raise ConfigurationError("The Redis URI names no socket: write unix:///path.")
        return Address("unix", path=path, login=login, timeout=timeout)
    service, _, database = parts.path.strip("/").partition("/")
    if scheme == "redis+sentinel":
        if not service:
            raise ConfigurationError(
                "The Redis URI names no service: write redis+sentinel://host,host/service."
            )
    else:
        service, database = "", parts.path.strip("/")
    if database and (not database.isdigit() or scheme == "redis+cluster"):
        raise ConfigurationError(
            "The Redis URI ends in no number: a database is one, and a cluster has none."
        )
    kind, port = _KINDS.get(scheme, ("single", 6379))
    return Address(
        kind=kind,
        hosts=tuple(_host(host, port) for host in hosts.split(",")),
        service=service,
        login=login,
        database=int(database or 0),
        timeout=timeout,
        tls=tls,
    )


def _host(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    try:
        return parts.hostname or "127.0.0.1", parts.port or default_port
    except ValueError as exc:
        raise ConfigurationError(
            "The Redis URI has no valid host and port: write user:password@host:port."
        ) from exc


def _timeout(text: str) -> float:
    try:
        timeout = float(text)
    except ValueError:
        timeout = 0
    if not 0 < timeout <= 3600:
        raise ConfigurationError(
            "timeout in the Redis URI must be seconds, above 0 and at most 3600."
        )
    return timeout


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        if "ssl_certfile" in options:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    except OSError as exc:
        raise ConfigurationError(f"The certificates of the Redis URI can't be read: {exc}") from exc
    if options.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context

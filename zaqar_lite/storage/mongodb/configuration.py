"""What the URI and the options say: where the database is and how safe a write must be."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from zaqar_lite.domain.errors import ConfigurationError

DEFAULTS: Mapping[str, Any] = {
    "w": "majority",
    "wTimeoutMS": 10_000,
    "serverSelectionTimeoutMS": 10_000,
    "connectTimeoutMS": 5_000,
    "socketTimeoutMS": 60_000,
    "appName": "zaqar-lite",
}
"""Client options that hold unless the URI names them; the URI wins."""

_OPTIONS = ("database", "collection_prefix", "create_indexes")


@dataclass(frozen=True, slots=True)
class Configuration:
    """A checked configuration; `uri` may hold a password and is never shown.

    `client_options` are DEFAULTS without those that the URI sets.
    """

    uri: str
    database: str
    prefix: str
    create_indexes: bool
    client_options: Mapping[str, Any]


def read_configuration(uri: str, extra: Mapping[str, Any]) -> Configuration:
    """Check a URI and the driver's options.

    `database` (default: the URI's path, else `zaqar`), `collection_prefix` (default `zaqar_`),
    `create_indexes` (default true; false only checks that they are there).

    Raises:
        ConfigurationError: names the option and what it may be.
    """
    for name in extra:
        if name not in _OPTIONS:
            raise ConfigurationError(
                f"The mongodb store has no option {name!r}; it has {', '.join(_OPTIONS)}."
            )
    parts = urlsplit(uri)
    in_uri = {name.lower(): value for name, value in parse_qsl(parts.query)}
    if in_uri.get("w") == "0":
        raise ConfigurationError(
            "The mongodb store can't work with w=0: nobody would learn whether a write happened. "
            "Use w=majority (the default) or w=1."
        )
    database = extra.get("database") or parts.path.strip("/") or "zaqar"
    prefix = extra.get("collection_prefix", "zaqar_")
    create_indexes = extra.get("create_indexes", True)
    for name, value, kind in (
        ("database", database, str),
        ("collection_prefix", prefix, str),
        ("create_indexes", create_indexes, bool),
    ):
        if not isinstance(value, kind):
            raise ConfigurationError(f"The mongodb option {name} must be a {kind.__name__}.")
    return Configuration(
        uri,
        database,
        prefix,
        create_indexes,
        {name: value for name, value in DEFAULTS.items() if name.lower() not in in_uri},
    )

"""The names of our environment variables: one prefix, `ZAQAR_LITE_`, for server and clients."""

import json
import os
import re
from collections.abc import Iterable, Mapping

TYPE_CHECKING = False  # importing typing takes 6 ms, for which a shell would wait at every Tab
if TYPE_CHECKING:
    from typing import Any

PREFIX = "ZAQAR_LITE_"
CONFIG = "CONFIG"
CLIENT_NAMES = frozenset(
    {"URL", "PROJECT", "CLIENT_ID", "CONTEXT", "KEY", "CA_FILE", "SIGNED", "OS_CLOUD"}
)
"""What the clients read, which the server passes over."""
_OLDER = re.compile(r"ZAQAR(?:LITE)?_(\w+)")
_OF_KUBERNETES = re.compile(
    r"(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)"
)
"""What Kubernetes sets in every pod for a service named `zaqar-lite` or `zaqar-lite-...`."""


def server_values(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the server's variables without their prefix."""
    given = {
        name.removeprefix(PREFIX): value
        for name, value in environment.items()
        if name.startswith(PREFIX)
    }
    return {
        name: value
        for name, value in given.items()
        if name not in CLIENT_NAMES and not _is_of_kubernetes(name, value)
    }


def older_names(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what follows the prefixes of 0.2.0, which are read no more, by variable."""
    return {
        name: match[1]
        for name, value in environment.items()
        if (match := _OLDER.fullmatch(name)) and not _is_of_kubernetes(match[1], value)
    }


def nested(values: Iterable[tuple[str, str]]) -> "dict[str, Any]":
    """Put `STORE_OPTIONS__X` = `5` as `store_options` = {`x`: 5}; other values stay text.

    In a mapping a number, true or false is read as JSON.
    """
    found: dict[str, Any] = {}
    for name, text in values:
        outer, _, inner = name.lower().partition("__")
        if not inner:
            found[outer] = text
        elif isinstance(mapping := found.setdefault(outer, {}), dict):  # else it is a text already
            mapping[inner] = _scalar(text)
    return found


def client_value(name: str) -> str | None:
    """Return a variable of the clients (`URL`, `PROJECT`, ...); an empty one is none."""
    return os.environ.get(PREFIX + name) or None


def _scalar(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def _is_of_kubernetes(name: str, value: str) -> bool:
    """Tell a variable of a service from a setting: `ZAQAR_LITE_PORT=tcp://...` could be either."""
    if name.endswith("PORT") and value.startswith(("tcp://", "udp://", "sctp://")):
        return True
    return _OF_KUBERNETES.fullmatch(name) is not None

"""The names of our environment variables: one prefix, `ZAQAR_LITE_`, for server and clients.

The older names (`ZAQAR_...` of the server, `ZAQARLITE_...` of the clients, `ZAQAR_ENDPOINT` of
Spark) are read in this release too, with a warning. If both are set, the new one wins.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

PREFIX = "ZAQAR_LITE_"
CONFIG = "CONFIG"
CLIENT_NAMES = frozenset(
    {"URL", "PROJECT", "CLIENT_ID", "CONTEXT", "KEY", "CA_FILE", "SIGNED", "OS_CLOUD"}
)
"""What the clients read, which the server passes over."""

_OLD_SERVER_PREFIX = "ZAQAR_"
_OLD_CLIENT_PREFIX = "ZAQARLITE_"
_NOT_OURS = ("ZAQAR_TEST_", "ZAQAR_SPARK_")
_OLD_CLIENT_NAMES = {"ZAQAR_ENDPOINT": "URL"}
_OF_KUBERNETES = (
    r"ZAQAR_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)"
)
"""What Kubernetes sets in every pod for a service named `zaqar` or `zaqar-...`."""
_told: set[str] = set()


def server_values(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the server's variables without their prefix, and the old names that were read."""
    values: dict[str, str] = {}
    old: list[str] = []
    for name, value in environment.items():
        if not name.startswith(_OLD_SERVER_PREFIX) or name.startswith(_NOT_OURS):
            continue
        if name in _OLD_CLIENT_NAMES or _is_of_kubernetes(name, value):
            continue
        if name.startswith(PREFIX):
            key = name.removeprefix(PREFIX)
            if key not in CLIENT_NAMES:
                values[key] = value
        elif PREFIX + name.removeprefix(_OLD_SERVER_PREFIX) not in environment:
            values[name.removeprefix(_OLD_SERVER_PREFIX)] = value
            old.append(name)
    return values, old


def nested(values: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Put `STORE_OPTIONS__X` = `5` as `store_options` = {`x`: 5}; other values stay text.

    In a mapping a number, true or false is read as JSON.
    """
    found: dict[str, Any] = {}
    for name, text in values:
        outer, _, inner = name.lower().partition("__")
        if inner:
            found.setdefault(outer, {})[inner] = _scalar(text)
        else:
            found[outer] = text
    return found


def client_value(name: str) -> str | None:
    """Return a variable of the clients (`URL`, `PROJECT`, ...), by its new or its old name."""
    new = PREFIX + name
    if value := os.environ.get(new):
        return value
    old_names = [old for old, meant in _OLD_CLIENT_NAMES.items() if meant == name]
    for old in (_OLD_CLIENT_PREFIX + name, *old_names):
        if value := os.environ.get(old):
            if old not in _told:
                _told.add(old)
                print(f"zaqar-lite: warning: {renamed(old, new)}", file=sys.stderr)
            return value
    return None


def renamed(old: str, new: str | None = None) -> str:
    """Return the sentence that warns of an old name."""
    new = new or PREFIX + old.removeprefix(_OLD_SERVER_PREFIX)
    return f"{old} is read in this release only; its name is {new} now"


def _scalar(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def _is_of_kubernetes(name: str, value: str) -> bool:
    """Tell a variable of a service from a setting: `ZAQAR_PORT=tcp://...` could be either."""
    if name.endswith("_PORT") and value.startswith(("tcp://", "udp://", "sctp://")):
        return True
    return re.fullmatch(_OF_KUBERNETES, name) is not None

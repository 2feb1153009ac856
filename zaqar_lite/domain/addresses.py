"""What may be said of a store's URI: never a user, a password, or a value of its query."""

import re
from urllib.parse import parse_qsl, unquote

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:.*", re.DOTALL)
_AUTHORITY = re.compile(r"//(?P<authority>[^/?#]*)(?P<behind>.*)", re.DOTALL)
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*")
HIDDEN = "***"
"""What stands for a secret where it is shown."""


def is_ambiguous(uri: str) -> bool:
    """Tell whether a user or a password may reach behind what reads as the host.

    `redis://:a/b@host` has the host `:a` to every parser; what it meant must not be shown.
    """
    found = _AUTHORITY.search(uri)
    return found is not None and bool(found["authority"]) and "@" in found["behind"]


def shown(uri: str) -> str:
    """A store's URI without its credentials: the user, the password and the query's values.

    What does not look like a host is left out, with all behind it: it may be a password without
    its `@`.
    """
    body, mark, query = uri.partition("#")[0].partition("?")
    if _URI.fullmatch(body) is None:
        return HIDDEN
    place = _AUTHORITY.search(body)
    if place is not None and place["authority"]:
        login, at, hosts = place["authority"].rpartition("@")
        start = f"{body[: place.start()]}//"  # of `swift:https://host` by mistake, both schemes
        if is_ambiguous(uri) or not _HOSTS.fullmatch(hosts):
            return start
        body = f"{start}{HIDDEN + at if login else ''}{hosts}{place['behind']}"
    elif "@" in uri:  # of `redis:user:password@host` by mistake: nothing tells where a login begins
        return f"{body.partition(':')[0]}:{HIDDEN}"
    if not mark:
        return body
    names = [part.partition("=")[0] for part in query.split("&")]
    return f"{body}?" + "&".join(f"{name}={HIDDEN}" for name in names)


def without_secrets(text: str, uri: str) -> str:
    """Take out of `text` - another program's words - what a URI holds besides scheme and host."""
    authority, _, behind = uri.partition("://")[2].partition("?")
    login = authority.rpartition("@")[0]
    parts = {uri, login, login.partition(":")[2], behind}
    parts |= {value for _, value in parse_qsl(behind)}
    parts |= {unquote(part) for part in parts}
    for part in sorted(parts - {""}, key=len, reverse=True):
        text = text.replace(part, HIDDEN)
    return text

"""Servers with names, in a file of the user's: `zaqar-lite/contexts.json` of the configuration.

And which server is meant, by options, contexts and environment.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zaqar_lite.commands import sdk
from zaqar_lite.environment import client_value

FIELDS = ("url", "project", "client_id", "os_cloud", "signed", "ca_file", "key", "key_env")
"""What a context may hold; `key_env` names the variable that holds the key."""


class UnknownContext(ValueError):
    """There is no context of this name."""


@dataclass
class Contexts:
    """All contexts by name, and the name of the one that is used where none is asked for."""

    named: dict[str, dict[str, str]] = field(default_factory=dict)
    current: str | None = None

    def get(self, name: str | None) -> dict[str, str]:
        """Return what a context says; without a name the current one, or nothing.

        Raises:
            UnknownContext: there is none of this name; the text lists those there are.
        """
        wanted = name or self.current
        if wanted is None:
            return {}
        if wanted not in self.named:
            there = ", ".join(sorted(self.named)) or "none"
            raise UnknownContext(f"there is no context {wanted!r}; there are: {there}")
        return self.named[wanted]


def client_options(given: Mapping[str, str | None]) -> dict[str, Any]:
    """Return which server is meant, as the arguments of a client: where, who, and with what proof.

    The proof is a signed permission, else a key, else what a cloud says.

    Args:
        given: the options of connection by name, with `_` for `-`. What they do not say is taken
            from the context that was asked for, then the environment, then the current context.

    Raises:
        UnknownContext: the context that was asked for is none.
        ValueError: a file can't be used, the variable with the context's key is not set, or the
            project or address is an empty text.
    """
    for name in ("project", "url"):
        if given.get(name) == "":
            raise ValueError(f"--{name} is empty: is the variable set that it was taken from?")
    asked_for = given.get("context") or client_value("CONTEXT")
    context = load().get(asked_for)

    def value(name: str) -> str | None:
        from_context, from_environment = context.get(name), client_value(name.upper())
        if asked_for is not None:
            return given.get(name) or from_context or from_environment
        return given.get(name) or from_environment or from_context

    url, signed, ca_file = value("url"), value("signed"), value("ca_file")
    cloud = value("os_cloud") or (os.environ.get("OS_CLOUD") if url is None else None)
    key = given.get("access_key")
    if key is None and given.get("os_cloud") is None:
        key = client_value("KEY")
        if key is None or asked_for is not None:
            key = key_of(context, url) or key
    auth: sdk.Auth | None = None
    if signed is not None:
        auth = sdk.SignedAuth.from_file(signed)
    elif key is not None:
        auth = sdk.KeyAuth(key)
    elif cloud is not None:
        auth = sdk.KeystoneAuth.cloud(cloud)
    shown = given.get("client_cert")
    trusts_as_system = ca_file is None and shown is None
    tls = None if trusts_as_system else sdk.auth.tls_context(ca_file, [shown] if shown else [])
    who = {"project": value("project"), "client_id": value("client_id")}
    return {"url": url, "auth": auth, "ssl_context": tls, **who}


def key_of(context: Mapping[str, str], url: str | None) -> str | None:
    """Return a context's key, which may be in a variable; only for the context's own server.

    Raises:
        ValueError: the variable is not set.
    """
    if context.get("url") not in (None, url):
        return None
    variable = context.get("key_env")
    if variable is None:
        return context.get("key")
    if not os.environ.get(variable):
        raise ValueError(f"the context's key is in {variable}, which is not set")
    return os.environ[variable]


def path() -> Path:
    """Return where the file is, or will be."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "zaqar-lite" / "contexts.json"


def load() -> Contexts:
    """Read the file; without one there are no contexts.

    Raises:
        ValueError: it is not what `save` writes.
    """
    try:
        text = path().read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return Contexts()
    try:
        document = json.loads(text)
        named = {
            str(name): {field: str(given[field]) for field in FIELDS if field in given}
            for name, given in document["contexts"].items()
        }
        return Contexts(named, document.get("current"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path()} can't be read as contexts: mend it, or remove it") from error


def save(contexts: Contexts) -> None:
    """Write the file, readable by its owner only, in the place of the one before."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    document = {"current": contexts.current, "contexts": contexts.named}
    new.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    new.replace(file)

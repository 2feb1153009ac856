"""Servers with names, in a file of the user's: `zaqar-lite/contexts.json` of the configuration."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

FIELDS = ("url", "project", "client_id", "os_cloud", "signed", "ca_file", "key", "key_env")
"""What a context may say; `key_env` names the variable that holds the key."""


class UnknownContext(ValueError):
    """There is no context of this name."""


@dataclasses.dataclass
class Contexts:
    """All contexts by name, and the name of the one that is used where none is asked for."""

    named: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
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
            message = f"there is no context {wanted!r}; there are: {there}"
            raise UnknownContext(message)
        return self.named[wanted]


def key_of(context: Mapping[str, str], url: str | None) -> str | None:
    """The key that a context holds, or its variable; for the context's own server alone.

    Raises:
        ValueError: the variable is not set.
    """
    if context.get("url") not in (None, url):
        return None
    variable = context.get("key_env")
    if variable is None:
        return context.get("key")
    if not os.environ.get(variable):
        message = f"the context's key is in {variable}, which is not set"
        raise ValueError(message)
    return os.environ[variable]


def path() -> Path:
    """Return where the file is, or will be."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "zaqar-lite" / "contexts.json"


def load() -> Contexts:
    """Read the file; without one there are no contexts.

    Raises:
        ValueError: it is not what `save` writes.
    """
    try:
        text = path().read_text(encoding="utf-8")
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
        message = f"{path()} can't be read as contexts: mend it, or remove it"
        raise ValueError(message) from error


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

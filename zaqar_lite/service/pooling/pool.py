"""A pool as it is kept: a message store by its URI, and how many of the new queues it gets."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from zaqar_lite.domain.addresses import HIDDEN, masked

MAX_WEIGHT = (1 << 32) - 1
_SECRET = re.compile("pass|secret|token|key|credential|auth", re.IGNORECASE)
_URI = re.compile("://|@")
MAX_TEXT = 255
"""Characters of a URI, and of the names of pools and flavors."""


class Pool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pool; of weight 0 it gets no new queues. `options` are its driver's settings by name."""

    name: str
    uri: str
    weight: int
    flavor: str | None = None
    options: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        """Show no credentials."""
        return f"Pool({self.name!r}, {self.shown_uri!r}, {self.weight!r}, {self.flavor!r})"

    def encode(self) -> bytes:
        """The pool as a record keeps it."""
        return msgspec.json.encode(self)

    @property
    def shown_uri(self) -> str:
        """The URI without its credentials, which nobody is told."""
        return masked(self.uri)

    @property
    def shown_options(self) -> Mapping[str, Any]:
        """The options without what may be a secret, by its name or as a URI with credentials."""
        return {name: _shown(name, value) for name, value in self.options.items()}


def _shown(name: str, value: object) -> object:
    if _SECRET.search(name):
        return HIDDEN
    if isinstance(value, str) and _URI.search(value):
        return masked(value)
    if isinstance(value, list | dict):  # upstream has plain values only
        return HIDDEN
    return value


decode_pool = msgspec.json.Decoder(Pool).decode


class Flavor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named set of pools of a project's choice, and what the first of them is said to do."""

    name: str
    pools: tuple[str, ...]
    capabilities: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The flavor as a record keeps it."""
        return msgspec.json.encode(self)


decode_flavor = msgspec.json.Decoder(Flavor).decode

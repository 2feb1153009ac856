"""What goes between the records and the engine: batches, rows, and damage.

The engine (`slatedb/`) has five calls over sorted keys: `open`, `get`, `scan`, `commit` and
`close`. Keys and values are the bytes of the RFC.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.opendata.format.keys import describe


class Damage(NamedTuple):
    """A record that can't be read any more."""

    key: bytes
    why: str

    def __str__(self) -> str:
        return f"{describe(self.key)}: {self.why}"


class Unreadable(Unavailable):
    """A record can't be read, or `after` it all others of a range."""

    def __init__(self, damage: Damage, after: str = "") -> None:
        super().__init__(f"{after}{describe(damage.key)} can't be read: {damage.why}.")


class Batch(NamedTuple):
    """Changes that are made together or not at all."""

    puts: Mapping[bytes, bytes]
    deletes: Sequence[bytes]

"""What goes between the records and the engine: batches, rows, and what can't be read.

The engine (`slatedb/`) has five calls over sorted keys: `open`, `get`, `scan`, `commit` and
`close`. Keys and values are the bytes of the RFC.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.opendata.format.keys import describe


class Unreadable(Unavailable):
    """A record can't be read, or all of a range `after` it; `why` says what was found."""

    def __init__(self, key: bytes, why: str, *, after: bool = False) -> None:
        super().__init__(f"{'Everything after ' * after}{describe(key)} can't be read: {why}.")
        self.key = key
        self.why = why


class Batch(NamedTuple):
    """Changes that are made together or not at all."""

    puts: Mapping[bytes, bytes]
    deletes: Sequence[bytes]

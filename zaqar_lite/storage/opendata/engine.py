"""The engine under the records, and the directory that it lies in.

An engine has five calls over sorted keys: `open`, `get`, `scan`, `commit` and `close`. Keys and
values are the bytes of the RFC.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.opendata.format.keys import describe

FIRST = b"\x01"
"""The first key of records; keys below are the engine's own."""


class Damage(NamedTuple):
    """A record that the engine cannot read any more."""

    key: bytes
    why: str

    def __str__(self) -> str:
        return f"{describe(self.key)}: {self.why}"


class Unreadable(Unavailable):
    """The rest of a range of records can't be read: everything after a key may be lost."""

    def __init__(self, last: bytes, why: str) -> None:
        super().__init__(f"Everything after {describe(last)} can't be read: {why}.")
        self.last = last


Stored: TypeAlias = bytes | Damage
Row: TypeAlias = tuple[bytes, Stored]


class Batch(NamedTuple):
    """Changes that are made together or not at all."""

    puts: Mapping[bytes, bytes]
    deletes: Sequence[bytes]


class Engine(ABC):
    """A sorted key-value store with one writer. All calls may raise Unavailable."""

    way_out = "It is kept as it is: restore it from a backup."
    """What to do where the store can't be read."""

    patience = 10.0
    """Seconds after which operations stop to wait for a commit; it may still be stored."""

    is_fenced = False
    """Whether another server has become the writer of this place."""

    complaint = ""
    """Why the commit under way takes long, where that is known."""

    @abstractmethod
    async def open(self) -> None:
        """Become the only writer of this place, or refuse.

        Raises ConfigurationError: another server has it, or it cannot be used; says what to do.
        """

    @abstractmethod
    async def get(self, keys: Sequence[bytes]) -> dict[bytes, Stored]:
        """Read records by key; absent ones are left out."""

    @abstractmethod
    def scan(self, start: bytes, end: bytes) -> AsyncIterator[Sequence[Row]]:
        """Read the records from `start` up to, not including, `end`, in order, in chunks.

        Raises Unreadable: nothing after the rows answered so far can be read.
        """

    @abstractmethod
    async def commit(self, batch: Batch) -> None:
        """Make changes durable: when this returns, they survive the loss of power.

        Raises Unavailable: they were not made, or it is not known whether they were.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release everything; idempotent."""

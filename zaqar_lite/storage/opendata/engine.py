"""The engine under the records, and the directory that it lies in.

An engine has five calls over sorted keys: `open`, `get`, `scan`, `commit` and `close`. Keys and
values are the same bytes in every engine. Local engines share the handling of their directory: it
is locked, made durably, and tried by writing a file, because no engine says why it can't write.
"""

import contextlib
import errno
import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.storage.opendata.format import CodecError
from zaqar_lite.storage.opendata.format.keys import describe

REBUILT = b"\x00rebuilt"
"""The key that marks a store filled from a damaged one: any of its records may be missing."""
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


def readable(stored: Mapping[bytes, Stored], key: bytes) -> bytes:
    """The value of a key among what was read.

    Raises CodecError: it is missing or damaged; names the record.
    """
    value = stored.get(key)
    if value is None:
        raise CodecError(f"{describe(key)} is missing")
    if isinstance(value, Damage):
        raise CodecError(str(value))
    return value


class Batch(NamedTuple):
    """Changes that are made together or not at all."""

    puts: Mapping[bytes, bytes]
    deletes: Sequence[bytes]


class Engine(ABC):
    """A sorted key-value store with one writer. All calls may raise Unavailable."""

    damages: list[str]
    """Damage found at opening that is not in one record."""

    way_out = "It is kept as it is: restore it from a backup."
    """What to do where the store can't be read."""

    patience = 10.0
    """Seconds after which operations stop to wait for a commit; it may still be stored."""

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


class DirectoryLock:
    """One server at a time in a directory: an flock, which ends with the process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: int | None = None

    def acquire(self) -> None:
        """Create the directory and take its lock.

        Raises ConfigurationError: another process has it, or the directory can't be made.
        """
        try:
            make_directory(self._directory)
            file = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise ConfigurationError(
                f"The store's directory {self._directory} can't be used: {exc.strerror}."
            ) from exc
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            holder = os.read(file, 20).decode(errors="replace").strip() or "unknown"
            os.close(file)
            raise ConfigurationError(
                f"Another server (process {holder}) uses the store in {self._directory}: stop it, "
                "or give this one a directory of its own (--store embedded:///path)."
            ) from exc
        self._file = file
        with contextlib.suppress(OSError):  # a full disk; only a message names the holder
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let the directory go; idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


FULL = "its disk is full: free some space, and start again"


def try_to_write(file: Path) -> None:
    """Try to write a file of 64 KiB. Raises OSError: says why the disk does not take it."""
    try:
        with file.open("wb") as probe:
            probe.write(bytes(65_536))
            probe.flush()
            os.fsync(probe.fileno())
    finally:
        file.unlink(missing_ok=True)


def make_directory(directory: Path) -> None:
    """Make a directory, and what is missing above it, so that they survive the loss of power.

    Raises OSError: one can't be made.
    """
    missing = []
    path = directory.absolute()
    while not path.exists():
        missing.append(path)
        path = path.parent
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for made in reversed(missing):
        parent = os.open(made.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


def is_full(exc: BaseException) -> bool:
    """Whether an error says that there is no room, or none for this user."""
    return isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT)


def refuses_for_room(directory: Path) -> bool:
    """Whether a directory takes no file of 64 KiB because its disk is full."""
    try:
        try_to_write(directory / "probe")
    except OSError as exc:
        return is_full(exc)
    return False

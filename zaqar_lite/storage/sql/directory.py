"""A store's directory: made durably, locked by one server, and tried by writing a file.

SlateDB's stores have one too. An engine seldom says why it can't write, so a probe asks the disk.
"""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from zaqar_lite.domain.errors import ConfigurationError

FULL = "its disk is full: free some space, and start again"


class DirectoryLock:
    """One server at a time in a directory: an flock, which ends with the process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: int | None = None

    def acquire(self) -> None:
        """Create the directory and take its lock.

        Raises:
            ConfigurationError: another process has it, or the directory can't be made.
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


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises OSError: the disk did not take them."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
        sync_directory(made.parent)


def try_to_write(file: Path) -> None:
    """Try to write a file of 64 KiB. Raises OSError: says why the disk does not take it."""
    try:
        with file.open("wb") as probe:
            probe.write(bytes(65_536))
            probe.flush()
            os.fsync(probe.fileno())
    finally:
        file.unlink(missing_ok=True)


def is_full(exc: BaseException) -> bool:
    """Whether an error says that there is no room, or none for this user."""
    return isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT)

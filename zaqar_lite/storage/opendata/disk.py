"""A directory and its files: locked, made to last, tried by writing, because no engine says why."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

FULL = "its disk is full: free some space, and start again"


def try_to_write(file: Path) -> None:
    """Try whether the disk takes a file of 64 KiB. Raises OSError: it does not, and why."""
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


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Open a file beside `target` that takes its place at the end, or goes when something fails.

    Only its owner may read it, whatever the earlier file allowed. What is no file, such as a pipe,
    is written as it is. Raises OSError: a file can't be written.
    """
    if target.exists() and not target.is_file():
        with target.open("wb") as there:
            yield there
        return
    target = target.resolve()  # a link goes on leading to its file
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(beside, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise

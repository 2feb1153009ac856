"""What is wrong with a disk: tried by writing to it, because the engines do not say."""

import errno
import os
from pathlib import Path

FULL = "its disk is full: free some space, and start again"


def try_to_write(file: Path) -> None:
    """Try whether the disk takes a file of 64 KiB.

    Raises:
        OSError: it does not, and why.
    """
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


def refuses_for_room(directory: Path) -> bool:
    """Whether a directory takes no file of 64 KiB because its disk is full."""
    try:
        try_to_write(directory / "probe")
    except OSError as exc:
        return is_full(exc)
    return False

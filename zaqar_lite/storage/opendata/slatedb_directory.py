"""A directory that holds a SlateDB store: syncing it, trying it, and repairing it at the start."""

import ctypes
import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)


def syncfs(descriptor: int) -> None:
    """Sync the file system of an open directory.

    Raises:
        OSError: it failed.
    """
    if _libc.syncfs(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


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


def repair(place: Path) -> bool:
    """Move trailing files aside that a loss of power left empty or full of zeros.

    Nothing acknowledged can be in them: it was synced. Answers whether there were any.
    """
    moved = False
    for folder, pattern in (("wal", "*.sst"), ("manifest", "*.manifest")):
        for file in sorted((place / folder).glob(pattern), reverse=True):
            if file.read_bytes().strip(b"\x00"):
                break
            logger.warning("moved aside %s: it holds nothing but zeros", file)
            file.rename(file.with_suffix(file.suffix + ".damaged"))
            moved = True
    return moved

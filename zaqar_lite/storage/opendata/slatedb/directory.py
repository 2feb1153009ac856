"""A directory that holds a SlateDB store: locked, synced, and opened in bounded time."""

import asyncio
import ctypes
import logging
import os
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from zaqar_lite.domain.errors import ConfigurationError, Unavailable, ZaqarLiteError
from zaqar_lite.storage.opendata.engine import FULL, DirectoryLock, is_full, try_to_write
from zaqar_lite.storage.opendata.slatedb import FOLDER

logger = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)


class LocalDirectory(DirectoryLock):
    """The directory of a server, with the store in `place`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.place = directory / FOLDER
        self._descriptor = -1

    def make(self) -> None:
        """Make the folder of the store if it is missing. Raises OSError: that failed."""
        self.place.mkdir(mode=0o700, exist_ok=True)
        self._descriptor = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def repair(self) -> bool:
        """Move trailing files aside that a loss of power left empty or full of zeros.

        Acknowledged batches were synced, so none is in them. Answers whether there were any. Raises
        OSError: a file can't be read or moved.
        """
        moved = False
        for folder, pattern in (("wal", "*.sst"), ("manifest", "*.manifest")):
            for file in sorted((self.place / folder).glob(pattern), reverse=True):
                if file.read_bytes().strip(b"\x00"):
                    break
                logger.warning("moved aside %s: it holds nothing but zeros", file)
                file.rename(file.with_suffix(file.suffix + ".damaged"))
                moved = True
        return moved

    async def try_to_write(self) -> None:
        """Try whether the disk takes a file of 64 KiB. Raises OSError: it does not, and why."""
        await asyncio.get_running_loop().run_in_executor(None, try_to_write, self.place / "probe")

    async def sync(self) -> None:
        """Sync the file system. Raises OSError: it failed."""
        if self._descriptor >= 0:
            await asyncio.get_running_loop().run_in_executor(None, _syncfs, self._descriptor)

    def release(self) -> None:
        """Let the directory go; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().release()


def _syncfs(descriptor: int) -> None:
    if _libc.syncfs(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


_LOOK = 1.0
_PATIENCE_REMOTE = 60.0
_PATIENCE_LOCAL = 600.0  # the log may be a long one: it grows while there are gaps
T = TypeVar("T")


async def in_time(step: Awaitable[T], local: LocalDirectory | None) -> T:
    """Wait for a step of the opening, with a limit; SlateDB itself would retry for ever, silently.

    Raises TimeoutError: no answer in time; says what to check; OSError: the disk can't be written.
    """
    patience = _PATIENCE_REMOTE if local is None else _PATIENCE_LOCAL
    task = asyncio.ensure_future(step)
    until = time.monotonic() + patience
    try:
        while time.monotonic() < until:
            await asyncio.wait({task}, timeout=min(_LOOK, patience))
            if task.done():
                return task.result()
            if local is not None:
                await local.try_to_write()
    finally:
        task.cancel()
    place = "AWS_ENDPOINT, AWS_REGION and the network" if local is None else "its disk"
    raise TimeoutError(f"no answer in {patience:g} seconds. See to {place}.")


def cannot_open(place: str, exc: Exception) -> ZaqarLiteError:
    """The error for a store that can't be opened, with what to do; a time-out is temporary."""
    if isinstance(exc, TimeoutError):
        return Unavailable(f"The SlateDB store does not open: {exc}", detail=place)
    if is_full(exc):
        why = f"{FULL}."
    else:
        way_out = "restore it from a backup, or give the server another place."
        why = f"{exc}. It is kept as it is: {way_out}"
    return ConfigurationError(f"The SlateDB store at {place} can't be opened: {why}")

"""A directory that holds a SlateDB store: locked, synced, repaired, and opened in bounded time."""

import asyncio
import contextlib
import ctypes
import logging
import os
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from zaqar_lite.domain.errors import ConfigurationError, Unavailable, ZaqarLiteError
from zaqar_lite.storage.opendata.engine import FULL, DirectoryLock, is_full, try_to_write
from zaqar_lite.storage.opendata.slatedb import FOLDER
from zaqar_lite.storage.opendata.slatedb.binding import slatedb

logger = logging.getLogger(__name__)
_CLEAN = "clean-shutdown"
_COMMIT = "last-commit"
_NEWEST = "newest-files"
_UNCHECKED = ("manifest", "compactions")
_libc = ctypes.CDLL(None, use_errno=True)


class LocalDirectory(DirectoryLock):
    """The directory of a server: the store in `place`, and the note that it was closed in order."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.place = directory / FOLDER
        self.clean = directory / _CLEAN
        self._descriptor = -1

    def make(self) -> None:
        """Make the place, if it is not there. Raises OSError: that failed."""
        self.place.mkdir(mode=0o700, exist_ok=True)
        self._descriptor = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def note_newest(self) -> None:
        """Note the crc32 of the newest manifest and of the compaction's newest file.

        SlateDB gives them no checksum. Raises OSError: it could not be written.
        """
        newest = [found for folder in _UNCHECKED if (found := _newest(self.place / folder))]
        lines = [f"{file.name} {zlib.crc32(file.read_bytes())}\n" for file in newest]
        written = self.place / f"{_NEWEST}.new"
        written.write_text("".join(lines))
        written.replace(self.place / _NEWEST)

    def check_newest(self) -> None:
        """Compare these files with what was noted.

        Raises ConfigurationError: one is not what was written; OSError: one can't be read.
        """
        try:
            noted = dict(line.split() for line in (self.place / _NEWEST).read_text().splitlines())
        except (FileNotFoundError, ValueError):
            return
        for name, checksum in noted.items():
            file = self.place / name.rpartition(".")[2] / name
            newest = _newest(file.parent)
            if newest is None or newest < file:
                problem = "is missing"
            elif newest == file and checksum != str(zlib.crc32(file.read_bytes())):
                problem = "is not what was written"
            else:
                continue
            raise ConfigurationError(
                f"The SlateDB store at {self.place} can't be opened: {file} {problem}. It is kept "
                "as it is: restore it from a backup, or give the server another place."
            )

    @property
    def noted_commit(self) -> int:
        """The number of a commit that is durable, and mostly is the last one; 0 for none noted.

        Raises OSError: the note can't be read.
        """
        try:
            note = (self.place / _COMMIT).read_bytes()
        except FileNotFoundError:
            return 0
        number = note[:8]
        return int.from_bytes(number, "big") if note[8:] == _checksum(number) else 0

    async def try_to_write(self) -> None:
        """Try whether the disk takes a file of 64 KiB. Raises OSError: it does not, and why."""
        await asyncio.get_running_loop().run_in_executor(None, try_to_write, self.place / "probe")

    async def sync(self, commit: int = 0) -> None:
        """Sync the file system; then note that this commit and those before it are durable.

        A start misses it then. The note goes to the disk with the next sync: an older one is true
        as well, and so is none, where the disk takes no more. Raises OSError: it failed.
        """
        if self._descriptor >= 0:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, _sync, self._descriptor, self.place, commit)

    def release(self) -> None:
        """Let the directory go; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().release()


def _sync(descriptor: int, place: Path, commit: int) -> None:
    _syncfs(descriptor)
    if commit:
        with contextlib.suppress(OSError):
            _note(place / _COMMIT, commit)


def _note(file: Path, commit: int) -> None:
    number = commit.to_bytes(8, "big")
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, number + _checksum(number), 0)
    finally:
        os.close(descriptor)


def _newest(folder: Path) -> Path | None:
    return max(folder.glob(f"*.{folder.name}"), default=None)


def _checksum(number: bytes) -> bytes:
    return zlib.crc32(number).to_bytes(4, "big")


def _syncfs(descriptor: int) -> None:
    """Sync the file system of an open directory. Raises OSError: it failed."""
    if _libc.syncfs(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


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


_LOOK = 1.0
_PATIENCE_REMOTE = 60.0
_PATIENCE_LOCAL = 600.0  # the log may be a long one: it grows while there are gaps
T = TypeVar("T")


async def in_time(step: Awaitable[T], local: LocalDirectory | None) -> T:
    """Take a step of the opening; SlateDB itself would try for ever, and say nothing.

    Raises TimeoutError: there is no answer; says for how long, and what to see to; OSError: the
    disk takes nothing, and why.
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
    """Say why a store can't be opened, and what to do; one that is silent may answer later."""
    if isinstance(exc, TimeoutError):
        return Unavailable(f"The SlateDB store does not open: {exc}", detail=place)
    if is_full(exc):
        why = f"{FULL}."
    else:
        way_out = "restore it from a backup, or give the server another place."
        why = f"{exc}. It is kept as it is: {way_out}"
    return ConfigurationError(f"The SlateDB store at {place} can't be opened: {why}")


async def open_directory(
    local: LocalDirectory, build: Callable[[], Awaitable[slatedb.Db]]
) -> slatedb.Db:
    """Open the store of a directory, by `build`.

    Raises ConfigurationError: a file that has no checksum of its own is not what was written;
    OSError: a file can't be read or written; slatedb.Error: anything else that keeps SlateDB from
    opening it; slatedb.InternalError: as above.
    """
    local.make()
    is_repaired = not local.clean.exists() and repair(local.place)
    local.check_newest()
    local.clean.unlink(missing_ok=True)
    try:
        db = await build()
    except slatedb.Error:
        if not is_repaired:
            raise
        db = await build()  # after a lost manifest the first try reports a fence
    local.note_newest()
    await local.sync()
    return db

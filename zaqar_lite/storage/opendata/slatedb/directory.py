"""A directory that holds a SlateDB store: locked, synced, tried, and repaired at the start."""

import asyncio
import contextlib
import ctypes
import logging
import os
import zlib
from pathlib import Path

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.storage.opendata.disk import try_to_write
from zaqar_lite.storage.opendata.engine import DirectoryLock

logger = logging.getLogger(__name__)
FOLDER = "slatedb"
_CLEAN = "clean-shutdown"
_COMMIT = "last-commit"
_NEWEST = "newest-files"
_UNCHECKED = ("manifest", "compactions")
_libc = ctypes.CDLL(None, use_errno=True)


class LocalDirectory:
    """The directory of a server: its lock, the store in `place`, and whether that was closed."""

    def __init__(self, directory: Path) -> None:
        self.place = directory / FOLDER
        self._lock = DirectoryLock(directory)
        self._clean = directory / _CLEAN
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ConfigurationError: another process has it, or the directory can't be made.
        """
        self._lock.acquire()

    def make(self) -> None:
        """Make the place, if it is not there.

        Raises:
            OSError: that failed.
        """
        self.place.mkdir(mode=0o700, exist_ok=True)
        self._descriptor = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def was_closed(self) -> bool:
        """Whether the store was closed in order and not opened since."""
        return self._clean.exists()

    def note_closed(self) -> None:
        """Note that the store was closed in order."""
        self._clean.touch()

    def note_opened(self) -> None:
        """Note that it is not closed any more."""
        self._clean.unlink(missing_ok=True)

    def note_newest(self) -> None:
        """Note the crc32 of the newest manifest and of the compaction's newest file.

        SlateDB gives them no checksum.

        Raises:
            OSError: it could not be written.
        """
        newest = [found for folder in _UNCHECKED if (found := _newest(self.place / folder))]
        lines = [f"{file.name} {zlib.crc32(file.read_bytes())}\n" for file in newest]
        written = self.place / f"{_NEWEST}.new"
        written.write_text("".join(lines))
        written.replace(self.place / _NEWEST)

    def check_newest(self) -> None:
        """Compare these files with what was noted.

        Raises:
            ConfigurationError: one is not what was written.
            OSError: one can't be read.
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

        Raises:
            OSError: the note can't be read.
        """
        try:
            note = (self.place / _COMMIT).read_bytes()
        except FileNotFoundError:
            return 0
        number = note[:8]
        return int.from_bytes(number, "big") if note[8:] == _checksum(number) else 0

    async def try_to_write(self) -> None:
        """Try whether the disk takes a file of 64 KiB.

        Raises:
            OSError: it does not, and why.
        """
        await asyncio.get_running_loop().run_in_executor(None, try_to_write, self.place / "probe")

    async def sync(self, commit: int = 0) -> None:
        """Sync the file system; then note that this commit and those before it are durable.

        A start misses it then. The note goes to the disk with the next sync: an older one is true
        as well, and so is none, where the disk takes no more.

        Raises:
            OSError: it failed.
        """
        if self._descriptor >= 0:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, _sync, self._descriptor, self.place, commit)

    def release(self) -> None:
        """Let the directory go; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._lock.release()


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


def holds_store(directory: Path) -> bool:
    """Whether there is a store."""
    return (directory / FOLDER).exists()


def _syncfs(descriptor: int) -> None:
    """Sync the file system of an open directory.

    Raises:
        OSError: it failed.
    """
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

"""A disk that fails on purpose: SQLite's own layer below its files (VFS), with a switch.

Every file that SQLite opens while it is the default layer passes through it. What the store does
beside SQLite, `place.sync_data`, is replaced by a test itself.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

Hook = Callable[[str, str], None]
"""Called with the kind of a file and what is done to it; raises to let that fail.

Kinds are `wal`, `file` and `other`; done is `read`, `write`, `sync`, `truncate` or `open`.
"""


class Disk(apsw.VFS):
    """The layer: `hook` is asked before each call, and `copy` shows what a loss of power leaves.

    `lock` is held by whoever changes a file, so that a copy is of one instant. `synced` is how
    many bytes of the WAL SQLite itself has synced; `place.sync_data` is beside it.
    """

    def __init__(self) -> None:
        self.hook: Hook | None = None
        self.lock = threading.RLock()
        self.synced = 0
        self._written = 0
        self._overwritten: list[tuple[int, bytes]] = []
        super().__init__("zaqar-failing", "unix", makedefault=True)

    def ask(self, kind: str, done: str) -> None:
        """Let the test's hook raise."""
        if self.hook is not None:
            self.hook(kind, done)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        text = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        kind = "wal" if text.endswith("-wal") else "file" if text.endswith(".sqlite3") else "other"
        self.ask(kind, "open")
        return DiskFile(self, kind, name, flags)

    def note_write(self, kind: str, offset: int, length: int, before: bytes) -> None:
        """Note what a write replaces, until it is synced."""
        if kind == "file":
            self._overwritten.append((offset, before))
        elif kind == "wal":  # the header begins the WAL anew; what is behind it there is old
            self._written = offset + length if not offset else max(self._written, offset + length)
            self.synced = min(self.synced, self._written)

    def note_sync(self, kind: str) -> None:
        """Note that nothing of what was written can be lost any more."""
        if kind == "file":
            self._overwritten.clear()
        elif kind == "wal":
            self.synced = self._written

    def copy(self, source: Path, target: Path, synced: int, chance: random.Random) -> str:
        """Copy a store as a loss of power leaves it; answer what became of the WAL's end.

        `synced` is how many bytes of the WAL the store has synced. Writes to the file that nothing
        has synced yet are lost or kept at random. Of the WAL is left what was synced, and behind
        it nothing, a piece of what was written, or garbage.
        """
        target.mkdir()
        with self.lock:
            data, wal = bytearray(source.read_bytes()), Path(f"{source}-wal").read_bytes()
            synced, overwritten = max(synced, self.synced), list(self._overwritten)
        for offset, before in reversed(overwritten):
            if chance.random() < 0.5:
                data[offset : offset + len(before)] = before
        rest = wal[synced:]
        ends = {
            "nothing": b"",
            "torn": rest[: chance.randrange(len(rest) + 1)],
            "garbage": chance.randbytes(min(len(rest), 100_000) or 5_000),
            "all": rest,
        }
        end = chance.choice(list(ends))
        (target / source.name).write_bytes(data)
        Path(f"{target / source.name}-wal").write_bytes(wal[:synced] + ends[end])
        return end


class DiskFile(apsw.VFSFile):
    """A file that asks its disk first."""

    def __init__(self, disk: Disk, kind: str, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk
        self._kind = kind

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._disk.ask(self._kind, "read")
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        with self._disk.lock:
            self._disk.ask(self._kind, "write")
            before = b""
            if self._kind == "file" and offset < (size := self.xFileSize()):
                before = super().xRead(min(len(data), size - offset), offset)
            super().xWrite(data, offset)
            self._disk.note_write(self._kind, offset, len(data), before)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        with self._disk.lock:
            self._disk.ask(self._kind, "truncate")
            super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        with self._disk.lock:
            self._disk.ask(self._kind, "sync")
            super().xSync(flags)
            self._disk.note_sync(self._kind)


@contextmanager
def failing_disk() -> Iterator[Disk]:
    """Let what is opened now lie on a disk that can fail."""
    disk = Disk()
    try:
        yield disk
    finally:
        disk.hook = None
        disk.unregister()


def failing_at(what: tuple[str, str], error: type[apsw.Error], every: int = 1) -> Hook:
    """A hook by which every so many calls of a kind fail."""
    calls = 0

    def fail(*call: str) -> None:
        nonlocal calls
        if call == what or (what[0] == "any" and call[1] == what[1]):
            calls += 1
            if calls % every == 0:
                raise error

    return fail

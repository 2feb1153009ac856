"""The SQLite engine: one file in a directory, one process that writes, one thread that reads.

Keys compare as bytes, so their order is that of every other engine. WAL mode with synchronous=FULL:
a commit returns after its fsync. Batches are written by a process of their own (`writer.py`); what
is not in memory is read by a thread, through a connection of its own. Every row has a checksum: a
damaged one is named, the others are read. A file that SQLite can't read, or in which the tree of
the records that every opening reads is broken, is refused and left as it is.
"""

import asyncio
import errno
import logging
import shutil
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.storage.opendata.disk import FULL, is_full, refuses_for_room
from zaqar_lite.storage.opendata.engine import Batch, DirectoryLock, Engine, Row, Stored
from zaqar_lite.storage.opendata.sqlite import reading
from zaqar_lite.storage.opendata.sqlite.compacting import compact, convert_old
from zaqar_lite.storage.opendata.sqlite.file import commits, read_note
from zaqar_lite.storage.opendata.sqlite.link import WriterEnded, WriterLink
from zaqar_lite.storage.opendata.sqlite.reading import BROKEN_FILE, connect, error_code

logger = logging.getLogger(__name__)
FILE_NAME = "queue.sqlite3"
_SQLITE_FULL, _SQLITE_IOERR = 13, 10
_BROKEN = (
    "A write to the store failed: nothing is written until its disk is mended and the server "
    "started again."
)
_SWITCH_INTERVAL = 0.0001
"""Seconds that the reader waits at most for a busy event loop to let go of the interpreter, which
it needs several times a statement: Python's own 5 ms would be waited for each time."""

P = ParamSpec("P")
T = TypeVar("T")


class SqliteEngine(Engine):
    """Records in a SQLite database of a local directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._lock = DirectoryLock(directory)
        self._writer: WriterLink | None = None
        self._reader = _Reader(self.path)
        self._broken: str | None = None
        self.damages: list[str] = []
        self._opened = False

    async def open(self) -> None:
        self._lock.acquire()
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL))
        try:
            await self._open()
        except (sqlite3.Error, WriterEnded, OSError) as exc:
            await self._release()
            raise self._cannot_open(exc) from exc
        except BaseException:
            await self._release()
            raise
        self._opened = True

    async def _open(self) -> None:
        try:
            work = asyncio.get_running_loop().run_in_executor(None, convert_old, self.path)
        except RuntimeError as exc:
            raise OSError(errno.EAGAIN, str(exc)) from exc
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})  # no other server may come while the thread is at it
            raise
        self._writer = await WriterLink.start(self.path)
        await self._reader.start()
        await self._reader.run(reading.check)
        await self._find_lost_commits()
        await self.recall_rebuild()

    async def compact(self) -> tuple[int, int]:
        """Write the file anew, instead of opening it; answer the bytes before and after.

        Raises ConfigurationError: another server has it, it can't be read, or there is no room.
        """
        self._lock.acquire()
        try:
            return await asyncio.get_running_loop().run_in_executor(None, compact, self.path)
        except (sqlite3.Error, OSError) as exc:
            raise self._cannot_open(exc) from exc
        finally:
            self._lock.release()

    async def _find_lost_commits(self) -> None:
        """Name commits that were durable and are not there.

        SQLite reads its log up to the first frame that is not valid, and takes that for the end:
        right for the unfinished last one of a crash, wrong for a flipped bit before others.
        """
        stored, noted = await self._reader.run(commits), read_note(self.path.parent)
        if noted <= stored:
            return
        wal = self.path.with_name(f"{self.path.name}-wal")
        copy = wal.with_name(f"{wal.name}.damaged-{time.time_ns() // 1_000_000}")
        shutil.copy(wal, copy)  # with its mode: there are bodies in it
        self.damages.append(
            f"{noted - stored} commits of {self.path} are lost, the last that it has is {stored}: "
            f"its write-ahead log is damaged, or the file is an older one; the log was copied to "
            f"{copy}"
        )
        logger.error("damaged: %s", self.damages[-1])

    async def get(self, keys: Sequence[bytes]) -> dict[bytes, Stored]:
        return await self._reader.run(reading.get, keys)

    async def scan(self, start: bytes, end: bytes) -> AsyncIterator[Sequence[Row]]:
        after: bytes | None = start
        while after is not None:
            rows, after = await self._reader.run(reading.scan, after, end)
            if rows:
                yield rows

    async def commit(self, batch: Batch) -> None:
        """Write a batch in one transaction; see the interface.

        After an I/O error nothing is written any more until the server is started again: what
        the system still holds of a failed write is unknown, and a second fsync may lie.
        """
        if self._broken:
            raise Unavailable(_BROKEN, retry_after=60, detail=self._broken)
        writer = self._writer
        if writer is None:
            raise Unavailable("The store is closed.")
        if writer.ended and not writer.owes_answer:
            writer = await self._restart(writer)
        try:
            await writer.write(batch)
        except sqlite3.Error as exc:
            raise self._translate(exc) from exc
        except WriterEnded as exc:
            await self._restart(writer)
            raise Unavailable("The process that writes the store ended; try again.") from exc

    async def _restart(self, ended: WriterLink) -> WriterLink:
        """Start another writer, unless the store closes; what the one before left is decided."""
        await ended.stop()
        if not self._opened:
            return ended
        try:
            self._writer = writer = await WriterLink.start(self.path)
        except (sqlite3.Error, WriterEnded, OSError) as exc:
            logger.error("the writer of %s can't be started: %s", self.path, exc)
            return ended
        return writer

    async def close(self) -> None:
        if self._opened:
            self._opened = False
            await self._release()

    async def _release(self) -> None:
        await self._stop()
        self._lock.release()

    async def _stop(self) -> None:
        await self._reader.stop()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            await writer.stop()

    def _cannot_open(self, exc: Exception) -> ConfigurationError:
        if isinstance(exc, TimeoutError):
            return ConfigurationError(
                f"The writer of an earlier server still works on {self.path}: wait for it to end, "
                "or end it with `kill -9` (see `ps` for sqlite/writer.py)."
            )
        # "disk I/O error" is all that SQLite says of a full disk.
        if is_full(exc) or refuses_for_room(self.path.parent):
            return ConfigurationError(f"The database {self.path} can't be opened: {FULL}.")
        why = "its writer ended" if isinstance(exc, WriterEnded) else exc
        if isinstance(exc, sqlite3.Error) and error_code(exc) in BROKEN_FILE:
            way_out = (
                "It is kept as it is. To put what is intact of it into a new store: zaqar-lite "
                f"store import --store embedded:///new/directory {self.path}; if that finds too "
                f"little, sqlite3 {self.path} '.recover --ignore-freelist' | sqlite3 "
                "recovered.sqlite3, and import recovered.sqlite3 instead."
            )
        else:
            way_out = "See to its disk, its owner and the limits of this process; keep the file."
        return ConfigurationError(f"The database {self.path} can't be opened: {why}. {way_out}")

    def _translate(self, exc: sqlite3.Error) -> Unavailable:
        code = error_code(exc)
        if code == _SQLITE_FULL:
            why = "The store's disk is full: free some space."
            return Unavailable(why, retry_after=5, detail=str(self.path))
        logger.error("writing to %s failed: %s", self.path, exc)
        if code == _SQLITE_IOERR:
            self._broken = f"writing to {self.path}: {exc}"
            return Unavailable(_BROKEN, retry_after=60, detail=self._broken)
        return Unavailable("The store can't write now.", detail=str(exc))


class _Reader:
    """A thread with a connection of its own; calls run in it one after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    async def start(self) -> None:
        """Start the thread and connect. Raises OSError: no thread can be started; sqlite3.Error."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="opendata-reader")
        loop = asyncio.get_running_loop()
        try:
            connecting = loop.run_in_executor(self._thread, connect, self._path)
        except RuntimeError as exc:
            raise OSError(errno.EAGAIN, str(exc)) from exc
        self._connection = await connecting

    async def stop(self) -> None:
        """Disconnect and end the thread; idempotent."""
        thread, self._thread = self._thread, None
        connection, self._connection = self._connection, None
        if thread is None:
            return
        if connection is not None:
            await asyncio.get_running_loop().run_in_executor(thread, connection.close)
        thread.shutdown()

    def run(
        self,
        call: Callable[Concatenate[sqlite3.Connection, P], T],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> "asyncio.Future[T]":
        """Call something with the connection, in the thread."""
        if self._thread is None or self._connection is None:
            raise Unavailable("The store is closed.")
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(
            self._thread, partial(call, self._connection, *arguments, **named)
        )

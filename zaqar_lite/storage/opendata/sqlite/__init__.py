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
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast

from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.storage.opendata.engine import (
    FULL,
    Batch,
    DirectoryLock,
    Engine,
    Row,
    Stored,
    Unreadable,
    is_full,
    refuses_for_room,
)
from zaqar_lite.storage.opendata.sqlite import reading, writer
from zaqar_lite.storage.opendata.sqlite.reading import BROKEN_FILE, connect, error_code, read_note
from zaqar_lite.storage.opendata.sqlite.writer import ANSWER, commits

logger = logging.getLogger(__name__)
FILE_NAME = "queue.sqlite3"
_SQLITE_FULL, _SQLITE_IOERR = 13, 10
_BROKEN = (
    "A write to the store failed: nothing is written until its disk is mended and the server "
    "started again."
)
_SWITCH_INTERVAL = 0.0001
"""Seconds until a busy event loop gives the interpreter to the reader, which needs it several times
a statement. With Python's default each of these would take 5 ms."""

P = ParamSpec("P")
T = TypeVar("T")


_PATIENCE = 30.0
"""Seconds for the last batch of an earlier server's writer, and for SQLite to open the file."""
_LAST_CHECKPOINT = 10.0
"""Seconds for a writer to end."""
_SEND_BUFFER = 1 << 20
"""Bytes that are handed to the writer at once, as far as the system allows. The writer would wait
for the rest of a larger batch until the event loop is free again, by up to 10 ms."""


class WriterEnded(Exception):
    """The writer is gone: its last batch is stored or never will be."""


class WriterLink(asyncio.Protocol):
    """One writer process; takes a batch at a time."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._done = asyncio.get_running_loop().create_future()
        self.ended = False
        """Whether the writer has ended, or is about to."""
        self.owes_answer = False
        """Whether a batch was sent whose outcome is not known yet."""

    @classmethod
    async def start(cls, path: Path) -> "WriterLink":
        """Start a writer and wait until the file is open.

        Raises sqlite3.Error: it can't be opened; WriterEnded: the writer ended; TimeoutError: the
        writer of an earlier server is still at work; OSError: no process can be started.
        """
        process, wire = _spawn(path)
        link = cls(process)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=wire)
            await asyncio.wait_for(link._done, _PATIENCE)
        except BaseException:
            process.kill()
            if link._transport is None:
                wire.close()
            await link.stop()
            raise
        return link

    async def write(self, batch: Batch) -> None:
        """Write a batch in one transaction; when this returns, it is on the disk.

        Raises sqlite3.Error: nothing of it was written; WriterEnded: it was written or not, but
        will not be any more.
        """
        if self.ended or self._transport is None:
            raise WriterEnded
        self._done = asyncio.get_running_loop().create_future()
        self.owes_answer = True
        self._transport.write(writer.encode_batch(batch.puts, batch.deletes))
        try:
            await self._done
        except asyncio.CancelledError:
            self.ended = True  # its answer would be taken for that of the next batch
            self._transport.abort()
            raise

    async def stop(self) -> None:
        """Let the writer end, and wait until it has; one that does not move is killed."""
        if self._transport is not None:
            self._transport.close()
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._end)
        except RuntimeError:  # no thread can be started
            self._end()

    def _end(self) -> None:
        try:
            self._process.wait(_LAST_CHECKPOINT)
        except subprocess.TimeoutExpired:
            logger.error("the writer does not end, and is killed: what it answered for is stored")
            self._process.kill()
            self._process.wait()

    # -- what the event loop calls --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Receive an answer, or a part of one."""
        self._received += data
        if len(self._received) < ANSWER.size:
            return
        code, size = ANSWER.unpack_from(self._received)
        if len(self._received) < ANSWER.size + size:
            return
        text = self._received[ANSWER.size :].decode()
        self._received.clear()
        self.owes_answer = self._done.cancelled()
        if self._done.done():
            return  # its caller went away
        if code:
            error = sqlite3.OperationalError(text)
            error.sqlite_errorcode = code
            self._done.set_exception(error)
        else:
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the waiting call, because there will be no answer."""
        self.ended = True
        if not self._done.done():
            self._done.set_exception(WriterEnded())


def _spawn(path: Path) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    command = [sys.executable, "-I", "-S", "-c", writer.START, writer.__file__, str(path)]
    with theirs:
        try:
            return subprocess.Popen(command, stdin=theirs.fileno()), ours  # noqa: S603 - ours
        except OSError:
            ours.close()
            raise


class SqliteEngine(Engine):
    """Records in a SQLite database of a local directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._lock = DirectoryLock(directory)
        self._writer: WriterLink | None = None
        self._reader = _Reader(self.path)
        self._broken: str | None = None
        self.damages: list[str] = []
        self.way_out = (
            "It is kept as it is. To put what is intact of it into a new store: zaqar-lite "
            f"store import --store embedded:///new/directory {self.path}; if that finds too "
            f"little, sqlite3 {self.path} '.recover --ignore-freelist' | sqlite3 "
            "recovered.sqlite3, and import recovered.sqlite3 instead."
        )
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
            work = asyncio.get_running_loop().run_in_executor(None, reading.convert_old, self.path)
        except RuntimeError as exc:
            raise OSError(errno.EAGAIN, str(exc)) from exc
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})  # the lock must be held until the thread has ended
            raise
        self._writer = await WriterLink.start(self.path)
        await self._reader.start()
        await self._reader.run(reading.check)
        await self._find_lost_commits()

    async def compact(self) -> tuple[int, int]:
        """Write the file anew, instead of opening it; answer the bytes before and after.

        Raises ConfigurationError: another server has it, it can't be read, or there is no room.
        """
        self._lock.acquire()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                None, reading.compact, self.path
            )
        except (sqlite3.Error, OSError) as exc:
            raise self._cannot_open(exc) from exc
        finally:
            self._lock.release()

    async def _find_lost_commits(self) -> None:
        """Log commits that were durable and are missing.

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
            rows, behind, why = await self._reader.run(reading.scan, after, end)
            if rows:
                yield rows
            if why is not None:
                raise Unreadable(rows[-1][0] if rows else after, why)
            after = behind

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
        """Wait until a writer has ended, so that its last batch is final; then start another.

        Answers the ended one where the store closes or no other can be started.
        """
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
            way_out = self.way_out
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

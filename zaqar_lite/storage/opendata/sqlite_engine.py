"""The SQLite engine: one table of key, value and checksum, one process that writes.

    kv(k BLOB PRIMARY KEY, v BLOB, c INTEGER) WITHOUT ROWID     in DIRECTORY/queue.sqlite3

Keys compare as bytes, so their order is that of every other engine. `c` is the crc32 of key and
value: SQLite itself does not notice a flipped bit inside a value. WAL mode with synchronous=FULL:
a commit returns after its fsync. A thread reads, through a connection of its own, what is not in
memory; batches are written by a process of their own (`sqlite_writer.py`).
"""

import asyncio
import logging
import queue
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.storage.opendata.engine import Batch, Damage, DirectoryLock, Engine, Row, Stored
from zaqar_lite.storage.opendata.sqlite_link import WriterEnded, WriterLink
from zaqar_lite.storage.opendata.sqlite_wal import find_damage

logger = logging.getLogger(__name__)
FILE_NAME = "queue.sqlite3"
_CHUNK = 1_000
_MOST_ROWS = 1_024
_PREPARED = 128
_SQLITE_FULL, _SQLITE_IOERR, _SQLITE_CORRUPT, _SQLITE_NOTADB = 13, 10, 11, 26
_PASSING = frozenset({5, 6, 7, 9, 14, 15})
"""SQLite's codes that say nothing of the records: BUSY, LOCKED, NOMEM, INTERRUPT, CANTOPEN and
PROTOCOL, which is the end of ten seconds of waiting for a stopped process that holds a lock."""
_BROKEN = (
    "A write to the store failed: nothing is written until its disk is mended and the server "
    "started again."
)
_SWITCH_INTERVAL = 0.0001
"""Seconds that the reader waits at most for a busy event loop to let go of the interpreter, which
it needs several times a statement: Python's own 5 ms would be waited for each time."""

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
        """Take the directory's lock and open the database; see the interface."""
        self._lock.acquire()
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL))
        try:
            self._writer = await WriterLink.start(self.path)
            await self._reader.start()
            damage = await self._reader.run(lambda _: find_damage(self.path))
        except (sqlite3.Error, WriterEnded, OSError) as exc:
            await self._release()
            raise self._cannot_open(exc) from exc
        except BaseException:
            await self._release()
            raise
        self._opened = True
        if damage is not None:
            logger.error("damaged: %s", damage)
            self.damages.append(damage)

    async def get(self, keys: Sequence[bytes]) -> dict[bytes, Stored]:
        """Read records by key; see the interface."""
        return await self._reader.run(lambda connection: _get(connection, keys))

    async def scan(self, start: bytes, end: bytes) -> AsyncIterator[Sequence[Row]]:
        """Read a range in chunks; see the interface.

        Where the database itself is damaged, what lies before and behind is still read.
        """
        while True:
            after, chunk = start, _CHUNK
            rows = await self._reader.run(partial(_scan, start=start, end=end))
            if isinstance(rows, Damage):
                before, damage, behind = await self._reader.run(
                    partial(_salvage, start=start, end=end)
                )
                yield before
                yield [(damage.key, damage)]
                yield behind
                return
            if rows:
                yield rows
            if len(rows) < chunk:
                return
            start = rows[-1][0] + b"\x00"
            if start <= after:
                return

    async def commit(self, batch: Batch) -> None:
        """Write a batch in one transaction; see the interface.

        After an I/O error nothing is written any more until the server is started again: what
        the system still holds of a failed write is unknown, and a second fsync may lie.
        """
        if self._broken:
            raise Unavailable(_BROKEN, retry_after=60, detail=self._broken)
        if self._writer is None:
            raise Unavailable("The store is closed.")
        if self._writer.ended and not self._writer.owes_answer:
            await self._restart(self._writer)
        try:
            await self._writer.write(batch)
        except sqlite3.Error as exc:
            raise self._translate(exc) from exc
        except WriterEnded as exc:
            await self._restart(self._writer)
            raise Unavailable("The process that writes the store ended; try again.") from exc

    async def _restart(self, ended: WriterLink) -> None:
        """Start another writer; what the one before left is decided then."""
        await ended.stop()
        try:
            self._writer = await WriterLink.start(self.path)
        except (sqlite3.Error, WriterEnded, OSError) as exc:
            logger.error("the writer of %s can't be started: %s", self.path, exc)

    async def close(self) -> None:
        """Close the database and let the directory go; see the interface."""
        if self._opened:
            self._opened = False
            await self._release()

    async def _release(self) -> None:
        await self._reader.stop()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            await writer.stop()
        self._lock.release()

    def _cannot_open(self, exc: Exception) -> ConfigurationError:
        if isinstance(exc, TimeoutError):
            return ConfigurationError(
                f"The writer of an earlier server still works on {self.path}: wait for it to end, "
                "or end it with `kill -9` (see `ps` for sqlite_writer.py)."
            )
        why = "its writer ended" if isinstance(exc, WriterEnded) else exc
        if isinstance(exc, sqlite3.Error) and _code(exc) in (_SQLITE_CORRUPT, _SQLITE_NOTADB):
            way_out = "Restore it from a backup, or move it away to begin with an empty store."
        else:
            way_out = "See to its disk, its owner and the limits of this process; keep the file."
        return ConfigurationError(f"The database {self.path} can't be opened: {why}. {way_out}")

    def _translate(self, exc: sqlite3.Error) -> Unavailable:
        code = _code(exc)
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
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None

    async def start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="opendata-reader", daemon=True)
        self._thread.start()
        self._connection = await self._call(lambda: _connect(self._path))

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._calls.put(connection.close)
        self._calls.put(None)
        await asyncio.get_running_loop().run_in_executor(None, thread.join)

    def run(self, call: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        connection = self._connection
        if connection is None:
            raise Unavailable("The store is closed.")
        return self._call(lambda: call(connection))

    def _call(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def serve() -> None:
            try:
                result = call()
            except BaseException as exc:  # noqa: BLE001 - it belongs to the caller, whatever it is
                _notify(loop, future, _set_exception, exc)
            else:
                _notify(loop, future, _set_result, result)

        self._calls.put(serve)
        return future

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _notify(
    loop: asyncio.AbstractEventLoop,
    future: "asyncio.Future[T]",
    settle: Callable[["asyncio.Future[T]", Any], None],
    value: Any,  # noqa: ANN401 - what `settle` takes
) -> None:
    try:
        loop.call_soon_threadsafe(settle, future, value)
    except RuntimeError:
        logger.debug("the event loop ended before a call of the store")


def _set_result(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: "asyncio.Future[T]", exc: BaseException) -> None:
    if not future.done():
        future.set_exception(exc)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=_PREPARED
    )
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA cache_size = -32768")
    return connection


@lru_cache(_PREPARED)
def _select(rows: int) -> str:
    marks = ",".join("?" * rows)
    return f"SELECT k, v, c FROM kv WHERE k IN ({marks})"  # noqa: S608 - only marks


def _checked(key: bytes, value: object, checksum: object) -> Stored:
    # a flipped bit in a row's head makes a text or NULL of its value
    if isinstance(value, bytes) and crc32(value, crc32(key)) == checksum:
        return value
    return Damage(key, "its checksum does not match")


def _code(exc: sqlite3.Error) -> int:
    return int(getattr(exc, "sqlite_errorcode", 0)) & 0xFF


def _why(exc: sqlite3.Error) -> str:
    """What is damaged; raises Unavailable where only the reading failed."""
    if _code(exc) in _PASSING:
        raise Unavailable("The store can't read now.", detail=str(exc)) from exc
    return str(exc)


def _get(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, Stored]:
    found: dict[bytes, Stored] = {}
    for offset in range(0, len(keys), _MOST_ROWS):
        chunk = keys[offset : offset + _MOST_ROWS]
        try:
            rows = connection.execute(_select(len(chunk)), chunk).fetchall()
        except sqlite3.Error as exc:
            why = _why(exc)
            if len(chunk) == 1:
                found[chunk[0]] = Damage(chunk[0], why)
            else:
                for key in chunk:
                    found.update(_get(connection, (key,)))
            continue
        for key, value, checksum in rows:
            found[key] = _checked(key, value, checksum)
    return found


_FORWARD = "SELECT k, v, c FROM kv WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"
_BACKWARD = "SELECT k, v, c FROM kv WHERE k >= ? AND k < ? ORDER BY k DESC LIMIT ?"


def _scan(connection: sqlite3.Connection, start: bytes, end: bytes) -> list[Row] | Damage:
    try:
        rows = connection.execute(_FORWARD, (start, end, _CHUNK)).fetchall()
    except sqlite3.Error as exc:
        return Damage(start, _why(exc), end)
    return [(key, _checked(key, value, checksum)) for key, value, checksum in rows]


def _salvage(
    connection: sqlite3.Connection, start: bytes, end: bytes
) -> tuple[list[Row], Damage, list[Row]]:
    """Read a damaged range from both ends, row by row, up to where nothing can be read."""
    before, why = _read_until_error(connection, _FORWARD, start, end)
    first = before[-1][0] + b"\x00" if before else start
    behind, _ = _read_until_error(connection, _BACKWARD, first, end)
    until = behind[-1][0] if behind else b""
    key = before[-1][0] if before else start
    return before, Damage(key, why, until), behind[::-1]


def _read_until_error(
    connection: sqlite3.Connection, statement: str, start: bytes, end: bytes
) -> tuple[list[Row], str]:
    rows: list[Row] = []
    cursor = connection.execute("SELECT 1 WHERE 0")
    try:
        cursor = connection.execute(statement, (start, end, -1))
        for key, value, checksum in cursor:
            rows.append((key, _checked(key, value, checksum)))
    except sqlite3.Error as exc:
        return rows, _why(exc)
    finally:
        cursor.close()
    return rows, ""

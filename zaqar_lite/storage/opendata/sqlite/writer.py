"""The process that writes the SQLite file, and the wire to it.

    batch    u32 number of puts, u32 of deletes, u64 bytes that follow: u32 lengths of the keys of
             the puts, of their values, of the keys of the deletes; then these, one after the other
    answer   i32 SQLite's error code, 0 for done; u32 bytes that follow: the error's text

As a thread it would share the interpreter with the event loop and take it anew four times a
statement, the loop waiting for the writer and the writer for the loop. The server starts it by its
path, so it imports nothing but the standard library.

Its first answer says that the file is open. It ends when its standard input does, as by the death
of its server; until then it holds `writer.lock`, so the next server reads the file only once the
last batch of the one before is stored or never will be.
"""

import fcntl
import os
import signal
import sqlite3
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

ANSWER = struct.Struct("<iI")
_BATCH = struct.Struct("<IIQ")
_BUFFER = 1 << 20
_INSERT = "INSERT OR REPLACE INTO kv(k, v, c) VALUES (?, ?, ?)"
_DELETE = "DELETE FROM kv WHERE k = ?"


class _Rows(NamedTuple):
    puts: list[tuple[bytes, bytes, int]]
    deletes: list[tuple[bytes]]


def encode_batch(puts: Mapping[bytes, bytes], deletes: Sequence[bytes]) -> bytes:
    """Encode a batch for the wire."""
    fields = [*puts, *puts.values(), *deletes]
    lengths = array("I", map(len, fields)).tobytes()
    content = b"".join(fields)
    head = _BATCH.pack(len(puts), len(deletes), len(lengths) + len(content))
    return b"".join((head, lengths, content))


def main(path: Path) -> None:
    """Write every batch that comes on standard input to the database at `path`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to a whole group: its server ends it
    try:
        lock = os.open(path.with_name("writer.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = _open(path)
    except (OSError, sqlite3.Error) as exc:
        _answer(exc)
        return
    _answer(None)
    with open(0, "rb", buffering=_BUFFER, closefd=False) as wire:
        while _serve(wire, connection):
            pass
    connection.close()


def _serve(wire: BinaryIO, connection: sqlite3.Connection) -> bool:
    """Write one batch and answer; False where the wire ends."""
    rows = _read(wire)
    if rows is None:
        return False
    try:
        _write(connection, rows)
    except sqlite3.Error as exc:
        _answer(exc)
    else:
        _answer(None)
    return True


def _open(path: Path) -> sqlite3.Connection:
    """Open the database; a new one comes in whole, so that an empty file is one cut short.

    SQLite would take that for a new database, and delete the log that belongs to it.
    """
    if not path.exists():
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        open_file(new).close()
        new.replace(path)
    elif not path.stat().st_size:
        error = sqlite3.DatabaseError("the file is empty")
        error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
        raise error
    return open_file(path)


def open_file(path: Path) -> sqlite3.Connection:
    """Open the database, or make it, to be written durably and read by nobody else.

    Raises:
        OSError: its place can't be used.
        sqlite3.Error: it can't be opened.
    """
    _hide(path)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in (
            "busy_timeout = 5000",
            "journal_mode = WAL",
            "synchronous = FULL",
            "fullfsync = ON",
            "checkpoint_fullfsync = ON",
            "wal_autocheckpoint = 4000",
            "cache_size = -32768",
            "temp_store = MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS kv"
            "(k BLOB PRIMARY KEY, v BLOB NOT NULL, c INTEGER NOT NULL) WITHOUT ROWID"
        )
    except BaseException:
        connection.close()
        raise
    return connection


def _hide(path: Path) -> None:
    """Let nobody else read the database; SQLite makes its log, with bodies in it, in its mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for file in (path, *path.parent.glob(f"{path.name}-*")):
        file.chmod(0o600)


def _read(wire: BinaryIO) -> _Rows | None:
    """The next batch; None where the wire ends, also inside of one."""
    try:
        head = wire.read(_BATCH.size)
        if len(head) < _BATCH.size:
            return None
        puts, deletes, size = _BATCH.unpack(head)
        data = wire.read(size)
    except ConnectionResetError:  # the server died before it read an answer
        return None
    if len(data) < size:
        return None
    start = 4 * (2 * puts + deletes)
    ends = accumulate(array("I", data[:start]), initial=start)
    fields = [data[begin:end] for begin, end in pairwise(ends)]
    keys, values, gone = fields[:puts], fields[puts : 2 * puts], fields[2 * puts :]
    return _Rows(
        [(key, value, crc32(value, crc32(key))) for key, value in zip(keys, values, strict=True)],
        [(key,) for key in gone],
    )


def _write(connection: sqlite3.Connection, rows: _Rows) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.executemany(_INSERT, rows.puts)
        connection.executemany(_DELETE, rows.deletes)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def _answer(exc: Exception | None) -> None:
    code = 0 if exc is None else getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_CANTOPEN)
    text = b"" if exc is None else str(exc).encode()
    try:
        os.write(0, ANSWER.pack(code, len(text)) + text)
    except OSError:
        sys.exit()  # the server is gone, nobody waits


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Copying the rows of a SQLite file: into a smaller one, one of today's layout, or another store.

The layout before had one table, kv(k PRIMARY KEY, v, c) WITHOUT ROWID, in pages of 4 KiB. A file of
it is converted when it is opened for the first time. A row keeps its checksum, right or wrong.
"""

import fcntl
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from zlib import crc32

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.storage.opendata.format.encoding import after_prefix
from zaqar_lite.storage.opendata.sqlite.file import LOG, PAYLOAD, open_file, remove
from zaqar_lite.storage.opendata.sqlite.reading import BROKEN_FILE, connect, error_code
from zaqar_lite.storage.opendata.sqlite.writer import LOCK

logger = logging.getLogger(__name__)
_PATIENCE = 30.0
"""Seconds for the last batch of an earlier server's writer."""


def convert_old(path: Path) -> None:
    """Convert a database of the layout before; nothing else is touched.

    Raises ConfigurationError: there is no room for the new file beside the old one; TimeoutError:
    the writer of an earlier server is still at work; OSError: a file can't be read or written;
    sqlite3.Error: the file can't be read.
    """
    if path.exists() and path.stat().st_size and _is_old(path):
        logger.warning("%s is of an earlier layout and is converted: it needs as much room", path)
        before, after = compact(path)
        logger.warning("%s was converted: %d bytes are %d now", path, before, after)


def compact(path: Path) -> tuple[int, int]:
    """Replace a database that no server uses by one of the same rows; answer the sizes in bytes.

    A crash leaves the old file or the new one. Raises ConfigurationError: there is no room for the
    new file beside the old one; TimeoutError: the writer of an earlier server is still at work;
    OSError: a file can't be read or written; sqlite3.Error: the file can't be read.
    """
    new = path.with_name(f"{path.name}.new")
    lock = _lock_out_writers(path)
    try:
        _fold(path)
        before = path.stat().st_size
        if shutil.disk_usage(path.parent).free < before:
            raise ConfigurationError(
                f"The disk has no room for a copy of {path}: free {before} bytes and try again."
            )
        remove(new)
        try:
            _copy(path, new)
            after = new.stat().st_size
            new.replace(path)
        finally:
            remove(new)
        _sync(path.parent)
    finally:
        os.close(lock)
    return before, after


def _lock_out_writers(path: Path) -> int:
    lock = os.open(path.with_name(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(lock)
                raise TimeoutError from None
            time.sleep(0.05)
        else:
            return lock


def _is_old(path: Path) -> bool:
    with closing(connect(path)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
        return ("kv",) in tables and (PAYLOAD.name,) not in tables


def _fold(path: Path) -> None:
    """Fold the write-ahead log into the file, and leave none: it would be read into the new one."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        ((mode,),) = connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    if mode != "delete":
        raise OSError(f"{path} is in use")


def _copy(path: Path, new: Path) -> None:
    is_old = _is_old(path)
    with closing(open_file(new)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("ATTACH ? AS old", (str(path),))
        connection.execute("BEGIN")
        if is_old:
            for table in (PAYLOAD, LOG):
                connection.create_function("number", 1, table.number, deterministic=True)
                connection.execute(
                    f"INSERT INTO {table.name} SELECT number(k), v, c FROM old.kv "  # noqa: S608
                    "WHERE k >= ? AND k < ? AND number(k) IS NOT NULL ORDER BY k",
                    (table.prefix, after_prefix(table.prefix)),
                )
        else:
            for table in (PAYLOAD, LOG):
                connection.execute(
                    f"INSERT INTO {table.name} SELECT k, v, c FROM old.{table.name} ORDER BY k"  # noqa: S608
                )
        connection.execute(
            "INSERT INTO main.kv(k, v, c) SELECT k, v, c FROM old.kv WHERE typeof(k) = 'blob' "
            "AND NOT (k >= ? AND k < ?) AND NOT (k >= ? AND k < ?) ORDER BY k",
            tuple(edge for t in (PAYLOAD, LOG) for edge in (t.prefix, after_prefix(t.prefix))),
        )
        connection.execute("COMMIT")
    with new.open("rb") as file:
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- what is intact of a damaged file --


def is_sqlite(path: Path) -> bool:
    """Whether a file begins as a SQLite database does."""
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\x00"


def intact_rows(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Read the records of a database of either layout whose checksum is right, in no order.

    It may be damaged, or be what `sqlite3 FILE .recover` made: that puts rows whose table it does
    not know into a table of its own, which comes last. A key can come twice; the first is right.
    Raises sqlite3.Error: nothing of it can be read.
    """
    with closing(connect(path)) as connection:
        names = [name for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall()]  # fmt: skip
        for name in sorted(names, key=lambda name: name.startswith("lost_and_found")):
            for order in ("", " ORDER BY rowid DESC"):
                yield from _read_table(connection, name, order)


def _read_table(
    connection: sqlite3.Connection, name: str, order: str
) -> Iterator[tuple[bytes, bytes]]:
    """Read a table from one end, up to what can't be read."""
    quoted = '"' + name.replace('"', '""') + '"'
    try:
        cursor = connection.execute(f"SELECT * FROM {quoted}{order}")  # noqa: S608 - quoted
        for row in cursor:
            found = _record(name, row)
            if found is not None:
                yield found
    except sqlite3.Error as exc:
        if error_code(exc) not in BROKEN_FILE and "no such column" not in str(exc):
            raise


def _record(name: str, row: tuple[object, ...]) -> tuple[bytes, bytes] | None:
    """The record in a row, whatever its columns are, if there is one whose checksum is right."""
    number = row[3] if name.startswith("lost_and_found") else row[0]
    if isinstance(number, int) and 0 <= number < 1 << 63:
        keys = [table.key(number) for table in (PAYLOAD, LOG)]
    else:
        keys = []
    for place, value in enumerate(row[1:], 1):
        if not isinstance(value, bytes) or place + 1 == len(row):
            continue
        for key in (row[place - 1], *keys):
            if isinstance(key, bytes) and crc32(value, crc32(key)) == row[place + 1]:
                return key, value
    return None

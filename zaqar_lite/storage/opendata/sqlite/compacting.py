"""A SQLite file as a whole: compacting it, converting an older layout, reading a damaged file.

The older layout had one table, kv(k PRIMARY KEY, v, c) WITHOUT ROWID, in pages of 4 KiB. Such a
file is converted when it is first opened. A row keeps its checksum, right or wrong.
"""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from zlib import crc32

from zaqar_lite.storage.opendata.format.encoding import after_prefix
from zaqar_lite.storage.opendata.sqlite.file import LAYOUT, LOG, PAYLOAD, SCHEMA, open_file
from zaqar_lite.storage.opendata.sqlite.reading import BROKEN_FILE, connect, error_code

logger = logging.getLogger(__name__)
_PATIENCE = 30.0
"""Seconds for the last batch of an earlier server's writer."""


def convert_old(path: Path) -> None:
    """Convert a database of the older layout, or finish its conversion; leave others alone.

    The rows are moved in one transaction, then SQLite writes the file anew. A crash in between
    leaves the second step to the next call.
    Raises sqlite3.Error: the file can't be read or written, or another process uses it.
    """
    if not (path.exists() and path.stat().st_size):
        return
    with closing(connect(path)) as connection:
        is_old = _is_old(connection)
        if not is_old and connection.execute("PRAGMA auto_vacuum").fetchone()[0]:
            return
    logger.warning("%s is of an earlier layout and is converted: it needs as much room", path)
    with closing(sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        if is_old:
            _move_rows(connection)
        for pragma in LAYOUT:
            connection.execute(pragma)
        connection.execute("VACUUM")
    logger.warning("%s was converted", path)


def _is_old(connection: sqlite3.Connection) -> bool:
    columns = connection.execute("SELECT name FROM pragma_table_info('kv')").fetchall()
    return bool(columns) and ("n",) not in columns


def _move_rows(connection: sqlite3.Connection) -> None:
    """Move the rows into today's tables. A row that these have already is newer, and stays.

    An earlier `store compact` made the new tables, empty, beside the old one.
    """
    connection.execute("BEGIN EXCLUSIVE")
    connection.execute("ALTER TABLE kv RENAME TO old")
    for statement in SCHEMA:
        connection.execute(statement)
    for table in (PAYLOAD, LOG):
        connection.create_function("number", 1, table.number, deterministic=True)
        connection.execute(
            f"INSERT OR IGNORE INTO {table.name} SELECT number(k), v, c FROM old "  # noqa: S608 - ours
            "WHERE k >= ? AND k < ? AND number(k) IS NOT NULL ORDER BY k",
            (table.prefix, after_prefix(table.prefix)),
        )
    connection.execute(
        "INSERT INTO kv(k, v, c) SELECT k, v, c FROM old WHERE typeof(k) = 'blob' "
        "AND NOT (k >= ? AND k < ?) AND NOT (k >= ? AND k < ?) ORDER BY k",
        tuple(edge for t in (PAYLOAD, LOG) for edge in (t.prefix, after_prefix(t.prefix))),
    )
    connection.execute("DROP TABLE old")
    connection.execute("COMMIT")


def compact(path: Path) -> tuple[int, int]:
    """Let SQLite rewrite a database that no server uses; answer the sizes before and after.

    Raises OSError: its place can't be used; sqlite3.Error: it can't be read or written.
    """
    before = path.stat().st_size
    convert_old(path)
    with closing(open_file(path)) as connection:
        connection.execute("VACUUM")
    return before, path.stat().st_size


# -- what is intact of a damaged file --


def is_sqlite(path: str) -> bool:
    """Whether a file begins as a SQLite database does."""
    with Path(path).open("rb") as file:
        return file.read(16) == b"SQLite format 3\x00"


def intact_rows(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Read the records of a database of either layout whose checksum is right, in no order.

    It may be damaged, or made by `sqlite3 FILE .recover`, which puts rows of an unknown table into
    a table of its own; that is read last. Where a key comes twice, the first is right.
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

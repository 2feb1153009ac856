"""Reading the SQLite file: its rows, each checked, also of a file of an earlier layout.

The earlier layout had one table, kv(k PRIMARY KEY, v, c) WITHOUT ROWID, in pages of 4 KiB. Such a
file is converted when it is first opened. A row keeps its checksum, right or wrong.
"""

import logging
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast
from zlib import crc32

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.opendata.engine import FIRST, Damage, Row, Stored
from zaqar_lite.storage.opendata.format import after_prefix
from zaqar_lite.storage.opendata.sqlite.writer import (
    LAYOUT,
    LOG,
    NOTE,
    NOTED,
    PAYLOAD,
    SCHEMA,
    Table,
    open_file,
    table_of,
)

logger = logging.getLogger(__name__)

CHUNK = 1_000
"""Rows of a scan that are read at once."""
_MOST_ROWS = 1_024
_PREPARED = 128
BROKEN_FILE = frozenset({11, 26})
"""SQLite's codes of a broken file: CORRUPT and NOTADB."""
_PASSING = frozenset({5, 6, 7, 9, 14, 15})
"""SQLite's codes that say nothing of the records: BUSY, LOCKED, NOMEM, INTERRUPT, CANTOPEN and
PROTOCOL, which is the end of ten seconds of waiting for a stopped process that holds a lock."""
_DISORDER = "records are out of order"


def connect(path: Path) -> sqlite3.Connection:
    """Connect to a database to read it; the caller's thread need not be the one that reads.

    Raises sqlite3.Error: it can't be opened.
    """
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=_PREPARED
    )
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA cache_size = -32768")
    except BaseException:
        connection.close()
        raise
    return connection


def check(connection: sqlite3.Connection) -> None:
    """Verify the tree and the index of the records that every opening reads.

    Other records are read one by one, and a missing one is named then. Raises sqlite3.Error: a page
    of the tree or the index is broken or out of place.
    """
    found = connection.execute("PRAGMA integrity_check('kv')").fetchall()
    if found != [("ok",)]:
        error = sqlite3.DatabaseError(str(found[0][0]).strip().replace("\n", " "))
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def error_code(exc: sqlite3.Error) -> int:
    """SQLite's primary result code."""
    return int(getattr(exc, "sqlite_errorcode", 0)) & 0xFF


def _why(exc: sqlite3.Error) -> str:
    """What is damaged. Raises Unavailable: only the reading failed, nothing is damaged."""
    if error_code(exc) in _PASSING:
        raise Unavailable("The store can't read now.", detail=str(exc)) from exc
    return str(exc)


def _checked(key: bytes, value: object, checksum: object) -> Stored:
    # a flipped bit in a row's head makes a text or NULL of its value
    if isinstance(value, bytes) and crc32(value, crc32(key)) == checksum:
        return value
    return Damage(key, "its checksum does not match")


def read_note(directory: Path) -> int:
    """The number of a batch that is durable, by the file beside the database; 0 if none is known.

    Raises OSError: it can't be read.
    """
    try:
        number, checksum = NOTED.unpack((directory / NOTE).read_bytes())
    except (FileNotFoundError, struct.error):
        return 0
    return int(number) if checksum == crc32(number.to_bytes(8, "big")) else 0


# -- by key --


@lru_cache(_PREPARED)
def _select(name: str, rows: int) -> str:
    marks = ",".join("?" * rows)
    return f"SELECT k, v, c FROM {name} WHERE k IN ({marks})"  # noqa: S608 - only marks


def get(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, Stored]:
    """Read records by key; absent ones are left out, damaged ones named.

    Raises Unavailable: only the reading failed.
    """
    found: dict[bytes, Stored] = {}
    of_table: dict[str, dict[bytes | int, bytes]] = {}
    for key in keys:
        table = table_of(key)
        if table is None:
            of_table.setdefault("kv", {})[key] = key
        elif (number := table.number(key)) is not None:
            of_table.setdefault(table.name, {})[number] = key
    for name, places in of_table.items():
        wanted = list(places.items())
        for start in range(0, len(wanted), _MOST_ROWS):
            _get(connection, name, dict(wanted[start : start + _MOST_ROWS]), found)
    return found


def _get(
    connection: sqlite3.Connection,
    name: str,
    places: dict[bytes | int, bytes],
    found: dict[bytes, Stored],
) -> None:
    try:
        rows = connection.execute(_select(name, len(places)), list(places)).fetchall()
    except sqlite3.Error as exc:
        why = _why(exc)
        if len(places) == 1:
            found.update((key, Damage(key, why)) for key in places.values())
        else:
            for place, key in places.items():
                _get(connection, name, {place: key}, found)
        return
    for place, value, checksum in rows:
        key = places[place]
        found[key] = _checked(key, value, checksum)


# -- by range --


class Chunk(NamedTuple):
    """The next rows of a range, where the rest begins, and why the rest can't be read.

    `next` and `why` are None at the end of the range.
    """

    rows: list[Row]
    next: bytes | None
    why: str | None = None


class _Part(NamedTuple):
    """A part of a range of keys that is in one table; all keys lie from `start` up to `end`."""

    table: Table | None
    start: bytes
    end: bytes

    def statement(self) -> str:
        name = "kv" if self.table is None else self.table.name
        return f"SELECT k, v, c FROM {name} WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"  # noqa: S608 - a name of ours

    def bounds(self) -> tuple[bytes | int, bytes | int]:
        if self.table is None:
            return self.start, self.end
        return _first_number(self.table, self.start), _first_number(self.table, self.end)

    def row(self, place: bytes | int, value: object, checksum: object) -> Row:
        key = place if isinstance(place, bytes) else cast(Table, self.table).key(max(0, place))
        return key, _checked(key, value, checksum)


def _first_number(table: Table, key: bytes) -> int:
    """The first number of which the key is not below `key`; it may lie outside of the table."""
    if key <= table.prefix:
        return 0
    if not key.startswith(table.prefix):
        return (1 << 63) - 1
    tail = key[len(table.prefix) :]
    width = table.width or (tail[0] >> 4) + 1
    number = int.from_bytes(tail[:width].ljust(width, b"\x00"), "big") + (len(tail) > width)
    return min(number, (1 << 63) - 1)


def _part(start: bytes, end: bytes) -> _Part | None:
    """The first part of a range; None where the range is empty."""
    if start >= end:
        return None
    edges = [FIRST, *(e for t in (PAYLOAD, LOG) for e in (t.prefix, after_prefix(t.prefix)))]
    for (low, high), table in zip(
        pairwise([*edges, end]), (None, PAYLOAD, None, LOG, None), strict=True
    ):
        if start < high:
            return _Part(table, max(start, low), min(high, end))
    return _Part(None, start, end)


def scan(connection: sqlite3.Connection, start: bytes, end: bytes) -> Chunk:
    """Read the first rows of a range, CHUNK at most, up to one that can't be read.

    A flipped bit in a number puts its row out of order, and continuing after it would skip others.
    Raises Unavailable: only the reading failed.
    """
    part = _part(max(start, FIRST), end)
    if part is None:
        return Chunk([], None)
    found: list[tuple[Any, object, object]] = []
    why = None
    try:
        found.extend(connection.execute(part.statement(), (*part.bounds(), CHUNK)))
    except sqlite3.Error as exc:
        why = _why(exc)
    ordered = 1 + next((n for n, (a, b) in enumerate(pairwise(found)) if a[0] >= b[0]), len(found))
    rows = [part.row(*one) for one in found[:ordered]]
    if ordered < len(found):
        why = _DISORDER
    elif why is None and len(found) == CHUNK:
        while rows and isinstance(rows[-1][1], Damage):
            rows.pop()  # its number may be damaged
        if len(rows) > 1:  # the last is the next chunk's first, to be compared with what follows
            return Chunk(rows[:-1], rows[-1][0])
        why = _DISORDER
    if why is not None:
        return Chunk(rows, None, why)
    return Chunk(rows, part.end if part.end < end else None)


# -- a file of the earlier layout --

_LAST_BATCH = 30.0
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
    with closing(sqlite3.connect(path, timeout=_LAST_BATCH, isolation_level=None)) as connection:
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

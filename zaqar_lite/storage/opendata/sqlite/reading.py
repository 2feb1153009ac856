"""Reading rows of the SQLite file, checking each, and telling a broken file from a broken row."""

import logging
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from operator import lt
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.opendata.engine import Damage, Row, Stored
from zaqar_lite.storage.opendata.format import keys as layout
from zaqar_lite.storage.opendata.format.encoding import after_prefix
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.sqlite.rebuild import DAMAGED

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
_READ_AT_OPENING = (
    (layout.prefix(RecordType.ACTIVE), layout.prefix(RecordType.ATTEMPTS)),
    (layout.prefix(RecordType.CONFIG), b"\x02"),
    (layout.LOG_BLOCK, after_prefix(layout.LOG_SEGMENTS)),
)


class Connection(sqlite3.Connection):
    """A connection that knows its file."""

    path: Path


def connect(path: Path) -> Connection:
    """Connect to a database to read it; the caller's thread need not be the one that reads.

    Raises:
        sqlite3.Error: it can't be opened.
    """
    connection = sqlite3.connect(
        path,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_PREPARED,
        factory=Connection,
    )
    connection.path = path
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


def error_code(exc: sqlite3.Error) -> int:
    """SQLite's primary result code."""
    return int(getattr(exc, "sqlite_errorcode", 0)) & 0xFF


def _why(connection: Connection, exc: sqlite3.Error) -> str:
    """What is damaged; raises Unavailable where only the reading failed."""
    if error_code(exc) in _PASSING:
        raise Unavailable("The store can't read now.", detail=str(exc)) from exc
    if error_code(exc) in BROKEN_FILE:
        ask_for_rebuild(connection.path)
    return str(exc)


def ask_for_rebuild(path: Path) -> None:
    """Have the database rebuilt at the next start: pages that nothing leads to may hold more."""
    request = path.with_name(DAMAGED)
    if request.exists():
        return
    logger.error("the database %s is damaged: start the server again to have it rebuilt", path)
    try:
        request.touch()
    except OSError as exc:
        logger.error("%s can't be written: %s", request, exc)


def get(connection: Connection, keys: Sequence[bytes]) -> dict[bytes, Stored]:
    """Read records by key; absent ones are left out, damaged ones named.

    Raises:
        Unavailable: only the reading failed.
    """
    found: dict[bytes, Stored] = {}
    for offset in range(0, len(keys), _MOST_ROWS):
        chunk = keys[offset : offset + _MOST_ROWS]
        try:
            rows = connection.execute(_select(len(chunk)), chunk).fetchall()
        except sqlite3.Error as exc:
            why = _why(connection, exc)
            if len(chunk) == 1:
                found[chunk[0]] = Damage(chunk[0], why)
            else:
                for key in chunk:
                    found.update(get(connection, (key,)))
            continue
        for key, value, checksum in rows:
            found[key] = _checked(key, value, checksum)
    return found


_KEYS = "SELECT k FROM kv WHERE k >= ? AND k < ? ORDER BY k"
_DISORDER = "records are out of order"
_FORWARD = "SELECT k, v, c FROM kv WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"
_BACKWARD = "SELECT k, v, c FROM kv WHERE k >= ? AND k < ? ORDER BY k DESC LIMIT ?"


class Chunk(NamedTuple):
    """The next rows of a range, and where those behind them begin; None where that was all."""

    rows: list[Row]
    next: bytes | None


def scan(connection: Connection, start: bytes, end: bytes) -> Chunk | Damage:
    """Read the first rows of a range, CHUNK at most, or tell that a page there is broken.

    A flipped bit in a key leaves its row out of order, and SQLite passes over what it hides: so
    reading goes on behind an intact row, and where nothing is left the other end must agree.

    Raises:
        Unavailable: only the reading failed.
    """
    try:
        connection.execute("BEGIN")  # one state of the store for both ends
        try:
            found = connection.execute(_FORWARD, (start, end, CHUNK)).fetchall()
            last = connection.execute(_BACKWARD, (start, end, 1)).fetchall()
        finally:
            connection.execute("COMMIT")
    except sqlite3.Error as exc:
        return Damage(start, _why(connection, exc), end)
    rows = [(key, _checked(key, value, checksum)) for key, value, checksum in found]
    is_last = len(found) < CHUNK
    while not is_last and rows and isinstance(rows[-1][1], Damage):
        rows.pop()  # the next chunk has it
    if (
        not _are_ordered([key for key, _, _ in found])
        or (is_last and found[-1:] != last)
        or not (is_last or rows)
    ):
        ask_for_rebuild(connection.path)
        return Damage(start, _DISORDER, end)
    return Chunk(rows, None if is_last else rows[-1][0] + b"\x00")


def _are_ordered(keys: Sequence[object]) -> bool:
    known = [key for key in keys if isinstance(key, bytes)]
    return len(known) == len(keys) and all(map(lt, known, known[1:]))


def check(connection: Connection) -> None:
    """Walk the part of the tree that every opening reads: all but payloads, attempts and the log.

    Raises:
        sqlite3.Error: a page of it is broken or out of place, or another one was found so before.
    """
    is_sound = not connection.path.with_name(DAMAGED).exists()
    for bounds in _READ_AT_OPENING:
        found = connection.execute(_KEYS, bounds).fetchall()
        is_sound = is_sound and _are_ordered([key for (key,) in found])
    if not is_sound:
        error = sqlite3.DatabaseError("pages are broken or out of place")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def salvage(
    connection: Connection, start: bytes, end: bytes
) -> tuple[list[Row], Damage, list[Row]]:
    """Read a damaged range from both ends, row by row, up to where nothing can be read.

    No key comes twice, whatever the tree leads to.
    """
    before, why = _read_until_error(connection, _FORWARD, start, end)
    first = before[-1][0] + b"\x00" if before else start
    behind, _ = _read_until_error(connection, _BACKWARD, first, end)
    until = behind[-1][0] if behind else b""
    key = before[-1][0] if before else start
    unique = dict(before)
    others = {row[0]: row[1] for row in reversed(behind) if row[0] not in unique}
    return list(unique.items()), Damage(key, why, until), list(others.items())


def _read_until_error(
    connection: Connection, statement: str, start: bytes, end: bytes
) -> tuple[list[Row], str]:
    rows: list[Row] = []
    cursor = connection.execute("SELECT 1 WHERE 0")
    try:
        cursor = connection.execute(statement, (start, end, -1))
        for key, value, checksum in cursor:
            if isinstance(key, bytes):  # or a flipped bit has made something else of it
                rows.append((key, _checked(key, value, checksum)))
    except sqlite3.Error as exc:
        return rows, _why(connection, exc)
    finally:
        cursor.close()
    return rows, _DISORDER

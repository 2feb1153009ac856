"""Put what is intact of a damaged SQLite file into a new one.

SQLite refuses a file that was cut short, and all that lies under a broken inner page. Here every
page of the table is read by itself (`sqlite_pages.py`), and of its rows those whose checksum is
right go into a new file. Free pages hold rows of the past, so they are left out; where the list of
them is damaged too, pages that the tree still leads to go first. The damaged file is kept.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from zaqar_lite.storage.opendata.engine import Damage
from zaqar_lite.storage.opendata.sqlite_pages import ROOT, BadPage, Pages, children
from zaqar_lite.storage.opendata.sqlite_wal import fold
from zaqar_lite.storage.opendata.sqlite_writer import open_file

DAMAGED = "damaged"
"""The file beside the database that asks for a rebuild at the next start."""
REBUILT = "rebuilt"
"""The file beside a rebuilt database, until what was lost has been dealt with."""
_INSERT = "INSERT OR IGNORE INTO kv(k, v, c) VALUES (?, ?, ?)"
_ROWS = 10_000


def rebuild(path: Path) -> list[str] | None:
    """Replace a database by what is intact of it; name what is lost and where the old file is.

    Answers None where nothing of a store can be read: the file is left as it is then. Nobody else
    may have it open. A crash leaves the damaged file, to be rebuilt again, or the whole new one.

    Raises:
        OSError: a file can't be read or written.
        sqlite3.Error: the new file can't be written.
    """
    lost: list[str] = []
    damage = fold(path)
    if damage is not None:
        lost.append(damage)
    new = path.with_name(f"{path.name}.new")
    _remove(new)
    with path.open("rb") as file:
        copied = _copy(Pages(file), new, lost)
    if not copied:
        _remove(new)
        return None
    kept = path.with_name(f"{path.name}.damaged-{time.time_ns() // 1_000_000}")
    os.link(path, kept)
    path.with_name(REBUILT).touch()
    new.replace(path)
    path.with_name(DAMAGED).unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    lost.append(f"{path} was damaged: {copied} intact records were put into a new one; kept {kept}")
    return lost


def _remove(file: Path) -> None:
    for name in (file.name, f"{file.name}-wal", f"{file.name}-shm"):
        file.with_name(name).unlink(missing_ok=True)


def _copy(pages: Pages, new: Path, lost: list[str]) -> int:
    """Copy the intact rows; answer how many."""
    with contextlib.closing(open_file(new)) as connection:
        rows: list[tuple[bytes, bytes, int]] = []
        for row in _rows(pages, lost):
            rows.append(row)
            if len(rows) == _ROWS:
                _insert(connection, rows)
        _insert(connection, rows)
        ((copied,),) = connection.execute("SELECT count(*) FROM kv").fetchall()
        return int(copied)


def _insert(connection: sqlite3.Connection, rows: list[tuple[bytes, bytes, int]]) -> None:
    connection.execute("BEGIN")
    connection.executemany(_INSERT, rows)
    connection.commit()
    rows.clear()


def _rows(pages: Pages, lost: list[str]) -> Iterator[tuple[bytes, bytes, int]]:
    for number in _numbers(pages, lost):
        try:
            page = pages.parse(number)
        except BadPage:
            continue  # of the schema, the rest of a long row, or named where the tree led to it
        if page.unreadable:
            lost.append(f"page {number} of the database: {page.unreadable} records are unreadable")
        for key, value, checksum, _ in page.cells:
            if value is not None and crc32(value, crc32(key)) == checksum:
                yield key, value, checksum
            else:
                lost.append(str(Damage(key, "its checksum does not match")))


def _numbers(pages: Pages, lost: list[str]) -> Iterator[int]:
    """The numbers of the pages to read: those in the tree, then those that nothing leads to."""
    free, is_complete = pages.free()
    seen: set[int] = set()
    waiting: list[tuple[bytes | None, int, bytes | None]] = [(None, ROOT, None)]
    while waiting:
        low, number, high = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        try:
            page = pages.parse(number)
        except BadPage:
            reason = f"page {number} of the database is unreadable; other pages may hold some"
            lost.append(str(Damage(low or b"", reason, high or b"")))
            continue
        if page.is_inner:
            waiting += children(page)
        yield number
    if not is_complete:
        lost.append("the list of free pages is damaged: what was deleted may come back")
    for number in range(ROOT, pages.in_file + 1):
        if number not in seen and number not in free:
            yield number

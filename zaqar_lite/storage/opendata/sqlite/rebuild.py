"""Put what is intact of a damaged SQLite file into a new one.

SQLite refuses a file that was cut short, and all that lies under a broken inner page. Here every
page of the table is read by itself (`pages.py`), and of its rows those whose checksum is
right go into a new file. Free pages hold rows of the past, so they are left out; where the list of
them is damaged too, so are all pages but those that lie where the tree is broken. The damaged file
is kept.
"""

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias
from zlib import crc32

from zaqar_lite.storage.opendata.engine import Damage
from zaqar_lite.storage.opendata.sqlite.pages import ROOT, BadPage, Page, Pages, children
from zaqar_lite.storage.opendata.sqlite.wal import fold
from zaqar_lite.storage.opendata.sqlite.writer import open_file

DAMAGED = "damaged"
"""The file beside the database that asks for a rebuild at the next start."""
REBUILT = "rebuilt"
"""The file beside a rebuilt database, until what was lost has been dealt with: the ranges of it."""
Range: TypeAlias = tuple[bytes, bytes]
"""The keys before and behind what may be lost; an empty one is the end of the table."""
_Row: TypeAlias = tuple[bytes, bytes, int]
_ANYWHERE = b"", b""
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
    damage = fold(path)
    new = path.with_name(f"{path.name}.new")
    try:
        lost = _rebuild(path, new)
    finally:
        _remove(new)  # where that failed: a disk may be full
    return None if lost is None else [*filter(None, [damage]), *lost]


def _rebuild(path: Path, new: Path) -> list[str] | None:
    _remove(new)
    with path.open("rb") as file:
        salvage = _Salvage(Pages(file))
        copied = _copy(salvage.rows(), new)
    if not copied:
        return None
    kept = path.with_name(f"{path.name}.damaged-{time.time_ns() // 1_000_000}")
    _keep(path, kept)
    mark = path.with_name(REBUILT)  # it is there already where a rebuild was not seen through
    _write_ranges(mark, [*read_ranges(mark), *salvage.ranges])
    new.replace(path)
    path.with_name(DAMAGED).unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    done = f"{path} was damaged: {copied} intact records were put into a new one; kept {kept}"
    return [*salvage.lost, done]


def read_ranges(mark: Path) -> list[Range]:
    """The ranges of keys in which a rebuild may have lost records, from its mark.

    Raises:
        OSError: it can't be read.
    """
    try:
        pairs = [line.split(",") for line in mark.read_text().splitlines()]
        return [(bytes.fromhex(low), bytes.fromhex(high)) for low, high in pairs]
    except FileNotFoundError:
        return []
    except ValueError:
        return [_ANYWHERE]


def _write_ranges(mark: Path, ranges: Iterable[Range]) -> None:
    with mark.open("w") as file:
        file.writelines(f"{low.hex()},{high.hex()}\n" for low, high in ranges)
        file.flush()
        os.fsync(file.fileno())


def _keep(path: Path, kept: Path) -> None:
    """Give the damaged file another name; it stays in its place, too, so that one always is."""
    try:
        os.link(path, kept)
    except OSError:  # not every file system has hard links
        try:
            shutil.copy(path, kept)  # with its mode
        except OSError:
            kept.unlink(missing_ok=True)
            raise


def _remove(file: Path) -> None:
    for name in (file.name, f"{file.name}-wal", f"{file.name}-shm"):
        file.with_name(name).unlink(missing_ok=True)


def _copy(found: Iterator[_Row], new: Path) -> int:
    """Copy the intact rows; answer how many."""
    with contextlib.closing(open_file(new)) as connection:
        rows: list[_Row] = []
        for row in found:
            rows.append(row)
            if len(rows) == _ROWS:
                _insert(connection, rows)
        _insert(connection, rows)
        ((copied,),) = connection.execute("SELECT count(*) FROM kv").fetchall()
        return int(copied)


def _insert(connection: sqlite3.Connection, rows: list[_Row]) -> None:
    connection.execute("BEGIN")
    connection.executemany(_INSERT, rows)
    connection.commit()
    rows.clear()


class _Salvage:
    """The intact rows of a file; once they are read, what is lost, in words and as ranges."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self.lost: list[str] = []
        self.ranges: list[Range] = []

    def rows(self) -> Iterator[_Row]:
        """Read the pages in the tree, then those that nothing leads to.

        Where the list of free pages is damaged, of the latter only what an unreadable inner page
        may have led to: all pages of the past are among them.
        """
        seen: set[int] = set()
        gaps = yield from self._in_tree(seen)
        free, is_complete = self._pages.free()
        if is_complete:
            gaps = [_ANYWHERE]
        elif gaps:
            self.lost.append("the list of free pages is damaged: what was deleted may come back")
        for number in range(ROOT, self._pages.in_file + 1) if gaps else ():
            if number in seen or number in free:
                continue
            try:
                page = self._pages.parse(number)
            except BadPage:
                continue  # the rest of a long row, or named where the tree led to it
            for row in self._intact(page, number, _ANYWHERE):
                if any(is_within(row[0], gap) for gap in gaps):
                    yield row

    def _in_tree(self, seen: set[int]) -> Generator[_Row, None, list[Range]]:
        """Read the pages in the tree; answer what lies under unreadable inner ones."""
        broken: list[tuple[int, Range]] = []
        leaves = 0
        waiting: list[tuple[int, bytes | None, int, bytes | None]] = [(0, None, ROOT, None)]
        while waiting:
            depth, low, number, high = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            bounds = low or b"", high or b""
            try:
                page = self._pages.parse(number)
            except BadPage:
                reason = f"page {number} of the database is unreadable; other pages may hold some"
                self.lost.append(str(Damage(bounds[0], reason, bounds[1])))
                self.ranges.append(bounds)
                broken.append((depth, bounds))
                continue
            if page.is_inner:
                below = [(depth + 1, *child) for child in children(page, low, high)]
                waiting += reversed(below)  # in order, or the new file's pages are half empty
            else:
                leaves = max(leaves, depth)
            lost = len(self.ranges)
            yield from self._intact(page, number, bounds)
            broken += ((depth, found) for found in self.ranges[lost:])
        return [bounds for depth, bounds in broken if depth < leaves or not leaves]

    def _intact(self, page: Page, number: int, bounds: Range) -> Iterator[_Row]:
        is_whole = True
        if page.unreadable:
            is_whole = False
            self.lost.append(
                f"page {number} of the database: {page.unreadable} records are unreadable"
            )
        for key, value, checksum, _ in page.cells:
            if value is None or crc32(value, crc32(key)) != checksum:
                is_whole = False
                self.lost.append(str(Damage(key, "its checksum does not match")))
                continue
            if is_whole and not is_within(key, bounds):
                is_whole = False
                reason = f"page {number} of the database is another one; other pages may hold some"
                self.lost.append(str(Damage(bounds[0], reason, bounds[1])))
            yield key, value, checksum
        if not is_whole:
            self.ranges.append(bounds)


def is_within(key: bytes, bounds: Range) -> bool:
    """Whether a key lies in a range."""
    return bounds[0] <= key and (not bounds[1] or key <= bounds[1])

"""The pages of a SQLite file, read without SQLite: it gives up a file at the first broken link.

A table without rowid is a tree of index pages, and every page of it, inner ones too, holds rows:
the record format with key, value and checksum, the key first (https://www.sqlite.org/fileformat2.html,
sections 1.5, 1.6 and 2.1). What a page holds counts only if its checksum says so.
"""

from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

ROOT = 2
"""The page at which the tree of the first table begins."""
_MAGIC = b"SQLite format 3\x00"
_PAGE_SIZE = 4096
_INNER, _LEAF = 2, 10
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}
_FIRST_BLOB = 12


class BadPage(ValueError):
    """A page, or a part of one, that is not as SQLite writes it."""


class Cell(NamedTuple):
    """A row of a page: its key, value and checksum; on an inner page, the child before it."""

    key: bytes
    value: bytes | None
    checksum: int
    child: int


class Page(NamedTuple):
    """A page of the tree: its rows, how many are unreadable, and the last child of an inner one."""

    cells: Sequence[Cell]
    unreadable: int
    is_inner: bool
    last_child: int


class Pages:
    """The pages of one file, by number from 1; what lies beyond its end reads as zeros."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        head = self._bytes(0, 100)
        size = int.from_bytes(head[16:18], "big")
        self.size = (65_536 if size == 1 else size) if head.startswith(_MAGIC) else _PAGE_SIZE
        self._usable = self.size - (head[20] if head.startswith(_MAGIC) else 0)
        length = file.seek(0, 2)
        self.in_file = -(-length // self.size)

    def free(self) -> tuple[set[int], bool]:
        """The pages in use by nothing, and whether these are all of them."""
        head = self._bytes(0, 100)
        trunk, expected = int.from_bytes(head[32:36], "big"), int.from_bytes(head[36:40], "big")
        found: set[int] = set()
        while trunk and trunk not in found:
            found.add(trunk)
            data = self.read(trunk)
            number = min(int.from_bytes(data[4:8], "big"), self._usable // 4 - 2)
            found.update(
                int.from_bytes(data[at : at + 4], "big") for at in range(8, 8 + 4 * number, 4)
            )
            trunk = int.from_bytes(data[:4], "big")
        return found, head.startswith(_MAGIC) and len(found) == expected

    def read(self, number: int) -> bytes:
        """The bytes of a page."""
        return self._bytes((number - 1) * self.size, self.size)

    def parse(self, number: int) -> Page:
        """Read a page of the tree.

        Raises:
            BadPage: it is none.
        """
        data = self.read(number)
        kind, count = data[0], int.from_bytes(data[3:5], "big")
        head = 12 if kind == _INNER else 8
        if kind not in (_INNER, _LEAF) or head + 2 * count > self._usable:
            raise BadPage(f"page {number} is no page of the table")
        cells: list[Cell] = []
        for index in range(count):
            at = int.from_bytes(data[head + 2 * index : head + 2 * index + 2], "big")
            try:
                cells.append(self._cell(data, at, is_inner=kind == _INNER))
            except (BadPage, IndexError):
                continue
        last = int.from_bytes(data[8:12], "big") if kind == _INNER else 0
        return Page(cells, count - len(cells), kind == _INNER, last)

    def _cell(self, data: bytes, at: int, *, is_inner: bool) -> Cell:
        child = 0
        if is_inner:
            child, at = int.from_bytes(data[at : at + 4], "big"), at + 4
        size, at = _varint(data, at)
        local = self._local(size)
        payload = data[at : at + local]
        if len(payload) < local:
            raise BadPage("a row that leaves its page")
        head_size, start = _varint(payload, 0)
        key_type, start = _varint(payload, start)
        value_type, start = _varint(payload, start)
        checksum_type, start = _varint(payload, start)
        if start != head_size or checksum_type not in _INTEGER_BYTES:
            raise BadPage("a row of another table")
        key_end = start + _blob_size(key_type)
        value_end = key_end + _blob_size(value_type)
        if value_end + _INTEGER_BYTES[checksum_type] != size or key_end > local:
            raise BadPage("a row whose parts do not make its size")
        key = payload[start:key_end]
        try:
            payload += self._overflow(data, at + local, size - local)
        except BadPage:
            return Cell(key, None, 0, child)
        number = int.from_bytes(payload[value_end:size], "big", signed=True)
        checksum = checksum_type - 8 if checksum_type in (8, 9) else number
        return Cell(key, payload[key_end:value_end], checksum, child)

    def _local(self, size: int) -> int:
        """How many bytes of a row lie in its own page."""
        most = (self._usable - 12) * 64 // 255 - 23
        if size <= most:
            return size
        least = (self._usable - 12) * 32 // 255 - 23
        fitting = least + (size - least) % (self._usable - 4)
        return fitting if fitting <= most else least

    def _overflow(self, data: bytes, at: int, missing: int) -> bytes:
        parts: list[bytes] = []
        number = int.from_bytes(data[at : at + 4], "big")
        while missing > 0:
            if not 0 < number <= self.in_file:
                raise BadPage("a row whose rest is lost")
            page = self.read(number)
            part = page[4 : min(self._usable, 4 + missing)]
            parts.append(part)
            missing -= len(part)
            number = int.from_bytes(page[:4], "big")
        return b"".join(parts)

    def _bytes(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size).ljust(size, b"\x00")


def children(
    page: Page, low: bytes | None, high: bytes | None
) -> Iterator[tuple[bytes | None, int, bytes | None]]:
    """The children of an inner page, each with the keys before and behind all of its rows.

    `low` and `high` are those of the page itself; None is the end of the table.
    """
    for cell in page.cells:
        yield low, cell.child, cell.key
        low = cell.key
    yield low, page.last_child, high


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | data[at + 8], at + 9


def _blob_size(kind: int) -> int:
    if kind < _FIRST_BLOB or kind % 2:
        raise BadPage("a row whose key or value is no blob")
    return (kind - _FIRST_BLOB) // 2

"""What is intact of a damaged SQLite file, or of one that SQLite's own tool has recovered.

It is put into a new store, which is marked as one that may miss records: when it is opened, the
messages of lost pages are put back from the metadata log (`storage/opendata/recovery.py`).
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from zlib import crc32

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.storage.opendata.engine import FIRST, REBUILT, Batch, Engine
from zaqar_lite.storage.opendata.sqlite.reading import BROKEN_FILE, connect, error_code
from zaqar_lite.storage.opendata.sqlite.writer import LOG, PAYLOAD

_ROWS = 1_000


async def fill(target: Engine, file: Path) -> int:
    """Write the intact records of a SQLite file into an open, empty store; answer how many.

    The store is marked: when it is opened, what is missing is put back as far as that can be.
    Raises ConfigurationError: the store is not empty, or there is nothing to put into it;
    Unavailable: it can't be written; sqlite3.Error: nothing of the file can be read.
    """
    async for chunk in target.scan(FIRST, b"\xff"):
        if chunk:
            raise ConfigurationError(
                "What is intact of a damaged store goes into an empty one: give --store a "
                "directory of its own."
            )
    count = 0
    rows = intact_rows(file)
    while part := list(islice(rows, _ROWS)):
        present = await target.get([key for key, _ in part])
        new: dict[bytes, bytes] = {}
        for key, value in part:
            if key >= FIRST and key not in present:
                new.setdefault(key, value)  # the first of a key is right
        if new:
            await target.commit(Batch({REBUILT: b"", **new}, ()))
            count += len(new)
    if not count:
        raise ConfigurationError("No record of a store is intact in it.")
    return count


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

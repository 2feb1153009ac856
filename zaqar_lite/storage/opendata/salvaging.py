"""Filling an empty store with what is intact of a damaged one: `zaqar-lite store import`.

The source is a SQLite file, damaged or recovered by SQLite's own tool, or a store that opens but
has damaged places. What it lost is put back from the metadata log when the new store is opened
(`restoring.py`), because the new store is marked as one that may miss records.
"""

from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.storage.opendata.engine import FIRST, REBUILT, Batch, Engine
from zaqar_lite.storage.opendata.sqlite.compacting import intact_rows

_ROWS = 1_000


async def rows_of_file(path: Path) -> AsyncIterator[dict[bytes, bytes]]:
    """The intact records of a SQLite file; a key may come again, the first one is right.

    Raises:
        sqlite3.Error: nothing of it can be read.
    """
    rows = intact_rows(path)
    while part := _first_of_each(rows):
        yield part


def _first_of_each(rows: Iterator[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    part: dict[bytes, bytes] = {}
    for key, value in islice(rows, _ROWS):
        part.setdefault(key, value)
    return part


async def rows_of_store(source: Engine) -> AsyncIterator[dict[bytes, bytes]]:
    """The intact records of an open store."""
    async for chunk in source.scan(FIRST, b"\xff"):
        yield {key: value for key, value in chunk if isinstance(value, bytes)}


async def fill(target: Engine, parts: AsyncIterator[dict[bytes, bytes]]) -> int:
    """Write records into an open, empty store, and mark it; answer how many.

    Raises:
        ConfigurationError: the store is not empty, or there is nothing to put into it.
        Unavailable: it can't be written.
    """
    async for chunk in target.scan(FIRST, b"\xff"):
        if chunk:
            raise ConfigurationError(
                "What is intact of a damaged store goes into an empty one: give --store a "
                "directory of its own."
            )
    count = 0
    async for part in parts:
        there = await target.get(list(part))
        new = {key: value for key, value in part.items() if key >= FIRST and key not in there}
        if new:
            await target.commit(Batch({REBUILT: b"", **new}, ()))
            count += len(new)
    if not count:
        raise ConfigurationError("No record of a store is intact in it.")
    return count

"""SlateDB's files read without SlateDB: the rows of intact blocks, the newest of every key."""

import asyncio
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.drivers.opendata.store import engine_in
from zaqar_lite.storage.opendata.engine import Batch
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.active import encode_active
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.slatedb import table as slatedb_table
from zaqar_lite.storage.opendata.slatedb.files import Files, Salvaged
from zaqar_lite.storage.opendata.slatedb.pages import without_older_pages
from zaqar_lite.storage.opendata.slatedb.table import Lost, Row, read_blocks, read_layout

pytestmark = pytest.mark.anyio


async def test_an_old_log_is_used_back_to_its_first_gap(tmp_path: Path) -> None:
    """Tables forget deletions in the end: before a gap, what was deleted would come back."""
    engine = await engine_in(tmp_path)
    await engine.commit(Batch({b"\x01\x0edeleted": b"old"}, ()))
    await engine.commit(Batch({}, (b"\x01\x0edeleted",)))
    await engine.commit(Batch({b"\x01\x0ekept": b"new"}, ()))
    logs = [
        file for file in sorted((tmp_path / "slatedb/wal").glob("*.sst")) if file.stat().st_size
    ]
    put, delete, last = logs[-3:]
    (row,) = next(intact(read_blocks(last, None)))
    for old, found in (
        ([put], []),
        ([put, delete], []),
        ([put, delete, last], [b"kept"]),
        ([put, last], [b"kept"]),
        ([last], [b"kept"]),
    ):
        salvaged = Salvaged(Files([], old, [], row.sequence))
        assert [row.key[2:] for row in salvaged.rows()] == found
    await engine.close()


def page(queue: bytes, number: int, sequence: int, *messages: int) -> Row:
    fields = [field for message in messages for field in (message, 100, 0, 2_000_000_000_000, 0)]
    key = keys.queue_key(RecordType.ACTIVE, queue, number)
    return Row(key, sequence, encode_active(fields, []))


def test_an_older_page_whose_messages_a_newer_one_has_is_left_out() -> None:
    """The deletion of a page that was joined to another one is lost."""
    rows = [
        Row(keys.message_key(RecordType.PAYLOAD, 1), 1, b"payload"),
        page(b"p/joined", 1, 7, 1, 2, 3),
        page(b"p/joined", 2, 5, 3, 4),
        page(b"p/joined", 3, 6, 5),
        page(b"p/other", 1, 4, 3, 4),
        Row(keys.queue_key(RecordType.CONFIG, b"p/joined"), 1, b"config"),
    ]
    named: list[str] = []
    assert list(without_older_pages(rows, named.append)) == [*rows[:2], *rows[3:]]
    assert [keys.describe(rows[2].key) in text for text in named] == [True]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int, list[Row]]:
    """A table: its bytes, where its blocks end, and its rows."""
    directory = tmp_path_factory.mktemp("table")
    asyncio.run(write(directory))
    (file,) = (directory / "slatedb" / "compacted").glob("*.sst")
    end = read_layout(file).blocks_end
    rows = [row for rows in intact(read_blocks(file, end)) for row in rows]
    assert len(rows) > 3_000
    return file.read_bytes(), end, rows


async def write(directory: Path) -> None:
    choose = random.Random(0)
    rows = {
        b"\x01\x0e%d-%d" % (choose.randrange(10**9), number): choose.randbytes(
            choose.randrange(300)
        )
        for number in range(3_000)
    }
    engine = await engine_in(directory)
    await engine.commit(Batch(rows, ()))
    await engine.commit(Batch({}, sorted(rows)[::7]))
    await engine.close()


def intact(blocks: Iterable[Sequence[Row] | Lost]) -> Iterator[Sequence[Row]]:
    return (block for block in blocks if not isinstance(block, Lost))


@pytest.mark.parametrize("window", [16_384, 8 * 1024 * 1024])
@pytest.mark.parametrize("seed", range(15))
def test_of_damaged_bytes_the_rows_of_all_other_blocks_are_read(
    seed: int,
    window: int,
    table: tuple[bytes, int, list[Row]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slatedb_table, "_WINDOW", window)
    whole, end, rows = table
    choose = random.Random(seed)
    data = bytearray(whole)
    start = choose.randrange(end)
    length = choose.choice([1, 100, 20_000])
    data[start : start + length] = choose.randbytes(len(data[start : start + length]))
    if seed % 3 == 0:
        del data[start:]
    file = tmp_path / "table.sst"
    file.write_bytes(data)
    blocks = list(read_blocks(file, end))
    found = [row for rows in intact(blocks) for row in rows]
    assert found == [row for row in rows if row in set(found)]
    (lost,) = [block for block in blocks if isinstance(block, Lost)]
    assert lost.start <= start < lost.end
    if seed % 3:
        assert lost.end - lost.start <= length + 3 * 4_096
        assert len(rows) - len(found) <= (length + 3 * 4_096) // 40


async def test_rows_longer_than_what_is_read_at_once_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slatedb_table, "_WINDOW", 65_536)
    engine = await engine_in(tmp_path)
    rows = {b"\x01\x0e%d" % n: bytes([n]) * size for n, size in enumerate((10, 500_000, 0, 70_000))}
    await engine.commit(Batch(rows, ()))
    await engine.close()
    (file,) = (tmp_path / "slatedb" / "compacted").glob("*.sst")
    blocks = list(read_blocks(file, read_layout(file).blocks_end))
    found = {row.key: row.value for rows in intact(blocks) for row in rows}
    assert found.items() >= rows.items()
    assert not [block for block in blocks if isinstance(block, Lost)]

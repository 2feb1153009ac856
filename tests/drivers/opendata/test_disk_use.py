"""What the SQLite file takes on the disk, that it gives it back, and files of earlier versions."""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from zaqar_lite.storage.opendata.sqlite.writer import LOG, PAYLOAD, SCHEMA

from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.store import HOUR, OTHER, QUEUE, THIRD, Store, listed
from zaqar_lite.cli import main
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.opendata.entries import PAGE_SIZE
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.sqlite import FILE_NAME

pytestmark = pytest.mark.anyio
LOCAL = 8_192 - 35 - 40
"""Bytes of a row that lie in a page of SQLite's: the rest would lie in others. 40 are its head."""
CLIENT = "7f1bfa6e-6c1b-4d1c-9f2e-8d3e4b1c2a3d"


def size_of(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir())


async def fill(store: Store, count: int, size: int, *, at_once: int = 100) -> None:
    for _ in range(0, count, at_once):
        new = [NewMessage(b'"%s"' % (b"x" * (size - 2)), HOUR)] * at_once
        await store.messages.post(QUEUE, new, client_id=CLIENT, version=None)


@pytest.mark.parametrize(
    ("size", "most"), [(200, 2.5), (1_100, 2.0), (2_100, 2.0), (3_000, 2.0), (4_200, 2.1)]
)
async def test_a_body_takes_little_more_than_itself(size: int, most: float, tmp_path: Path) -> None:
    store = Store(f"embedded://{tmp_path / 'data'}")
    await store.messages.open()
    await fill(store, 1_500, size)
    await fill(store, 100, size, at_once=1)
    await store.messages.close()
    assert size_of(tmp_path / "data") <= 1_600 * size * most


async def test_a_page_of_claimed_messages_fits_into_one_of_sqlite(tmp_path: Path) -> None:
    store = Store(f"embedded://{tmp_path / 'data'}")
    await store.messages.open()
    await fill(store, 2 * PAGE_SIZE, 10)
    while (await store.claim(100, client=CLIENT)).messages:
        pass
    pages = await store.records(RecordType.ACTIVE)
    await store.messages.close()
    assert len(pages) >= 2
    assert max(len(key) + len(value) for key, value in pages.items()) <= LOCAL


async def test_an_idle_store_gives_back_what_a_purge_has_freed(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    store = Store(f"embedded://{directory}")
    await store.messages.open()
    await fill(store, 18_000, 1_100)
    peak = size_of(directory)
    await store.post("kept", to=OTHER)
    await store.messages.purge(QUEUE)
    await store.sweep()
    until = time.monotonic() + 60
    while size_of(directory) > peak // 4:
        assert time.monotonic() < until, (size_of(directory), peak)
        await asyncio.sleep(0.1)
    await fill(store, 100, 200)
    assert len(await listed(store)) == 100
    await store.restart()
    assert await listed(store, OTHER) == ["kept"]
    await store.messages.close()


async def test_a_busy_store_gives_back_what_most_of_its_file_is(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    store = Store(f"embedded://{directory}")
    await store.messages.open()
    await fill(store, 10_000, 1_100)
    await store.messages.purge(QUEUE)
    await store.sweep()
    pages = []
    for _ in range(4):
        for number in range(64):
            await store.post(str(number), to=OTHER)
        with sqlite3.connect(directory / FILE_NAME) as database:
            pages.append(database.execute("PRAGMA page_count").fetchone()[0])
        database.close()
    assert pages[-1] < pages[0] or pages[-1] < 500
    await store.messages.close()


async def test_compact_makes_a_file_as_small_as_it_gets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(f"embedded://{tmp_path / 'data'}")
    await store.messages.open()
    await fill(store, 1_100, 1_100)
    for _ in range(50):  # fewer pages are free then than the server gives back by itself
        await store.acknowledge()
    await store.sweep()
    await store.messages.close()
    before = size_of(tmp_path / "data")
    assert await asyncio.to_thread(main, ["store", "compact", "--store", store.uri]) == 0
    assert "bytes are" in capsys.readouterr().out
    assert size_of(tmp_path / "data") < before * 0.7
    await store.restart()
    assert len(await listed(store)) == 100
    await check_database(store.db)
    await store.messages.close()


def run_sql(file: Path, script: str) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.executescript(script)


@pytest.fixture
def old(tmp_path: Path) -> Store:
    """A store of 2026-11-22, not opened: claims, headers, a delay, a history, one table."""
    directory = tmp_path / "data"
    directory.mkdir()
    run_sql(directory / FILE_NAME, (Path(__file__).parent / "old_store.sql").read_text())
    return Store(f"embedded://{directory}")


async def test_a_store_of_the_layout_before_is_converted_at_its_first_start(
    old: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store = old
    await store.messages.open()
    assert "was converted" in caplog.text
    assert store.db.engine.damages == []
    assert not store.db.damages
    assert await listed(store, OTHER) == ["keyed", "headed", "later"]
    assert await listed(store, THIRD) == ["kept-0", "kept-1", "kept-2"]
    record = await store.management.get_queue(QUEUE)
    assert record is not None
    assert record.metadata == {"_max_claim_count": 3, "_done_retention": 86400}
    await store.post("new", to=THIRD)
    caplog.clear()
    await store.restart()
    assert "converted" not in caplog.text
    assert await listed(store, THIRD) == ["kept-0", "kept-1", "kept-2", "new"]
    await check_database(store.db)
    await store.messages.close()


@pytest.mark.parametrize("before", ["", ";".join(SCHEMA)], ids=["old", "with-new-tables"])
async def test_compact_converts_a_store_of_the_layout_before(old: Store, before: str) -> None:
    """Also one beside whose table an earlier version's `compact` made today's, empty."""
    file = Path(old.uri.removeprefix("embedded://")) / FILE_NAME
    run_sql(file, before)
    assert await asyncio.to_thread(main, ["store", "compact", "--store", old.uri]) == 0
    async with old.messages:
        assert not old.db.damages
        assert await listed(old, OTHER) == ["keyed", "headed", "later"]
        assert await listed(old, THIRD) == ["kept-0", "kept-1", "kept-2"]


async def test_a_start_finishes_a_conversion_that_ended_before_the_file_was_written_anew(
    old: Store,
) -> None:
    file = Path(old.uri.removeprefix("embedded://")) / FILE_NAME
    async with old.messages:
        pass
    run_sql(
        file,
        "PRAGMA journal_mode = DELETE; PRAGMA auto_vacuum = NONE; PRAGMA page_size = 4096; VACUUM;"
        "PRAGMA journal_mode = WAL",
    )
    await old.restart()
    with closing(sqlite3.connect(file)) as database:
        asked = [
            database.execute(f"PRAGMA {name}").fetchone() for name in ("auto_vacuum", "page_size")
        ]
    assert asked == [(2,), (8_192,)]
    assert await listed(old, THIRD) == ["kept-0", "kept-1", "kept-2"]
    await old.messages.close()


def test_the_tables_are_those_of_the_keys() -> None:
    """The writer imports nothing of the package, so it has the prefixes in its own words."""
    assert PAYLOAD.prefix == keys.PAYLOAD_PREFIX
    assert LOG.prefix == keys.log_prefix(1)
    for number in (0, 15, 16, 4_095, 4_096, 1 << 40, (1 << 59) - 1):
        key = keys.log_entry_key(1, number)
        place = LOG.number(key)
        assert place is not None
        assert LOG.key(place) == key

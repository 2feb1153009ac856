"""A SQLite file whose tree is broken is rebuilt from the pages that are intact."""

import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from tests.drivers.opendata.store import OTHER, QUEUE, Store, listed
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.storage.opendata import database
from zaqar_lite.storage.opendata.checking import check
from zaqar_lite.storage.opendata.engine import Row
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.sqlite import rebuild as sqlite_rebuild
from zaqar_lite.storage.opendata.sqlite.engine import FILE_NAME, SqliteEngine
from zaqar_lite.storage.opendata.sqlite.pages import ROOT, Pages
from zaqar_lite.storage.opendata.sqlite.writer import open_file

pytestmark = pytest.mark.anyio
PAGE = 4_096
POSTED = 2_000
TEXTS = [f"{number}-{'x' * 200}" for number in range(POSTED)]


@pytest.fixture(scope="module")
async def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store of 2,000 messages, of which the first 300 of the other queue were deleted."""
    directory = tmp_path_factory.mktemp("sample") / "data"
    store = Store(f"embedded://{directory}")
    await store.messages.open()
    for start in range(0, POSTED, 100):
        await store.post(*TEXTS[start : start + 100])
        await store.post(*TEXTS[start : start + 100], to=OTHER)
    taken = await store.claim(300, queue=OTHER)
    ids = [message.id for message in taken.messages]
    await store.messages.delete(OTHER, ids, claim_ids=None)
    await store.sweep()
    await store.messages.close()
    return directory


@pytest.fixture
def damaged(sample: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(sample, tmp_path / "data"))


async def opened(directory: Path) -> Store:
    store = Store(f"embedded://{directory}")
    await store.messages.open()
    return store


def cut(directory: Path, part: float) -> None:
    file = directory / FILE_NAME
    os.truncate(file, int(file.stat().st_size * part))


def zero(directory: Path, number: int) -> None:
    with (directory / FILE_NAME).open("r+b") as file:
        file.seek((number - 1) * PAGE)
        file.write(bytes(PAGE))


def inner_pages(directory: Path) -> list[int]:
    data = (directory / FILE_NAME).read_bytes()
    return [at // PAGE + 1 for at in range(PAGE, len(data), PAGE) if data[at] == 2]


def last_page(directory: Path) -> int:
    """The page of the last key."""
    with (directory / FILE_NAME).open("rb") as file:
        pages, number = Pages(file), ROOT
        while (page := pages.parse(number)).is_inner:
            number = page.last_child
        return number


def asides(directory: Path, name: str = FILE_NAME) -> list[Path]:
    """The damaged files that were kept."""
    return sorted(directory.glob(f"{name}.damaged-*"))


def half_written(directory: Path) -> list[Path]:
    """What a rebuild that failed left; the disk may be full."""
    return list(directory.glob(f"{FILE_NAME}.new*"))


# -- pages --


def rows_by_sqlite(file: Path) -> list[tuple[bytes, bytes, int]]:
    connection = sqlite3.connect(file)
    rows = connection.execute("SELECT k, v, c FROM kv ORDER BY k").fetchall()
    connection.close()
    return rows


def rows_by_page(file: Path) -> Iterator[tuple[bytes, bytes, int]]:
    with file.open("rb") as opened_file:
        pages = Pages(opened_file)
        free, is_complete = pages.free()
        assert is_complete
        for number in range(2, pages.in_file + 1):
            if number in free or pages.read(number)[0] not in (2, 10):
                continue
            page = pages.parse(number)
            assert not page.unreadable
            for key, value, checksum, _ in page.cells:
                assert value is not None
                yield key, value, checksum


@pytest.mark.parametrize("seed", range(8))
def test_pages_hold_what_sqlite_finds(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    file = tmp_path / FILE_NAME
    connection = open_file(file)
    for _ in range(4):
        connection.execute("BEGIN")
        for _ in range(choose.randrange(1, 1_500)):
            key = choose.randbytes(choose.choice((2, 10, 40, 300)))
            value = choose.randbytes(int(choose.paretovariate(0.5)) % 30_000)
            checksum = choose.choice((0, 1, 200, 70_000, 2**31, 2**32 - 1))
            row = (key, value, checksum)
            connection.execute("INSERT OR REPLACE INTO kv VALUES (?, ?, ?)", row)
        low, high = sorted((choose.randbytes(1), choose.randbytes(1)))
        connection.execute("DELETE FROM kv WHERE k >= ? AND k < ?", (low, high))
        connection.commit()
    connection.close()
    assert sorted(rows_by_page(file)) == rows_by_sqlite(file)


# -- cut short --


@pytest.mark.parametrize("part", [0.99, 0.9, 0.5, 0.2])
async def test_a_file_cut_short_serves_what_is_left(
    part: float, damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut(damaged, part)
    store = await opened(damaged)
    found, others = await listed(store), await listed(store, OTHER)
    assert found == [text for text in TEXTS if text in set(found)]  # in order, each once
    assert others == [text for text in TEXTS[300:] if text in set(others)]  # nothing deleted
    whole = POSTED + POSTED - 300
    assert len(found) + len(others) >= (part - 0.1) * whole
    if len(found) + len(others) < whole:
        assert "is unreadable" in caplog.text
    assert (await store.post("new"))[0]
    (aside,) = asides(damaged)
    assert str(aside) in caplog.text
    assert (damaged / FILE_NAME).stat().st_size < 1.2 * aside.stat().st_size
    caplog.clear()
    await store.restart()
    assert await listed(store) == [*found, "new"]
    assert await listed(store, OTHER) == others
    assert "put back" not in caplog.text
    assert asides(damaged) == [aside]
    await store.messages.close()


async def test_an_empty_file_is_refused_and_left(damaged: Path) -> None:
    """SQLite would begin a new store in it."""
    cut(damaged, 0)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"can't be opened: the file is empty\."):
            await opened(damaged)
    assert not (damaged / FILE_NAME).stat().st_size
    (damaged / FILE_NAME).unlink()
    store = await opened(damaged)  # as the error says
    assert not await listed(store)
    await store.messages.close()


async def test_a_file_of_something_else_is_refused_and_left(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(50_000)
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(ConfigurationError, match="file is not a database"):
        await opened(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == content
    assert not asides(tmp_path)


# -- broken pages --


@pytest.mark.parametrize("number", [1, 2])
async def test_without_its_first_pages_the_store_is_whole(number: int, damaged: Path) -> None:
    """They lead to everything, and hold next to nothing themselves."""
    zero(damaged, number)
    store = await opened(damaged)
    assert len(await listed(store)) + len(await listed(store, OTHER)) >= 2 * POSTED - 300 - 30
    await store.messages.close()


async def test_without_its_header_and_a_leaf_nothing_of_the_past_comes_back(
    damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The header leads to the free pages; the tree tells what can't have been under it."""
    store = await opened(damaged)
    await store.messages.purge(QUEUE)
    await store.sweep()
    await store.messages.close()
    data = (damaged / FILE_NAME).read_bytes()
    with (damaged / FILE_NAME).open("rb") as file:
        pages = Pages(file)
        free, _ = pages.free()
        assert len(free) > 100
        leaf = next(
            number
            for number in range(3, len(data) // PAGE)
            if number not in free
            and data[(number - 1) * PAGE] == 10
            and pages.parse(number).cells[0].key.startswith(b"\x03\x01")
        )
    zero(damaged, 1)
    zero(damaged, leaf)
    store = await opened(damaged)
    assert not await listed(store)
    others = await listed(store, OTHER)
    assert others == [text for text in TEXTS[300:] if text in set(others)]
    assert len(others) > POSTED - 300 - 60
    assert "what was deleted may come back" not in caplog.text
    await store.messages.close()


@pytest.mark.parametrize("seed", range(12))
async def test_any_broken_page_costs_what_was_on_it(
    seed: int, damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, or at the next start where only bodies or metadata are under it."""
    choose = random.Random(seed)
    pages = (damaged / FILE_NAME).stat().st_size // PAGE
    zero(damaged, choose.choice((choose.randrange(2, pages + 1), *inner_pages(damaged))))
    store = await opened(damaged)
    first = await listed(store)
    await listed(store, OTHER)
    await store.restart()
    found, others = await listed(store), await listed(store, OTHER)
    assert set(first) <= set(found)
    assert found == [text for text in TEXTS if text in set(found)]
    assert others == [text for text in TEXTS[300:] if text in set(others)]
    lost = POSTED + POSTED - 300 - len(found) - len(others)
    assert lost <= 60
    assert not lost or "set aside" in caplog.text or "unreadable" in caplog.text
    await store.messages.close()


async def test_a_page_that_a_read_meets_is_named_and_rebuilt_at_the_next_start(
    damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (damaged / FILE_NAME).open("rb") as file:
        pages = Pages(file)
        inner = [number for number in inner_pages(damaged) if number != 2]
        of_payloads = [
            number
            for number in inner
            if pages.parse(number).cells[0].key < b"\x01\x02" > pages.parse(number).cells[-1].key
        ]
    zero(damaged, of_payloads[0])
    store = await opened(damaged)
    before = len(await listed(store)) + len(await listed(store, OTHER))
    assert before < 2 * POSTED - 300 - 100  # all under that page
    assert "start the server again to have it rebuilt" in caplog.text
    await store.restart()
    after = len(await listed(store)) + len(await listed(store, OTHER))
    assert after >= 2 * POSTED - 300 - 30
    await store.messages.close()


async def test_a_page_that_came_twice_shows_nothing_twice(
    damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk wrote a page of queues in the place of the next one: SQLite sees nothing broken."""
    with (damaged / FILE_NAME).open("rb") as file:
        pages = Pages(file)
        free, _ = pages.free()
        leaves = sorted(
            (page.cells[0].key, number, page.cells)
            for number in range(ROOT, pages.in_file + 1)
            if number not in free
            and pages.read(number)[0] == 10
            and (page := pages.parse(number)).cells
        )
        of_queues = keys.prefix(RecordType.ACTIVE)
        at = next(
            at
            for at, (_, _, cells) in enumerate(leaves)
            if any(cell.key.startswith(of_queues) for cell in cells)
        )
        data = pages.read(leaves[at][1])
    _, target, lost = leaves[at + 1]
    # Queues and the first entries of the log meet in a page, not always at the same place.
    logged = sum(cell.key.startswith(keys.log_prefix(1)) for cell in lost)
    with (damaged / FILE_NAME).open("r+b") as file:
        file.seek((target - 1) * PAGE)
        file.write(data)
    store = await opened(damaged)
    for _ in range(2):
        assert await listed(store) == TEXTS[logged:]  # put back from the log, once
        assert await listed(store, OTHER) == TEXTS[300:]
        await store.restart()
    assert "damaged" in caplog.text
    await store.messages.close()


async def test_a_page_that_a_write_meets_refuses_it_until_the_next_start(damaged: Path) -> None:
    store = await opened(damaged)
    zero(damaged, last_page(damaged))  # which takes the next entry of the log
    with pytest.raises(Unavailable):
        await store.post("refused")
    await store.restart()
    assert await store.post("accepted")
    assert (await listed(store))[-1] == "accepted"
    await store.messages.close()


async def scanned(engine: SqliteEngine) -> list[Row]:
    return [row async for rows in engine.scan(b"\x01", b"\x02") for row in rows]


@pytest.mark.parametrize("flipped_byte", [0, -1])
@pytest.mark.parametrize("index", [0, 999, 1_998])
async def test_a_flipped_bit_in_a_key_hides_no_other_record(
    index: int, flipped_byte: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite ends a range at a key behind it, and the next chunk would begin behind that key."""
    rows = [(b"\x01\x02\x00%08d" % number, b"value-%d" % number) for number in range(3_500)]
    connection = open_file(tmp_path / FILE_NAME)
    stored = [(key, value, crc32(value, crc32(key))) for key, value in rows]
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO kv VALUES (?, ?, ?)", stored)
    connection.commit()
    connection.close()
    key, value = rows[index]
    wrong = bytearray(key)
    wrong[flipped_byte] ^= 0x40
    data = (tmp_path / FILE_NAME).read_bytes()
    assert data.count(key + value) == 1
    (tmp_path / FILE_NAME).write_bytes(data.replace(key + value, wrong + value))
    others = [row for row in rows if row[0] != key]
    for _ in range(2):
        engine = SqliteEngine(tmp_path)
        await engine.open()
        found = await scanned(engine)
        assert [row for row in found if isinstance(row[1], bytes)] == others
        assert len(found) > len(others) or "damaged" in caplog.text
        await engine.close()


# -- what a crash left --


async def test_what_is_in_the_log_only_is_not_lost(tmp_path: Path) -> None:
    """SQLite deletes the log beside an empty file."""
    store = await opened(tmp_path / "data")
    await store.post(*TEXTS[:300])
    await store.post(*TEXTS[300:600])
    copy = Path(shutil.copytree(tmp_path / "data", tmp_path / "copy"))  # as a kill leaves it
    await store.messages.close()
    assert (copy / f"{FILE_NAME}-wal").stat().st_size > 100_000
    cut(copy, 0)
    again = await opened(copy)
    assert await listed(again) == TEXTS[:600]
    await again.restart()
    assert not (await check(again.db)).problems
    await again.messages.close()


async def test_a_log_that_is_damaged_too_is_copied_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await opened(tmp_path / "data")
    for number in range(20):
        await store.post(TEXTS[number])
    copy = Path(shutil.copytree(tmp_path / "data", tmp_path / "copy"))
    await store.messages.close()
    log = copy / f"{FILE_NAME}-wal"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    cut(copy, 0)
    again = await opened(copy)
    found = await listed(again)
    assert found
    assert found == TEXTS[: len(found)]
    assert "commits behind it could not be read" in caplog.text
    (aside,) = asides(copy, f"{FILE_NAME}-wal")
    assert aside.stat().st_mode & 0o777 == 0o600
    await again.messages.close()


async def undisturbed(damaged: Path) -> tuple[list[str], list[str]]:
    """What a rebuild serves that nothing interrupts."""
    whole = await opened(Path(shutil.copytree(damaged, damaged.with_name("whole"))))
    expected = await listed(whole), await listed(whole, OTHER)
    await whole.messages.close()
    return expected


@pytest.mark.parametrize("step", ["_insert", "_keep", "Path.replace", "os.fsync"])
async def test_a_crash_while_rebuilding_costs_nothing(
    step: str, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(damaged, 0.9)
    expected = await undisturbed(damaged)

    def crash(*_: object) -> None:
        raise OSError(5, "planted")

    owner, _, name = step.rpartition(".")
    place = {"": sqlite_rebuild, "os": os, "Path": Path}[owner]
    with monkeypatch.context() as planted:
        planted.setattr(place, name, crash)
        with pytest.raises(ConfigurationError, match="planted"):
            await opened(damaged)
    assert not half_written(damaged)
    store = await opened(damaged)
    assert (await listed(store), await listed(store, OTHER)) == expected
    await store.restart()
    assert (await listed(store), await listed(store, OTHER)) == expected
    await store.messages.close()


async def test_without_hard_links_the_damaged_file_is_copied(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(damaged, 0.9)
    before = (damaged / FILE_NAME).read_bytes()

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as planted:
        planted.setattr(os, "link", refuse)
        store = await opened(damaged)
    assert await listed(store)
    (aside,) = asides(damaged)
    assert aside.read_bytes() == before
    assert aside.stat().st_mode & 0o777 == 0o600  # there are bodies in it
    await store.messages.close()


@pytest.mark.parametrize("is_asked_again", [False, True])
async def test_a_crash_after_rebuilding_puts_back_what_was_lost_at_the_next_start(
    is_asked_again: bool, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(damaged, 0.9)
    expected = await undisturbed(damaged)

    async def crash(*_: object) -> None:
        raise OSError(5, "planted")

    with monkeypatch.context() as planted:
        planted.setattr(database, "put_back", crash)
        with pytest.raises(OSError, match="planted"):
            await opened(damaged)
    assert asides(damaged)
    if is_asked_again:  # as by a crash right behind the exchange, or by another broken page
        (damaged / sqlite_rebuild.DAMAGED).touch()
    store = await opened(damaged)
    assert (await listed(store), await listed(store, OTHER)) == expected
    await store.messages.close()

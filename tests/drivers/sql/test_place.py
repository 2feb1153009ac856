"""The connections of a file: their ends, and a log that is copied and begun anew."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from tests.drivers.sql.disk import failing_disk
from tests.drivers.sql.store import Store
from tests.drivers.store import QUEUE
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.sql import place

pytestmark = pytest.mark.anyio
MIB = 1 << 20


def open_below(path: Path) -> list[Path]:
    """What this process has open below a path."""
    opened = map(Path.resolve, Path("/proc/self/fd").iterdir())
    return [one for one in opened if one.is_relative_to(path)]


@pytest.mark.parametrize("table", ["counter", "post"])
async def test_a_file_is_refused_in_words_where_what_a_start_reads_is_damaged(
    table: str, tmp_path: Path
) -> None:
    async with Store(tmp_path / "data") as store:
        page = store.db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get
        size = int(store.db.connection.pragma("page_size"))
    with store.place.file.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))
    for _ in range(2):  # whoever is refused lets the directory go
        with pytest.raises(ConfigurationError, match="salvage"):
            await Store(tmp_path / "data").messages.open()
    assert not open_below(tmp_path)


async def test_a_cut_short_post_that_can_not_be_read_is_forgotten(store: Store) -> None:
    """It was never acknowledged. The file is damaged, or another version wrote it."""
    for part in (b"\xc1", b"\x90"):
        values = (part[0], 0, b"", part)
        await store.db.write(
            lambda db, values: [*db.execute("INSERT INTO post VALUES (?, ?, ?, ?)", values)],
            values,
        )
    await store.restart()
    await store.post("text")
    assert store.rows("post") == 0


async def test_the_first_of_its_stores_opens_a_file_and_the_last_closes_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    for first, last in ((store.messages, store.management), (store.management, store.messages)):
        await first.open()
        await store.post("text")
        await last.open()
        await first.close()
        assert set(await store.bodies()) == {"text"}
        await last.close()
        assert not open_below(tmp_path)


async def test_the_event_loop_syncs_nothing(tmp_path: Path) -> None:
    loop_syncs: list[str] = []
    with failing_disk() as disk:
        async with Store(tmp_path / "data") as store:

            def note(kind: str, done: str) -> None:
                try:
                    asyncio.get_running_loop()
                except RuntimeError:
                    return  # another thread
                if done == "sync":
                    loop_syncs.append(kind)

            disk.hook = note
            for _ in range(50):
                await store.post("text")
            disk.hook = None
    assert not loop_syncs


async def test_nothing_uses_the_connection_while_a_thread_begins_the_log_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_RESTART_AT", 64 << 10)
    begun, over = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        begun.set()
        over.wait(10)

    store.db.connection.create_scalar_function("wait", wait, 0)
    restart = store.place.restart

    def slow() -> None:
        store.db.connection.execute("SELECT wait()").fetchall()
        restart()

    monkeypatch.setattr(store.place, "restart", slow)
    await store.post(*["x" * 100] * 50)
    tasks: list[asyncio.Task[object]] = []
    tasks.append(asyncio.create_task(store.post(*["x" * 100] * 5_000)))
    while not begun.is_set():  # noqa: ASYNC110 - the test's own poll
        await asyncio.sleep(0.001)
    tasks += [asyncio.create_task(store.post(*["x"] * count)) for count in (1, 100, 5_000)]
    tasks.append(asyncio.create_task(store.claim()))
    tasks.append(asyncio.create_task(store.sweep()))
    await store.messages.ping()
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in tasks)
    over.set()
    await asyncio.gather(*tasks)


async def test_shares_and_a_log_that_begins_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_RESTART_AT", 64 << 10)

    async def post(number: int) -> None:
        for _ in range(40):
            large = 600 if number == 1 else 100
            await store.post(*["x" * 100] * large, to=QueueRef(f"project-{number % 4}", "q"))

    await asyncio.gather(*map(post, range(8)))
    assert store.place.wal_bytes < 32 << 20
    assert 0 < store.db.connection.pragma("journal_size_limit") <= 64 << 20  # of its file
    assert store.db.connection.pragma("synchronous") == 1


async def test_closing_while_the_log_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_COPY_AT", 0)
    with failing_disk() as disk:
        for _ in range(5):
            store = Store(tmp_path / "data")
            await store.messages.open()
            disk.hook = slow_copies
            posting = asyncio.gather(*[store.post(*["x" * 1_000] * 100) for _ in range(5)])
            await asyncio.sleep(0)
            await store.messages.close()
            await posting
            disk.hook = None
    async with Store(tmp_path / "data") as store:
        assert (await store.messages.stats(QUEUE)).total == 2_500


def slow_copies(kind: str, done: str) -> None:
    """Let a page take a while on its way into the file."""
    if (kind, done) == ("file", "write"):
        time.sleep(0.001)


async def grow(store: Store, beyond: int) -> None:
    """Post until the log is longer than that."""
    async with asyncio.timeout(30):
        while store.place.wal_bytes <= beyond:
            await store.post(*["x" * 1_000] * 200)


async def cycles(store: Store, count: int) -> None:
    """Post, claim and acknowledge, by turns."""
    for _ in range(count):
        await store.post(*["x" * 1_000] * 20)
        await store.acknowledge(await store.claim(20))


@pytest.mark.parametrize("begins", [0, 3 * MIB], ids=["from the beginning", "later"])
async def test_a_reader_that_stays_is_told_of_once(
    begins: int, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(place, "_RESTART_AT", MIB if not begins else 4 * MIB)
    monkeypatch.setattr(place, "_COPY_AT", MIB // 4)
    monkeypatch.setattr(place, "LONG_WAL", 5 * MIB)
    await store.post("first")
    if begins:
        await grow(store, begins)
    for readers in (1, 2):
        reader = place.connect(str(store.place.file))
        reader.execute("BEGIN")
        seen = reader.execute("SELECT count(*) FROM entry").get
        await grow(store, 8 * MIB)
        assert reader.execute("SELECT count(*) FROM entry").get == seen
        reader.close(force=True)
        await cycles(store, 200)
        assert store.place.wal_bytes < 5 * MIB, "the log did not shrink"
        warnings = [one for one in caplog.messages if "keeps a transaction open" in one]
        assert len(warnings) == readers


async def test_the_disk_is_asked_for_room_now_and_then_or_after_half_a_mebibyte(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks, statvfs = 1_000.0, 0, os.statvfs

    def look(path: Path) -> os.statvfs_result:
        nonlocal looks
        looks += 1
        return statvfs(path)

    monkeypatch.setattr(place, "monotonic", lambda: now)
    monkeypatch.setattr(os, "statvfs", look)
    for size, later, asked in (
        *((1, 0.0, 1), (1, 0.0, 1), (1, 0.2, 1), (1, 0.05, 2), (1, 0.0, 2)),
        *((1 << 20, 0.0, 2), (1, 0.0, 3), (1, 0.0, 3)),
    ):
        now += later
        await store.post("x" * size)
        assert looks == asked

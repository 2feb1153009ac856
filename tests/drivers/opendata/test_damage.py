"""Damaged files: what can't be read is named, none of it silently, and the rest is served.

Or the store is refused with a line that says what to do, and that line is tried.
"""

import asyncio
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from zaqar_lite.storage.opendata.sqlite.reading import CHUNK
from zaqar_lite.storage.opendata.sqlite.writer import PAYLOAD

from tests.drivers.opendata.store import OTHER, QUEUE, THIRD, Store, listed
from zaqar_lite.cli import main
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.opendata.engine import Batch, Row, Unreadable
from zaqar_lite.storage.opendata.format import after_prefix
from zaqar_lite.storage.opendata.sqlite import FILE_NAME, SqliteEngine
from zaqar_lite.store.checking import check

pytestmark = pytest.mark.anyio
HOUR = 3_600_000
QUEUES = (QUEUE, OTHER, THIRD)
EACH = 300
TEXTS = {
    queue: [f"{queue.name}-{n}-{'x' * (n % 7 * 100)}" for n in range(EACH)] for queue in QUEUES
}
Damage = Callable[[bytearray, random.Random], None]


def flip(data: bytearray, choose: random.Random) -> None:
    data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)


def zero(data: bytearray, choose: random.Random) -> None:
    """Lose a block of 4 KiB, as a disk does."""
    start = choose.randrange(0, len(data), 4_096)
    data[start : start + 4_096] = bytes(len(data[start : start + 4_096]))


def cut(data: bytearray, choose: random.Random) -> None:
    del data[choose.randrange(1, len(data)) :]


def make(directory: Path) -> None:
    """A closed store: three queues of 300 messages; 20 of one are claimed, 20 deleted before."""

    async def run() -> None:
        store = Store(f"embedded://{directory}")
        await store.messages.open()
        for queue in QUEUES:
            await store.management.create_queue(queue, {"of": queue.name}, max_queues=10)
            for start in range(0, EACH, 50):
                texts = TEXTS[queue][start : start + 50]
                await store.post(
                    *[NewMessage(json.dumps(t).encode(), HOUR) for t in texts], to=queue
                )
        await store.acknowledge(OTHER)
        await store.claim(20, queue=THIRD)
        await store.messages.close()

    asyncio.run(run())


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sample") / "data"
    make(directory)
    return directory


def copied(sample: Path, place: Path) -> Store:
    shutil.copytree(sample, place)
    return Store(f"embedded://{place}")


def expected() -> dict[str, list[str]]:
    return {queue.name: TEXTS[queue][20 if queue is OTHER else 0 :] for queue in QUEUES}


async def ids_of(sample: Path, place: Path) -> dict[str, int]:
    """The numbers of all messages, by their text."""
    store = copied(sample, place)
    await store.messages.open()
    found = {}
    for queue in QUEUES:
        texts = iter(await listed(store, queue))
        for page in store.db.queues.make(queue).pages:
            for entry in page.entries.values():
                found[next(texts)] = entry.id
    await store.messages.close()
    return found


async def opened(store: Store) -> str | None:
    """Open a store; answer why it refuses."""
    try:
        async with asyncio.timeout(30):
            await store.messages.open()
    except ConfigurationError as exc:
        return str(exc)
    return None


@pytest.mark.parametrize("seed", range(60 if "ZAQAR_TEST_ALL" in os.environ else 10))
async def test_every_message_is_served_as_it_was_or_named(
    seed: int, sample: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    choose = random.Random(seed)
    ids = await ids_of(sample, tmp_path / "whole")
    store = copied(sample, tmp_path / "data")
    inside = tmp_path / "data"
    files = [file for file in inside.rglob("*") if file.stat().st_size > 100 and file.is_file()]
    weights = [file.stat().st_size for file in files]
    (file,) = choose.choices(files, weights if seed % 2 else None)
    data = bytearray(file.read_bytes())
    choose.choice([flip, flip, zero, cut])(data, choose)
    is_changed = data != file.read_bytes()
    file.write_bytes(data)
    caplog.clear()
    refused = await opened(store)
    if refused is not None:
        assert is_changed
        assert str(inside) in refused
        assert "store import" in refused
        return
    for queue in QUEUES:
        whole = expected()[queue.name]
        served = await listed(store, queue)
        assert served == [text for text in whole if text in served]  # right, once, in order
        record = await store.management.get_queue(queue)
        if record is None or record.metadata != {"of": queue.name}:
            assert "damaged: " in caplog.text
        for text in set(whole) - set(served):
            is_named = re.search(rf"message {ids[text]} .*set aside", caplog.text)
            assert is_named or "Everything after" in caplog.text or "are lost" in caplog.text, text
    await store.messages.close()


@pytest.mark.parametrize("recovers", [False, True])
async def test_a_line_that_refuses_a_file_leads_to_its_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, recovers: bool
) -> None:
    """The commands of the line, which are the guide's."""
    directory = tmp_path / "data"
    await asyncio.to_thread(make, directory)
    break_tree(directory / FILE_NAME, "kv")
    refused = await opened(Store(f"embedded://{directory}"))
    assert refused is not None
    damaged = (directory / FILE_NAME).read_bytes()
    source = directory / FILE_NAME
    assert f"store import --store embedded:///new/directory {source}" in refused
    if recovers:
        command = re.search(r"(sqlite3 \S+ '.recover.* recovered\.sqlite3), and import", refused)
        assert command is not None
        shell = ["sh", "-c", command[1]]
        await asyncio.to_thread(subprocess.run, shell, check=True, cwd=tmp_path, timeout=60)
        source = tmp_path / "recovered.sqlite3"
        if not source.exists() or not source.stat().st_size:
            pytest.skip("this sqlite3 has no .recover (SQLITE_ENABLE_DBPAGE_VTAB)")
    new = f"embedded://{tmp_path / 'new'}"
    command_line = ["store", "import", "--store", new, str(source)]
    assert await asyncio.to_thread(main, command_line) == 0, capsys.readouterr().err
    assert (directory / FILE_NAME).read_bytes() == damaged  # kept as it is
    store = Store(new)
    await store.messages.open()
    for queue in QUEUES:
        assert await listed(store, queue) == expected()[queue.name]
    assert not (await check(store.db)).problems
    await store.messages.close()
    assert await asyncio.to_thread(main, command_line) == 2  # only into an empty store
    assert "an empty one" in capsys.readouterr().err


def break_tree(file: Path, table: str) -> None:
    """Lose a page of a table that others lead to: a leaf, or its only page."""
    with sqlite3.connect(file) as database:
        (size,) = database.execute("PRAGMA page_size").fetchone()
        sql = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (root,) = database.execute(sql, (table,)).fetchone()
    database.close()
    data = bytearray(file.read_bytes())
    at = (root - 1) * size
    if data[at] == 5:  # an inner page: the leaf that the last pointer leads to
        at = (int.from_bytes(data[at + 8 : at + 12], "big") - 1) * size
    data[at : at + size] = bytes(size)
    file.write_bytes(data)


@pytest.mark.parametrize("bit", [0x20, 0x40], ids=["too-small", "too-large"])
@pytest.mark.parametrize("at", [500, CHUNK - 1, CHUNK])
async def test_nothing_behind_a_flipped_number_is_passed_over(
    at: int, bit: int, tmp_path: Path
) -> None:
    """In the middle, at the end and at the beginning of what is read at once."""
    engine = SqliteEngine(tmp_path)
    await engine.open()
    records = {PAYLOAD.key((1 << 40) + n): b"%d" % n for n in range(CHUNK + 300)}
    await engine.commit(Batch(records, ()))
    await engine.close()
    data = bytearray((tmp_path / FILE_NAME).read_bytes())
    number = bytes((0xA0, 0x80, 0x80, 0x80, 0x80 | at >> 7, at & 0x7F))  # a varint of SQLite's
    assert data.count(number) == 1
    data[data.index(number)] ^= bit
    (tmp_path / FILE_NAME).write_bytes(data)
    await engine.open()
    found: list[Row] = []

    async def read() -> None:
        async for rows in engine.scan(PAYLOAD.prefix, after_prefix(PAYLOAD.prefix)):
            found.extend(row for row in rows if isinstance(row[1], bytes))

    with pytest.raises(Unreadable, match="out of order"):
        await read()
    assert found == list(records.items())[:at]
    await engine.close()


@pytest.mark.parametrize("table", ["payload", "log"])
async def test_a_broken_page_is_named_and_does_not_stop_writes(
    table: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of payloads and metadata SQLite can't even delete what lies in it, beside other records."""
    directory = tmp_path / "data"
    await asyncio.to_thread(make, directory)
    break_tree(directory / FILE_NAME, table)
    store = Store(f"embedded://{directory}")
    await store.messages.open()
    posted = []
    for queue in QUEUES:
        whole, served = expected()[queue.name], await listed(store, queue)
        assert served == [text for text in whole if text in served]
        posted += served
    assert sum(map(len, expected().values())) > len(posted) or table == "log"
    assert len(posted) > 300
    await store.messages.purge(QUEUE)
    await store.sweep()
    assert await listed(store, QUEUE) == []
    assert ("set aside" in caplog.text) == (sum(map(len, expected().values())) > len(posted))
    await store.messages.close()


async def test_an_empty_file_and_one_of_something_else_are_refused_and_left(
    tmp_path: Path,
) -> None:
    file = tmp_path / FILE_NAME
    for content in (b"", b"something else" * 1_000):
        file.write_bytes(content)
        refused = await opened(Store(f"embedded://{tmp_path}"))
        assert refused is not None
        assert "store import" in refused
        assert file.read_bytes() == content

"""Salvage: what can be read of a damaged file is in the new store, which fits together."""

import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.drivers.sql.store import Store
from tests.drivers.store import HOUR, OTHER, QUEUE, THIRD
from tests.store.running import fill, on, store
from tests.store.test_commands import break_page
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.sql.place import FILE_NAME

QUEUES = (QUEUE, OTHER, THIRD)
EACH = 300
Damage = Callable[[bytearray, random.Random], None]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with messages in every state, and 300 more in each of three queues."""

    async def work(store: Store) -> None:
        await fill(store)
        for queue in QUEUES:
            for first in range(0, EACH, 50):
                bodies = (b'"%s-%d-%s"' % (queue.name.encode(), number, b"x" * (number % 7 * 100))
                          for number in range(first, first + 50))  # fmt: skip
                await store.post(*(NewMessage(body, HOUR) for body in bodies), to=queue)

    directory = tmp_path_factory.mktemp("many") / "data"
    on(directory, work)
    return directory


async def all_bodies(store: Store) -> dict[str, list[bytes]]:
    """The bodies of all messages, by queue; a flipped bit in one is in no checksum of SQLite's."""
    return {
        ref.name: [message.body for message in await store.all_messages(ref, details=True)]
        async for ref in store.messages.nonempty_queues()
    }


def salvaged(source: Path, new: Path) -> dict[str, list[bytes]]:
    """Salvage a store; the new one fits together, and takes posts and claims."""
    assert store("salvage", source, new) == 0
    assert store("check", new) == 0

    async def work(store: Store) -> dict[str, list[bytes]]:
        found = await all_bodies(store)
        await store.post("new")
        assert (await store.all_messages(details=True))[-1].body == b'"new"'
        while (await store.claim(50)).messages:
            pass
        await store.sweep()
        return found

    found = on(new, work)
    assert store("check", new) == 0
    return found


def test_nothing_is_lost_of_a_whole_store(many: Path, tmp_path: Path) -> None:
    whole = on(many, all_bodies)
    assert sum(map(len, whole.values())) == 3 * EACH + 8
    assert salvaged(many, tmp_path / "new") == whole


@pytest.mark.parametrize(
    ("table", "most"),
    [
        ("entry", 80), ("body", 60), ("queue", 0), ("claim", 0), ("record", 0), ("history", 0),
        ("idempotency", 0), ("attempts", 0), ("project", 0), ("counter", 0), ("garbage", 0),
        ("ready", 0), ("expiring", 0),
    ],
)  # fmt: skip
def test_what_lies_around_a_broken_page_is_found(
    table: str, most: int, many: Path, tmp_path: Path
) -> None:
    """A page holds some 60 messages, or the bodies of a few dozen."""
    data = tmp_path / "data"
    shutil.copytree(many, data)
    break_page(data / FILE_NAME, table)
    damaged = (data / FILE_NAME).read_bytes()
    found = salvaged(data, tmp_path / "new")
    assert (data / FILE_NAME).read_bytes() == damaged
    whole = [text for texts in on(many, all_bodies).values() for text in texts]
    kept = [text for texts in found.values() for text in texts]
    assert set(kept) <= set(whole)
    assert len(whole) - len(kept) <= most
    if table == "queue":  # their names are lost with their rows
        assert all(name.startswith("salvaged-") for name in found)


@pytest.mark.parametrize(
    "tables", ["queue counter", "entry counter", "queue entry", "body", "counter project claim"]
)
def test_whole_tables_may_be_lost(tables: str, directory: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(directory / FILE_NAME)) as database, database:
        for table in tables.split():
            database.execute(f"DELETE FROM {table}")  # noqa: S608 - a name of ours
    found = salvaged(directory, tmp_path / "new")
    is_kept = not {"entry", "body"} & {*tables.split()}
    assert sum(map(len, found.values())) == (8 if is_kept else 0)


@pytest.mark.parametrize("seed", range(60 if "ZAQAR_TEST_ALL" in os.environ else 8))
def test_any_damage_leaves_a_store_that_fits_together_or_is_refused(
    seed: int, many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choose = random.Random(seed)
    data = tmp_path / "data"
    shutil.copytree(many, data)
    content = bytearray((data / FILE_NAME).read_bytes())
    choose.choice([flip, zero, cut])(content, choose)
    (data / FILE_NAME).write_bytes(content)
    new = tmp_path / "new"
    if store("salvage", data, new):
        assert "zaqar-lite: " in capsys.readouterr().err
        assert not (new / FILE_NAME).exists()
        return
    assert store("check", new) == 0
    on(new, all_bodies)


def flip(data: bytearray, choose: random.Random) -> None:
    for _ in range(20):
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)


def zero(data: bytearray, choose: random.Random) -> None:
    """Lose a block of 4 KiB, as a disk does."""
    start = choose.randrange(0, len(data), 4_096)
    data[start : start + 4_096] = bytes(len(data[start : start + 4_096]))


def cut(data: bytearray, choose: random.Random) -> None:
    del data[choose.randrange(1, len(data)) :]


def test_what_sqlite_itself_recovers_is_taken(many: Path, tmp_path: Path) -> None:
    """The commands of the guide, where the first page, which says where the tables are, is lost."""
    shell = shutil.which("sqlite3")
    if shell is None:
        pytest.skip("there is no sqlite3")
    data = tmp_path / "data"
    shutil.copytree(many, data)
    break_page(data / FILE_NAME, "entry")
    recovered = tmp_path / "recovered.sqlite3"
    command = f"sqlite3 {data / FILE_NAME} '.recover --ignore-freelist' | sqlite3 {recovered}"
    subprocess.run(["sh", "-c", command], check=True, timeout=60)
    if not recovered.exists() or not recovered.stat().st_size:
        pytest.skip("this sqlite3 has no .recover (SQLITE_ENABLE_DBPAGE_VTAB)")
    found = salvaged(recovered, tmp_path / "new")
    assert sum(map(len, found.values())) > 3 * EACH - 80


def test_what_holds_no_store_is_refused_and_nothing_is_made(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert store("salvage", many, many) == 2
    assert "is there already: name a new directory" in capsys.readouterr().err
    other = tmp_path / "other.sqlite3"
    other.write_bytes(b"")
    new = tmp_path / "new"
    assert store("salvage", other, new) == 2
    assert "no such table" in capsys.readouterr().err
    assert not (new / FILE_NAME).exists()

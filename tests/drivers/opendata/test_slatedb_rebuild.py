"""Damage that SlateDB does not open: what is intact goes into a new directory in its place."""

import asyncio
import random
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drivers.opendata.store import Store, engine_in, listed
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata.slatedb import rebuild as slatedb_rebuild
from zaqar_lite.storage.opendata.slatedb.table import read_layout

pytestmark = pytest.mark.anyio
QUEUES = [QueueRef("project", f"queue-{number}") for number in range(3)]
EACH = 200
Damage = Callable[[bytearray], None]


def flipped(place: int) -> Damage:
    """Flip a byte, counted from the end if it is below zero."""

    def damage(data: bytearray) -> None:
        data[place] ^= 0xFF

    return damage


def cut(part: float) -> Damage:
    def damage(data: bytearray) -> None:
        del data[int(len(data) * part) :]

    return damage


def zeroed(data: bytearray) -> None:
    data[:] = bytes(len(data))


def change(file: Path, damage: Damage) -> None:
    data = bytearray(file.read_bytes())
    damage(data)
    file.write_bytes(data)


class Filled:
    """A closed store with two tables: of its first messages, and of those posted after a restart.

    Of the first ones of the first queue, twenty are deleted before the restart, and of those of
    the second one, twenty after it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.place = directory / "slatedb"
        self.first: dict[QueueRef, list[str]] = {}
        self.second: dict[QueueRef, list[str]] = {}

    @property
    def tables(self) -> list[Path]:
        return sorted((self.place / "compacted").glob("*.sst"))

    @property
    def logs(self) -> list[Path]:
        found = sorted((self.place / "wal").glob("*.sst"))
        return [file for file in found if file.stat().st_size]

    def store(self) -> Store:
        return Store(f"opendata+slatedb://{self.directory}")

    def collect_logs(self) -> None:
        """Delete the log, as SlateDB does a minute after its rows are in tables."""
        for file in (self.place / "wal").glob("*.sst"):
            file.unlink()

    def left_over(self) -> list[str]:
        return sorted(file.name for file in self.directory.iterdir() if "rebu" in file.name)

    def kept(self) -> list[Path]:
        return list(self.directory.glob("slatedb.damaged-*"))

    def posted(self, queue: QueueRef) -> list[str]:
        return self.first[queue] + self.second[queue]


async def fill(made: Filled, copy: Path) -> None:
    """Fill a store and close it; copy it before, when the second messages are in the log only."""
    store = made.store()
    await store.messages.open()
    for posted, start in ((made.first, 0), (made.second, EACH)):
        if start:
            await store.restart()
            await store.acknowledge(QUEUES[1])
            made.first[QUEUES[1]] = made.first[QUEUES[1]][20:]
        for queue in QUEUES:
            texts = [f"{queue.name}-{n}-{'x' * 200}" for n in range(start, start + EACH)]
            posted[queue] = texts
            for at in range(0, EACH, 100):
                await store.post(*texts[at : at + 100], to=queue)
        if not start:
            await store.acknowledge(QUEUES[0])
            made.first[QUEUES[0]] = made.first[QUEUES[0]][20:]
    shutil.copytree(made.directory, copy, ignore=shutil.ignore_patterns("lock"))
    await store.messages.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    directory = tmp_path_factory.mktemp("template")
    made = Filled(directory / "closed")
    asyncio.run(fill(made, directory / "crashed"))
    return made


def copied(template: Filled, name: str, directory: Path) -> Filled:
    made = Filled(directory)
    made.first, made.second = template.first, template.second
    shutil.copytree(template.directory.with_name(name), directory)
    return made


@pytest.fixture
def closed(template: Filled, tmp_path: Path) -> Filled:
    """A store that was closed in order."""
    return copied(template, "closed", tmp_path / "data")


@pytest.fixture
def crashed(template: Filled, tmp_path: Path) -> Filled:
    """The same store as a crash leaves it: its second messages are in the log only."""
    return copied(template, "crashed", tmp_path / "crashed")


async def opened(made: Filled) -> Store:
    store = made.store()
    async with asyncio.timeout(10):
        await store.messages.open()
    return store


async def served(made: Filled, store: Store) -> dict[QueueRef, list[str]]:
    """What every queue lists: of what was posted, in order, each once."""
    found = {queue: await listed(store, queue) for queue in QUEUES}
    for queue, texts in found.items():
        assert texts == [text for text in made.posted(queue) if text in texts]
    return found


async def check_goes_on(made: Filled, store: Store) -> None:
    """The store takes messages, and has them and the others after a restart, without a word."""
    before = {queue: set(await listed(store, queue)) for queue in QUEUES}
    await store.post("new", to=QUEUES[0])
    await store.restart()
    assert store.db.engine.damages == []
    before[QUEUES[0]].add("new")
    for queue in QUEUES:
        texts = await listed(store, queue)
        assert len(texts) == len(set(texts))
        assert set(texts) == before[queue]
    await store.messages.close()
    assert made.left_over() == []


@pytest.mark.parametrize("part", [0.02, 0.3, 0.7, 0.9])
@pytest.mark.parametrize("which", [0, 1])
async def test_of_a_table_cut_short_what_is_intact_is_served(
    which: int, part: float, closed: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    closed.collect_logs()
    table = closed.tables[which]
    change(table, cut(part))
    remains = table.read_bytes()
    store = await opened(closed)
    assert len(closed.kept()) == 1
    named = [text for text in store.db.engine.damages if table.name in text]
    assert any("bytes" in text and "can't be read" in text for text in named)
    assert all(text in caplog.text for text in named)
    found = await served(closed, store)
    for queue in QUEUES:
        lost = [text for text in closed.posted(queue) if text not in found[queue]]
        inside = closed.first if which == 0 else closed.second
        assert set(lost) <= set(inside[queue])
        if which == 1:  # what the other table holds of them is whole
            assert set(closed.first[queue]) <= set(found[queue])
    (kept,) = closed.kept()
    assert (kept / "compacted" / table.name).read_bytes() == remains
    await check_goes_on(closed, store)


async def test_a_table_is_completed_from_the_log_that_still_holds_its_rows(
    closed: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the power is lost before the table was synced: the log was."""
    closed.tables[1].write_bytes(b"")
    store = await opened(closed)
    assert await served(closed, store) == {queue: closed.posted(queue) for queue in QUEUES}
    assert closed.kept()[0].name in caplog.text
    await check_goes_on(closed, store)


@pytest.mark.parametrize("which", [0, 1])
async def test_a_damaged_first_block_of_a_table_is_served_around_and_healed_by_the_next_start(
    which: int, closed: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine's own keys are in it."""
    change(closed.tables[which], flipped(100))
    store = await opened(closed)
    found = await served(closed, store)
    lost = [text for queue in QUEUES for text in closed.posted(queue) if text not in found[queue]]
    assert caplog.text.count("set aside") == len(lost) > 0
    assert not closed.kept()
    await store.restart()
    assert len(closed.kept()) == 1
    assert await served(closed, store) == {queue: closed.posted(queue) for queue in QUEUES}
    await check_goes_on(closed, store)


def part_of(name: str, file: Path) -> Damage:
    """Damage to the part of a table that is behind its rows."""
    layout = read_layout(file)
    by_name = dict(zip(("filter", "index", "statistics"), layout.parts, strict=False))
    if len(layout.parts) == 2:
        by_name = dict(zip(("index", "statistics"), layout.parts, strict=True))
    if name in by_name:
        offset, length = by_name[name]
        return flipped(offset + length // 2)
    return flipped({"layout": -30, "offset": -9, "version": -1}[name])


@pytest.mark.parametrize("name", ["filter", "index", "statistics", "layout", "offset", "version"])
async def test_damage_behind_the_rows_of_a_table_loses_nothing(
    name: str, closed: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    closed.collect_logs()
    table = max(closed.tables, key=lambda file: file.stat().st_size)
    change(table, part_of(name, table))
    store = await opened(closed)
    assert len(closed.kept()) == 1
    assert [table.name in text for text in store.db.engine.damages] == [True]
    assert store.db.engine.damages[0] in caplog.text
    assert await served(closed, store) == {queue: closed.posted(queue) for queue in QUEUES}
    await check_goes_on(closed, store)


@pytest.mark.parametrize("kind", ["cut", "flipped", "layout", "zeroed", "emptied", "missing"])
async def test_a_damaged_file_inside_the_log_loses_its_commits_and_no_others(
    kind: str, crashed: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    texts = crashed.second[QUEUES[1]][100:200]
    (log,) = [file for file in crashed.logs if texts[0].encode() in file.read_bytes()]
    assert log != crashed.logs[-1]
    if kind == "missing":
        log.unlink()
    else:
        ways = {
            "cut": cut(0.5), "flipped": flipped(5_000), "layout": flipped(-30),
            "zeroed": zeroed, "emptied": cut(0),
        }  # fmt: skip
        change(log, ways[kind])
    store = await opened(crashed)
    assert len(crashed.kept()) == 1
    assert any(log.name in text for text in store.db.engine.damages)
    assert all(text in caplog.text for text in store.db.engine.damages)
    found = await served(crashed, store)
    for queue in QUEUES:
        lost = [text for text in crashed.posted(queue) if text not in found[queue]]
        assert set(lost) <= (set(texts) if queue == QUEUES[1] and kind != "layout" else set())
    await check_goes_on(crashed, store)


@pytest.mark.parametrize("kind", ["zeroed", "emptied", "missing"])
async def test_the_last_commit_is_missed(
    kind: str, crashed: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty last file of the log is also what every start leaves."""
    (log,) = crashed.logs[-1:]
    if kind == "missing":
        log.unlink()
    else:
        change(log, zeroed if kind == "zeroed" else cut(0))
    store = await opened(crashed)
    assert len(crashed.kept()) == 1
    assert any("are missing" in text for text in store.db.engine.damages)
    assert all(text in caplog.text for text in store.db.engine.damages)
    found = await served(crashed, store)
    lost = [text for queue in QUEUES for text in crashed.posted(queue) if text not in found[queue]]
    assert lost == crashed.second[QUEUES[2]][100:]
    await check_goes_on(crashed, store)


async def test_ids_of_lost_messages_are_not_given_to_others(crashed: Filled) -> None:
    """The first commit after a start takes the ids of those that follow it."""
    first = crashed.second[QUEUES[0]][0].encode()
    (log,) = [file for file in crashed.logs if first in file.read_bytes()]
    log.unlink()
    store = await opened(crashed)
    found = await served(crashed, store)
    assert set(crashed.posted(QUEUES[0])) - set(found[QUEUES[0]])
    new = [f"new-{number}" for number in range(200)]
    await store.post(*new[:100], to=QUEUES[0])
    await store.post(*new[100:], to=QUEUES[0])
    found[QUEUES[0]] += new
    assert {queue: await listed(store, queue) for queue in QUEUES} == found
    await store.restart()
    assert {queue: await listed(store, queue) for queue in QUEUES} == found
    await store.messages.close()


@pytest.mark.parametrize("kind", ["cut", "flipped", "zeroed", "emptied"])
@pytest.mark.parametrize("has_crashed", [False, True])
async def test_a_damaged_manifest_loses_nothing(
    has_crashed: bool,
    kind: str,
    closed: Filled,
    crashed: Filled,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = crashed if has_crashed else closed
    newest = max((made.place / "manifest").glob("*.manifest"))
    size = newest.stat().st_size
    place = random.Random(kind).randrange(size)
    ways = {"cut": cut(0.5), "flipped": flipped(place), "zeroed": zeroed, "emptied": cut(0)}
    change(newest, ways[kind])
    store = await opened(made)
    assert newest.name in caplog.text
    assert await served(made, store) == {queue: made.posted(queue) for queue in QUEUES}
    await check_goes_on(made, store)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        *(("manifest", place) for place in range(0, 700, 47)),
        *(("compactions", place) for place in range(0, 42, 4)),
    ],
)
async def test_a_flipped_byte_of_a_file_without_checksum_is_found(
    kind: str, place: int, closed: Filled
) -> None:
    """A manifest would mostly open a store with other tables than it has.

    The compaction's file can look like another program that took the store over.
    """
    newest = max((closed.place / kind).glob(f"*.{kind}"))
    change(newest, flipped(place % newest.stat().st_size))
    engine = await engine_in(closed.directory)
    assert newest.name in engine.damages[0]
    await engine.close()


async def test_damage_that_only_opening_meets_is_healed_by_the_next_start(closed: Filled) -> None:
    """As where nothing was noted of a file: then what SlateDB has started must end first."""
    (closed.place / "newest-files").unlink()
    newest = max((closed.place / "compactions").glob("*.compactions"))
    change(newest, cut(0))
    with pytest.raises(ConfigurationError, match="Start the server again"):
        await opened(closed)
    assert not closed.kept()
    store = await opened(closed)
    assert len(closed.kept()) == 1
    assert await served(closed, store) == {queue: closed.posted(queue) for queue in QUEUES}
    await check_goes_on(closed, store)


class Killed(BaseException):
    """A stop at a planted place."""


@pytest.mark.parametrize("step", range(4))
async def test_a_crash_between_the_renames_leaves_the_old_store_or_the_new_one(
    step: int, closed: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed.collect_logs()
    change(closed.tables[0], flipped(-5))
    rename = Path.rename
    renamed: list[str] = []

    def stop(before: Path, after: Path) -> Path:
        if before.parent == closed.directory:
            if len(renamed) == step:
                raise Killed
            renamed.append(before.name)
        return rename(before, after)

    with monkeypatch.context() as planted:
        planted.setattr(Path, "rename", stop)
        if step < 3:
            with pytest.raises(Killed):
                await opened(closed)
        else:
            planted.setattr(slatedb_rebuild, "_sync", stop_after_last(renamed))
            with pytest.raises(Killed):
                await opened(closed)
    store = await opened(closed)
    assert len(closed.kept()) == 1
    assert await served(closed, store) == {queue: closed.posted(queue) for queue in QUEUES}
    await check_goes_on(closed, store)


def stop_after_last(renamed: list[str]) -> Callable[[Path], None]:
    def stop(directory: Path) -> None:
        if len(renamed) == 3:
            raise Killed

    return stop


async def test_a_crash_while_the_new_store_is_written_begins_again(
    closed: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(closed.tables[0], flipped(-5))

    def kill(place: Path) -> Path:
        raise Killed

    with monkeypatch.context() as planted:
        planted.setattr(slatedb_rebuild, "_exchange", kill)
        planted.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process tidies nothing
        with pytest.raises(Killed):
            await opened(closed)
    assert closed.left_over() == ["slatedb.rebuilding"]
    engine = await engine_in(closed.directory)
    assert engine.was_rebuilt
    await engine.close()
    assert closed.left_over() == []
    assert len(closed.kept()) == 1


async def test_that_a_store_was_rebuilt_is_known_until_that_was_dealt_with(
    closed: Filled,
) -> None:
    """A crash before the state was put right must not end it."""
    change(closed.tables[0], flipped(-5))
    damages = []
    for _ in range(2):
        engine = await engine_in(closed.directory)
        assert engine.was_rebuilt
        damages.append(engine.damages)
        await engine.close()
    assert damages[0] == damages[1]
    engine = await engine_in(closed.directory)
    await engine.forget_rebuild()
    assert not engine.was_rebuilt
    await engine.close()
    engine = await engine_in(closed.directory)
    assert not engine.was_rebuilt
    assert engine.damages == []
    await engine.close()


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in directory.rglob("*")
        if file.is_file() and file.name != "lock"
    }


async def refused(made: Filled, words: str) -> None:
    """It is refused with these words, and the directory is as it was."""
    before = contents(made.directory)
    with pytest.raises(ConfigurationError, match=words) as error:
        await engine_in(made.directory)
    assert str(made.place) in str(error.value)
    assert contents(made.directory) == before


async def test_a_store_is_not_rebuilt_where_there_is_no_room(
    closed: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(closed.tables[0], cut(0.5))
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as planted:
        planted.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 10_000, 10_000))
        await refused(closed, "free [0-9]+ bytes")
    engine = await engine_in(closed.directory)
    assert engine.was_rebuilt
    await engine.close()


async def test_a_store_of_which_nothing_can_be_read_is_refused(closed: Filled) -> None:
    for file in [*closed.tables, *closed.logs]:
        change(file, zeroed)
    await refused(closed, "no record can be read")


async def test_a_store_of_another_version_is_left_to_slatedb(
    closed: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    change(closed.tables[0], lambda data: data.__setitem__(-1, 3))
    store = await opened(closed)
    assert "version 3" in caplog.text
    assert not closed.kept()
    assert await served(closed, store) == {queue: closed.posted(queue) for queue in QUEUES}
    await store.messages.close()

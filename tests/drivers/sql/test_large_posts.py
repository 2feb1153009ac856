"""Large posts, which enter in parts of several batches: they are whole, or not there at all."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.drivers.sql.contract_hooks import check_database
from tests.drivers.sql.disk import Disk, failing_at, failing_disk
from tests.drivers.sql.store import Store
from tests.drivers.store import HOUR, OTHER, QUEUE, message, texts
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import Copy, IdempotencyKey, NewMessage

pytestmark = pytest.mark.anyio
RECEIVERS = [QueueRef("project", f"receiver-{number}") for number in range(60)]
COPIES = tuple(Copy(one, HOUR, 0, 100) for one in RECEIVERS)
FANNED_OUT = [NewMessage(b'"%d"' % number, HOUR, copies=COPIES) for number in range(40)]


@asynccontextmanager
async def traced(
    left: Store, trace: Callable[[apsw.Cursor, str, Any], bool]
) -> AsyncIterator[None]:
    """Open a store of which `trace` sees every statement; its tables are looked at in the end."""

    def hook(connection: apsw.Connection) -> None:
        connection.set_exec_trace(trace)

    apsw.connection_hooks.append(hook)
    try:
        await left.messages.open()
    finally:
        apsw.connection_hooks.remove(hook)
    try:
        yield
        await check_database(left.db)
    finally:
        await left.messages.close()


@pytest.mark.parametrize("rounds", [0, 3, 10, 30])
async def test_a_large_post_that_fails_half_way(disk: tuple[Store, Disk], rounds: int) -> None:
    """Nothing of it is stored, or it is finished later; whoever sends it again sees which."""
    store, failing = disk
    await store.post("first")
    large = [NewMessage(b'"x"', HOUR, 0, IdempotencyKey(str(n), b"")) for n in range(5_000)]
    posting = asyncio.create_task(store.post(*large))
    for _ in range(rounds):
        await asyncio.sleep(0)
    small = asyncio.create_task(store.post("beside it"))
    await asyncio.sleep(0)

    failing.hook = failing_at(("wal", "write"), apsw.FullError)
    answers = await asyncio.gather(posting, small, return_exceptions=True)
    failing.hook = None
    assert [type(one) for one in answers] == [Unavailable, Unavailable]
    again = await store.messages.post(QUEUE, large, client_id="producer", version=None)
    assert len({one.duplicate for one in again}) == 1
    assert await store.bodies(QUEUE) == ["first", *["x"] * 5_000]
    assert store.rows("post") == 0


@pytest.mark.parametrize("forget", [False, True])
async def test_what_is_left_of_a_large_post_does_not_come_after_the_queue_was_emptied(
    disk: tuple[Store, Disk], forget: bool
) -> None:
    store, failing = disk
    posting = asyncio.create_task(store.post(*[message("x")] * 8_000))
    await store.found("SELECT 1 FROM post")
    await store.post("beside it", to=OTHER)  # the first batch is stored
    failing.hook = failing_at(("wal", "write"), apsw.FullError)
    assert isinstance((await asyncio.gather(posting, return_exceptions=True))[0], Unavailable)
    failing.hook = None
    assert store.db.unfinished
    await store.messages.purge(QUEUE, forget=forget)
    await store.sweep()
    assert await store.bodies(QUEUE) == []
    assert store.rows("post") == 0


async def test_a_large_post_that_a_crash_cuts_short_is_finished(tmp_path: Path) -> None:
    with failing_disk() as disk:
        async with Store(tmp_path / "data") as store:
            large = [NewMessage(b'"x"', HOUR, 0, IdempotencyKey(str(n), b"")) for n in range(5_000)]
            whole = IdempotencyKey("whole", b"digest")
            posting = asyncio.create_task(
                store.messages.post(
                    QUEUE, large, client_id="producer", batch_key=whole, version=None
                )
            )
            await store.found("SELECT 1 FROM post WHERE part = 0")
            await store.post("beside it", to=OTHER)
            disk.copy(store.place.file, tmp_path / "copy", store.place.synced, random.Random(1))
            await posting
    async with Store(tmp_path / "copy") as left:
        assert await left.bodies(QUEUE) == ["x"] * 5_000
        again = await left.messages.post(
            QUEUE, large, client_id="producer", batch_key=whole, version=None
        )
        assert {one.duplicate for one in again} == {True}
        assert len({one.id for one in again}) == 5_000
        await check_database(left.db)


@pytest.mark.parametrize("entered", [0, 5, 15, 30])
async def test_copies_of_a_large_post_that_a_crash_cuts_short_enter_once(
    tmp_path: Path, entered: int
) -> None:
    with failing_disk() as disk:
        async with Store(tmp_path / "data") as store:
            modest = QueueRef("modest", "queue")  # beside it each batch gets a few parts
            for queue in (modest, OTHER, modest):
                await store.post("beside it", to=queue)
            posting = asyncio.create_task(
                store.messages.post(QUEUE, FANNED_OUT, client_id="producer", version=None)
            )
            await store.found("SELECT 1 FROM post WHERE part = 0")
            while store.db.execute("SELECT min(part) FROM post").get > -entered:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await store.post("beside it", to=modest)
            disk.copy(store.place.file, tmp_path / "copy", store.place.synced, random.Random(1))
            assert not posting.done()
            await posting
    async with Store(tmp_path / "copy") as left:
        for queue in (QUEUE, *RECEIVERS):
            assert await left.bodies(queue) == [str(number) for number in range(40)]
        await check_database(left.db)
        for queue in (QUEUE, *RECEIVERS[1:]):
            await left.messages.purge(queue)
        await left.sweep()
        assert left.rows("body") == 44


async def test_a_crash_within_a_post_remakes_no_queue_and_keeps_the_others(tmp_path: Path) -> None:
    """Those that have no messages yet are not swept while their copies are on their way."""
    room: list[int] = []

    def trace(_: apsw.Cursor, statement: str, __: object) -> bool:
        if statement.startswith("INSERT INTO post"):
            found = left.db.queue(RECEIVERS[-2])  # which gets its copies last
            room.append(found.reserved if found else 0)
        return True

    async with Store(tmp_path / "data") as store:
        for one in RECEIVERS:
            await store.management.create_queue(one, {}, max_queues=100)
        posting = asyncio.create_task(
            store.messages.post(QUEUE, FANNED_OUT * 4, client_id="producer", version=0)
        )
        await store.found("SELECT 1 FROM post WHERE part = 0")
        await store.messages.purge(RECEIVERS[-1], forget=True)
        store.db.connection.set_exec_trace(lambda *_: False)  # what is left of it is not stored
        with pytest.raises(Unavailable):
            await posting
    left = Store(tmp_path / "data")
    async with traced(left, trace):
        assert [len(await left.bodies(one)) for one in (QUEUE, *RECEIVERS)] == [160] * 60 + [0]
        assert (await left.management.get_queue(RECEIVERS[-1])) is None
        assert (room[0], room[-1]) == (160, 0)


async def test_a_post_of_which_a_part_was_lost_does_not_keep_the_store_from_opening(
    tmp_path: Path,
) -> None:
    async with Store(tmp_path / "data") as store:
        posting = asyncio.create_task(store.post(*["x"] * 5_000))
        await store.found("SELECT 1 FROM post WHERE part = 0")
        store.db.connection.set_exec_trace(lambda *_: False)
        with pytest.raises(Unavailable):
            await posting
        store.db.connection.set_exec_trace(None)
        lost = "DELETE FROM post WHERE part = 2"
        await store.db.write(lambda db: [*db.execute(lost)])
        assert store.db.unfinished
    async with Store(tmp_path / "data") as left:
        assert left.rows("post") == 0
        await left.post("goes on")


async def test_a_store_opens_where_a_post_can_not_be_finished_yet(tmp_path: Path) -> None:
    """Who empties a full disk must be served, and what time has ended must go."""

    def trace(_: apsw.Cursor, statement: str, __: object) -> bool:
        if is_full and statement.startswith("INSERT INTO entry"):
            raise apsw.FullError("full")
        return True

    is_full = False
    async with Store(tmp_path / "data") as store:
        await store.post("first", message("short", ttl=1))
        store.db.connection.set_exec_trace(trace)
        posting = asyncio.create_task(store.post(*["x"] * 5_000))
        await store.found("SELECT 1 FROM post WHERE part = 0")
        await store.post("beside it", to=OTHER)  # the batch with part 0 is stored
        is_full = True
        with pytest.raises(Unavailable):
            await posting
    left = Store(tmp_path / "data")
    async with traced(left, trace):
        assert (await left.messages.sweep(100)).expired == 1
        assert texts(await left.claim(1)) == ["first"]
        is_full = False
        await left.sweep()
        assert await left.bodies() == ["first", *["x"] * 5_000]


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_large_post_that_is_cut_short_before_it_is_whole_is_forgotten(
    crashes: bool, tmp_path: Path
) -> None:
    def refuse_head(_: apsw.Cursor, statement: str, values: Any) -> bool:
        return not statement.startswith("INSERT INTO post") or values[1] != 0

    store = Store(tmp_path / "data")
    async with store:
        store.db.connection.set_exec_trace(refuse_head)
        with pytest.raises(Unavailable):
            await store.post(*[message("x")] * 5_000)
        store.db.connection.set_exec_trace(None)
        (number,) = store.db.unfinished
        part = "INSERT OR REPLACE INTO post VALUES (?, 1, NULL, x'90')"  # which a disk has already
        await store.db.write(lambda db: [*db.execute(part, (number,))])
        if not crashes:
            await store.sweep()
            assert store.rows("post") == 0
    async with Store(tmp_path / "data") as left:
        assert left.rows("post") == 0
        assert await left.bodies() == []
        await check_database(left.db)


async def test_a_small_post_waits_for_a_few_parts_of_a_large_one_only(store: Store) -> None:
    await store.post("first", to=OTHER)
    posting = asyncio.create_task(store.post(*[message("x")] * 5_000))
    waited = []
    left = "SELECT ifnull(sum(sign(part)), 0) FROM post"
    while not posting.done():
        before = store.db.execute(left).get
        await store.post("text", to=QueueRef("modest", "queue"))
        waited.append(before - store.db.execute(left).get)
    await posting
    assert len(waited) > 3
    assert max(waited) <= 6  # those of two batches

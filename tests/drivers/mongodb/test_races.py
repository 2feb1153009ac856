"""Races: two processes, pauses planted between two steps, and deaths in the middle."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

import pytest

from tests.contract.pausing import pause_after, pause_before
from tests.contract.stores import Stores
from tests.contract.subject import HOUR, QueueUnderTest, ids, new, texts
from tests.drivers.mongodb.deaths import dies, driver, impatient
from tests.drivers.mongodb.inspection import database_of
from tests.services import MongoServer
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.mongodb.claiming import POP_TIME_MS, _Grip
from zaqar_lite.storage.mongodb.placing import Insertion
from zaqar_lite.storage.mongodb.sweeping import MOVE_TIME_MS

pytestmark = pytest.mark.anyio


# --- two processes ----------------------------------------------------------------------------


async def start_worker(server: MongoServer, database: str, what: str, count: int) -> Process:
    words = ["-m", "tests.drivers.mongodb.worker", server.url, database, what, str(count)]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def finish(process: Process) -> list[str]:
    answer, _ = await asyncio.wait_for(process.communicate(b"go\n"), timeout=90)
    assert process.returncode == 0
    return answer.decode().split("\n")[:-1]


async def test_two_processes_never_claim_one_message(
    queue: QueueUnderTest, mongodb: MongoServer, database_name: str
) -> None:
    message_ids = await queue.post(*map(str, range(60)))
    workers = [await start_worker(mongodb, database_name, f"claim-{n}", 4) for n in range(2)]
    answers = await asyncio.gather(*map(finish, workers))
    lines = [line for answer in answers for line in answer]
    assert sorted(lines) == sorted(f"{message_id} 1" for message_id in message_ids)


async def test_a_reader_misses_nothing_that_two_processes_post(
    queue: QueueUnderTest, mongodb: MongoServer, database_name: str
) -> None:
    workers = [await start_worker(mongodb, database_name, f"post-{n}", 15) for n in range(2)]
    posting = asyncio.gather(*map(finish, workers))
    seen: list[str] = []
    marker: int | None = None
    is_over = False
    while True:
        page = await queue.page(after=marker, limit=5)
        if not page.messages and is_over:
            break
        seen += [message.body.decode() for message in page.messages]
        marker = page.marker if page.marker is not None else marker
        is_over = posting.done()
    lines = await posting
    assert sorted(seen) == sorted(lines[0] + lines[1])
    for own in lines:
        assert [body for body in seen if body in own] == own


# --- slow writers -----------------------------------------------------------------------------


async def test_a_writer_that_was_slow_to_insert_is_not_skipped(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    """Its positions were used and freed meanwhile: the unique index lets it in behind readers."""
    await queue.post("first")
    with pause_before(Insertion, "_insert") as pause:
        slow = asyncio.create_task(queue.post("slow 1", "slow 2"))
        await pause.reached()
        fast = await second.post("fast 1", "fast 2", "fast 3")
        page = await second.page()
        assert texts(page.messages) == ["first", "fast 1", "fast 2", "fast 3"]
        await second.delete(*fast)
        pause.go()
        posted = await slow
    rest = await second.page(after=page.marker)
    assert ids(rest.messages) == posted
    assert texts(rest.messages) == ["slow 1", "slow 2"]


async def test_a_writer_that_was_slow_to_insert_keeps_off_taken_positions(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    with pause_before(Insertion, "_insert") as pause:
        slow = asyncio.create_task(queue.post("slow 1", "slow 2"))
        await pause.reached()
        await second.post("fast")
        pause.go()
        await slow
    assert await queue.bodies() == ["fast", "slow 1", "slow 2"]


async def test_a_writer_waits_for_the_commit_of_another(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    """Until then nobody sees what is not committed, and nobody passes it."""
    await queue.post("first")
    with pause_before(driver(queue)._queues, "commit") as pause:
        slow = asyncio.create_task(queue.post("slow"))
        await pause.reached()
        fast = asyncio.create_task(second.post("fast"))
        assert await second.bodies() == ["first"]
        assert texts((await second.claim()).messages) == ["first"]
        assert not fast.done()
        pause.go()
        await asyncio.gather(slow, fast)
    assert await queue.bodies() == ["first", "slow", "fast"]


async def test_a_writer_that_was_passed_over_goes_to_the_end(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    """Readers may have seen its messages; they see them again, and miss none."""
    with pause_before(driver(queue)._queues, "commit") as pause:
        slow = asyncio.create_task(queue.post("slow 1", "slow 2"))
        await pause.reached()
        await impatient(second).post("fast")
        page = await second.page()
        assert texts(page.messages) == ["slow 1", "slow 2", "fast"]
        held = await second.claim(1)
        assert texts(held.messages) == ["slow 1"]
        pause.go()
        posted = await slow
    rest = await second.page(after=page.marker)
    assert ids(rest.messages) == posted
    assert [message.claim_id for message in rest.messages] == [held.claim_id, None]
    assert await queue.counts() == (2, 0, 1)


async def test_what_a_dead_writer_left_holds_up_nobody_for_long(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    await dies(driver(queue)._queues, "commit", lambda: queue.post("left"))
    assert await second.bodies() == []
    await impatient(second).post("next")
    assert await second.bodies() == ["left", "next"]


async def test_a_post_that_a_drop_overtakes_is_gone_with_the_queue(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    await queue.post("before")
    for step in ("_insert", "commit"):
        owner: object = Insertion if step == "_insert" else driver(queue)._queues
        with pause_before(owner, step) as pause:
            slow = asyncio.create_task(queue.post("slow 1", "slow 2"))
            await pause.reached()
            await second.drop()
            await second.post("of the next life")
            pause.go()
            await slow
        assert await second.bodies() == ["of the next life"]
        assert texts((await second.claim()).messages) == ["of the next life"]


# --- claims and dead letters ------------------------------------------------------------------


async def test_a_claim_that_is_slow_to_take_gets_only_what_is_free(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    await queue.post(*"abcdef")
    with pause_after(driver(queue)._claiming, "_candidates") as pause:
        slow = asyncio.create_task(queue.claim(4))
        await pause.reached()
        fast = await second.claim(3)
        pause.go()
        held = await slow
    assert texts(fast.messages) == ["a", "b", "c"]
    assert texts(held.messages) == ["d", "e", "f"]
    assert [message.claim_count for message in held.messages] == [1, 1, 1]


async def test_a_sweep_does_not_take_what_is_being_popped(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    """Between update and look it is in no queue; but it must be there."""
    await queue.post(*"ab")
    with pause_before(_Grip, "_read") as pause:
        slow = asyncio.create_task(queue.pop(2))
        await pause.reached()
        assert await second.bodies() == []
        assert (await second.claim()).claim_id is None
        await second.sweep()
        pause.go()
        popped = await slow
    assert texts(popped.messages) == ["a", "b"]
    assert await second.counts() == (0, 0, 0)


async def test_what_a_dead_popper_left_is_in_no_queue_and_is_swept(
    queue: QueueUnderTest, second: QueueUnderTest, mongodb: MongoServer, database_name: str
) -> None:
    await queue.post(*"ab")
    await dies(_Grip, "_read", lambda: queue.pop(2))
    assert await second.bodies() == []
    assert (await second.claim()).claim_id is None
    assert not await second.get(*ids(await queue.listed()))
    queue.advance(2 * POP_TIME_MS)
    await second.sweep()
    with database_of(mongodb.url, database_name) as database:
        assert database["zaqar_messages"].count_documents({}) == 0


async def test_a_claim_that_gets_nothing_leaves_no_record(
    queue: QueueUnderTest, second: QueueUnderTest, mongodb: MongoServer, database_name: str
) -> None:
    await queue.post(*"ab")
    with pause_after(driver(queue)._claiming, "_candidates") as pause:
        slow = asyncio.create_task(queue.claim(2))
        await pause.reached()
        await second.pop(2)
        pause.go()
        assert (await slow).claim_id is None
    with database_of(mongodb.url, database_name) as database:
        assert database["zaqar_messages"].count_documents({}) == 0


async def test_a_slow_delete_does_not_take_what_another_holds_by_now(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id(ttl=60_000)
    collection = driver(queue)._connection.messages
    with pause_before(collection, "delete_many") as pause:
        slow = asyncio.create_task(queue.delete(message_id, claims=[claim_id]))
        await pause.reached()
        queue.advance(61_000)
        held = await second.claim()
        assert ids(held.messages) == [message_id]
        pause.go()
        refused = await slow
    assert [refusal.id for refusal in refused] == [message_id]
    assert (await queue.get_one(message_id)).claim_id == held.claim_id


async def exhausted(queue: QueueUnderTest, *bodies: str) -> None:
    """Post messages and use up their one claim."""
    await queue.post(*bodies)
    await queue.release(await queue.claim_id(len(bodies)))


async def test_a_letter_of_a_mover_that_died_arrives_by_the_sweep(
    queue: QueueUnderTest, second: QueueUnderTest, other: QueueUnderTest
) -> None:
    """In between it is in neither queue; then in the dead-letter queue, once."""
    policy = other.as_dead_letter_queue(1)
    await exhausted(queue, "a", "b")
    await dies(driver(queue)._queues, "commit", lambda: queue.claim(dead_letter=policy))
    assert await second.bodies() == []
    assert (await second.claim(dead_letter=policy)).moved == 0
    there = other.at(second.stores)
    assert await there.bodies() == []
    queue.advance(MOVE_TIME_MS + 1_000)
    await second.sweep()
    assert await there.bodies() == ["a", "b"]
    assert texts((await there.claim()).messages) == ["a", "b"]


async def test_a_letter_and_a_post_that_race_have_each_a_place(
    queue: QueueUnderTest, second: QueueUnderTest, other: QueueUnderTest
) -> None:
    await exhausted(queue, "a", "b")
    with pause_after(driver(queue)._queues, "announce_move") as pause:
        slow = asyncio.create_task(queue.claim(dead_letter=other.as_dead_letter_queue(1)))
        await pause.reached()
        there = other.at(second.stores)
        await there.post("posted")
        page = await there.page()
        assert texts(page.messages) == ["posted"]
        pause.go()
        assert (await slow).moved == 2
    assert texts((await there.page(after=page.marker)).messages) == ["a", "b"]


async def test_a_drop_that_died_leaves_nothing_to_the_next_life(
    queue: QueueUnderTest, second: QueueUnderTest, stores: Stores
) -> None:
    await stores.management.create_queue(queue.ref, {}, max_queues=5)
    await queue.post_all([new("old", key="k"), new("older", ttl=2 * HOUR)], batch_key="b")
    claim_id = await queue.claim_id(1)
    await dies(driver(queue), "_remove", queue.drop)
    assert await stores.management.get_queue(queue.ref) is None
    assert await second.bodies() == []
    assert await second.counts() == (0, 0, 0)
    (posted,) = await second.post_all([new("new", key="k")], batch_key="b")
    assert not posted.duplicate
    assert texts((await second.claim()).messages) == ["new"]
    await second.release(claim_id)
    assert await second.counts() == (0, 0, 1)


async def test_versions_and_positions_grow_over_a_drop(
    stores: Stores, queue: QueueUnderTest
) -> None:
    versions, positions = [], []
    for _ in range(4):
        record, created = await stores.management.create_queue(
            QueueRef(*queue.ref), {}, max_queues=5
        )
        assert created
        versions.append(record.version)
        await queue.post("a")
        positions.append((await queue.listed())[0].position)
        await queue.drop()
    assert versions == sorted(set(versions))
    assert positions == sorted(set(positions))

"""Idempotency keys over deaths and races: what was seen once is never stored again."""

import asyncio
import os
import random
from contextlib import ExitStack, suppress

import pytest

from tests.contract.subject import QueueUnderTest, ids, new, texts
from tests.drivers.mongodb import deaths
from tests.drivers.mongodb.conftest import OpenStores
from tests.drivers.mongodb.deaths import DiedError, impatient, stopped_at
from tests.drivers.mongodb.inspection import database_of
from tests.services import MongoServer
from zaqar_lite.domain.errors import LimitReached
from zaqar_lite.storage.mongodb import staging
from zaqar_lite.storage.mongodb.queues import STAGED

pytestmark = pytest.mark.anyio

ROUNDS = int(os.environ.get("ZAQAR_TEST_MONGODB_ROUNDS", "6"))
"""How often racing writers are let loose; each round takes about half a second."""

LEASE_OVER = 6_000
"""Milliseconds after which a writer is taken for dead: more than the driver's lease."""

BATCH = [new("a", key="k"), new("b"), new("c", key="l")]
BODIES = ["a", "b", "c"]

WRITES = range(1, 6)
"""The writes of a post of BATCH: stage, keys of messages, key of the batch, place, commit."""

DEATHS = [(slow, death) for slow in WRITES for death in range(slow, 7)]
"""Before which write a writer is slow, and before which it dies; with 6 it has done all."""


async def drain(queue: QueueUnderTest) -> list[str]:
    """Consume what is there: claim, and delete at once."""
    held = await queue.claim(20)
    if held.claim_id is not None:
        await queue.delete(*ids(held.messages), claims=[held.claim_id])
    return texts(held.messages)


def own(seen: list[str]) -> list[str]:
    return [body for body in seen if body in BODIES]


async def test_the_writes_of_a_post_are_as_many_as_these_tests_take_them_for(
    queue: QueueUnderTest,
) -> None:
    await queue.post("start")
    numbers = []

    async def count(number: int) -> None:
        numbers.append(number)

    with deaths.before_writes(queue, count):
        await queue.post_all(BATCH, batch_key="batch")
    assert numbers == list(WRITES)


@pytest.mark.parametrize("batch_key", ["batch", None])
@pytest.mark.parametrize(("slow", "death"), DEATHS)
async def test_a_retry_stores_nothing_that_was_consumed(
    queue: QueueUnderTest, second: QueueUnderTest, slow: int, death: int, batch_key: str | None
) -> None:
    """A writer is overtaken, goes on where readers look already, and dies; others consume."""
    batch = BATCH if batch_key else [message for message in BATCH if message.idempotency_key]
    wanted = [body for body in BODIES if batch_key or body != "b"]
    await queue.post("start")
    with stopped_at(queue, slow, die_at=death) as pause:
        writer = asyncio.create_task(queue.post_all(batch, batch_key=batch_key))
        reached = asyncio.create_task(pause.reached())
        await asyncio.wait([writer, reached], return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        await impatient(second).post("1", "2", "3", "4")
        seen = await drain(second)
        pause.go()
        with suppress(DiedError):
            await writer
    await second.post("next")
    seen += await drain(second)
    queue.advance(LEASE_OVER)
    first = await second.post_all(batch, batch_key=batch_key)
    seen += await drain(second)
    again = await queue.post_all(batch, batch_key=batch_key)
    seen += await drain(second)
    assert own(seen) == wanted
    assert [posted.id for posted in again] == [posted.id for posted in first]
    assert all(posted.duplicate for posted in again)


@pytest.mark.parametrize("consumed", [False, True])
@pytest.mark.parametrize("slow", WRITES)
async def test_a_slow_writer_and_its_retry_store_each_message_once(
    queue: QueueUnderTest, second: QueueUnderTest, slow: int, consumed: bool
) -> None:
    """The writer lives: whatever the retry and a consumer have done meanwhile, it adds nothing."""
    await queue.post("start")
    seen: list[str] = []
    with stopped_at(queue, slow) as pause:
        writer = asyncio.create_task(queue.post_all(BATCH, batch_key="batch"))
        await pause.reached()
        queue.advance(LEASE_OVER)
        retried = await second.post_all(BATCH, batch_key="batch")
        if consumed:
            seen += await drain(second)
        pause.go()
        answers = await writer
    assert [posted.id for posted in answers] == [posted.id for posted in retried]
    if not consumed:
        assert ids(await second.listed())[1:] == [posted.id for posted in answers]
    seen += await drain(second)
    assert seen == ["start", *BODIES]


@pytest.mark.parametrize("slow", WRITES)
async def test_a_retry_waits_for_a_writer_that_is_at_it(
    queue: QueueUnderTest, second: QueueUnderTest, slow: int
) -> None:
    """Within its lease nobody takes what it has staged; without having staged it is passed."""
    await queue.post("start")
    with stopped_at(queue, slow) as pause:
        writer = asyncio.create_task(queue.post_all(BATCH, batch_key="batch"))
        await pause.reached()
        retry = asyncio.create_task(second.post_all(BATCH, batch_key="batch"))
        await asyncio.sleep(0.2)
        is_held = slow in (3, 4)  # a key has decided, and its message is staged
        assert retry.done() is not is_held
        pause.go()
        answers = await asyncio.gather(writer, retry)
    assert len({tuple(posted.id for posted in answer) for answer in answers}) == 1
    assert await queue.bodies() == ["start", *BODIES]


@pytest.mark.parametrize("death", [4, 5])
async def test_one_of_many_retries_replaces_a_dead_writer(
    open_stores: OpenStores, queue: QueueUnderTest, death: int
) -> None:
    """The one that brings the messages in for it dies as well, and is replaced by another."""
    await queue.post("start")
    queues = [queue, *[queue.at(await open_stores()) for _ in range(3)]]
    with stopped_at(queue, death, die_at=death) as pause:
        pause.go()
        with pytest.raises(DiedError):
            await queue.post_all(BATCH, batch_key="batch")
    queue.advance(LEASE_OVER)
    with stopped_at(queues[1], 2, die_at=2) as pause:  # holds them, or has found them placed
        pause.go()
        with suppress(DiedError):
            await queues[1].post_all(BATCH, batch_key="batch")
    queue.advance(LEASE_OVER)
    answers = await asyncio.gather(
        *[peer.post_all(BATCH, batch_key="batch") for peer in queues[2:] * 3]
    )
    assert len({tuple(posted.id for posted in answer) for answer in answers}) == 1
    listed = await queue.listed()
    assert texts(listed) == ["start", *BODIES]
    assert ids(listed)[1:] == [posted.id for posted in answers[0]]


@pytest.mark.parametrize("lease_ms", [40, 5_000])
@pytest.mark.parametrize("keyed", ["batch", "messages", "both"])
async def test_racing_writers_of_one_batch_keep_its_order(
    open_stores: OpenStores,
    queue: QueueUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    keyed: str,
    lease_ms: int,
) -> None:
    """All writes come late, others post and consume, and with 40 ms all take from each other."""
    monkeypatch.setattr(staging, "LEASE_MS", lease_ms)
    queues = [queue.at(await open_stores()) for _ in range(4)]
    chance = random.Random(f"{keyed}{lease_ms}")
    for number in range(ROUNDS):
        bodies = [f"{number}-{i}" for i in range(6)]
        key = None if keyed == "messages" else f"batch {number}"
        batch = [new(body, key=None if keyed == "batch" else body) for body in bodies]
        with ExitStack() as stack:
            for peer in queues:
                stack.enter_context(deaths.unsteady(peer, chance))
            posts = [peer.post_all(batch, batch_key=key) for peer in queues]
            others = asyncio.gather(*[peer.post("other") for peer in queues[:2]])
            answers = await asyncio.gather(*posts)
            await others
        listed = await queue.listed()
        placed = [message for message in listed if message.body.decode().strip('"') in bodies]
        assert texts(placed) == bodies
        for answer in answers:
            assert [posted.id for posted in answer] == ids(placed)
        await queue.purge()
    await queue.drop()


async def test_a_message_of_a_batch_that_came_too_late_is_stored_by_its_own_key(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    """Two batches race under one key: the first one counts, and the other's keys still hold."""
    with stopped_at(queue, 3) as pause:
        late = asyncio.create_task(queue.post_all(BATCH, batch_key="batch"))
        await pause.reached()
        first = await second.post_all([new("first")], batch_key="batch")
        pause.go()
        assert [posted.id for posted in await late] == [posted.id for posted in first]
    assert await queue.bodies() == ["first"]
    queue.advance(LEASE_OVER)
    await second.post_all([BATCH[0]])
    await queue.post_all([BATCH[0]])
    assert await queue.bodies() == ["first", "a"]


async def test_what_does_not_fit_any_more_is_stored_by_a_later_retry(
    open_stores: OpenStores, queue: QueueUnderTest
) -> None:
    """The queue fills up while the post is under way: nothing is lost, nothing stored twice."""
    small = queue.at(await open_stores(max_messages=3))
    await small.post("start")
    with stopped_at(small, 3) as pause:
        writer = asyncio.create_task(small.post_all([new("a", key="k"), new("b", key="l")]))
        await pause.reached()
        await queue.post("1", "2")
        pause.go()
        with pytest.raises(LimitReached):
            await writer
    assert await queue.bodies() == ["start", "1", "2"]
    await drain(queue)
    await small.post_all([new("a", key="k"), new("b", key="l")])
    assert await queue.bodies() == ["a", "b"]


async def test_a_drop_removes_what_is_staged(
    queue: QueueUnderTest, second: QueueUnderTest, mongodb: MongoServer, database_name: str
) -> None:
    with stopped_at(queue, 3, die_at=3) as pause:
        pause.go()
        with pytest.raises(DiedError):
            await queue.post_all(BATCH[:1])
    with database_of(mongodb.url, database_name) as database:
        messages = database["zaqar_messages"]
        assert messages.count_documents({}) == 1
        await second.drop()
        assert messages.count_documents({"s": STAGED}) == 0

"""Moving messages on demand: ids stay, each moves once, and what somebody holds stays."""

import asyncio
import operator

import pytest
from msgspec.structs import replace

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, bury, fail, ids, new, some, texts
from tests.waiting import at_work, until
from zaqar_lite.domain.attempts import Ended
from zaqar_lite.domain.models import DelayMode, Move, QueueRef, RetryPolicy, StoreOptions
from zaqar_lite.domain.settlements import Outcome
from zaqar_lite.service.pooling.drain import Drains, DrainWorker
from zaqar_lite.service.pooling.placement import CARRIED_MS, CARRY, Place, Placements
from zaqar_lite.service.pooling.pooled_store import OpenConnections, PooledMessages
from zaqar_lite.service.pooling.pools import Pool, PoolRegistry, StoreKind
from zaqar_lite.storage.sql import create

pytestmark = pytest.mark.anyio
ABSENT = "0" * 15 + "1" + "0" * 15 + "1"


async def dead(queue: QueueUnderTest, letters: QueueUnderTest, *texts_of: str) -> list[str]:
    """Post messages and let each fail once and die; answer their ids."""
    posted = await queue.post(*(new(text, headers={"of": text}) for text in texts_of))
    retries = RetryPolicy(letters.as_dead_letter_queue(max_failures=1))
    claim_id = await queue.claim_id(100, client="worker")
    await queue.settle(
        claim_id, *(fail(message_id, reason="http_503") for message_id in posted), retries=retries
    )
    return posted


@pytest.mark.parametrize("delay", [0, MINUTE])
async def test_a_moved_message_is_the_same_message(queue: QueueUnderTest, delay: int) -> None:
    queue = QueueUnderTest(queue.stores, QueueRef(f"project-{queue.ref.name}", "a"))
    other = queue.named("b")
    (message_id,) = await dead(queue, other, "a")
    letter = await other.get_one(message_id, details=True)
    assert await other.move(queue, message_id, delay=delay) == [Outcome.DONE]
    moved = await queue.get_one(message_id, details=True)
    assert (moved.body, moved.headers, moved.client_id, moved.created_at) == (
        letter.body,
        {"of": "a"},
        "producer",
        letter.created_at,
    )
    assert [attempt.outcome for attempt in moved.attempts] == [Ended.FAILED]
    assert moved.attempts == letter.attempts
    assert (moved.claim_count, moved.failure_count) == (0, 0)
    assert (moved.delay_expires_at is None) is (delay == 0)
    assert some(moved.origin) == replace(some(letter.origin), redriven=1)
    assert not await other.get(message_id)
    assert await other.counts() == (0, 0, 0)
    assert await queue.counts() == ((0, 1, 0) if delay else (1, 0, 0))
    if delay:
        assert (await queue.claim(mode=DelayMode.HONOUR)).claim_id is None
        assert await queue.next_due() in range(1, delay + 1)
    queue.advance(2 * delay)
    claimed = await queue.claim(mode=DelayMode.HONOUR)
    assert ids(claimed.messages) == [message_id]
    assert claimed.messages[0].claim_count == 1


async def test_the_order_of_the_move_is_the_order_in_the_target(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    posted = await dead(queue, other, "a", "b", "c", "d")
    await queue.post("new")
    assert await other.move(queue, *posted) == [Outcome.DONE] * 4
    assert await queue.bodies() == ["new", "a", "b", "c", "d"]
    assert texts((await queue.claim()).messages) == ["new", "a", "b", "c", "d"]


async def test_a_message_is_moved_once(queue: QueueUnderTest, other: QueueUnderTest) -> None:
    (message_id,) = await dead(queue, other, "a")
    both = await asyncio.gather(*(other.move(queue, message_id) for _ in range(2)))
    assert sorted(outcome.value for (outcome,) in both) == ["done", "not_found"]
    assert await other.move(queue, message_id, ABSENT, "no id") == [Outcome.NOT_FOUND] * 3
    assert await queue.bodies() == ["a"]


async def test_what_is_held_stays(queue: QueueUnderTest, other: QueueUnderTest) -> None:
    held, free = await queue.post("held", "free")
    claim_id = await queue.claim_id(1)
    assert await queue.move(other, held, free) == [Outcome.HELD, Outcome.DONE]
    assert await queue.held(claim_id) == ["held"]
    await queue.release(claim_id, delay=MINUTE)
    assert await queue.move(other, held) == [Outcome.HELD]
    queue.advance(2 * MINUTE)  # its wait is over from then on
    assert await queue.move(other, held) == [Outcome.DONE]
    assert await other.bodies() == ["free", "held"]


async def test_counts_stay_unless_they_are_reset(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """What never died names the queue that it came from."""
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id(client="worker")
    await queue.settle(claim_id, fail(message_id))
    await queue.move(other, message_id, reset=False)
    moved = await other.get_one(message_id)
    origin = some(moved.origin)
    assert (origin.source, origin.reason) == (queue.ref.name, "moved")
    assert (origin.redriven, origin.claim_count) == (1, 1)
    assert (moved.claim_count, moved.failure_count) == (1, 1)


async def test_how_often_it_was_redriven_is_counted_over_its_deaths(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    retries = RetryPolicy(other.as_dead_letter_queue(3))
    (message_id,) = await queue.post("a")
    for count in (1, 2, 3):
        await queue.settle(await queue.claim_id(), bury(message_id), retries=retries)
        letter = await other.get_one(message_id)
        assert letter.origin is not None
        assert (letter.origin.source, letter.origin.redriven) == (queue.ref.name, count - 1)
        assert letter.origin.claim_count == 1
        assert await other.move(queue, message_id) == [Outcome.DONE]
        assert len(await queue.attempts(message_id)) == count


async def test_a_ttl_counts_from_the_move_and_a_delay_ends_with_it(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a", ttl=10 * MINUTE, delay=9 * MINUTE)
    queue.advance(5 * MINUTE)
    assert await queue.move(other, message_id, ttl=HOUR) == [Outcome.DONE]
    assert await queue.counts() == (0, 0, 0)
    assert await other.counts() == (1, 0, 0)
    claimed = await other.claim(mode=DelayMode.HONOUR, ttl=MINUTE, grace=0)
    assert ids(claimed.messages) == [message_id]
    queue.advance(50 * MINUTE)
    assert await other.bodies() == ["a"]
    assert (await other.get_one(message_id)).ttl_ms == HOUR
    queue.advance(11 * MINUTE)
    assert await other.bodies() == []


async def test_letters_that_go_back_do_not_wait_for_those_that_come(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    posted = await queue.post(*"abc")
    await queue.release(await queue.claim_id())
    letters = await other.post(*"xyz")
    exhausted = other.as_dead_letter_queue(1)
    outcomes, claimed = await asyncio.wait_for(
        asyncio.gather(other.move(queue, *letters), queue.claim(dead_letter=exhausted)), 15
    )
    assert outcomes == [Outcome.DONE] * 3
    assert sorted(ids(await other.listed())) == sorted(posted)
    assert set(texts(claimed.messages)) <= set("xyz")
    assert sorted(ids(await queue.listed())) == sorted(letters)


@pytest.mark.parametrize("delay", [0, MINUTE])
async def test_what_waits_for_a_pool_arrives_where_its_target_has_come_beside_it(
    queue: QueueUnderTest, other: QueueUnderTest, delay: int
) -> None:
    """The target's pool was drained into the store in which the redriven messages wait."""
    stores, clock = queue.stores, queue.stores.clock
    registry = PoolRegistry(stores.management, lambda _: StoreKind("memory"))
    placements = Placements(stores.management, registry, clock)
    elsewhere, _ = create("memory://", clock=clock, options=StoreOptions())
    pooled = PooledMessages(
        stores.messages, registry, placements, OpenConnections(lambda _: elsewhere), clock
    )
    worker = DrainWorker(pooled, Drains(stores.management, registry, clock), wait=0.02)
    await registry.put_pool(Pool("elsewhere", "memory://", 1))
    await placements.write(queue.ref, Place("elsewhere"))
    (message_id,) = await dead(queue, other, "a")
    assert await pooled.move(other.ref, (message_id,), Move(queue.ref, HOUR, delay)) == [
        Outcome.DONE
    ]
    await placements.write(queue.ref, Place())
    async with at_work(worker):
        found = await until(lambda: queue.get(message_id), len)
        # Swift counts a message a moment after it can be read.
        await until(queue.counts, lambda counts: counts == ((0, 1, 0) if delay else (1, 0, 0)))
        assert (found[0].body, found[0].client_id) == (b'"a"', "producer")
        assert HOUR - MINUTE < found[0].expires_at - found[0].now <= HOUR
        queue.advance(CARRIED_MS)
        await until(lambda: stores.management.list_records(CARRY, limit=1), operator.not_)
    assert ids(await queue.get(message_id)) == [message_id]

"""Counting: by state, now, whether or not anything has swept."""

import pytest

from tests.contract.subject import MINUTE, QueueUnderTest, ack, encode, give_back, some, texts
from zaqar_lite.domain.errors import Unsupported
from zaqar_lite.domain.models import Claimed, DelayMode, QueueRef
from zaqar_lite.storage.base import MAX_EXAMINED

pytestmark = pytest.mark.anyio


async def test_counts_follow_the_time_without_a_sweep(queue: QueueUnderTest) -> None:
    stats = await queue.stats()
    assert (stats.ready, stats.delayed, stats.claimed, stats.total) == (0, 0, 0, 0)
    assert (stats.bytes, stats.oldest, stats.newest) == (0, None, None)
    await queue.post("claimed", ttl=60 * MINUTE)
    await queue.claim(ttl=10 * MINUTE)
    await queue.post("delayed", ttl=60 * MINUTE, delay=20 * MINUTE)
    await queue.post("ready", ttl=30 * MINUTE)
    assert await queue.counts() == (1, 1, 1)
    for minutes, counts in ((11, (2, 1, 0)), (10, (3, 0, 0)), (10, (2, 0, 0)), (30, (0, 0, 0))):
        queue.advance(minutes * MINUTE)
        assert await queue.counts() == counts
    assert (await queue.claim(mode=DelayMode.HONOUR)).claim_id is None
    await queue.sweep()
    assert await queue.counts() == (0, 0, 0)


async def test_it_tells_since_when_something_has_been_ready(queue: QueueUnderTest) -> None:
    assert (await queue.stats()).ready_since is None
    await queue.post("held", ttl=60 * MINUTE)
    held = await queue.claim_id(ttl=50 * MINUTE)
    await queue.post("delayed", ttl=60 * MINUTE, delay=20 * MINUTE)
    assert (await queue.stats()).ready_since is None
    queue.advance(5 * MINUTE)
    await queue.post("ready", ttl=60 * MINUTE)
    queue.advance(2 * MINUTE)
    assert await ready_for(queue) in range(2 * MINUTE, 2 * MINUTE + 60_000)
    await queue.pop()
    assert (await queue.stats()).ready_since is None
    queue.advance(15 * MINUTE)
    assert await ready_for(queue) in range(2 * MINUTE, 2 * MINUTE + 60_000)
    await queue.release(held)
    assert await ready_for(queue) >= 2 * MINUTE


async def ready_for(queue: QueueUnderTest) -> int:
    """How long the first ready message has been so, about."""
    stats = await queue.stats()
    return some(stats.oldest).now - some(stats.ready_since)


async def test_a_census_names_every_queue_that_holds_something(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    async def named() -> set[QueueRef]:
        return {ref async for ref in queue.stores.messages.nonempty_queues()} & {
            queue.ref,
            other.ref,
        }

    try:
        assert await named() <= {queue.ref, other.ref}
    except Unsupported:
        pytest.skip("this store does not tell which queues hold messages")
    await queue.post("ready")
    await other.post("delayed", delay=10 * MINUTE)
    assert await named() == {queue.ref, other.ref}
    await queue.claim()
    await other.claim()
    assert await named() == {queue.ref, other.ref}


async def test_ten_thousand_lapsed_leases_are_counted_as_ready(queue: QueueUnderTest) -> None:
    """Before anything has swept them; and what they are is not looked at one by one."""
    count = 10_000 if queue.stores.case.size_divisor == 1 else 100
    for _ in range(10):
        await queue.post(*"x" * (count // 10))
    claims: list[Claimed] = []
    while (claimed := await queue.claim(500, ttl=10 * MINUTE)).messages:
        claims.append(claimed)
    assert await queue.counts() == (0, 0, count)
    queue.advance(5 * MINUTE)
    await queue.renew(some(claims[0].claim_id), ttl=60 * MINUTE)
    kept = len(claims[0].messages)
    queue.advance(6 * MINUTE)
    before = getattr(queue.stores.messages, "examined", 0)
    assert await queue.counts() == (count - kept, 0, kept)
    assert getattr(queue.stores.messages, "examined", 0) - before <= MAX_EXAMINED


async def test_bytes_are_those_of_all_bodies_whatever_becomes_of_their_messages(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    async def shown(*bodies: str) -> None:
        texts_left = {one.ref: await one.bodies() for one in (queue, other)}
        assert sorted(texts_left[queue.ref] + texts_left[other.ref]) == sorted(bodies)
        for one in (queue, other):
            size = sum(len(encode(text)) for text in texts_left[one.ref])
            assert (await one.stats()).bytes == size

    first, second, *_ = await queue.post("a", "bb", "ccc", "dddd", "eeeee")
    later, _ = await queue.post("f" * 6, "g" * 7, delay=10 * MINUTE)
    await queue.post("h" * 8, ttl=MINUTE)
    await shown("a", "bb", "ccc", "dddd", "eeeee", "f" * 6, "g" * 7, "h" * 8)
    await queue.settle(await queue.claim_id(2), ack(first), give_back(second))
    assert texts((await queue.pop(1)).messages) == ["bb"]
    await queue.edit(later, text="edited")
    await shown("ccc", "dddd", "eeeee", "edited", "g" * 7, "h" * 8)
    await queue.release(await queue.claim_id(1))
    await queue.claim(1, dead_letter=other.as_dead_letter_queue(1))
    await shown("ccc", "dddd", "eeeee", "edited", "g" * 7, "h" * 8)
    assert await other.bodies() == ["ccc"]
    queue.advance(2 * MINUTE)
    await queue.delete(later)
    await shown("ccc", "dddd", "eeeee", "g" * 7)
    await queue.purge()
    await shown("ccc")

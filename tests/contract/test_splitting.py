"""Splitting a queue into ranges that readers can share."""

import pytest

from tests.contract.subject import MINUTE, QueueUnderTest, texts

pytestmark = pytest.mark.anyio


async def test_an_empty_queue_has_no_ranges(queue: QueueUnderTest) -> None:
    assert not await queue.stores.messages.partition(queue.ref, 4)


@pytest.mark.parametrize("count", [1, 2, 5, 12, 50])
async def test_the_ranges_together_are_the_queue(queue: QueueUnderTest, count: int) -> None:
    posted = [str(n) for n in range(12)]
    await queue.post(*posted)
    cuts = list(await queue.stores.messages.partition(queue.ref, count))
    assert 1 <= len(cuts) <= count
    assert cuts == sorted(set(cuts))
    assert cuts[-1] == (await queue.listed())[-1].position
    sizes, found = [], []
    for after, until in zip([None, *cuts], cuts, strict=False):
        page = await queue.page(after=after, until=until)
        sizes.append(len(page.messages))
        found += texts(page.messages)
    assert found == posted
    assert max(sizes) <= 2 * -(-12 // min(count, 12))
    assert min(sizes) >= 1


async def test_messages_of_every_state_are_split(queue: QueueUnderTest) -> None:
    await queue.post("claimed")
    await queue.claim()
    await queue.post("ready")
    await queue.post("delayed", delay=MINUTE)
    cuts = await queue.stores.messages.partition(queue.ref, 3)
    assert list(cuts) == [message.position for message in await queue.listed()]


async def test_gaps_do_not_unbalance_the_ranges(queue: QueueUnderTest) -> None:
    message_ids = await queue.post(*map(str, range(20)))
    await queue.delete(*message_ids[:14])
    cuts = await queue.stores.messages.partition(queue.ref, 2)
    assert len(cuts) == 2
    first = await queue.page(until=cuts[0])
    assert 2 <= len(first.messages) <= 4

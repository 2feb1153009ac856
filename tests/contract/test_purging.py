"""Purging and dropping: what goes, what stays, and what is stale afterwards."""

import pytest

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, new, texts
from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.models import DelayMode

pytestmark = pytest.mark.anyio


async def fill(queue: QueueUnderTest) -> tuple[list[str], str]:
    """One parked, claimed, delayed and ready message; answer the ids and the claim's."""
    parked = await queue.post("parked")
    await queue.release(await queue.claim_id(), delay=10 * MINUTE)
    claimed = await queue.post("claimed")
    claim_id = await queue.claim_id()
    delayed = await queue.post("delayed", delay=10 * MINUTE)
    ready = await queue.post("ready")
    return [*parked, *claimed, *delayed, *ready], claim_id


@pytest.mark.parametrize("forget", ["purge", "drop"])
async def test_messages_of_every_state_go_with_their_claims_and_no_other_queues(
    queue: QueueUnderTest, other: QueueUnderTest, forget: str
) -> None:
    """A purge leaves the queue's record, and a drop takes it along."""
    management = queue.stores.management
    record, _ = await management.create_queue(queue.ref, {"a": 1}, max_queues=100)
    message_ids, claim_id = await fill(queue)
    await other.post("b")
    await getattr(queue, forget)()
    assert await management.get_queue(queue.ref) == (record if forget == "purge" else None)
    assert await queue.bodies() == []
    assert not await queue.get(*message_ids)
    assert await queue.counts() == (0, 0, 0)
    with pytest.raises(NotFound):
        await queue.get_claim(claim_id)
    assert await other.bodies() == ["b"]
    queue.advance(20 * MINUTE)
    await queue.sweep()
    assert await queue.bodies() == []


@pytest.mark.parametrize("forget", ["purge", "drop"])
async def test_a_readers_marker_survives(queue: QueueUnderTest, forget: str) -> None:
    """Positions never come again: who pages on misses nothing of a queue that is made again."""
    await getattr(queue, forget)()  # what is not there: no error
    await queue.post(*map(str, range(10)))
    page = await queue.page()
    for _ in range(2):
        await getattr(queue, forget)()
    assert await queue.bodies() == []
    queue.advance(-MINUTE)  # the clock is set back
    keyed = await queue.post(new("new", key="k"))
    assert await queue.post(new("new", key="k")) == keyed
    assert (await queue.listed())[0].position > page.messages[-1].position
    assert texts((await queue.page(after=page.marker)).messages) == ["new"]


async def test_what_is_stale_touches_nothing_in_a_queue_made_again(queue: QueueUnderTest) -> None:
    old_ids, old_claim = await fill(queue)
    await queue.drop()
    await queue.post("new")
    new_claim = await queue.claim_id()
    await queue.post("newer")
    assert not set(old_ids) & {message.id for message in await queue.listed()}
    assert not await queue.delete(*old_ids)
    assert not await queue.delete(*old_ids, claims=[old_claim])
    await queue.release(old_claim)
    with pytest.raises(NotFound):
        await queue.renew(old_claim)
    with pytest.raises(NotFound):
        await queue.get_claim(old_claim)
    assert await queue.bodies() == ["new", "newer"]
    assert texts((await queue.get_claim(new_claim)).messages) == ["new"]
    queue.advance(9 * MINUTE)
    await queue.sweep()
    assert await queue.counts() == (1, 0, 1)


async def test_what_comes_after_a_purge_ends_and_ripens_at_its_own_time(
    queue: QueueUnderTest,
) -> None:
    """Whatever of the purged messages had been due in between."""
    await queue.post("gone", ttl=10 * MINUTE)
    await queue.post("gone", ttl=HOUR, delay=20 * MINUTE)
    await queue.purge()
    queue.advance(30 * MINUTE)
    await queue.sweep()
    assert await queue.counts() == (0, 0, 0)
    await queue.post("ends", ttl=10 * MINUTE)
    await queue.post("ripens", ttl=HOUR, delay=10 * MINUTE)
    queue.advance(11 * MINUTE)
    await queue.sweep()
    assert await queue.counts() == (1, 0, 0)
    assert texts((await queue.claim(mode=DelayMode.HONOUR)).messages) == ["ripens"]

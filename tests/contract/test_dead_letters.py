"""Dead letters: exactly so many deliveries, then one move, with all that must be kept."""

import pytest

from tests.contract.conftest import OpenStores
from tests.contract.dying import CONSUMER, WAYS, Way, any_way
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, new, some, texts
from zaqar_lite.domain.errors import LimitReached
from zaqar_lite.domain.models import Capability, DelayMode

pytestmark = pytest.mark.anyio


async def exhaust(queue: QueueUnderTest, *, client: str = "consumer") -> str:
    """Claim and release all that is ready; answer the claim's id."""
    claim_id = await queue.claim_id(100, client=client)
    await queue.release(claim_id)
    return claim_id


async def test_a_message_is_delivered_exactly_so_many_times(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """A renewal that raises its ttl keeps the count and the holder."""
    policy = other.as_dead_letter_queue(2)
    (message_id,) = await queue.post("a", ttl=2 * MINUTE)
    for count in (1, 2):
        claimed = await queue.claim(dead_letter=policy, ttl=MINUTE, client="worker-7")
        assert [message.claim_count for message in claimed.messages] == [count]
        assert claimed.moved == 0
        if count == 1:
            await queue.release(claimed.claim_id or "")
    await queue.renew(claimed.claim_id or "", ttl=10 * MINUTE)
    assert (await queue.get_one(message_id)).claim_count == 2
    queue.advance(10 * MINUTE + 1)
    last = await queue.claim(dead_letter=policy)
    assert (last.claim_id, list(last.messages), last.moved) == (None, [], 1)
    assert await queue.bodies() == []
    letter = await other.get_one(message_id)
    origin = some(letter.origin)
    assert origin.claim_count == letter.claim_count == 2
    assert (origin.last_claim_id, origin.last_client_id) == (claimed.claim_id, "worker-7")


@any_way
async def test_a_letter_is_what_it_was_and_tells_how_it_died(
    queue: QueueUnderTest, other: QueueUnderTest, way: Way
) -> None:
    (message_id,) = await queue.post(new("a", headers={"x": "y"}, ttl=2 * HOUR), client="producer")
    posted = await queue.get_one(message_id)
    await other.post("native")
    queue.advance(5 * MINUTE)
    claim_id = await way.let_die(queue, other, message_id, ttl=50 * MINUTE)
    letter = await other.get_one(message_id, details=True)
    for name in ("body", "headers", "client_id", "created_at"):
        assert getattr(letter, name) == getattr(posted, name)
    assert (letter.claim_id, letter.parked_until) == (None, None)
    assert (letter.claim_count, letter.failure_count) == (len(way.ended), way.failures)
    assert [(each.outcome, each.reason) for each in letter.attempts] == list(way.ended)
    assert {(each.delay_ms, each.client_id) for each in letter.attempts} == {(0, CONSUMER)}
    origin = some(letter.origin)
    assert (origin.source, origin.reason, origin.redriven) == (queue.ref.name, way.reason, 0)
    assert (origin.last_claim_id, origin.last_client_id) == (claim_id, CONSUMER)
    assert origin.claim_count == letter.claim_count
    assert 5 * MINUTE <= origin.moved_at - posted.created_at < 12 * MINUTE
    assert (letter.ttl_ms, letter.expires_at) == (50 * MINUTE, origin.moved_at + 50 * MINUTE)
    # It is in one queue only, behind what was there, and ready at once.
    assert await queue.counts() == (0, 0, 0)
    assert not await queue.get(message_id)
    await queue.release(claim_id)
    await queue.delete(message_id)
    await queue.purge()
    await other.post("later")
    assert await other.counts() == (3, 0, 0)
    claimed = (await other.claim()).messages
    assert texts(claimed) == ["native", "a", "later"]
    assert claimed[1].claim_count == letter.claim_count + 1
    assert claimed[1].origin == origin
    queue.advance(51 * MINUTE)
    assert not await other.get(message_id)


@pytest.mark.parametrize(
    "name", ["exhausted, met by a claim", "rejected", "failed", "lapsed, met by a sweep"]
)
async def test_without_a_ttl_in_the_policy_a_letter_keeps_what_remained(
    queue: QueueUnderTest, other: QueueUnderTest, name: str
) -> None:
    (message_id,) = await queue.post("a", ttl=30 * MINUTE)
    before = await queue.get_one(message_id)
    queue.advance(10 * MINUTE)
    await WAYS[name].let_die(queue, other, message_id)
    letter = await other.get_one(message_id)
    assert (letter.ttl_ms, letter.expires_at) == (before.ttl_ms, before.expires_at)
    queue.advance(21 * MINUTE)
    assert await other.bodies() == []
    assert (await other.claim()).claim_id is None


async def test_moved_messages_do_not_use_up_the_limit(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post(*"abcde")
    await exhaust(queue)
    await queue.post(*"fgh")
    claimed = await queue.claim(2, dead_letter=other.as_dead_letter_queue(1))
    assert texts(claimed.messages) == ["f", "g"]
    assert claimed.moved == 5
    assert await other.bodies() == list("abcde")
    assert await queue.bodies() == list("fgh")


async def test_a_letter_keeps_its_priority(queue: QueueUnderTest, other: QueueUnderTest) -> None:
    queue.stores.need(Capability.FAN_OUT)
    await queue.post(new("late", priority=200), new("urgent", priority=50))
    await exhaust(queue)
    await other.post("native")
    await queue.claim(dead_letter=other.as_dead_letter_queue(1))
    assert await other.bodies() == ["native", "urgent", "late"]
    assert texts((await other.claim()).messages) == ["urgent", "native", "late"]


async def test_a_delayed_message_is_not_moved_before_it_is_due_and_not_delayed_in_the_target(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """Exhausted ones are found among the ready ones only."""
    policy = other.as_dead_letter_queue(1)
    await queue.post("exposed", delay=20 * MINUTE)
    await queue.release((await queue.claim(exposing=True)).claim_id or "")
    await queue.post("delayed", delay=10 * MINUTE)
    assert (await queue.claim(mode=DelayMode.HONOUR, dead_letter=policy)).moved == 1
    assert await queue.bodies() == ["delayed"]
    assert await other.counts() == (1, 0, 0)
    assert texts(await other.listed(delayed=False)) == ["exposed"]
    assert texts((await other.claim(mode=DelayMode.HONOUR)).messages) == ["exposed"]


async def test_a_letter_can_be_moved_once_more_by_its_new_queue(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """Two racing writes of metadata may chain two queues: a move is one hop, and harmless."""
    third = queue.named(f"third-{queue.ref.name}")
    (message_id,) = await queue.post("a")
    claim_id = await exhaust(queue, client="worker-7")
    await queue.claim(dead_letter=other.as_dead_letter_queue(1))
    assert (await other.claim(dead_letter=third.as_dead_letter_queue(1))).moved == 1
    letter = await third.get_one(message_id)
    assert letter.origin is not None
    assert letter.origin.source == other.ref.name
    # Nobody has claimed it in between: the claim that used it up is still its last one.
    assert letter.origin.last_claim_id == claim_id
    assert letter.origin.last_client_id == "worker-7"
    assert await third.counts() == (1, 0, 0)


async def test_a_full_dead_letter_queue_still_takes_letters(
    open_stores: OpenStores, queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """A limit on posts must not lose a message, nor let a claim fail; letters count for it."""
    stores = await open_stores(max_messages=2)
    queue, other = queue.at(stores), other.at(stores)
    await other.post("posted")
    for letter in ("a", "b"):
        await queue.post(letter)
        await exhaust(queue)
        assert (await queue.claim(dead_letter=other.as_dead_letter_queue(1))).moved == 1
        with pytest.raises(LimitReached):
            await other.post("one too many")
    assert await other.bodies() == ["posted", "a", "b"]


async def test_an_exhausted_message_behind_what_is_handed_out_is_left_alone(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post("a", new("b", delay=10 * MINUTE), "c")
    claimed = await queue.claim(mode=DelayMode.HONOUR)
    assert texts(claimed.messages) == ["a", "c"]
    await queue.release(claimed.claim_id or "")
    queue.advance(11 * MINUTE)
    claimed = await queue.claim(1, mode=DelayMode.HONOUR, dead_letter=other.as_dead_letter_queue(1))
    assert texts(claimed.messages) == ["b"]
    assert claimed.moved == 1
    assert await queue.bodies() == ["b", "c"]

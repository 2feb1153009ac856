"""Dead letters: exactly so many deliveries, then one move, with all that must be kept."""

import pytest

from tests.contract.conftest import OpenStores
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, ids, new, texts
from zaqar_lite.domain.models import Capability, DelayMode, Refusal, RefusalReason

pytestmark = pytest.mark.anyio


async def exhaust(queue: QueueUnderTest, claims: int = 1, *, client: str = "consumer") -> str:
    """Claim and release all that is ready, so many times; answer the last claim's id."""
    claim_id = ""
    for _ in range(claims):
        claimed = await queue.claim(100, client=client)
        claim_id = claimed.claim_id or ""
        await queue.release(claim_id)
    return claim_id


async def test_a_message_is_delivered_exactly_so_many_times(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    policy = other.as_dead_letter_queue(2)
    await queue.post("a")
    for count in (1, 2):
        claimed = await queue.claim(dead_letter=policy)
        assert [message.claim_count for message in claimed.messages] == [count]
        assert claimed.moved == 0
        await queue.release(claimed.claim_id or "")
    last = await queue.claim(dead_letter=policy)
    assert (last.claim_id, list(last.messages), last.moved) == (None, [], 1)
    assert await queue.bodies() == []
    assert await other.bodies() == ["a"]


async def test_a_moved_message_keeps_what_it_is(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post(new("a", headers={"x": "y"}), client="producer")
    posted = await queue.get_one(message_id)
    queue.advance(5 * MINUTE)
    claim_id = await exhaust(queue, 3, client="worker-7")
    queue.advance(5 * MINUTE)
    await queue.claim(dead_letter=other.as_dead_letter_queue(3))
    letter = await other.get_one(message_id)
    assert (letter.body, letter.headers, letter.client_id) == (
        posted.body,
        posted.headers,
        "producer",
    )
    assert (letter.created_at, letter.claim_count) == (posted.created_at, 3)
    assert 10 * MINUTE <= letter.age_ms < 11 * MINUTE
    assert letter.claim_id is None
    assert letter.position > posted.position
    assert letter.origin is not None
    assert letter.origin.source == queue.ref.name
    assert letter.origin.claim_count == 3
    assert letter.origin.last_claim_id == claim_id
    assert letter.origin.last_client_id == "worker-7"
    assert 10 * MINUTE <= letter.origin.moved_at - posted.created_at < 11 * MINUTE


async def test_a_moved_message_is_ready_at_once(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """Upstream's drivers leave it claimed until the claim that moved it lapses."""
    (message_id,) = await queue.post("a")
    await exhaust(queue)
    await queue.claim(dead_letter=other.as_dead_letter_queue(1), ttl=HOUR)
    assert await other.counts() == (1, 0, 0)
    claimed = await other.claim()
    assert ids(claimed.messages) == [message_id]
    assert claimed.messages[0].claim_count == 2
    assert claimed.messages[0].origin is not None


async def test_a_moved_message_is_in_one_queue_only(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a")
    claim_id = await exhaust(queue)
    await queue.claim(dead_letter=other.as_dead_letter_queue(1))
    assert not await queue.get(message_id)
    assert await queue.counts() == (0, 0, 0)
    await queue.release(claim_id)
    await queue.delete(message_id)
    await queue.purge()
    assert await other.bodies() == ["a"]


async def test_a_letter_gets_the_ttl_of_the_policy_from_the_move_on(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a", ttl=30 * MINUTE)
    await exhaust(queue)
    queue.advance(20 * MINUTE)
    await queue.claim(dead_letter=other.as_dead_letter_queue(1, 50 * MINUTE))
    letter = await other.get_one(message_id)
    assert letter.origin is not None
    assert letter.ttl_ms == 50 * MINUTE
    assert letter.expires_at == letter.origin.moved_at + 50 * MINUTE
    queue.advance(49 * MINUTE)
    assert await other.bodies() == ["a"]
    assert await other.counts() == (1, 0, 0)
    queue.advance(2 * MINUTE)
    assert await other.bodies() == []
    assert (await other.claim()).claim_id is None


async def test_without_a_ttl_in_the_policy_a_letter_keeps_what_remained(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a", ttl=30 * MINUTE)
    before = await queue.get_one(message_id)
    await exhaust(queue)
    queue.advance(20 * MINUTE)
    await queue.claim(dead_letter=other.as_dead_letter_queue(1), ttl=HOUR)
    letter = await other.get_one(message_id)
    assert (letter.ttl_ms, letter.expires_at) == (before.ttl_ms, before.expires_at)
    queue.advance(11 * MINUTE)
    assert await other.bodies() == []


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


async def test_renewing_releasing_and_lapsing_keep_the_count(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post("a")
    claim_id = await queue.claim_id(ttl=MINUTE)
    await queue.renew(claim_id, ttl=2 * MINUTE)
    queue.advance(3 * MINUTE)
    claimed = await queue.claim(ttl=MINUTE)
    assert claimed.messages[0].claim_count == 2
    await queue.release(claimed.claim_id or "")
    assert (await queue.claim(dead_letter=other.as_dead_letter_queue(2))).moved == 1


async def test_renewing_that_raises_the_ttl_keeps_the_count_and_the_holder(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a", ttl=2 * MINUTE)
    claimed = await queue.claim(ttl=MINUTE, client="worker-7")
    claim_id = claimed.claim_id or ""
    await queue.renew(claim_id, ttl=10 * MINUTE)
    assert (await queue.get_one(message_id)).claim_count == 1
    queue.advance(10 * MINUTE + 1)
    assert (await queue.claim(dead_letter=other.as_dead_letter_queue(1))).moved == 1
    letter = await other.get_one(message_id)
    assert letter.origin is not None
    assert letter.origin.claim_count == letter.claim_count == 1
    assert letter.origin.last_claim_id == claim_id
    assert letter.origin.last_client_id == "worker-7"


async def test_two_sources_have_one_dead_letter_queue(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    sources = [queue.named(queue.ref.name + suffix) for suffix in ("", ".b", "-c")]
    for source in sources:
        await source.post(source.ref.name)
        await exhaust(source)
    policy = other.as_dead_letter_queue(1)
    for source in sources:
        assert (await source.claim(dead_letter=policy)).moved == 1
    letters = await other.listed()
    assert texts(letters) == [source.ref.name for source in sources]
    assert [letter.origin.source for letter in letters if letter.origin] == texts(letters)
    assert texts((await other.claim()).messages) == texts(letters)


async def test_letters_come_after_what_is_in_the_target_already(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post("letter")
    await exhaust(queue)
    await other.post("native")
    await queue.claim(dead_letter=other.as_dead_letter_queue(1))
    await other.post("later")
    assert await other.bodies() == ["native", "letter", "later"]
    assert texts((await other.claim()).messages) == ["native", "letter", "later"]


async def test_a_letter_keeps_its_priority(queue: QueueUnderTest, other: QueueUnderTest) -> None:
    queue.stores.need(Capability.FAN_OUT)
    await queue.post(new("late", priority=200), new("urgent", priority=50))
    await exhaust(queue)
    await other.post("native")
    await queue.claim(dead_letter=other.as_dead_letter_queue(1))
    assert await other.bodies() == ["native", "urgent", "late"]
    assert texts((await other.claim()).messages) == ["urgent", "native", "late"]


async def test_a_delayed_message_is_not_moved_before_it_is_due(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """Exhausted ones are found among the ready ones only."""
    policy = other.as_dead_letter_queue(1)
    await queue.post("ready")
    await exhaust(queue)
    await queue.post("delayed", delay=10 * MINUTE)
    assert (await queue.claim(mode=DelayMode.HONOUR, dead_letter=policy)).moved == 1
    assert await queue.bodies() == ["delayed"]


async def test_a_lapsed_claim_reaches_the_letter_in_no_way(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a")
    lapsed = await queue.claim_id(ttl=MINUTE)
    queue.advance(2 * MINUTE)
    await queue.claim(dead_letter=other.as_dead_letter_queue(1))
    assert not await queue.delete(message_id, claims=[lapsed])
    await queue.release(lapsed)
    assert await other.delete(message_id, claims=[lapsed]) == [
        Refusal(message_id, RefusalReason.NOT_CLAIMED)
    ]
    assert await other.counts() == (1, 0, 0)


async def test_a_letter_that_was_delayed_once_is_not_delayed_in_the_target(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post("a", delay=10 * MINUTE)
    claimed = await queue.claim(exposing=True)
    await queue.release(claimed.claim_id or "")
    policy = other.as_dead_letter_queue(1)
    assert (await queue.claim(exposing=True, dead_letter=policy)).moved == 1
    assert await other.counts() == (1, 0, 0)
    assert texts(await other.listed(delayed=False)) == ["a"]
    assert texts((await other.claim(mode=DelayMode.HONOUR)).messages) == ["a"]


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
    """A limit on posts must not lose a message, nor let a claim fail."""
    stores = await open_stores(max_messages=1)
    queue, other = queue.at(stores), other.at(stores)
    await queue.post("letter")
    await exhaust(queue)
    await other.post("full")
    assert (await queue.claim(dead_letter=other.as_dead_letter_queue(1))).moved == 1
    assert await other.bodies() == ["full", "letter"]


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

"""Claiming, releasing and popping: order, exclusion, counts, the raised ttl, renewing, lapsing."""

import pytest

from tests.contract.subject import MINUTE, QueueUnderTest, new, texts
from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.ids import is_claim_id
from zaqar_lite.domain.models import Capability, DelayMode, Refusal, RefusalReason

pytestmark = pytest.mark.anyio


async def test_nothing_to_claim_makes_no_claim(queue: QueueUnderTest) -> None:
    for found in (await queue.claim(), await queue.pop()):
        assert (found.claim_id, list(found.messages), found.moved) == (None, [], 0)


async def test_messages_are_claimed_oldest_first_and_given_to_nobody_else(
    queue: QueueUnderTest,
) -> None:
    await queue.post(*"abcde")
    first, second = await queue.claim(2), await queue.claim(10)
    assert texts(first.messages) == ["a", "b"]
    assert texts(second.messages) == ["c", "d", "e"]
    assert first.claim_id != second.claim_id
    assert not first.more, "it did not end early"
    assert first.claim_id is not None
    assert is_claim_id(first.claim_id)
    assert {message.claim_id for message in first.messages} == {first.claim_id}
    queue.advance(9 * MINUTE)
    assert (await queue.claim()).claim_id is None
    assert not (await queue.pop()).messages


async def test_lower_priorities_come_first_then_positions(queue: QueueUnderTest) -> None:
    queue.stores.need(Capability.FAN_OUT)
    await queue.post(
        new("late", priority=200),
        new("a", priority=100),
        new("urgent", priority=0),
        new("b", priority=100),
    )
    assert texts((await queue.claim(2)).messages) == ["urgent", "a"]
    assert texts((await queue.claim()).messages) == ["b", "late"]
    assert await queue.bodies() == ["late", "a", "urgent", "b"]


async def test_a_claim_shows_what_it_holds(queue: QueueUnderTest) -> None:
    await queue.post(*"abc")
    claimed = await queue.claim(2, ttl=5 * MINUTE)
    assert claimed.claim_id is not None
    queue.advance(2 * MINUTE)
    claim = await queue.get_claim(claimed.claim_id)
    assert claim.id == claimed.claim_id
    assert claim.ttl_ms == 5 * MINUTE
    assert 2 * MINUTE <= claim.age_ms < 3 * MINUTE
    assert texts(claim.messages) == ["a", "b"]
    assert {message.claim_id for message in claim.messages} == {claim.id}
    await queue.delete(claim.messages[0].id)
    assert texts((await queue.get_claim(claim.id)).messages) == ["b"]


async def test_a_claim_that_is_none_of_the_queue_is_not_found(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post("a")
    await queue.claim()
    await other.post("b")
    for claim_id in (await other.claim_id(), "", "x", "0" * 32, "a\nb", "*", "../x", "é"):
        with pytest.raises(NotFound):
            await queue.get_claim(claim_id)
        with pytest.raises(NotFound):
            await queue.renew(claim_id)
        await queue.release(claim_id)
    assert await queue.counts() == await other.counts() == (0, 0, 1)


async def test_a_lapsed_claim_is_over_without_a_sweep_and_touches_nothing_of_others(
    queue: QueueUnderTest,
) -> None:
    message_id, *_ = await queue.post(*"abc")
    lapsed = await queue.claim_id(2, ttl=2 * MINUTE)
    queue.advance(3 * MINUTE)
    assert await queue.counts() == (3, 0, 0)
    assert {message.claim_id for message in await queue.listed()} == {None}
    assert await queue.is_over(lapsed)
    with pytest.raises(NotFound):
        await queue.renew(lapsed)
    not_claimed = Refusal(message_id, RefusalReason.NOT_CLAIMED)
    assert await queue.delete(message_id, claims=[lapsed]) == [not_claimed]
    holder = await queue.claim_id(ttl=10 * MINUTE)
    claimed = Refusal(message_id, RefusalReason.CLAIMED)
    assert await queue.delete(message_id, claims=[lapsed]) == [claimed]
    with pytest.raises(NotFound):
        await queue.renew(lapsed, ttl=60 * MINUTE)
    await queue.release(lapsed)
    assert (await queue.get_one(message_id)).claim_id == holder
    assert await queue.held(holder) == ["a", "b", "c"]
    queue.advance(11 * MINUTE)
    assert await queue.counts() == (3, 0, 0)


async def test_renewing_gives_the_claim_and_its_messages_more_time(queue: QueueUnderTest) -> None:
    await queue.post(*"ab")
    claim_id = await queue.claim_id(ttl=5 * MINUTE)
    queue.advance(4 * MINUTE)
    await queue.renew(claim_id, ttl=6 * MINUTE)
    claim = await queue.get_claim(claim_id)
    assert claim.age_ms < MINUTE
    assert claim.ttl_ms == 6 * MINUTE
    queue.advance(5 * MINUTE)
    assert (await queue.claim()).claim_id is None
    assert [message.claim_count for message in await queue.listed()] == [1, 1]
    queue.advance(2 * MINUTE)
    assert texts((await queue.claim()).messages) == ["a", "b"]


async def test_a_held_message_lives_as_long_as_its_claim_and_the_grace(
    queue: QueueUnderTest,
) -> None:
    (message_id,) = await queue.post("a", ttl=5 * MINUTE)
    claimed = await queue.claim(ttl=20 * MINUTE, grace=10 * MINUTE)
    assert [message.ttl_ms for message in claimed.messages] == [30 * MINUTE]
    queue.advance(19 * MINUTE)
    assert texts((await queue.get_claim(claimed.claim_id or "")).messages) == ["a"]
    assert (await queue.get_one(message_id)).ttl_ms == 30 * MINUTE
    queue.advance(2 * MINUTE)  # the claim has lapsed; the grace runs
    assert await queue.counts() == (1, 0, 0)
    queue.advance(8 * MINUTE)
    assert await queue.bodies() == ["a"]
    queue.advance(2 * MINUTE)
    assert await queue.bodies() == []


async def test_a_message_that_outlives_the_claim_keeps_its_ttl(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a", ttl=30 * MINUTE)
    before = await queue.get_one(message_id)
    claimed = await queue.claim(ttl=20 * MINUTE, grace=60 * MINUTE)
    after = await queue.get_one(message_id)
    assert (after.ttl_ms, after.expires_at) == (before.ttl_ms, before.expires_at)
    assert claimed.messages[0].expires_at == before.expires_at
    queue.advance(31 * MINUTE)
    assert await queue.bodies() == []


async def test_renewing_raises_the_ttl_by_the_same_rule_and_no_sweep_cuts_it(
    queue: QueueUnderTest,
) -> None:
    (message_id,) = await queue.post("a", ttl=6 * MINUTE)
    claim_id = await queue.claim_id(ttl=5 * MINUTE, grace=MINUTE)
    assert (await queue.get_one(message_id)).ttl_ms == 6 * MINUTE
    await queue.renew(claim_id, ttl=10 * MINUTE, grace=MINUTE)
    assert (await queue.get_one(message_id)).ttl_ms == 11 * MINUTE
    queue.advance(7 * MINUTE)  # beyond the ttl that the message came with
    await queue.sweep()
    assert await queue.held(claim_id) == ["a"]
    await queue.renew(claim_id, ttl=20 * MINUTE, grace=2 * MINUTE)
    queue.advance(19 * MINUTE)  # beyond the one that it had from the first renewal
    await queue.sweep()
    assert await queue.held(claim_id) == ["a"]
    assert await queue.counts() == (0, 0, 1)
    queue.advance(2 * MINUTE)
    assert await queue.bodies() == ["a"]
    queue.advance(2 * MINUTE)
    assert await queue.bodies() == []
    await queue.sweep()
    assert await queue.counts() == (0, 0, 0)


async def test_a_claim_is_shown_in_the_order_of_the_queue(queue: QueueUnderTest) -> None:
    """Whatever the order in which it was handed out."""
    await queue.post(new("low", priority=200), new("mid"), new("high", priority=1))
    claimed = await queue.claim(3)
    if Capability.FAN_OUT in queue.stores.messages.capabilities:
        assert texts(claimed.messages) == ["high", "mid", "low"]
    claim = await queue.get_claim(claimed.claim_id or "")
    assert texts(claim.messages) == ["low", "mid", "high"]


# Releasing: at once, idempotent, and only what the claim still holds.


async def test_released_messages_are_ready_at_once_at_their_own_places(
    queue: QueueUnderTest,
) -> None:
    """A second release, late, must not free what somebody else holds by now."""
    await queue.post(*"abcd")
    claim_id = await queue.claim_id(2)
    await queue.release(claim_id)
    assert await queue.is_over(claim_id)
    with pytest.raises(NotFound):
        await queue.renew(claim_id)
    assert await queue.counts() == (4, 0, 0)
    assert {message.claim_id for message in await queue.listed()} == {None}
    second = await queue.claim_id(3)
    await queue.release(claim_id)
    assert await queue.held(second) == ["a", "b", "c"]
    assert texts((await queue.claim()).messages) == ["d"]


async def test_a_raised_ttl_stays_after_a_release(queue: QueueUnderTest) -> None:
    await queue.post("a", ttl=2 * MINUTE)
    claim_id = await queue.claim_id(ttl=10 * MINUTE, grace=MINUTE)
    await queue.release(claim_id)
    queue.advance(9 * MINUTE)
    assert await queue.bodies() == ["a"]
    queue.advance(3 * MINUTE)
    assert await queue.bodies() == []


# Popping: removed and handed out in one step.


async def test_popped_messages_are_gone_and_carry_no_claim_and_no_further_count(
    queue: QueueUnderTest,
) -> None:
    message_ids = await queue.post(*"abc")
    await queue.release(await queue.claim_id(2))
    popped = await queue.pop(2)
    assert texts(popped.messages) == ["a", "b"]
    assert popped.claim_id is None
    assert {(message.claim_id, message.claim_count) for message in popped.messages} == {(None, 1)}
    assert await queue.bodies() == ["c"]
    assert not await queue.get(*message_ids[:2])
    assert await queue.counts() == (1, 0, 0)


async def test_popping_leaves_held_and_delayed_messages(queue: QueueUnderTest) -> None:
    await queue.post("held")
    await queue.claim()
    await queue.post("delayed", delay=10 * MINUTE)
    await queue.post("ready")
    assert texts((await queue.pop(mode=DelayMode.HONOUR)).messages) == ["ready"]
    assert not (await queue.pop(mode=DelayMode.HONOUR)).messages
    assert await queue.bodies() == ["held", "delayed"]
    queue.advance(11 * MINUTE)
    assert texts((await queue.pop(mode=DelayMode.HONOUR)).messages) == ["held", "delayed"]

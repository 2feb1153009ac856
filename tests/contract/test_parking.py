"""Parking: a message given back with a delay waits at its own place, and belongs to nobody."""

import pytest

from tests.contract.conftest import OpenStores
from tests.contract.subject import (
    HOUR,
    MINUTE,
    SECOND,
    QueueUnderTest,
    ack,
    give_back,
    ids,
    new,
    some,
    texts,
)
from zaqar_lite.domain.errors import Conflict, LimitReached, NotFound
from zaqar_lite.domain.models import DelayMode, QueueRef, Refusal, RefusalReason
from zaqar_lite.domain.settlements import Outcome

pytestmark = pytest.mark.anyio

HONOUR, IGNORE = DelayMode.HONOUR, DelayMode.IGNORE
any_mode = pytest.mark.parametrize("mode", [IGNORE, HONOUR], ids=lambda mode: mode.value)


async def give_all_back(
    queue: QueueUnderTest,
    *,
    delay: int = 10 * MINUTE,
    mode: DelayMode = IGNORE,
    exposing: bool = False,
) -> tuple[str, list[str]]:
    """Claim what is ready and park each message; answer the claim's id and those of messages."""
    claimed = await queue.claim(100, mode=mode, exposing=exposing)
    claim_id, message_ids = claimed.claim_id or "", ids(claimed.messages)
    outcomes = await queue.outcomes(claim_id, *[give_back(each, delay) for each in message_ids])
    assert outcomes == [Outcome.DONE] * len(message_ids)
    return claim_id, message_ids


async def park(queue: QueueUnderTest, *what: str, delay: int = 10 * MINUTE) -> list[str]:
    """Post to a queue where nothing is ready, and park what was posted; answer the ids."""
    await queue.post(*what)
    _, message_ids = await give_all_back(queue, delay=delay)
    return message_ids


# When it comes back, and where.


@any_mode
@pytest.mark.parametrize("pops", [False, True])
async def test_a_parked_message_is_handed_out_when_its_time_has_come(
    queue: QueueUnderTest, mode: DelayMode, pops: bool
) -> None:
    await queue.post("a", delay=0 if mode is IGNORE else MINUTE)
    queue.advance(2 * MINUTE)
    await give_all_back(queue, mode=mode)
    for _ in range(3):
        assert (await queue.claim(mode=mode)).claim_id is None
        assert not (await queue.pop(mode=mode)).messages
        await queue.sweep()
        assert await queue.counts() == (0, 1, 0)
        queue.advance(3 * MINUTE)
    queue.advance(MINUTE)
    assert await queue.counts() == (1, 0, 0)
    (message,) = (await (queue.pop if pops else queue.claim)(mode=mode)).messages
    assert (message.failure_count, message.parked_until) == (0, None)
    assert message.claim_count == (1 if pops else 2)


# How readers see it.


async def test_a_parked_message_is_shown_as_claimed_by_nobody_and_counted_as_delayed(
    queue: QueueUnderTest,
) -> None:
    await queue.post(new("parked", headers={"x": "y"}), client="producer")
    (before,) = await queue.listed()
    _, (message_id,) = await give_all_back(queue)
    await queue.post("claimed", "ready")
    await queue.claim(1)
    await queue.post("delayed", delay=10 * MINUTE)
    shown = await queue.get_one(message_id)
    assert (shown.claim_id, shown.claim_count, shown.delay_expires_at) == (None, 1, None)
    assert shown.parked_until is not None
    assert abs(shown.parked_until - shown.now - 10 * MINUTE) < MINUTE
    (listed, _, ready) = await queue.listed(claimed=True, delayed=False)
    assert texts([listed, ready]) == ["parked", "ready"]
    assert (listed.claim_id, listed.parked_until) == (None, shown.parked_until)
    assert ready.parked_until is None
    assert texts(await queue.listed(claimed=False)) == ["ready", "delayed"]
    stats = await queue.stats()
    assert (stats.ready, stats.delayed, stats.claimed) == (1, 2, 1)
    assert texts([some(stats.oldest), some(stats.newest)]) == ["parked", "delayed"]
    assert some(stats.oldest).parked_until == shown.parked_until
    for minutes in (1, 10):
        queue.advance(minutes * MINUTE)
        after = await queue.get_one(message_id)
        for name in ("position", "body", "created_at", "expires_at", "client_id", "headers"):
            assert getattr(after, name) == getattr(before, name)


async def test_a_parked_message_is_a_live_one(open_stores: OpenStores, project: str) -> None:
    """It takes room under `max_messages`, and a range of the queue holds it."""
    stores = await open_stores(max_messages=2)
    queue = QueueUnderTest(stores, QueueRef(project, "queue"))
    await park(queue, "a", "b")
    with pytest.raises(LimitReached):
        await queue.post("c")
    positions = [message.position for message in await queue.listed()]
    assert await queue.cuts(2) == positions


# What reaches it, and what does not.


async def test_a_parked_message_is_deleted_without_a_claim_alone(queue: QueueUnderTest) -> None:
    one, two, _, held = await queue.post(*"abcd")
    claim_id = await queue.claim_id()
    parking = [give_back(each, 10 * MINUTE) for each in ids(await queue.listed())[:3]]
    await queue.settle(claim_id, *parking)
    for message_ids, claims in (
        ((one,), [claim_id]),
        ((one,), ["0" * 32]),
        ((one, held), [claim_id]),
    ):
        assert await queue.delete(*message_ids, claims=claims) == [
            Refusal(one, RefusalReason.NOT_CLAIMED)
        ]
    assert await queue.bodies() == [*"abcd"]
    assert not await queue.delete(one)
    assert not await queue.delete(two, claims=[])
    assert not await queue.delete(held, claims=[claim_id])
    assert await queue.counts() == (0, 1, 0)
    queue.advance(11 * MINUTE)
    assert texts((await queue.claim()).messages) == ["c"]


async def test_a_parked_message_can_not_be_edited(queue: QueueUnderTest) -> None:
    """It was claimable once: only what still waits for its first time may change."""
    (never_delayed,) = await park(queue, "a")
    (once_delayed,) = await queue.post("b", delay=MINUTE)
    (exposed,) = await queue.post("c", delay=HOUR, ttl=2 * HOUR)
    queue.advance(2 * MINUTE)
    _, message_ids = await give_all_back(queue, exposing=True)
    assert sorted(message_ids) == sorted([once_delayed, exposed])
    for message_id in (never_delayed, once_delayed, exposed):
        for delay in (None, 0, 5 * MINUTE):
            with pytest.raises(Conflict):
                await queue.edit(message_id, "edited", delay=delay)
    assert await queue.bodies() == ["a", "b", "c"]
    assert await queue.counts() == (0, 3, 0)


async def test_exposing_a_queue_leaves_parked_messages_alone(queue: QueueUnderTest) -> None:
    """Switching a delay off is no reason to try at once what has failed."""
    await queue.post("parked", delay=MINUTE)
    queue.advance(2 * MINUTE)
    await give_all_back(queue, mode=HONOUR, delay=30 * MINUTE)
    await queue.post("delayed", delay=10 * MINUTE)
    assert texts((await queue.claim(exposing=True)).messages) == ["delayed"]
    assert await queue.release_delayed(100) == 0
    assert not (await queue.pop(exposing=True)).messages
    assert await queue.counts() == (0, 1, 1)
    queue.advance(31 * MINUTE)
    assert texts((await queue.claim(1, exposing=True)).messages) == ["parked"]


async def test_a_message_that_was_exposed_is_not_delayed_again_by_parking(
    queue: QueueUnderTest,
) -> None:
    """Its own delay would end long after its parking."""
    await queue.post("a", delay=HOUR, ttl=2 * HOUR)
    await give_all_back(queue, exposing=True)
    queue.advance(11 * MINUTE)
    assert await queue.counts() == (1, 0, 0)
    assert texts((await queue.claim(mode=HONOUR)).messages) == ["a"]


async def test_an_exhausted_message_is_a_dead_letter_when_its_time_has_come(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """Giving back is no failure, so only the next claim would find it exhausted."""
    policy = other.as_dead_letter_queue(1)
    await park(queue, "a")
    assert (await queue.claim(dead_letter=policy)).moved == 0
    assert await queue.counts() == (0, 1, 0)
    queue.advance(11 * MINUTE)
    assert (await queue.claim(dead_letter=policy)).moved == 1
    assert await other.counts() == (1, 0, 0)


# Its old claim.


async def test_parking_can_outlast_the_old_claim_or_end_before_it(queue: QueueUnderTest) -> None:
    """The claim's end is a failure of what it still holds, and of nothing that is parked."""
    message_ids = await queue.post(*"abc")
    claim_id = await queue.claim_id(ttl=20 * MINUTE)
    await queue.settle(
        claim_id, give_back(message_ids[0], 10 * MINUTE), give_back(message_ids[1], 30 * MINUTE)
    )
    await queue.renew(claim_id, ttl=20 * MINUTE)  # which has no part in what is parked
    queue.advance(11 * MINUTE)
    assert texts((await queue.claim(ttl=HOUR)).messages) == ["a"]
    assert await queue.held(claim_id) == ["c"]
    queue.advance(10 * MINUTE)
    for _ in range(2):
        assert await queue.counts() == (1, 1, 1)
        await queue.sweep()
    (lapsed,) = (await queue.claim(ttl=HOUR)).messages
    assert (lapsed.id, lapsed.failure_count) == (message_ids[2], 1)
    await queue.post("d")
    queue.advance(10 * MINUTE)
    await queue.sweep()
    parked, behind = (await queue.claim(ttl=HOUR)).messages
    assert (parked.id, parked.failure_count) == (message_ids[1], 0)
    assert texts([behind]) == ["d"]


# How long it lives.


@pytest.mark.parametrize(
    ("delay", "ttl"),
    [
        pytest.param(40 * MINUTE, 41 * MINUTE, id="it would expire before"),
        pytest.param(20 * MINUTE - 30 * SECOND, 20 * MINUTE + 30 * SECOND, id="soon after"),
        pytest.param(10 * MINUTE, 20 * MINUTE, id="it lives long enough"),
    ],
)
async def test_a_message_lives_until_a_minute_after_its_parking(
    queue: QueueUnderTest, delay: int, ttl: int
) -> None:
    (message_id,) = await queue.post("a", ttl=20 * MINUTE)
    claim_id = await queue.claim_id(ttl=5 * MINUTE)
    await queue.settle(claim_id, give_back(message_id, delay))
    message = await queue.get_one(message_id)
    assert message.ttl_ms == ttl
    assert message.parked_until is not None
    assert abs(message.parked_until - message.now - delay) < MINUTE
    if ttl != 20 * MINUTE:
        assert message.parked_until == message.expires_at - MINUTE
    queue.advance(delay - MINUTE)
    await queue.sweep()
    assert await queue.counts() == (0, 1, 0)
    queue.advance(MINUTE + 30 * SECOND)
    assert await queue.counts() == (1, 0, 0)
    queue.advance(ttl - delay)
    assert await queue.counts() == (0, 0, 0)
    assert (await queue.claim()).claim_id is None


# Whole claims.


async def test_a_whole_claim_is_parked_once(queue: QueueUnderTest) -> None:
    first, acked, third, _ = await queue.post(*"abcd")
    claim_id = await queue.claim_id(3)
    await queue.settle(claim_id, ack(acked))
    await queue.release(claim_id, delay=10 * MINUTE)
    assert await queue.is_over(claim_id)
    with pytest.raises(NotFound):
        await queue.renew(claim_id)
    assert await queue.counts() == (1, 2, 0)
    before = [message.parked_until for message in await queue.get(first, third)]
    assert None not in before
    queue.advance(5 * MINUTE)
    await queue.release(claim_id, delay=10 * MINUTE)
    await queue.release(claim_id)
    assert [message.parked_until for message in await queue.get(first, third)] == before
    queue.advance(4 * MINUTE)
    assert texts((await queue.claim()).messages) == ["d"]
    queue.advance(2 * MINUTE)
    claimed = await queue.claim(ttl=5 * MINUTE)
    assert texts(claimed.messages) == ["a", "c"]
    assert [message.failure_count for message in claimed.messages] == [0, 0]
    await queue.release(claim_id, delay=10 * MINUTE)
    assert await queue.held(claimed.claim_id or "") == ["a", "c"]
    queue.advance(6 * MINUTE)
    await queue.release(claimed.claim_id or "", delay=10 * MINUTE)  # it has lapsed: too late
    assert await queue.counts() == (2, 0, 1)
    assert [message.failure_count for message in (await queue.claim()).messages] == [1, 1]

"""Settling: each message of a claim for itself, and what a late or repeated word is worth."""

import asyncio

import pytest

from tests.contract.subject import (
    HOUR,
    MINUTE,
    QueueUnderTest,
    ack,
    bury,
    extend,
    fail,
    give_back,
    texts,
)
from zaqar_lite.domain.errors import NotFound, QueueChanged
from zaqar_lite.domain.models import QueueRecord, Refusal, RefusalReason, RetryPolicy
from zaqar_lite.domain.settlements import Outcome, Settlement

pytestmark = pytest.mark.anyio

DONE, NOT_FOUND, LAPSED = Outcome.DONE, Outcome.NOT_FOUND, Outcome.LAPSED
HELD, NO_TARGET = Outcome.HELD, Outcome.NO_TARGET


def every_act(message_id: str) -> list[Settlement]:
    return [ack(message_id), give_back(message_id), extend(message_id, HOUR), bury(message_id)]


def letters_to(target: QueueUnderTest) -> RetryPolicy:
    return RetryPolicy(target.as_dead_letter_queue())


async def test_nothing_to_settle_is_no_error(queue: QueueUnderTest) -> None:
    settled = await queue.settle("0" * 32)
    assert (list(settled.outcomes), settled.moved) == ([], 0)


# What each act does.


async def test_each_lease_is_its_messages_own_and_can_be_extended_or_cut_short(
    queue: QueueUnderTest,
) -> None:
    """The age and the ttl of the claim are those of when it was made or renewed."""
    short, _, long = await queue.post(*"abc")
    claim_id = await queue.claim_id(ttl=10 * MINUTE)
    queue.advance(MINUTE)
    settled = await queue.outcomes(claim_id, extend(short, 5 * MINUTE), extend(long, 20 * MINUTE))
    assert settled == [DONE, DONE]
    queue.advance(4 * MINUTE)
    assert await queue.held(claim_id) == ["a", "b", "c"]
    claim = await queue.get_claim(claim_id)
    assert claim.ttl_ms == 10 * MINUTE
    assert 5 * MINUTE <= claim.age_ms < 6 * MINUTE
    queue.advance(2 * MINUTE)
    assert await queue.held(claim_id) == ["b", "c"]
    assert await queue.counts() == (1, 0, 2)
    queue.advance(4 * MINUTE)
    assert await queue.held(claim_id) == ["c"]
    assert await queue.counts() == (2, 0, 1)
    assert texts((await queue.claim(ttl=HOUR)).messages) == ["a", "b"]
    queue.advance(9 * MINUTE)
    assert await queue.held(claim_id) == ["c"]
    queue.advance(2 * MINUTE)
    assert await queue.is_over(claim_id)
    assert texts((await queue.claim()).messages) == ["c"]


async def test_an_extended_message_does_not_expire_under_its_lease(queue: QueueUnderTest) -> None:
    """And a ttl that lasts is not raised."""
    short, _ = await queue.post(*"ab", ttl=10 * MINUTE)
    (lasting,) = await queue.post("c", ttl=HOUR)
    before = await queue.get_one(lasting)
    claim_id = await queue.claim_id(ttl=5 * MINUTE)
    extensions = [extend(one, 30 * MINUTE, grace=10 * MINUTE) for one in (short, lasting)]
    assert await queue.outcomes(claim_id, *extensions) == [DONE, DONE]
    extended, untouched, after = await queue.listed()
    assert extended.ttl_ms == 40 * MINUTE
    assert abs(extended.expires_at - extended.now - 40 * MINUTE) < MINUTE
    assert untouched.ttl_ms == 10 * MINUTE
    assert (after.ttl_ms, after.expires_at) == (before.ttl_ms, before.expires_at)
    assert (after.claim_count, after.failure_count) == (1, 0)
    await queue.delete(lasting)
    queue.advance(29 * MINUTE)
    assert await queue.held(claim_id) == ["a"]
    queue.advance(10 * MINUTE)
    assert await queue.bodies() == ["a"]
    queue.advance(2 * MINUTE)
    assert await queue.bodies() == []


async def test_nothing_is_rejected_where_there_is_no_place_for_it(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id(ttl=10 * MINUTE)
    before = await queue.get_one(message_id, details=True)
    settled = await queue.settle(claim_id, bury(message_id, reason="malformed"))
    assert (list(settled.outcomes), settled.moved) == ([NO_TARGET], 0)
    after = await queue.get_one(message_id, details=True)
    after.now = before.now
    assert after == before
    assert await queue.held(claim_id) == ["a"]
    # It is not settled: the consumer may still choose another act.
    assert await queue.outcomes(claim_id, ack(message_id)) == [DONE]


async def test_one_call_settles_each_message_in_its_own_way(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    message_ids = await queue.post(*"abcdefg")
    claim_id = await queue.claim_id(6, ttl=10 * MINUTE)
    settled = await queue.settle(
        claim_id,
        bury(message_ids[4]),
        give_back(message_ids[1], 5 * MINUTE),
        ack(message_ids[6]),
        ack(message_ids[0]),
        extend(message_ids[3], 30 * MINUTE),
        ack("f" * 32),
        fail(message_ids[2]),
        retries=letters_to(other),
    )
    assert list(settled.outcomes) == [DONE, DONE, LAPSED, DONE, DONE, NOT_FOUND, DONE]
    assert settled.moved == 1
    assert await other.bodies() == ["e"]
    assert await queue.bodies() == ["b", "c", "d", "f", "g"]
    assert await queue.held(claim_id) == ["d", "f"]
    assert await queue.counts() == (2, 1, 2)
    assert texts((await queue.claim()).messages) == ["c", "g"]


# What a claim is, when its messages have leases of their own.


async def test_a_claim_ends_with_its_last_message(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    acts = (ack, give_back, fail, bury, lambda each: give_back(each, 5 * MINUTE))
    for last in (None, *acts):
        await queue.purge()
        message_ids = await queue.post(*"ab")
        claim_id = await queue.claim_id()
        await queue.delete(message_ids[0], claims=[claim_id])
        await queue.renew(claim_id)
        assert await queue.held(claim_id) == ["b"]
        if last is None:
            assert not await queue.delete(message_ids[1], claims=[claim_id])
        else:
            done = await queue.outcomes(claim_id, last(message_ids[1]), retries=letters_to(other))
            assert done == [DONE]
        assert await queue.is_over(claim_id)
        with pytest.raises(NotFound):
            await queue.renew(claim_id)
        await queue.release(claim_id)


async def test_renewing_renews_every_lease_but_one_that_has_lapsed(queue: QueueUnderTest) -> None:
    lapsed, short, long, _ = await queue.post(*"abcd")
    claim_id = await queue.claim_id(ttl=10 * MINUTE)
    await queue.outcomes(
        claim_id, extend(lapsed, MINUTE), extend(short, 3 * MINUTE), extend(long, 40 * MINUTE)
    )
    queue.advance(2 * MINUTE)
    await queue.renew(claim_id, ttl=20 * MINUTE)
    assert await queue.counts() == (1, 0, 3)
    assert texts((await queue.claim(ttl=HOUR)).messages) == ["a"]
    queue.advance(19 * MINUTE)
    assert await queue.held(claim_id) == ["b", "c", "d"]
    assert (await queue.get_claim(claim_id)).ttl_ms == 20 * MINUTE
    queue.advance(2 * MINUTE)
    assert await queue.is_over(claim_id)
    assert await queue.counts() == (3, 0, 1)


async def test_releasing_a_claim_frees_only_what_it_still_holds(queue: QueueUnderTest) -> None:
    message_ids = await queue.post(*"abcd")
    first = await queue.claim_id(3)
    await queue.outcomes(first, give_back(message_ids[0], 10 * MINUTE), give_back(message_ids[1]))
    second = await queue.claim_id(1)
    assert await queue.held(second) == ["b"]
    await queue.release(first)
    assert await queue.held(second) == ["b"]
    assert await queue.counts() == (2, 1, 1)
    assert texts((await queue.claim()).messages) == ["c", "d"]


async def test_a_claim_takes_only_what_it_still_holds(queue: QueueUnderTest) -> None:
    """Whether it deletes or settles: a lapsed lease gives no right while its claim lives on."""
    released, extended, lapsed, acked = await queue.post(*"abcd")
    claim_id = await queue.claim_id(ttl=10 * MINUTE)
    await queue.outcomes(
        claim_id, give_back(released), extend(extended, 30 * MINUTE), extend(acked, 30 * MINUTE)
    )
    queue.advance(11 * MINUTE)
    for message_id in (released, lapsed):
        assert await queue.delete(message_id, claims=[claim_id]) == [
            Refusal(message_id, RefusalReason.NOT_CLAIMED)
        ]
    assert await queue.outcomes(claim_id, ack(lapsed), ack(acked)) == [LAPSED, DONE]
    assert not await queue.delete(extended, claims=[claim_id])
    assert await queue.bodies() == ["a", "c"]


async def test_a_lapsed_message_that_is_deleted_leaves_its_claim_to_the_others(
    queue: QueueUnderTest,
) -> None:
    message_ids = await queue.post(*"ab")
    claim_id = await queue.claim_id(ttl=MINUTE)
    assert await queue.outcomes(claim_id, extend(message_ids[1], 10 * MINUTE)) == [DONE]
    queue.advance(2 * MINUTE)
    # Who reads may notice that the lease has lapsed.
    assert texts(await queue.listed(claimed=False)) == ["a"]
    assert await queue.counts() == (1, 0, 1)
    assert not await queue.delete(message_ids[0])
    assert await queue.held(claim_id) == ["b"]
    await queue.renew(claim_id, ttl=15 * MINUTE)
    assert await queue.counts() == (0, 0, 1)
    queue.advance(20 * MINUTE)
    assert texts((await queue.claim()).messages) == ["b"]


# The same word again, another word, and a word that comes too late.


@pytest.mark.parametrize("delay", [None, 10 * MINUTE])
async def test_the_same_release_again_is_done_and_changes_nothing(
    queue: QueueUnderTest, delay: int | None
) -> None:
    """Though the claim lives on, and also when it has ended."""
    message_id, _ = await queue.post(*"ab")
    claim_id = await queue.claim_id()
    assert await queue.outcomes(claim_id, fail(message_id, delay, reason="first")) == [DONE]
    before = await queue.get_one(message_id, details=True)
    queue.advance(5 * MINUTE)
    for again in (
        fail(message_id, reason="second"),
        give_back(message_id),
        fail(message_id, 10 * MINUTE),
        give_back(message_id, 10 * MINUTE),
    ):
        assert await queue.outcomes(claim_id, again) == [DONE]
    after = await queue.get_one(message_id, details=True)
    assert (after.failure_count, after.parked_until) == (1, before.parked_until)
    assert [attempt.reason for attempt in after.attempts] == ["first"]
    assert await queue.counts() == ((0, 1, 1) if delay else (1, 0, 1))
    queue.advance(6 * MINUTE)
    # The claim has long ended, and the message waits for nothing any more.
    assert await queue.outcomes(claim_id, give_back(message_id, 10 * MINUTE)) == [DONE]
    assert texts((await queue.claim()).messages) == ["a", "b"]


async def test_another_act_after_a_release_comes_too_late(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """Also after one of the whole claim, which is a release of each message."""
    for release in (give_back, fail, lambda each: give_back(each, 30 * MINUTE), None):
        await queue.purge()
        message_ids = await queue.post(*"ab")
        claim_id = await queue.claim_id()
        if release is None:
            await queue.release(claim_id)
        else:
            await queue.outcomes(claim_id, release(message_ids[0]))
        before = await queue.counts()
        for late in (ack(message_ids[0]), extend(message_ids[0], HOUR), bury(message_ids[0])):
            assert await queue.outcomes(claim_id, late, retries=letters_to(other)) == [LAPSED]
        assert await queue.outcomes(claim_id, give_back(message_ids[0])) == [DONE]
        assert await queue.counts() == before
        assert await queue.bodies() == ["a", "b"]
        assert await other.bodies() == []


async def test_what_is_not_in_the_queue_is_not_found(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post("held")
    (expired,) = await queue.post("expired", ttl=10 * MINUTE)
    acked, buried, deleted = await queue.post(*"abc")
    claimed = await queue.claim(ttl=5 * MINUTE)
    claim_id, letters = claimed.claim_id or "", letters_to(other)
    await queue.settle(claim_id, ack(acked), bury(buried), retries=letters)
    await queue.settle(claim_id, extend(claimed.messages[0].id, HOUR))
    await queue.delete(deleted)
    (of_another,) = await other.post("theirs")
    queue.advance(11 * MINUTE)
    no_ids = ["", "x", "0" * 31, "F" * 32, "é" * 32, "0" * 32, "a:b"]
    for message_id in (expired, acked, buried, deleted, of_another, *no_ids):
        outcomes = await queue.outcomes(claim_id, *every_act(message_id), retries=letters)
        assert outcomes == [NOT_FOUND] * 4
    assert await queue.held(claim_id) == ["held"]
    assert await other.bodies() == ["b", "theirs"]


@pytest.mark.parametrize("claim_id", ["", "x", "0" * 32, "é" * 32, "a:b"])
async def test_a_claim_that_never_was_holds_nothing(queue: QueueUnderTest, claim_id: str) -> None:
    (held, ready) = await queue.post("a", "b")
    holder = await queue.claim_id(1)
    assert await queue.outcomes(claim_id, *every_act(held)) == [HELD] * 4
    assert await queue.outcomes(claim_id, *every_act(ready)) == [LAPSED] * 4
    assert await queue.held(holder) == ["a"]
    assert await queue.counts() == (1, 0, 1)


async def test_a_lapsed_lease_gives_no_right_any_more(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a")
    await queue.release(await queue.claim_id())  # of this hand-out nothing is told any more
    claim_id = await queue.claim_id(ttl=5 * MINUTE)
    queue.advance(6 * MINUTE)
    for swept in (False, True):
        if swept:
            await queue.sweep()
        late = every_act(message_id)
        assert await queue.outcomes(claim_id, *late, retries=letters_to(other)) == [LAPSED] * 4
        assert await queue.counts() == (1, 0, 0)
    assert (await queue.claim()).messages[0].failure_count == 1


async def test_what_another_claim_holds_is_left_to_it(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    message_ids = await queue.post(*"ab")
    first = await queue.claim_id(ttl=5 * MINUTE)
    await queue.outcomes(first, give_back(message_ids[0]))
    queue.advance(6 * MINUTE)
    second = await queue.claim_id()
    assert await queue.held(second) == ["a", "b"]
    for message_id in message_ids:
        acts = every_act(message_id)
        assert await queue.outcomes(first, *acts, retries=letters_to(other)) == [HELD] * 4
    assert await queue.held(second) == ["a", "b"]
    # When the second claim is over, the first one has no more right than before.
    await queue.release(second)
    assert await queue.outcomes(first, *every_act(message_ids[0])) == [LAPSED] * 4


async def test_racing_settlements_of_one_message_agree(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    message_ids = await queue.post(*map(str, range(6)))
    claim_id = await queue.claim_id(6)
    peers = [queue.at(stores) for stores in await queue.stores.peers(3)]
    answers = await asyncio.gather(
        *[peer.outcomes(claim_id, *map(fail, message_ids)) for peer in peers * 2],
        *[peer.outcomes(claim_id, *map(ack, message_ids)) for peer in peers],
        *[
            peer.outcomes(claim_id, *map(bury, message_ids), retries=letters_to(other))
            for peer in peers
        ],
    )
    for number, message_id in enumerate(message_ids):
        outcomes = [answer[number] for answer in answers]
        if await queue.get(message_id):  # a release was first
            assert outcomes == [DONE] * 6 + [LAPSED] * 6
            assert (await queue.get_one(message_id)).failure_count == 1
        elif await other.get(message_id):
            assert outcomes[9:].count(DONE) == outcomes.count(DONE) == 1
            assert outcomes.count(NOT_FOUND) == 11
        else:
            assert outcomes[6:9].count(DONE) == outcomes.count(DONE) == 1
            assert outcomes.count(NOT_FOUND) == 11


# Versions.


async def test_a_stale_version_settles_nothing(queue: QueueUnderTest) -> None:
    management = queue.stores.management
    record, _ = await management.create_queue(queue.ref, {}, max_queues=100)
    message_ids = await queue.post(*"ab")
    claim_id = await queue.claim_id()
    newer = await management.update_queue(QueueRecord(queue.ref, {"a": 1}, record.version))
    for stale in (record.version, 0):
        with pytest.raises(QueueChanged):
            await queue.settle(claim_id, *map(ack, message_ids), version=stale)
    assert await queue.held(claim_id) == ["a", "b"]
    settled = await queue.settle(claim_id, ack(message_ids[0]), version=newer.version)
    assert list(settled.outcomes) == [DONE]
    settled = await queue.settle(claim_id, ack(message_ids[1]))
    assert list(settled.outcomes) == [DONE]

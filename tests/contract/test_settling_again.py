"""Settling: the same word again, another word, and a word that comes too late."""

import asyncio

import pytest

from tests.contract.subject import (
    HOUR,
    MINUTE,
    SECOND,
    QueueUnderTest,
    ack,
    bury,
    extend,
    fail,
    give_back,
    texts,
)
from zaqar_lite.domain.errors import QueueChanged
from zaqar_lite.domain.models import QueueRecord, RetryPolicy
from zaqar_lite.domain.settlements import Outcome, Settlement

pytestmark = pytest.mark.anyio

DONE, NOT_FOUND, LAPSED = Outcome.DONE, Outcome.NOT_FOUND, Outcome.LAPSED
HELD, NO_TARGET = Outcome.HELD, Outcome.NO_TARGET


def every_act(message_id: str) -> list[Settlement]:
    return [ack(message_id), give_back(message_id), extend(message_id, HOUR), bury(message_id)]


def letters_to(target: QueueUnderTest) -> RetryPolicy:
    return RetryPolicy(target.as_dead_letter_queue())


async def test_the_same_release_again_is_done_and_changes_nothing(queue: QueueUnderTest) -> None:
    message_ids = await queue.post(*"ab")
    claim_id = await queue.claim_id()
    assert await queue.outcomes(claim_id, fail(message_ids[0], reason="first")) == [DONE]
    for again in (
        fail(message_ids[0], reason="second"),
        give_back(message_ids[0]),
        fail(message_ids[0], 10 * MINUTE),
    ):
        assert await queue.outcomes(claim_id, again) == [DONE]
    message = await queue.get_one(message_ids[0], details=True)
    assert (message.failure_count, message.parked_until) == (1, None)
    assert [attempt.reason for attempt in message.attempts] == ["first"]
    assert await queue.counts() == (1, 0, 1)


async def test_the_same_release_again_does_not_lengthen_the_delay(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id()
    await queue.outcomes(claim_id, give_back(message_id, 10 * MINUTE))
    before = (await queue.get_one(message_id)).parked_until
    queue.advance(5 * MINUTE)
    for again in (give_back(message_id, 10 * MINUTE), give_back(message_id), fail(message_id)):
        assert await queue.outcomes(claim_id, again) == [DONE]
    message = await queue.get_one(message_id)
    assert (message.parked_until, message.failure_count) == (before, 0)
    queue.advance(6 * MINUTE)
    # The claim has long ended, and the message waits for nothing any more.
    assert await queue.outcomes(claim_id, give_back(message_id, 10 * MINUTE)) == [DONE]
    assert texts((await queue.claim()).messages) == ["a"]


async def test_another_act_after_a_release_comes_too_late(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    for release in (give_back, fail, lambda each: give_back(each, 30 * MINUTE)):
        await queue.purge()
        message_ids = await queue.post(*"ab")
        claim_id = await queue.claim_id()
        await queue.outcomes(claim_id, release(message_ids[0]))
        before = await queue.counts()
        for late in (ack(message_ids[0]), extend(message_ids[0], HOUR), bury(message_ids[0])):
            assert await queue.outcomes(claim_id, late, retries=letters_to(other)) == [LAPSED]
        assert await queue.counts() == before
        assert await queue.bodies() == ["a", "b"]
        assert await other.bodies() == []


async def test_a_release_of_the_claim_is_a_release_of_each_message(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id()
    await queue.release(claim_id)
    assert await queue.outcomes(
        claim_id, ack(message_id), give_back(message_id), extend(message_id, HOUR)
    ) == [LAPSED, DONE, LAPSED]
    assert await queue.counts() == (1, 0, 0)


async def test_what_is_no_longer_in_the_queue_is_not_found(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    message_ids = await queue.post(*"abc")
    claim_id = await queue.claim_id()
    await queue.outcomes(
        claim_id, ack(message_ids[0]), bury(message_ids[1]), retries=letters_to(other)
    )
    await queue.delete(message_ids[2])
    for message_id in message_ids:
        assert (
            await queue.outcomes(claim_id, *every_act(message_id), retries=letters_to(other))
            == [NOT_FOUND] * 4
        )
    assert await other.bodies() == ["b"]


async def test_an_expired_message_is_not_found(queue: QueueUnderTest) -> None:
    (message_id, _) = await queue.post("a", "b", ttl=10 * MINUTE)
    claim_id = await queue.claim_id(ttl=5 * MINUTE)
    queue.advance(11 * MINUTE)
    assert await queue.outcomes(claim_id, *every_act(message_id)) == [NOT_FOUND] * 4


async def test_a_message_of_another_queue_is_not_found(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id()
    await other.post("b")
    assert await other.outcomes(claim_id, *every_act(message_id)) == [NOT_FOUND] * 4
    assert await queue.held(claim_id) == ["a"]


@pytest.mark.parametrize("message_id", ["", "x", "0" * 31, "F" * 32, "é" * 32, "0" * 32, "a:b"])
async def test_an_id_that_is_none_is_not_found(queue: QueueUnderTest, message_id: str) -> None:
    await queue.post("a")
    claim_id = await queue.claim_id()
    assert await queue.outcomes(claim_id, *every_act(message_id)) == [NOT_FOUND] * 4
    assert await queue.held(claim_id) == ["a"]


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
    claim_id = await queue.claim_id(ttl=5 * MINUTE)
    queue.advance(6 * MINUTE)
    for swept in (False, True):
        if swept:
            await queue.sweep()
        late = every_act(message_id)
        assert await queue.outcomes(claim_id, *late, retries=letters_to(other)) == [LAPSED] * 4
        assert await queue.counts() == (1, 0, 0)
    assert (await queue.claim()).messages[0].failure_count == 1


async def test_a_lapsed_lease_gives_no_right_while_its_claim_lives_on(
    queue: QueueUnderTest,
) -> None:
    message_ids = await queue.post(*"ab")
    claim_id = await queue.claim_id(ttl=5 * MINUTE)
    await queue.outcomes(claim_id, extend(message_ids[1], HOUR))
    queue.advance(6 * MINUTE)
    assert await queue.outcomes(claim_id, ack(message_ids[0]), ack(message_ids[1])) == [
        LAPSED,
        DONE,
    ]
    assert await queue.bodies() == ["a"]


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
        settled = await queue.settle(first, *every_act(message_id), retries=letters_to(other))
        assert (list(settled.outcomes), settled.moved) == ([HELD] * 4, 0)
    assert await queue.held(second) == ["a", "b"]
    # When the second claim is over, the first one has no more right than before.
    await queue.release(second)
    assert await queue.outcomes(first, *every_act(message_ids[0])) == [LAPSED] * 4


async def test_a_message_named_twice_is_settled_once(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    a, b, c, d, e = await queue.post(*"abcde")
    claim_id = await queue.claim_id(ttl=10 * MINUTE)
    settled = await queue.settle(
        claim_id,
        *(ack(a), ack(a), give_back(a)),
        *(fail(b), fail(b), ack(b)),
        *(extend(c, HOUR), extend(c, 20 * MINUTE)),
        *(extend(d, HOUR), fail(d)),
        *(bury(e), bury(e)),
        retries=letters_to(other),
    )
    assert list(settled.outcomes) == [
        *(DONE, NOT_FOUND, NOT_FOUND),
        *(DONE, DONE, LAPSED),
        *(DONE, DONE),
        *(DONE, DONE),
        *(DONE, NOT_FOUND),
    ]
    assert settled.moved == 1
    assert [(await queue.get_one(each)).failure_count for each in (b, c, d)] == [1, 0, 1]
    assert [len(await queue.attempts(each)) for each in (b, c, d)] == [1, 0, 1]
    assert await other.bodies() == ["e"]
    assert await queue.held(claim_id) == ["c"]
    queue.advance(21 * MINUTE)
    assert await queue.is_over(claim_id)


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


async def test_a_lease_ends_when_it_was_said(queue: QueueUnderTest) -> None:
    """Without a sweep, and not a moment's guess later: the deadline decides."""
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id(ttl=10 * MINUTE)
    await queue.outcomes(claim_id, extend(message_id, 2 * MINUTE))
    assert await queue.next_due() in range(MINUTE, 2 * MINUTE + 1)
    queue.advance(2 * MINUTE + SECOND)
    assert await queue.counts() == (1, 0, 0)
    assert texts((await queue.claim()).messages) == ["a"]

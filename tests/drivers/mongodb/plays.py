"""Operations as plays: each prepares a queue, yields one act, and checks what it answered.

The act is what fails on its way, or whose answers are lost.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

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
    ids,
    new,
    texts,
)
from zaqar_lite.domain.models import QueueRef, Record, RetryPolicy
from zaqar_lite.domain.settlements import Outcome

BATCH = [new("a", key="k"), new("b")]
Play = AsyncGenerator[Awaitable[Any], Any]
"""Prepares a queue, yields the act that is to lose an answer, and checks what it answered."""
Scenario = Callable[[QueueUnderTest], Play]


async def a_post(queue: QueueUnderTest) -> Play:
    posted = yield queue.post("a", "b")
    assert ids(await queue.listed()) == posted
    assert await queue.bodies() == ["a", "b"]


async def a_post_with_keys(queue: QueueUnderTest) -> Play:
    posted = yield queue.post_all(BATCH, batch_key="batch")
    assert [one.duplicate for one in posted] == [False, False]
    assert ids(await queue.listed()) == [one.id for one in posted]


async def the_same_post_again(queue: QueueUnderTest) -> Play:
    await queue.post_all(BATCH, batch_key="batch")
    posted = yield queue.post_all(BATCH, batch_key="batch")
    assert [one.duplicate for one in posted] == [True, True]
    assert ids(await queue.listed()) == [one.id for one in posted]


async def a_claim(queue: QueueUnderTest) -> Play:
    await queue.post(*"abc")
    claimed = yield queue.claim(2)
    assert texts(claimed.messages) == ["a", "b"]
    assert [message.claim_count for message in claimed.messages] == [1, 1]
    assert ids((await queue.get_claim(claimed.claim_id)).messages) == ids(claimed.messages)


async def a_pop(queue: QueueUnderTest) -> Play:
    await queue.post(*"abc")
    popped = yield queue.pop(2)
    assert texts(popped.messages) == ["a", "b"]
    assert await queue.bodies() == ["c"]
    assert await queue.counts() == (1, 0, 0)


async def an_acknowledgement(queue: QueueUnderTest) -> Play:
    await queue.post(*"abc")
    claimed = await queue.claim(2)
    refused = yield queue.delete(*ids(claimed.messages), claims=[claimed.claim_id or ""])
    assert not refused
    assert await queue.bodies() == ["c"]


async def a_purge(queue: QueueUnderTest) -> Play:
    await queue.post(*"abc")
    claim_id = await queue.claim_id(2)
    yield queue.purge()
    assert await queue.counts() == (0, 0, 0)
    assert await queue.is_over(claim_id)


async def dead_letters(queue: QueueUnderTest) -> Play:
    letters = queue.named(queue.ref.name + "-letters")
    await queue.post(*"abc")
    await queue.release(await queue.claim_id(2))
    claimed = yield queue.claim(dead_letter=letters.as_dead_letter_queue(1))
    assert texts(claimed.messages) == ["c"]
    assert await queue.bodies() == ["c"]
    assert await letters.bodies() == ["a", "b"]


def settlements(with_letter: bool) -> Scenario:
    """Settle four messages, each in its own way."""

    async def play(queue: QueueUnderTest) -> Play:
        letters = queue.named(queue.ref.name + "-letters")
        a, b, c, d = await queue.post(*"abcd")
        claim_id = await queue.claim_id()
        last = bury(d) if with_letter else give_back(d, MINUTE)
        retries = RetryPolicy(letters.as_dead_letter_queue())
        acts = ack(a), fail(b), extend(c, HOUR), last
        settled = yield queue.settle(claim_id, *acts, retries=retries)
        assert list(settled.outcomes) == [Outcome.DONE] * 4
        assert settled.moved == with_letter
        left = await queue.listed(details=True)
        assert texts(left) == (["b", "c"] if with_letter else ["b", "c", "d"])
        assert [(len(m.attempts), m.failure_count) for m in left[:2]] == [(1, 1), (0, 0)]
        assert await letters.bodies() == (["d"] if with_letter else [])

    return play


def an_edit(delay: int) -> Scenario:
    """Edit a message, which does not fit the same edit again: it is ready, or due later."""

    async def play(queue: QueueUnderTest) -> Play:
        await queue.post("a", delay=MINUTE)
        (before,) = await queue.listed()
        edited = yield queue.edit(before.id, "b", delay=delay, if_due=before.delay_expires_at)
        assert [edited.id] == ids(await queue.listed())
        assert await queue.bodies() == ["b"]
        assert await queue.counts() == ((0, 1, 0) if delay else (1, 0, 0))

    return play


async def a_renewal_a_release_and_a_move(queue: QueueUnderTest) -> Play:
    elsewhere = queue.named(queue.ref.name + "-elsewhere")
    await queue.post(*"abc")
    claimed = await queue.claim(2, ttl=MINUTE)

    async def act() -> list[Outcome]:
        await queue.renew(claimed.claim_id or "", ttl=HOUR)
        await queue.release(claimed.claim_id or "")
        return await queue.move(elsewhere, claimed.messages[0].id)

    assert (yield act()) == [Outcome.DONE]
    assert await queue.bodies() == ["b", "c"]
    assert await elsewhere.bodies() == ["a"]
    messages = [*await elsewhere.listed(details=True), *await queue.listed(details=True)]
    assert [len(message.attempts) for message in messages] == [1, 1, 0]


async def the_last_queue_of_a_project(queue: QueueUnderTest) -> Play:
    """Its maker does not take its own queue for the one too many."""
    last, store = QueueRef(f"of-{queue.ref.name}", "last"), queue.stores.management
    made = yield store.create_queue(last, {}, max_queues=1)
    assert made == (await store.get_queue(last), True)


async def two_writes_of_a_record(queue: QueueUnderTest) -> Play:
    """What is expected was there when the change was first carried out: it is no stranger's."""
    store = queue.stores.management

    async def act() -> Record:
        first = await store.put_record("kind", *queue.ref, b"1", expected=0)
        return await store.put_record("kind", *queue.ref, b"2", expected=first.version)

    written = yield act()
    assert await store.get_record("kind", *queue.ref) == written


async def a_deletion_of_a_record(queue: QueueUnderTest) -> Play:
    store = queue.stores.management
    await store.put_record("kind", *queue.ref, b"1", expected=0)

    async def act() -> tuple[bool, int]:
        return await store.delete_record("kind", *queue.ref), await store.sweep_records(1)

    assert (yield act()) == (True, 0)
    assert await store.get_record("kind", *queue.ref) is None


SCENARIOS: dict[str, Scenario] = {
    "a post is stored once": a_post,
    "a post with keys is stored once": a_post_with_keys,
    "the same post again stores nothing": the_same_post_again,
    "a claim counts once and is told of all that it holds": a_claim,
    "a pop loses nothing and gives nothing twice": a_pop,
    "an acknowledgement is done": an_acknowledgement,
    "a purge is done": a_purge,
    "dead letters move once": dead_letters,
    "settlements are done once and told as done": settlements(with_letter=False),
    "so are those with a letter": settlements(with_letter=True),
    "an edit is told as done": an_edit(0),
    "an edit that delays is told as done": an_edit(2 * MINUTE),
    "a renewal, a release and a move are told as done": a_renewal_a_release_and_a_move,
    "the last queue of a project is told as created": the_last_queue_of_a_project,
    "a record is written at its version": two_writes_of_a_record,
    "a deletion of a record is told": a_deletion_of_a_record,
}
any_play = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)


async def perform(
    scenario: Scenario, queue: QueueUnderTest, fault: AbstractContextManager[object]
) -> None:
    """Perform a play, whose act meets a fault."""
    play = scenario(queue)
    act = await anext(play)
    with fault:
        answer = await act
    with suppress(StopAsyncIteration):
        await play.asend(answer)

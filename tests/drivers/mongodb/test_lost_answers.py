"""A command is carried out and its answer lost, at every command of an operation.

With retryable writes, which the server recognises, and without, as many of MongoDB's kin want it.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from pymongo import common, network_layer

from tests.contract.stores import Stores
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
from tests.drivers.mongodb.conftest import CASE
from tests.drivers.mongodb.lossy import LossyProxy, lossy
from tests.services import MongoServer
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRef, Record, RetryPolicy, StoreOptions
from zaqar_lite.domain.settlements import Outcome

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BATCH = [new("a", key="k"), new("b")]
Play = AsyncGenerator[Awaitable[Any], Any]
"""Prepares a queue, yields the act that is to lose an answer, and checks what it answered."""
Scenario = Callable[[QueueUnderTest], Play]


@dataclass(frozen=True)
class Lossy:
    """A queue by way of the proxy."""

    queue: QueueUnderTest
    proxy: LossyProxy

    async def at_every_command(self, scenario: Scenario, least: int) -> None:
        """Lose the answer of the first command of the act, of the second, up to the last."""
        number, lost = 0, True
        while lost:
            number += 1
            play = scenario(self.queue.named(f"queue-{number}"))
            act = await anext(play)
            self.proxy.lose(number)
            answer = await act
            lost = self.proxy.lost is not None
            self.proxy.lose(0)
            with suppress(StopAsyncIteration):
                await play.asend(answer)
        assert number >= least


@pytest.fixture
def quick_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pymongo find a lost server in 50 ms, not in 500: each lost answer waits for that."""
    monkeypatch.setattr(common, "MIN_HEARTBEAT_INTERVAL", 0.05)
    monkeypatch.setattr(network_layer, "_POLL_TIMEOUT", 0.05)


@pytest.fixture(params=["true", "false"])
async def lossy_queue(
    request: pytest.FixtureRequest,
    mongodb: MongoServer,
    database_name: str,
    quick_client: None,
) -> AsyncIterator[Lossy]:
    if mongodb.real and "directConnection" not in mongodb.url:
        pytest.skip("a client of several members does not stay at the proxy")
    opened: list[Stores] = []
    options = StoreOptions(extra={"database": database_name})
    async with lossy(mongodb.url) as (proxy, url):
        uri = f"{url}&retryWrites={request.param}"
        stores = await Stores.open(CASE, uri, Clock(), options, opened)
        queue = QueueUnderTest(stores, QueueRef("project", "queue"))
        try:
            yield Lossy(queue, proxy)
        finally:
            await stores.close()


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


SCENARIOS: dict[str, tuple[Scenario, int]] = {
    "a post is stored once": (a_post, 3),
    "a post with keys is stored once": (a_post_with_keys, 3),
    "the same post again stores nothing": (the_same_post_again, 3),
    "a claim counts once and is told of all that it holds": (a_claim, 3),
    "a pop loses nothing and gives nothing twice": (a_pop, 3),
    "an acknowledgement is done": (an_acknowledgement, 3),
    "dead letters move once": (dead_letters, 3),
    "settlements are done once and told as done": (settlements(with_letter=False), 3),
    "so are those with a letter": (settlements(with_letter=True), 3),
    "an edit is told as done": (an_edit(0), 2),
    "an edit that delays is told as done": (an_edit(2 * MINUTE), 2),
    "a renewal, a release and a move are told as done": (a_renewal_a_release_and_a_move, 3),
    "the last queue of a project is told as created": (the_last_queue_of_a_project, 8),
    "a record is written at its version": (two_writes_of_a_record, 3),
    "a deletion of a record is told": (a_deletion_of_a_record, 3),
}
"""Each with the commands that it takes at least: the last round loses no answer."""


@pytest.mark.parametrize(("scenario", "least"), SCENARIOS.values(), ids=SCENARIOS)
async def test_what_was_carried_out_is_told_as_done(
    lossy_queue: Lossy, scenario: Scenario, least: int
) -> None:
    await lossy_queue.at_every_command(scenario, least)

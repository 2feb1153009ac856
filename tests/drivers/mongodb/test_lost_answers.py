"""A command is carried out and its answer lost, at every command of an operation.

With retryable writes, which the server recognises, and without, as many of MongoDB's kin want it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

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
from tests.drivers.mongodb.commands import Commands
from tests.drivers.mongodb.conftest import CASE
from tests.drivers.mongodb.lossy import LossyProxy, lossy
from tests.services import MongoServer
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import Claimed, Message, QueueRef, RetryPolicy, StoreOptions
from zaqar_lite.domain.settlements import Outcome, Settled

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BATCH = [new("a", key="k"), new("b")]


@dataclass(frozen=True)
class Lossy:
    """A queue by way of the proxy."""

    queue: QueueUnderTest
    proxy: LossyProxy
    commands: Commands

    async def at_every_command(
        self,
        prepare: Callable[[QueueUnderTest], Awaitable[None]],
        act: Callable[[QueueUnderTest], Awaitable[object]],
        check: Callable[[QueueUnderTest, object], Awaitable[None]],
        *,
        least: int = 3,
    ) -> None:
        """Lose the answer of the first command of `act`, of the second, up to the last."""
        number, lost = 0, True
        while lost:
            number += 1
            queue = self.queue.named(f"queue-{number}")
            await prepare(queue)
            self.proxy.lose(number)
            answer = await act(queue)
            lost = self.proxy.lost is not None
            self.proxy.lose(0)
            await check(queue, answer)
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
    commands: Commands,
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
            yield Lossy(queue, proxy, commands)
        finally:
            await stores.close()


async def nothing(_: QueueUnderTest) -> None:
    """No preparation."""


async def test_a_post_is_stored_once(lossy_queue: Lossy) -> None:
    async def check(queue: QueueUnderTest, answer: object) -> None:
        assert ids(await queue.listed()) == answer
        assert await queue.bodies() == ["a", "b"]

    await lossy_queue.at_every_command(nothing, lambda queue: queue.post("a", "b"), check)


async def test_a_post_with_keys_and_its_repetition_are_stored_once(lossy_queue: Lossy) -> None:
    async def post(queue: QueueUnderTest) -> object:
        return await queue.post_all(BATCH, batch_key="batch")

    async def check_first(queue: QueueUnderTest, answer: object) -> None:
        assert isinstance(answer, list)
        assert [posted.duplicate for posted in answer] == [False, False]
        assert ids(await queue.listed()) == [posted.id for posted in answer]

    async def post_before(queue: QueueUnderTest) -> None:
        await queue.post_all(BATCH, batch_key="batch")

    async def check_again(queue: QueueUnderTest, answer: object) -> None:
        assert isinstance(answer, list)
        assert [posted.duplicate for posted in answer] == [True, True]
        assert ids(await queue.listed()) == [posted.id for posted in answer]

    await lossy_queue.at_every_command(nothing, post, check_first)
    await lossy_queue.at_every_command(post_before, post, check_again)


async def fill(queue: QueueUnderTest) -> None:
    """Three messages."""
    await queue.post(*"abc")


async def test_a_claim_counts_once_and_is_told_of_all_that_it_holds(lossy_queue: Lossy) -> None:
    async def claim(queue: QueueUnderTest) -> object:
        return await queue.claim(2)

    async def check(queue: QueueUnderTest, answer: object) -> None:
        assert isinstance(answer, Claimed)
        assert texts(answer.messages) == ["a", "b"]
        assert [message.claim_count for message in answer.messages] == [1, 1]
        assert ids((await queue.get_claim(answer.claim_id or "")).messages) == ids(answer.messages)

    await lossy_queue.at_every_command(fill, claim, check)


async def test_a_pop_loses_nothing_and_gives_nothing_twice(lossy_queue: Lossy) -> None:
    async def pop(queue: QueueUnderTest) -> object:
        return await queue.pop(2)

    async def check(queue: QueueUnderTest, answer: object) -> None:
        assert isinstance(answer, Claimed)
        assert texts(answer.messages) == ["a", "b"]
        assert await queue.bodies() == ["c"]
        assert await queue.counts() == (1, 0, 0)

    await lossy_queue.at_every_command(fill, pop, check)


async def test_an_acknowledgement_is_done(lossy_queue: Lossy) -> None:
    held: dict[str, tuple[list[str], str]] = {}

    async def claim(queue: QueueUnderTest) -> None:
        await fill(queue)
        claimed = await queue.claim(2)
        held[queue.ref.name] = ids(claimed.messages), claimed.claim_id or ""

    async def delete(queue: QueueUnderTest) -> object:
        message_ids, claim_id = held[queue.ref.name]
        return await queue.delete(*message_ids, claims=[claim_id])

    async def check(queue: QueueUnderTest, refused: object) -> None:
        assert not refused
        assert await queue.bodies() == ["c"]

    await lossy_queue.at_every_command(claim, delete, check)


async def test_dead_letters_move_once(lossy_queue: Lossy) -> None:
    def letters(queue: QueueUnderTest) -> QueueUnderTest:
        return queue.named(queue.ref.name + "-letters")

    async def exhaust(queue: QueueUnderTest) -> None:
        await fill(queue)
        await queue.release(await queue.claim_id(2))

    async def claim(queue: QueueUnderTest) -> object:
        return await queue.claim(dead_letter=letters(queue).as_dead_letter_queue(1))

    async def check(queue: QueueUnderTest, answer: object) -> None:
        assert isinstance(answer, Claimed)
        assert texts(answer.messages) == ["c"]
        assert await queue.bodies() == ["c"]
        assert await letters(queue).bodies() == ["a", "b"]

    await lossy_queue.at_every_command(exhaust, claim, check)


@pytest.mark.parametrize("with_letter", [False, True])
async def test_settlements_are_done_once_and_told_as_done(
    lossy_queue: Lossy, with_letter: bool
) -> None:
    held: dict[str, tuple[list[str], str]] = {}

    def letters(queue: QueueUnderTest) -> QueueUnderTest:
        return queue.named(queue.ref.name + "-letters")

    async def claim(queue: QueueUnderTest) -> None:
        await queue.post(*"abcd")
        claimed = await queue.claim()
        held[queue.ref.name] = ids(claimed.messages), claimed.claim_id or ""

    async def settle(queue: QueueUnderTest) -> object:
        (a, b, c, d), claim_id = held[queue.ref.name]
        last = bury(d) if with_letter else give_back(d, MINUTE)
        retries = RetryPolicy(letters(queue).as_dead_letter_queue())
        acts = ack(a), ack(a), fail(b), extend(c, HOUR), last
        return await queue.settle(claim_id, *acts, retries=retries)

    async def check(queue: QueueUnderTest, answer: object) -> None:
        assert isinstance(answer, Settled)
        done, not_found = Outcome.DONE, Outcome.NOT_FOUND
        assert list(answer.outcomes) == [done, not_found, done, done, done]
        assert answer.moved == with_letter
        left = await queue.listed(details=True)
        assert texts(left) == ["b", "c"] if with_letter else ["b", "c", "d"]
        assert [(len(m.attempts), m.failure_count) for m in left[:2]] == [(1, 1), (0, 0)]
        assert await letters(queue).bodies() == (["d"] if with_letter else [])

    await lossy_queue.at_every_command(claim, settle, check)


@pytest.mark.parametrize("delay", [0, 2 * MINUTE])
async def test_an_edit_is_told_as_done(lossy_queue: Lossy, delay: int) -> None:
    """Also where the edited message does not fit the same edit again: ready, or due later."""
    posted: dict[str, Message] = {}

    async def post(queue: QueueUnderTest) -> None:
        await queue.post("a", delay=MINUTE)
        (posted[queue.ref.name],) = await queue.listed()

    async def edit(queue: QueueUnderTest) -> object:
        before = posted[queue.ref.name]
        return await queue.edit(before.id, "b", delay=delay, if_due=before.delay_expires_at)

    async def check(queue: QueueUnderTest, answer: object) -> None:
        assert isinstance(answer, Message)
        assert [answer.id] == ids(await queue.listed())
        assert await queue.bodies() == ["b"]
        assert await queue.counts() == ((0, 1, 0) if delay else (1, 0, 0))

    await lossy_queue.at_every_command(post, edit, check, least=2)


async def test_a_renewal_a_release_and_a_move_are_told_as_done(lossy_queue: Lossy) -> None:
    held: dict[str, tuple[list[str], str]] = {}

    def elsewhere(queue: QueueUnderTest) -> QueueUnderTest:
        return queue.named(queue.ref.name + "-elsewhere")

    async def claim(queue: QueueUnderTest) -> None:
        await fill(queue)
        claimed = await queue.claim(2, ttl=MINUTE)
        held[queue.ref.name] = ids(claimed.messages), claimed.claim_id or ""

    async def act(queue: QueueUnderTest) -> object:
        message_ids, claim_id = held[queue.ref.name]
        await queue.renew(claim_id, ttl=HOUR)
        await queue.release(claim_id)
        return await queue.move(elsewhere(queue), message_ids[0])

    async def check(queue: QueueUnderTest, answer: object) -> None:
        assert answer == [Outcome.DONE]
        assert await queue.bodies() == ["b", "c"]
        assert await elsewhere(queue).bodies() == ["a"]
        moved = await elsewhere(queue).listed(details=True)
        left = await queue.listed(details=True)
        assert [len(message.attempts) for message in (*moved, *left)] == [1, 1, 0]

    await lossy_queue.at_every_command(claim, act, check)


async def test_the_last_queue_of_a_project_is_told_as_created(lossy_queue: Lossy) -> None:
    """Its maker does not take its own queue for the one too many."""

    def last(queue: QueueUnderTest) -> QueueRef:
        return QueueRef(f"of-{queue.ref.name}", "last")

    async def act(queue: QueueUnderTest) -> object:
        return await queue.stores.management.create_queue(last(queue), {}, max_queues=1)

    async def check(queue: QueueUnderTest, answer: object) -> None:
        assert answer == (await queue.stores.management.get_queue(last(queue)), True)

    await lossy_queue.at_every_command(nothing, act, check, least=8)


async def test_a_record_is_written_at_its_version(lossy_queue: Lossy) -> None:
    """What is expected was there when the change was first carried out: it is no stranger's."""

    async def prepare(queue: QueueUnderTest) -> None:
        pass

    async def act(queue: QueueUnderTest) -> object:
        store, (project, name) = queue.stores.management, queue.ref
        first = await store.put_record("kind", project, name, b"1", expected=0)
        return await store.put_record("kind", project, name, b"2", expected=first.version)

    async def check(queue: QueueUnderTest, answer: object) -> None:
        assert await queue.stores.management.get_record("kind", *queue.ref) == answer

    await lossy_queue.at_every_command(prepare, act, check)


async def test_a_deletion_of_a_record_is_told(lossy_queue: Lossy) -> None:
    async def prepare(queue: QueueUnderTest) -> None:
        await queue.stores.management.put_record("kind", *queue.ref, b"1", expected=0)

    async def act(queue: QueueUnderTest) -> object:
        store = queue.stores.management
        return await store.delete_record("kind", *queue.ref), await store.sweep_records(1)

    async def check(queue: QueueUnderTest, answer: object) -> None:
        assert answer == (True, 0)
        assert await queue.stores.management.get_record("kind", *queue.ref) is None

    await lossy_queue.at_every_command(prepare, act, check)

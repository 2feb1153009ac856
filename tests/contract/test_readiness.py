"""Readiness: an announcement of what became ready, and when something will be by time."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest

from tests.contract.dying import WAYS, Way, any_way
from tests.contract.subject import (
    HOUR,
    MINUTE,
    QueueUnderTest,
    ack,
    backoff,
    extend,
    fail,
    give_back,
    new,
)
from zaqar_lite.domain.models import DEFAULT_PRIORITY, Capability, DelayMode, QueueRef, RetryPolicy
from zaqar_lite.domain.posts import Copy

pytestmark = pytest.mark.anyio

DEADLINE = 30.0
"""Seconds until an announcement must have come; most take milliseconds."""


class Ears:
    """A listener that remembers what it heard, in the loop that made it."""

    def __init__(self) -> None:
        self.heard: list[QueueRef] = []
        self.hastened: list[QueueRef] = []
        self._ends: dict[QueueRef, list[Callable[[], None]]] = defaultdict(list)
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    async def watch(self, *queues: QueueUnderTest) -> None:
        """Begin to listen to what is told of queues."""
        for queue in queues:
            listener = partial(self._listen, queue.ref)
            watch = await queue.stores.messages.watch(queue.ref, listener)
            self._ends[queue.ref].append(watch.end)

    def unwatch(self, queue: QueueUnderTest) -> None:
        """End one watch of a queue."""
        self._ends[queue.ref].pop()()

    def _listen(self, queue: QueueRef, count: int) -> None:
        assert asyncio.get_running_loop() is self._loop
        assert count >= -1
        if count:  # 0: something may be due earlier; `hastened` has it
            self.heard.append(queue)
        else:
            self.hastened.append(queue)
        self._news.set()

    async def hear(self, queue: QueueUnderTest, *, of_a_change: bool = False) -> None:
        """Wait until this queue was announced since the last `forget`.

        Or, of a change: that something of it may be due earlier.
        """
        async with asyncio.timeout(DEADLINE):
            while queue.ref not in (self.hastened if of_a_change else self.heard):
                self._news.clear()
                await self._news.wait()

    def forget(self) -> None:
        self.heard.clear()
        self.hastened.clear()


@pytest.fixture
async def ears() -> Ears:
    return Ears()


# What is announced.

Event = Callable[[QueueUnderTest], AsyncIterator[None]]
"""Prepares the queue, lets somebody watch it, and does what is to be told."""


async def happens(event: Event, queue: QueueUnderTest, watch: Awaitable[None]) -> None:
    """Let an event happen to a queue that is watched."""
    parts = event(queue)
    await anext(parts)
    await watch
    assert await anext(parts, "the end") == "the end"


async def a_post(queue: QueueUnderTest) -> AsyncIterator[None]:
    yield
    await queue.post("a")


async def a_release(queue: QueueUnderTest) -> AsyncIterator[None]:
    await queue.post("a")
    claim_id = await queue.claim_id()
    yield
    await queue.release(claim_id)


async def a_settlement(queue: QueueUnderTest) -> AsyncIterator[None]:
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id()
    yield
    await queue.settle(claim_id, give_back(message_id))


async def a_failure(queue: QueueUnderTest) -> AsyncIterator[None]:
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id()
    yield
    await queue.settle(claim_id, fail(message_id))


async def an_edit(queue: QueueUnderTest) -> AsyncIterator[None]:
    (message_id,) = await queue.post("a", delay=10 * MINUTE)
    yield
    await queue.edit(message_id, delay=0)


async def a_promotion(queue: QueueUnderTest) -> AsyncIterator[None]:
    await queue.post("a", delay=10 * MINUTE)
    yield
    queue.advance(11 * MINUTE)
    await queue.sweep()


async def an_exposure(queue: QueueUnderTest) -> AsyncIterator[None]:
    await queue.post("a", delay=10 * MINUTE)
    yield
    assert await queue.release_delayed() == 1


EVENTS: dict[str, Event] = {
    "post": a_post,
    "release": a_release,
    "settlement": a_settlement,
    "failure": a_failure,
    "edit": an_edit,
    "promotion": a_promotion,
    "exposure": an_exposure,
}


@pytest.fixture(params=EVENTS)
def event(request: pytest.FixtureRequest) -> Event:
    name: str = request.param
    return EVENTS[name]


async def test_what_becomes_ready_in_a_watched_queue_is_announced(
    queue: QueueUnderTest, ears: Ears, event: Event
) -> None:
    await happens(event, queue, ears.watch(queue))
    await ears.hear(queue)
    assert set(ears.heard) == {queue.ref}


async def test_what_another_process_makes_ready_is_announced_too(
    queue: QueueUnderTest, ears: Ears, event: Event
) -> None:
    second = queue.at(await queue.stores.second())
    await happens(event, second, ears.watch(queue))
    if queue.stores.messages.poll_interval_ms > 1_000:
        await ears.hear(queue)


# A move makes a letter ready in its target.


@any_way
async def test_a_letter_is_announced_in_its_new_queue(
    queue: QueueUnderTest, other: QueueUnderTest, ears: Ears, way: Way
) -> None:
    await ears.watch(other)
    (message_id,) = await queue.post("a")
    await way.let_die(queue, other, message_id)
    await ears.hear(other)
    assert set(ears.heard) == {other.ref}
    assert await other.counts() == (1, 0, 0)


async def test_a_letter_moved_by_another_process_is_announced_too(
    queue: QueueUnderTest, other: QueueUnderTest, ears: Ears
) -> None:
    second = await queue.stores.second()
    await ears.watch(other)
    (message_id,) = await queue.post("a")
    await WAYS["rejected"].let_die(queue.at(second), other, message_id)
    if queue.stores.messages.poll_interval_ms > 1_000:
        await ears.hear(other)


async def test_a_copy_is_announced_in_its_queue(
    queue: QueueUnderTest, other: QueueUnderTest, ears: Ears
) -> None:
    queue.stores.need(Capability.FAN_OUT)
    await ears.watch(other)
    await queue.post(new("a", copies=(Copy(other.ref, HOUR, 0, DEFAULT_PRIORITY),)))
    await ears.hear(other)


# For whom.


async def test_many_queues_are_watched_at_once_and_announced_by_their_own_names(
    queue: QueueUnderTest, ears: Ears
) -> None:
    """Also those with odd characters."""
    odd = [queue.named(name) for name in ("a.b", "a_b", "-a", "A.B", "a" * 64)]
    queues = [*odd, *(queue.named(f"{queue.ref.name}-{number}") for number in range(100))]
    await ears.watch(*queues)
    posted = [*odd, queues[5], queues[62], queues[104]]
    for chosen in posted:
        assert chosen.ref not in ears.heard
        await chosen.post("a")
        await ears.hear(chosen)
    assert set(ears.heard) == {chosen.ref for chosen in posted}
    for each in queues:
        ears.unwatch(each)


async def test_each_watch_needs_its_unwatch(
    queue: QueueUnderTest, other: QueueUnderTest, ears: Ears
) -> None:
    await ears.watch(queue, queue, other)
    ears.unwatch(queue)
    await queue.post("a")
    await ears.hear(queue)
    ears.unwatch(queue)
    await other.post("b")
    await ears.hear(other)
    ears.forget()
    await queue.post("c")
    await other.post("d")
    await ears.hear(other)
    assert queue.ref not in ears.heard
    await ears.watch(queue)
    await queue.post("e")
    await ears.hear(queue)


async def test_a_queue_stays_watched_whatever_becomes_of_it(
    queue: QueueUnderTest, ears: Ears
) -> None:
    """It need not exist when the watch begins, and may be made again."""
    await ears.watch(queue)
    for forget in (queue.purge, queue.drop, queue.pop):
        await queue.post("a")
        await ears.hear(queue)
        await forget()
        ears.forget()
    await queue.post("b")
    await ears.hear(queue)


async def test_what_was_announced_can_be_claimed(queue: QueueUnderTest, ears: Ears) -> None:
    """The announcement comes after the commit, never before it."""
    await ears.watch(queue)
    for number in range(10):
        post = asyncio.create_task(queue.post(str(number)))
        await ears.hear(queue)
        assert (await queue.claim(1)).claim_id is not None
        await post
        ears.forget()


# When something is due by time.


async def due_in(queue: QueueUnderTest, milliseconds: int) -> bool:
    """Whether the queue says so; a minute early is as good, later never is."""
    due = await queue.next_due()
    return due is not None and milliseconds - MINUTE <= due <= milliseconds


async def test_nothing_is_due_where_nothing_waits(queue: QueueUnderTest) -> None:
    assert await queue.next_due() is None
    await queue.post("ready")
    assert await queue.next_due() is None


async def test_a_delayed_message_is_due_when_its_delay_ends(queue: QueueUnderTest) -> None:
    late, _ = await queue.post(new("a", delay=40 * MINUTE), new("b", delay=30 * MINUTE))
    assert await due_in(queue, 30 * MINUTE)
    queue.advance(10 * MINUTE)
    assert await due_in(queue, 20 * MINUTE)
    await queue.edit(late, delay=5 * MINUTE)
    assert await due_in(queue, 5 * MINUTE)
    queue.advance(6 * MINUTE)
    assert await queue.next_due() == 0
    await queue.claim(mode=DelayMode.HONOUR, ttl=HOUR)
    assert await due_in(queue, 14 * MINUTE)


async def test_a_claimed_message_is_due_when_its_lease_ends(queue: QueueUnderTest) -> None:
    message_ids = await queue.post(*"abc")
    await queue.claim(1, ttl=40 * MINUTE)
    claim_id = await queue.claim_id(2, ttl=30 * MINUTE)
    assert await due_in(queue, 30 * MINUTE)
    await queue.settle(claim_id, extend(message_ids[1], 10 * MINUTE))
    assert await due_in(queue, 10 * MINUTE)
    queue.advance(11 * MINUTE)
    assert await queue.next_due() == 0


async def test_a_parked_message_is_due_when_its_time_comes(queue: QueueUnderTest) -> None:
    message_ids = await queue.post(*"abc")
    claim_id = await queue.claim_id(ttl=HOUR)
    await queue.settle(claim_id, give_back(message_ids[0], 20 * MINUTE), ack(message_ids[1]))
    assert await due_in(queue, 20 * MINUTE)
    await queue.release(claim_id, delay=10 * MINUTE)
    assert await due_in(queue, 10 * MINUTE)
    queue.advance(11 * MINUTE)
    assert await queue.next_due() == 0
    await queue.claim(ttl=HOUR)
    assert await due_in(queue, 9 * MINUTE)


async def test_a_lapsed_message_is_due_when_its_back_off_ends(queue: QueueUnderTest) -> None:
    await queue.post("a")
    await queue.claim(ttl=5 * MINUTE)
    queue.advance(6 * MINUTE)
    assert await queue.next_due() == 0
    assert (await queue.claim(backoff=backoff(20 * MINUTE))).claim_id is None
    assert await due_in(queue, 19 * MINUTE)


async def test_what_a_sweep_has_made_ready_is_due_no_more(queue: QueueUnderTest) -> None:
    await queue.post("delayed", delay=10 * MINUTE)
    await queue.post("claimed")
    await queue.claim(ttl=5 * MINUTE)
    await queue.post("parked")
    await queue.release(await queue.claim_id(), delay=8 * MINUTE)
    queue.advance(11 * MINUTE)
    assert await queue.next_due() == 0
    await queue.sweep()
    assert await queue.counts() == (3, 0, 0)
    assert await queue.next_due() is None


async def test_another_process_knows_what_is_due(queue: QueueUnderTest) -> None:
    second = queue.at(await queue.stores.second())
    await queue.post("a", delay=30 * MINUTE)
    assert await due_in(second, 30 * MINUTE)


# What makes something due earlier, after who waits has asked `next_due`.


async def a_delayed_post(queue: QueueUnderTest) -> AsyncIterator[None]:
    yield
    await queue.post("a", delay=HOUR)


async def an_earlier_delay(queue: QueueUnderTest) -> AsyncIterator[None]:
    (message_id,) = await queue.post("a", delay=HOUR)
    yield
    await queue.edit(message_id, delay=30 * MINUTE)


async def a_lease(queue: QueueUnderTest) -> AsyncIterator[None]:
    await queue.post("a")
    yield
    await queue.claim()


async def a_shorter_lease(queue: QueueUnderTest) -> AsyncIterator[None]:
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id(ttl=30 * MINUTE)
    yield
    await queue.settle(claim_id, extend(message_id, 10 * MINUTE))


async def a_shorter_renewal(queue: QueueUnderTest) -> AsyncIterator[None]:
    await queue.post("a")
    claim_id = await queue.claim_id(ttl=30 * MINUTE)
    yield
    await queue.renew(claim_id, ttl=10 * MINUTE)


async def a_parking(queue: QueueUnderTest) -> AsyncIterator[None]:
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id(ttl=30 * MINUTE)
    yield
    await queue.settle(claim_id, give_back(message_id, 10 * MINUTE))


async def a_parking_of_a_claim(queue: QueueUnderTest) -> AsyncIterator[None]:
    await queue.post("a")
    claim_id = await queue.claim_id(ttl=30 * MINUTE)
    yield
    await queue.release(claim_id, delay=10 * MINUTE)


async def a_back_off(queue: QueueUnderTest) -> AsyncIterator[None]:
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id(ttl=30 * MINUTE)
    yield
    retries = RetryPolicy(backoff=backoff(10 * MINUTE))
    await queue.settle(claim_id, fail(message_id), retries=retries)


HASTENINGS: dict[str, Event] = {
    "delayed post": a_delayed_post,
    "earlier delay": an_earlier_delay,
    "lease": a_lease,
    "shorter lease": a_shorter_lease,
    "shorter renewal": a_shorter_renewal,
    "parking": a_parking,
    "parking of a claim": a_parking_of_a_claim,
    "back-off": a_back_off,
}


@pytest.mark.parametrize("hastening", HASTENINGS)
async def test_what_may_be_due_earlier_is_told_with_a_count_of_zero(
    queue: QueueUnderTest, ears: Ears, hastening: str
) -> None:
    """Or who waits looks again soon enough: its timer was set by what was due before."""
    await happens(HASTENINGS[hastening], queue, ears.watch(queue))
    if queue.stores.messages.poll_interval_ms > 30_000:
        await ears.hear(queue, of_a_change=True)
    assert queue.ref not in ears.heard

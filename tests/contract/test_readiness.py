"""Readiness: an announcement of what became ready, and when something will be by time."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
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
from tests.contract.test_adopting import foreign, import_messages
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

Event = tuple[str, Callable[[QueueUnderTest, str, str], Awaitable[object]]]
"""What a queue's one message is before, and what is done: to the queue, to it, to its claim."""


async def happens(
    event: Event, queue: QueueUnderTest, watch: Awaitable[None] | None = None
) -> None:
    """Prepare the queue, let somebody watch it, and do what is to be told."""
    before, act = event
    message_id = claim_id = ""
    if before != "absent":
        (message_id,) = await queue.post("a", delay=30 * MINUTE if before == "delayed" else 0)
    if before == "claimed":
        claim_id = await queue.claim_id(ttl=30 * MINUTE)
    if watch is not None:
        await watch
    await act(queue, message_id, claim_id)


async def promote(queue: QueueUnderTest, *_: str) -> None:
    queue.advance(31 * MINUTE)
    await queue.sweep()


async def take_in(queue: QueueUnderTest, *_: str) -> None:
    await import_messages(queue, 1, await foreign(queue.named("elsewhere")))


EVENTS: dict[str, Event] = {
    "post": ("absent", lambda queue, *_: queue.post("a")),
    "release": ("claimed", lambda queue, _, claim: queue.release(claim)),
    "settlement": ("claimed", lambda queue, one, claim: queue.settle(claim, give_back(one))),
    "failure": ("claimed", lambda queue, one, claim: queue.settle(claim, fail(one))),
    "edit": ("delayed", lambda queue, one, _: queue.edit(one, delay=0)),
    "promotion": ("delayed", promote),
    "exposure": ("delayed", lambda queue, *_: queue.release_delayed()),
    "import": ("absent", take_in),
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


SOON = 10 * MINUTE
HASTENINGS: dict[str, Event] = {
    "delayed post": ("absent", lambda queue, *_: queue.post("a", delay=SOON)),
    "earlier delay": ("delayed", lambda queue, one, _: queue.edit(one, delay=SOON)),
    "lease": ("ready", lambda queue, *_: queue.claim()),
    "shorter lease": ("claimed", lambda queue, one, claim: queue.settle(claim, extend(one, SOON))),
    "shorter renewal": ("claimed", lambda queue, _, claim: queue.renew(claim, ttl=SOON)),
    "parking": ("claimed", lambda queue, one, claim: queue.settle(claim, give_back(one, SOON))),
    "parking of a claim": ("claimed", lambda queue, _, claim: queue.release(claim, delay=SOON)),
    "back-off": ("claimed", lambda queue, one, claim: queue.settle(
        claim, fail(one), retries=RetryPolicy(backoff=backoff(SOON))
    )),
}  # fmt: skip


@pytest.mark.parametrize("hastening", HASTENINGS)
async def test_what_may_be_due_earlier_is_told_with_a_count_of_zero(
    queue: QueueUnderTest, ears: Ears, hastening: str
) -> None:
    """Or who waits looks again soon enough: its timer was set by what was due before."""
    await happens(HASTENINGS[hastening], queue, ears.watch(queue))
    if queue.stores.messages.poll_interval_ms > 30_000:
        await ears.hear(queue, of_a_change=True)
    assert queue.ref not in ears.heard

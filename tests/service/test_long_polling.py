"""The waiting lines: no herd, no lost place, bounded, and nothing left behind."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest

from tests.failing import failing
from tests.waiting import until
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import TooMany, Unavailable
from zaqar_lite.domain.models import ClaimRequest, DelayMode, ListQuery, QueueRef, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.service import long_polling
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.sql import create
from zaqar_lite.storage.sql.messages import SqlMessageStore
from zaqar_lite.storage.watchers import Listener, Watch

pytestmark = pytest.mark.anyio
Ask = Callable[[], Awaitable[object]]
QUEUES = [QueueRef("p", f"queue-{number}") for number in range(1_000)]
QUEUE = QUEUES[0]
TAKE = ClaimRequest(1, None, DelayMode.IGNORE, ttl_ms=60_000, client_id="c")


class House:
    """A memory store, its waiting lines, and how often each queue was asked."""

    def __init__(self, *, most: int = 100_000) -> None:
        self.messages: MessageStore = create("memory://", clock=Clock(), options=StoreOptions())[0]
        self.waiting = LongPolling(self.messages, most=most, most_per_project=most)
        self.asked: Counter[QueueRef] = Counter()

    async def ask(self, queue: QueueRef) -> str | None:
        """Claim a message; answer its id."""
        self.asked[queue] += 1
        claimed = await self.messages.claim(queue, TAKE)
        return claimed.messages[0].id if claimed.messages else None

    async def wait(
        self, queue: QueueRef, seconds: float = 600, ask: Ask | None = None, *, reads: bool = False
    ) -> object:
        """Wait until something is found: a message's id, if nothing else is asked for."""
        asks, gone = ask or partial(self.ask, queue), asyncio.Future[None]()
        return await self.waiting.until_found(queue, seconds, asks, gone=gone, reads=reads)

    async def waiter(self, queue: QueueRef, ask: Ask | None = None) -> "asyncio.Task[object]":
        """A request that waits already."""
        made = asyncio.create_task(self.wait(queue, ask=ask))
        await turns()
        return made

    async def join(self, queue: QueueRef, *, reads: bool = True) -> Any:
        """A place among those that wait."""
        return await self.waiting.join(queue, asyncio.Future[None](), reads=reads)

    async def post(self, queue: QueueRef, count: int = 1) -> list[str]:
        new = [NewMessage(b"1", 3_600_000)] * count
        return [one.id for one in await self.messages.post(queue, new, client_id="p", version=None)]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    yield made
    made.waiting.close()


async def turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def nothing_due() -> int | None:
    return None


def announce_nothing(house: House, due: Callable[[], Awaitable[int | None]] = nothing_due) -> None:
    """Have the store announce no message; `due` answers when the next one is due."""

    async def watch(*_: object) -> Watch:
        return Watch(due, list[None]().clear)

    house.messages.watch = watch  # type: ignore[method-assign, assignment]


async def test_ten_thousand_waiters_ask_once_and_no_message_wakes_a_herd(house: House) -> None:
    waiting = {
        queue: [asyncio.create_task(house.wait(queue)) for _ in range(10)] for queue in QUEUES
    }
    await turns()
    assert house.waiting.limit.count == 10_000
    assert house.asked.total() <= 2 * len(QUEUES), "those behind the first need not ask"
    house.asked.clear()
    posted = await house.post(QUEUES[7], 3)
    await turns()
    assert sorted(str(task.result()) for task in waiting[QUEUES[7]][:3]) == sorted(posted)
    assert not any(task.done() for task in waiting[QUEUES[7]][3:])
    assert house.asked == {QUEUES[7]: 3}, "three messages wake three"
    house.waiting.close()
    await asyncio.gather(*(task for line in waiting.values() for task in line))
    assert house.waiting.limit.count == 0


async def test_who_finds_nothing_keeps_its_place(house: House) -> None:
    first = await house.waiter(QUEUE)
    second = await house.waiter(QUEUE)
    house.waiting._lines[QUEUE].announced(1)  # a hint that was wrong
    await turns()
    (posted,) = await house.post(QUEUE)
    assert await asyncio.wait_for(first, 5) == posted
    assert not second.done()
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert house.waiting.limit.count == 0


async def test_what_is_posted_while_the_first_enters_is_found(house: House) -> None:
    """Between the first look and the announcement a post goes unheard; the second look finds it."""
    watch = house.messages.watch

    async def late(queue: QueueRef, listener: Listener) -> Watch:
        await house.post(queue)
        return await watch(queue, listener)

    house.messages.watch = late  # type: ignore[method-assign]
    assert await asyncio.wait_for(house.wait(QUEUE), 5) is not None


def post_meanwhile(house: House, number: int) -> Ask:
    """Ask the store; a message comes before it has answered the question of that number."""

    async def ask() -> str | None:
        found = await house.ask(QUEUE)
        if house.asked[QUEUE] == number:
            await house.post(QUEUE)
            await turns()
        return found

    return ask


async def test_what_comes_while_the_first_asks_is_found(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint that comes before the answer of the store may be about what the answer lacks."""
    monkeypatch.setattr(long_polling, "_LEAST_PAUSE", 60.0)  # no alarm rings before
    house.messages.poll_interval_ms = 60_000
    assert await asyncio.wait_for(house.wait(QUEUE, ask=post_meanwhile(house, 2)), 5)
    assert house.asked[QUEUE] == 3


async def test_what_comes_while_a_claimer_enters_behind_readers_is_found(house: House) -> None:
    """Readers are woken by the hint, and take no message: the claimer must ask again itself."""
    reader = await house.join(QUEUE)
    assert await asyncio.wait_for(house.wait(QUEUE, ask=post_meanwhile(house, 1)), 5)
    await reader.leave()


async def test_who_is_woken_and_can_not_ask_leaves_the_message_to_the_next(house: House) -> None:

    async def ask() -> str | None:
        house.asked[QUEUE] += 1
        if house.asked[QUEUE] > 2:
            raise Unavailable("The store is away.")
        return None

    first = await house.waiter(QUEUE, ask)
    second = await house.waiter(QUEUE)
    (posted,) = await house.post(QUEUE)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(first, 5)
    assert await asyncio.wait_for(second, 5) == posted


async def test_that_there_may_be_more_is_passed_on_by_who_asks_for_another_reason(
    house: House,
) -> None:
    """A hint that counts messages wakes as many; one that does not must go from hand to hand."""
    announce_nothing(house)
    first = await house.join(QUEUE, reads=False)
    sleeping = asyncio.create_task(first.sleep(600))
    await turns()
    first.line.announced(1)
    assert await asyncio.wait_for(sleeping, 5)
    first.ask()
    first.line.wake(1)  # by one who has found something
    others = [asyncio.create_task(house.wait(QUEUE)) for _ in range(2)]
    await turns()
    posted = await house.post(QUEUE, 2)
    await first.leave()
    assert sorted(await asyncio.wait_for(asyncio.gather(*others), 5), key=str) == posted


async def test_who_is_woken_and_goes_wakes_the_next(house: House) -> None:
    first = await house.join(QUEUE, reads=False)
    sleeping = asyncio.create_task(first.sleep(600))
    await turns()
    second = await house.waiter(QUEUE)
    (posted,) = await house.post(QUEUE)
    assert await asyncio.wait_for(sleeping, 5)
    await first.leave()
    assert await asyncio.wait_for(second, 5) == posted


async def test_more_messages_than_wait_are_left_to_who_comes_meanwhile(house: House) -> None:
    first = await house.waiter(QUEUE)
    posted = await house.post(QUEUE, 3)
    second = asyncio.create_task(house.wait(QUEUE))
    third = asyncio.create_task(house.wait(QUEUE))
    found = await asyncio.wait_for(asyncio.gather(first, second, third), 5)
    assert sorted(map(str, found)) == sorted(posted)


async def test_a_consumer_that_comes_back_asks_once_and_watches_no_more(house: House) -> None:
    watch, watched = house.messages.watch, Counter[QueueRef]()

    async def counted(queue: QueueRef, listener: Listener) -> Watch:
        watched[queue] += 1
        return await watch(queue, listener)

    house.messages.watch = counted  # type: ignore[method-assign]
    for number in range(5):
        waiting = asyncio.create_task(house.wait(QUEUE))
        await turns()
        assert house.asked.total() == (1 if number else 2), "the first asks again once it watches"
        (posted,) = await house.post(QUEUE)
        assert await asyncio.wait_for(waiting, 5) == posted
        house.asked.clear()
    assert watched == {QUEUE: 1}
    house.waiting.close()
    assert not house.waiting._lines


async def test_a_line_ends_soon_after_the_last_has_left(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_polling, "LINGER", 0.01)
    assert await house.wait(QUEUE, seconds=0.01) is None
    await until(lambda: not house.waiting._lines)
    assert not cast(SqlMessageStore, house.messages)._db.watchers


async def test_no_more_queues_stay_watched_than_requests_may_wait() -> None:
    house = House(most=3)
    for queue in QUEUES[:10]:
        assert await house.wait(queue, seconds=0.001) is None
    await turns()
    assert len(house.waiting._lines) == 3
    house.waiting.close()


async def test_a_reader_is_told_whether_something_came(house: House) -> None:
    """What comes while it looks ends the next sleep at once; after nothing it need not look."""
    place = await house.join(QUEUE)
    place.ask()
    assert not await place.sleep(0.01)
    await house.post(QUEUE)
    assert await asyncio.wait_for(place.sleep(600), 5)
    place.ask()
    sleeping = asyncio.create_task(place.sleep(600))
    await turns()
    await house.post(QUEUE)
    assert await asyncio.wait_for(sleeping, 5)
    await place.leave()
    assert house.waiting.limit.count == 0


async def test_the_safety_poll_finds_what_no_hint_told(house: House) -> None:
    looks = Counter[str]()

    async def due() -> int | None:
        looks["all"] += 1
        return None

    announce_nothing(house, due)
    house.messages.poll_interval_ms = 50
    waiting = [await house.waiter(QUEUE) for _ in range(5)]
    house.asked.clear()
    looks.clear()
    begun = asyncio.get_running_loop().time()
    await until(lambda: looks["all"] >= 4)
    assert house.asked[QUEUE] <= looks["all"], "each poll is one question, however many wait"
    assert asyncio.get_running_loop().time() - begun >= 0.1, "4 polls, of which one was under way"
    await house.post(QUEUE)
    await asyncio.wait_for(asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED), 10)


async def test_nobody_waits_longer_for_the_announcements_than_for_a_message(house: House) -> None:

    async def watch(*_: object) -> Watch:
        await asyncio.sleep(600)  # the store is silent
        raise AssertionError

    house.messages.watch = watch  # type: ignore[method-assign, assignment]
    async with asyncio.timeout(10):
        assert await house.wait(QUEUE, seconds=0.01) is None


async def test_a_watch_that_failed_is_tried_again_with_the_next_poll(house: House) -> None:
    watch, tries = house.messages.watch, Counter[str]()

    async def fail_once(queue: QueueRef, listener: Listener) -> Watch:
        tries["all"] += 1
        if tries["all"] == 1:
            raise Unavailable("The store is away.")
        house.messages.poll_interval_ms = 600_000
        return await watch(queue, listener)

    house.messages.poll_interval_ms = 20
    house.messages.watch = fail_once  # type: ignore[method-assign]
    waiting = asyncio.create_task(house.wait(QUEUE))
    await until(lambda: tries["all"] == 2)
    await turns()
    (posted,) = await house.post(QUEUE)
    assert await asyncio.wait_for(waiting, 10) == posted


async def test_a_bug_of_the_store_does_not_end_the_safety_poll(house: House) -> None:
    looks = Counter[str]()

    async def due() -> int | None:
        looks["all"] += 1
        if looks["all"] == 1:
            raise KeyError
        return None

    house.messages.poll_interval_ms = 20
    announce_nothing(house, due)
    waiting = await house.waiter(QUEUE)
    (posted,) = await house.post(QUEUE)
    assert await asyncio.wait_for(waiting, 5) == posted


async def test_a_queue_that_a_bug_lets_nobody_watch_is_asked_about_all_the_same(
    house: House,
) -> None:
    house.messages.watch = failing(KeyError())  # type: ignore[method-assign]
    waiting = asyncio.create_task(house.wait(QUEUE, seconds=60))
    await turns()
    (posted,) = await house.post(QUEUE)
    assert await asyncio.wait_for(waiting, 5) == posted


async def test_one_too_many_is_refused_and_frees_nothing() -> None:
    house = House(most=1)
    waiting = await house.waiter(QUEUE)
    with pytest.raises(TooMany):
        await house.wait(QUEUES[1])
    assert house.waiting.limit.count == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert house.waiting.limit.count == 0


async def test_what_is_due_and_not_to_be_had_is_asked_for_less_and_less_often(house: House) -> None:

    async def due(queue: QueueRef) -> int | None:
        return 0

    cast(SqlMessageStore, house.messages).next_due = due  # type: ignore[method-assign]
    assert await house.wait(QUEUE, seconds=1.5) is None
    assert house.asked[QUEUE] <= 12, "50 a second before"


async def test_a_reader_that_sees_late_what_a_sweep_made_ready_is_woken_again(house: House) -> None:
    """A stream of events tells what is due a millisecond later than the store has it ready."""

    async def ask() -> bool | None:
        page = await house.messages.list_messages(QUEUE, ListQuery(limit=9, include_delayed=True))
        (message,) = page.messages
        return (message.delay_expires_at or 0) < message.now or None

    async def sweep() -> None:
        while True:
            await house.messages.sweep(100)
            await asyncio.sleep(0)

    sweeping = asyncio.create_task(sweep())
    loop, seconds = asyncio.get_running_loop(), []
    for _ in range(12):
        begun = loop.time()
        new = [NewMessage(b"1", 3_600_000, delay_ms=25)]
        await house.messages.post(QUEUE, new, client_id="p", version=None)
        assert await house.wait(QUEUE, 60, ask, reads=True)
        seconds.append(loop.time() - begun)
        await house.messages.purge(QUEUE)
    sweeping.cancel()
    assert max(seconds) < 30, "it was not the last look, at the end of the wait"

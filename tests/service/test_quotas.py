"""Quotas as the services keep them: followed, counted, and cheap."""

import asyncio
import random
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid, QuotaReached, TooMany
from zaqar_lite.domain.models import ClaimRequest, DelayMode, QueueRef, Spent, Stats, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.quotas import UNLIMITED, Quota
from zaqar_lite.service.quotas import quotas as module
from zaqar_lite.service.quotas.quota_usage import COUNT_AGAIN, COUNT_EVERY, MessageQuota
from zaqar_lite.service.quotas.quotas import Quotas
from zaqar_lite.service.quotas.rate_limits import (
    MANAGE,
    READ,
    WRITE,
    RateLimits,
    SharedRateLimits,
)
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.sql import create

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("p", "q")


class Time:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1_200.0  # full minutes

    def __call__(self) -> float:
        return self.now


class House:
    """A memory store and two processes' counts over it."""

    def __init__(self, quota: Quota, *, shared: bool = False) -> None:
        made: tuple[MessageStore, ManagementStore] = create(
            "memory://", clock=Clock(), options=StoreOptions()
        )
        self.messages, self.management = made
        self.time = Time()
        quotas = Quotas(self.management, quota, shared=False)
        self.one, self.other = (
            MessageQuota(self.messages, self.management, quotas, shared=shared, monotonic=self.time)
            for _ in range(2)
        )

    async def post(self, process: MessageQuota, *sizes: int) -> None:
        """Post messages by one of the processes."""
        new = [NewMessage(b"x" * size, 60_000) for size in sizes]
        post = partial(self.messages.post, QUEUE, new, client_id="c", version=None)
        await process.post("p", sizes, post, never)

    async def pop(self, count: int) -> None:
        """Take messages away, of which no process is told."""
        await self.messages.claim(QUEUE, ClaimRequest(count, None, DelayMode.IGNORE, removes=True))


class Counted:
    """A store that notes how often queues are counted; each count takes some seconds."""

    def __init__(self, store: MessageStore, time: Time, seconds: float = 0.0) -> None:
        self._store, self._time, self._seconds = store, time, seconds
        self.counts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def stats(self, queue: QueueRef) -> Stats:
        """Count."""
        self.counts += 1
        self._time.now += self._seconds
        return await self._store.stats(queue)


async def never() -> bool:
    """Tell that a post repeats no other."""
    return False


async def house(quota: Quota, *, shared: bool = False) -> House:
    made = House(quota, shared=shared)
    await made.management.create_queue(QUEUE, {}, max_queues=10)
    return made


@pytest.mark.parametrize(("took", "rest"), [(0.001, 0.2), (0.02, COUNT_AGAIN), (0.2, 2.2)])
async def test_room_that_was_made_is_seen_by_the_next_count(took: float, rest: float) -> None:
    it = await house(Quota(messages=3))
    it.one.messages = cast(MessageStore, Counted(it.messages, it.time, took))
    await it.post(it.one, 1, 1, 1)
    await it.pop(2)
    it.time.now += rest * 0.99 - took  # a rest begins with its count
    with pytest.raises(QuotaReached):
        await it.post(it.one, 1)
    it.time.now += rest * 0.02
    await it.post(it.one, 1, 1)
    with pytest.raises(QuotaReached):
        await it.post(it.one, 1)


async def test_what_another_process_took_is_seen_by_the_next_count() -> None:
    it = await house(Quota(messages=4))
    await it.post(it.one, 1)
    await it.post(it.other, 1, 1)
    await it.post(it.one, 1, 1)  # five: by what the other took the quota is exceeded
    it.time.now += 2 * COUNT_EVERY
    with pytest.raises(QuotaReached):
        await it.post(it.other, 1)
    assert await it.other.usage("p") == (5, 5)


@pytest.mark.parametrize("order", ["in turns", "one after the other", "at random"])
@pytest.mark.parametrize(
    ("quota", "most"),
    [(Quota(messages=20), 20 + 20 // 8), (Quota(messages=800), 900), (Quota(bytes=4_000), 4_500)],
    ids=["20 messages", "800 messages", "bytes"],
)
async def test_two_processes_exceed_a_quota_by_an_eighth_of_it_at_most(
    order: str, quota: Quota, most: int
) -> None:
    it, chance = await house(quota, shared=True), random.Random(7)
    size = 5 if quota.bytes else 1
    for process in (it.one, it.other):  # both have counted when there was next to nothing
        await it.post(process, size)
    posting = [it.one, it.other]
    for turn in range(2 * most):
        if not posting:
            break
        first = posting[0] if order == "one after the other" else posting[turn % len(posting)]
        process = chance.choice(posting) if order == "at random" else first
        try:
            await it.post(process, size)
        except QuotaReached:
            posting.remove(process)
    stored = (await it.messages.stats(QUEUE)).total
    assert (quota.messages or 0) + (quota.bytes or 0) <= stored * size <= most


async def test_a_count_that_grows_old_is_made_anew_beside_a_post() -> None:
    it = await house(Quota(messages=4))
    await it.post(it.one, 1)
    await it.post(it.other, 1, 1, 1)
    it.time.now += COUNT_EVERY
    await it.post(it.one)
    count = it.one._tallies["p"].count
    assert count is not None
    await count
    with pytest.raises(QuotaReached):
        await it.post(it.one, 1)


async def test_a_slow_count_is_made_rarely_and_all_the_room_that_it_found_is_used() -> None:
    it = await house(Quota(messages=10), shared=True)
    counted = Counted(it.messages, it.time, seconds=1.0)
    it.one.messages = cast(MessageStore, counted)
    await it.post(it.one, 1)
    await it.post(it.one, *[1] * 8)
    await it.pop(5)
    it.time.now += 9.9
    with pytest.raises(QuotaReached):
        await it.post(it.one, 1, 1)
    assert counted.counts == 1
    it.time.now += 0.2
    await it.post(it.one, 1, 1)
    assert counted.counts == 2


async def test_posts_wait_for_a_long_count_in_its_first_second_alone() -> None:
    it = await house(Quota(messages=10))
    goes_on = asyncio.Event()

    class Long(Counted):
        async def stats(self, queue: QueueRef) -> Stats:
            await goes_on.wait()
            return await super().stats(queue)

    it.one.messages = cast(MessageStore, Long(it.messages, it.time))
    first = asyncio.create_task(it.post(it.one, 1))
    await asyncio.sleep(0)
    it.time.now += 1.1
    async with asyncio.timeout(0.5):
        await it.post(it.one, 1)
    assert not first.done()
    goes_on.set()
    await first


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_post_under_way_while_others_are_counted_takes_its_room(is_stored: bool) -> None:
    """A count can't tell whether it has found it; the next one does."""
    it, begun, going_on = await house(Quota(messages=3)), asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await going_on.wait()
        if is_stored:
            new = [NewMessage(b"x", 60_000)] * 2
            await it.messages.post(QUEUE, new, client_id="c", version=None)

    first = asyncio.create_task(it.one.post("p", (1, 1), slow, never))
    await begun.wait()
    for _ in range(2):
        it.time.now += COUNT_AGAIN
        with pytest.raises(QuotaReached):
            await it.post(it.one, 1, 1)
    going_on.set()
    await first
    it.time.now += COUNT_AGAIN
    assert await it.one.usage("p") == ((2, 2) if is_stored else (0, 0))


async def test_to_set_a_quota_looks_at_those_of_the_others_by_a_few_calls() -> None:
    quotas, calls = Quotas(House(UNLIMITED).management, UNLIMITED, shared=False), 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    for number in range(200):
        await quotas.set(f"p{number}", {"queues": number})
    sys.setprofile(count)
    await quotas.set("p0", {"queues": 1})
    sys.setprofile(None)
    assert calls < 200 * 8


async def test_another_process_follows_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROJECTS", 1)
    management = House(UNLIMITED).management
    defaults = Quota(queues=5)
    one, two = (Quotas(management, defaults, shared=True) for _ in range(2))
    await two.load()
    changes = list[None]()
    two.changed = lambda: changes.append(None)
    await one.set("p", {"read_requests": 2})
    assert (one.of("p").queues, one.of("p").read_requests) == (5, 2)
    await two.load()
    assert (two.of("p"), two.has_rates) == (one.of("p"), True)
    await two.load()
    assert len(changes) == 1
    await one.reset("p")
    await two.load()
    assert (two.of("p"), two.has_rates) == (defaults, False)
    await one.set("a", {})
    with pytest.raises(Invalid):
        await one.set("b", {})
    await one.set("a", {"queues": 1})


async def metered(time: Time, **rates: int) -> RateLimits:
    quotas = Quotas(House(UNLIMITED).management, UNLIMITED.changed(rates), shared=False)
    return RateLimits(quotas, monotonic=time)


def spent(rates: RateLimits, kind: int, size: int = 0, project: str = "p") -> int:
    """How many requests in a row are let through, up to a thousand."""
    for count in range(1_000):
        try:
            rates.spend(project, kind, size)
        except TooMany:
            return count
    return 1_000


async def test_a_rate_lets_two_seconds_worth_in_and_then_its_own() -> None:
    time = Time()
    rates = await metered(time, write_requests=10)
    assert spent(rates, WRITE) == 20
    time.now += 1
    assert spent(rates, WRITE) == 10
    assert spent(rates, READ) == 1_000
    rates.charge("p", READ, 500)  # of which there is no rate
    time.now += 100
    assert spent(rates, WRITE) == 20
    rates.spend("other", WRITE, 0)


async def test_a_rate_that_is_set_counts_at_once_and_no_other_project_has_new_tokens() -> None:
    rates = await metered(Time(), write_requests=10)
    assert [spent(rates, WRITE, project=one) for one in ("p", "other")] == [20, 20]
    await rates.quotas.set("p", {"write_requests": 20})
    rates.refresh()
    assert [spent(rates, WRITE, project=one) for one in ("p", "other")] == [40, 0]


async def test_retry_after_says_when_a_request_comes_through() -> None:
    time = Time()
    rates = await metered(time, manage_requests=1, write_bytes=100)
    assert spent(rates, MANAGE) == 2
    for kind, size in ((MANAGE, 0), (WRITE, 1_000)):
        spent(rates, kind, size)
        with pytest.raises(TooMany) as caught:
            rates.spend("p", kind, size)
        time.now += caught.value.retry_after - 1.5
        with pytest.raises(TooMany):
            rates.spend("p", kind, size)
        time.now += 1.5
        rates.spend("p", kind, size)


async def test_bytes_that_were_answered_are_paid_by_those_who_come_after() -> None:
    time = Time()
    rates = await metered(time, read_bytes=100)
    rates.spend("p", READ, 0)
    rates.charge("p", READ, 500)
    assert spent(rates, READ) == 0
    time.now += 3.5
    assert spent(rates, READ) == 1_000


async def test_what_came_back_before_a_report_is_counted_once() -> None:
    """The store has added it to the tokens that it answers are left."""
    time = Time()
    rates = await metered(time, write_requests=10)

    class Empty:
        async def spend(self, _: str, spent: Sequence[Spent], __: float) -> Sequence[float]:
            return [0.0] * len(spent)

    shared = SharedRateLimits(rates, cast(ManagementStore, Empty()), share=1)
    assert spent(rates, WRITE) == 20
    time.now += 1
    await shared.report()
    assert spent(rates, WRITE) == 0
    time.now += 1
    assert spent(rates, WRITE) == 10


class Counting(Quota, frozen=True):
    """Counts how often a quota is made of it."""

    made: ClassVar[int] = 0

    def changed(self, document: Mapping[str, Any]) -> Quota:
        Counting.made += 1
        return super().changed(document)

"""Schedules over the memory store, with a clock that is moved: each instant has one message."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from msgspec.structs import replace

from tests.service.composed import Composed
from tests.service.test_subscriptions import Interrupted
from tests.waiting import rounds_beside
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid, LimitReached
from zaqar_lite.domain.models import ListQuery, Message, QueueRef
from zaqar_lite.service.schedules.schedules import (
    DUE_PROJECT,
    GRACE_MS,
    Plan,
    Schedule,
    Scheduler,
    Schedules,
)
from zaqar_lite.service.schedules.schedules import KIND as SCHEDULE
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

pytestmark = pytest.mark.anyio
MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
QUEUE = QueueRef("p", "reports")


class Place(NamedTuple):
    """A store with two schedulers, as two processes have them."""

    clock: Clock
    messages: MessageStore
    management: ManagementStore
    schedules: Schedules
    schedulers: Sequence[Scheduler]

    def move_to(self, hour: int, minute: int = 0, day: int = 1) -> None:
        """Move the clock to a time in January 2030."""
        at = datetime(2030, 1, day, hour, minute, tzinfo=UTC).timestamp() * 1000
        self.clock.advance(int(at) - self.clock.now_ms())

    async def put(self, name: str = "s", **fields: Any) -> None:
        if "every" in fields:
            fields = {"start": "2030-01-01T00:00:00Z", **fields}
        await self.schedules.put("p", name, plan(**fields))

    async def run(self) -> None:
        """Let both processes do what is due, at the same time, until nothing is."""
        for _ in range(1_000):
            done = await asyncio.gather(*(one.step() for one in self.schedulers))
            if not any(count for count, _ in done):
                return
        raise AssertionError("there is no end of what is due")

    async def posted(self) -> list[Message]:
        page = await self.messages.list_messages(QUEUE, ListQuery(10_000))
        return list(page.messages)


def plan(**fields: Any) -> Plan:
    document = {"queue": QUEUE.name, "body": "report", "ttl": 1_209_600, **fields}
    return msgspec.json.decode(json.dumps(document), type=Plan)


@pytest.fixture
async def place() -> Place:
    one = Composed()
    schedules = Schedules(one.management, one.messages, one.clock)
    made = [Scheduler(schedules, one.store, one.clock, window_ms=600_000) for _ in range(2)]
    place = Place(one.clock, one.store, one.management, schedules, made)
    place.move_to(0)
    return place


async def test_each_instant_has_one_message(place: Place) -> None:
    await place.put(cron="*/10 * * * *", headers={"kind": "x"}, group="g")
    for minute in range(0, 60, 5):
        place.move_to(9, minute)
        await place.run()
    posted = await place.posted()
    assert len(posted) == 7  # six of this hour, and one of those that were missed before
    assert posted[0].headers == {"kind": "x", "zaqar-group": "g"}
    schedule = await place.schedules.kind.get("p", "s")
    assert (schedule.fired, schedule.failed, schedule.uncertain) == (7, 0, 0)


async def test_what_is_over_leaves_nothing_in_the_index(place: Place) -> None:
    """Nor do changes and deletions; what is written wakes the scheduler."""
    woken: list[None] = []
    place.schedules.wake_scheduler = lambda: woken.append(None)

    async def entries() -> int:
        return len(await place.schedules.index.page(DUE_PROJECT, None, 100))

    await place.put(every=60)
    assert len(woken) == 1
    for _ in range(3):
        place.clock.advance(MINUTE)
        await place.run()
    assert await entries() == 1
    await place.schedules.kind.delete("p", "s")  # as by a server that was killed then
    place.clock.advance(2 * MINUTE)
    assert [(await one.step())[0] for one in place.schedulers] == [1, 0]
    assert (await entries(), len(await place.posted())) == (0, 3)
    for minute in range(3):
        await place.put(at=f"2090-01-01T00:0{minute}:00Z")
        later = {"at": f"2090-01-01T01:0{minute}:00Z"}
        await place.schedules.change("p", "s", partial(replace, **later))
    assert await entries() == 1
    for _ in range(2):
        await place.schedules.delete("p", "s")
        assert await entries() == 0
    assert await place.schedulers[0].step() == (0, 5.0)  # it looks again in so many seconds


def put_again(schedules: Schedules) -> Awaitable[object]:
    return schedules.put("p", "s", plan(at="2030-01-01T01:00:00Z"))


def delete(schedules: Schedules) -> Awaitable[object]:
    return schedules.delete("p", "s")


def put_later(schedules: Schedules) -> Awaitable[object]:
    return schedules.put("p", "s", plan(at="2030-01-01T02:00:00Z"))


@pytest.mark.parametrize("inner", [put_again, put_later, delete])
@pytest.mark.parametrize("outer", [put_again, put_later, delete])
@pytest.mark.parametrize("at", range(1, 9))
async def test_what_is_written_meanwhile_has_its_entry(
    at: int,
    outer: Callable[[Schedules], Awaitable[object]],
    inner: Callable[[Schedules], Awaitable[object]],
) -> None:
    """Between any two calls of the store another request may do all of its own."""
    one = Composed()
    store = Interrupted(one.management)
    other = Schedules(one.management, one.messages, one.clock)
    schedules = Schedules(cast(ManagementStore, store), one.messages, one.clock)
    at_hour_0 = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1000)
    one.clock.advance(at_hour_0 - one.clock.now_ms())
    await put_again(other)
    store.at, store.meanwhile = at, lambda: inner(other)
    await outer(schedules)
    found = await other.kind.find("p", "s")
    entries = {entry.at for entry in await other.index.page(DUE_PROJECT, None, 100)}
    assert found is None or found.due_at in entries


@pytest.mark.parametrize(
    ("fields", "count", "missed"),
    [
        ({"missed": "skip"}, 0, 18),
        ({"missed": "one"}, 1, 17),
        ({"missed": "all"}, 6, 12),
        ({"missed": "all", "catch_up": "2h"}, 12, 6),
        ({"missed": "all", "catch_up": 0}, 0, 18),
        ({"missed": "one", "catch_up": 0}, 0, 18),
    ],
)
async def test_missed_instants(place: Place, fields: Any, count: int, missed: int) -> None:
    """Each of the 18 instants of three hours is posted for, or counts as missed."""
    await place.put(cron="*/10 * * * *", **fields)
    place.move_to(3, 5)
    await place.run()
    schedule = await place.schedules.kind.get("p", "s")
    assert (len(await place.posted()), schedule.missed) == (count, missed)
    assert place.schedules.shown_instants(schedule)[0] > place.clock.now_ms()


async def test_overlap_skips_while_the_last_one_is_there(place: Place) -> None:
    await place.put(every="1h", overlap="skip")
    for hour in range(1, 4):
        place.move_to(hour)
        await place.run()
    (first,) = await place.posted()
    await place.messages.delete(QUEUE, [first.id], claim_ids=None)
    place.move_to(4)
    await place.run()
    assert len(await place.posted()) == 1
    schedule = await place.schedules.kind.get("p", "s")
    assert (schedule.fired, schedule.overlapped) == (2, 2)


async def test_jitter_is_behind_the_instant(place: Place) -> None:
    await place.put(every="1h", start="2030-01-01T01:00:00Z", jitter="10m")
    schedule = await place.schedules.kind.get("p", "s")
    late = schedule.due_at - schedule.next
    assert 0 < late < 10 * MINUTE
    place.move_to(1)
    place.clock.advance(late - 1_000)
    await place.run()
    assert await place.posted() == []
    place.clock.advance(1_000)
    await place.run()
    assert len(await place.posted()) == 1


class _Killed(BaseException):
    """Ends what runs, wherever it is, as a kill does."""


@pytest.mark.parametrize("after", range(6))
async def test_a_process_that_dies_anywhere_leaves_one_message(
    place: Place, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Each call to the store may be the last one: before it, and when it is done."""
    calls = 0
    await place.put(every="1h", start="2030-01-01T01:00:00Z")
    stores: list[tuple[Any, str]] = [
        (place.management, "put_record"),
        (place.management, "delete_record"),
        (place.messages, "post"),
    ]
    with monkeypatch.context() as patch:
        for store, name in stores:
            original = getattr(store, name)

            async def dying(*args: Any, original: Any = original, **more: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == after:
                    raise _Killed
                answer = await original(*args, **more)
                if calls == after + 1:
                    raise _Killed
                return answer

            patch.setattr(store, name, dying)
        place.move_to(1)
        with pytest.raises(_Killed):
            await place.schedulers[0].step()
    place.clock.advance(6_000)  # how long a process that has begun is left alone
    await place.run()
    place.move_to(1, 30)
    await place.run()
    assert len(await place.posted()) == 1
    place.move_to(2)
    await place.run()
    assert len(await place.posted()) == 2
    assert len(await place.schedules.index.page(DUE_PROJECT, None, 100)) == 1


async def test_after_a_long_outage_in_the_middle_nothing_is_posted_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.put(every="1h", start="2030-01-01T01:00:00Z")
    place.move_to(1)
    original = place.messages.post

    async def dying(*args: Any, **more: Any) -> Any:
        await original(*args, **more)
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(place.messages, "post", dying)
        with pytest.raises(_Killed):
            await place.schedulers[0].step()
    place.move_to(1, 50)
    await place.run()
    assert len(await place.posted()) == 1
    schedule = await place.schedules.kind.get("p", "s")
    assert (schedule.fired, schedule.uncertain, schedule.missed) == (0, 1, 1)


async def test_a_queue_that_does_not_take_the_message_is_told(place: Place) -> None:
    await place.put(every="1h", body="x" * 2_000)
    queues = place.schedules._messages.queues
    await queues.create(QUEUE, {"_max_messages_post_size": 1_024})
    place.clock.advance(HOUR)
    await place.run()
    schedule = await place.schedules.kind.get("p", "s")
    assert schedule.failed == 1
    assert "bytes" in schedule.error


async def test_queues_that_take_nothing_hold_up_no_other(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        await place.put(f"full-{number}", every="1h", queue="full")
    await place.put("other", every="1h", start="2030-01-01T01:00:01Z")
    original = place.messages.post

    async def post(queue: QueueRef, *args: Any, **more: Any) -> Any:
        if queue.name == "full":
            raise LimitReached("The queue is full.")
        return await original(queue, *args, **more)

    monkeypatch.setattr(place.messages, "post", post)
    place.clock.advance(HOUR + 2_000)
    assert (await place.schedulers[0].step())[0] == 1
    assert len(await place.posted()) == 1


async def test_a_full_queue_is_tried_seldom_and_is_posted_to_when_it_has_room(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await place.put(every="1h")
    original, is_full, tries = place.messages.post, True, 0

    async def post(queue: QueueRef, *args: Any, **more: Any) -> Any:
        nonlocal tries
        tries += 1
        if is_full:
            raise LimitReached("The queue is full.")
        return await original(queue, *args, **more)

    monkeypatch.setattr(place.messages, "post", post)
    place.clock.advance(HOUR)
    for _ in range(120):
        await place.schedulers[0].step()
        place.clock.advance(1_000)
    assert tries == 8
    assert len(caplog.records) == tries
    is_full = False
    place.clock.advance(15_000)
    await place.schedulers[0].step()
    assert len(await place.posted()) == 1


async def test_what_is_caught_up_with_may_be_more_than_one_post_takes(place: Place) -> None:
    await place.put(every="5m", missed="all", catch_up="2h", body="x" * 20_000)
    place.move_to(2, 4)
    await place.run()
    schedule = await place.schedules.kind.get("p", "s")
    assert (schedule.fired, schedule.failed) == (24, 0)
    assert len(await place.posted()) == 24


@pytest.mark.parametrize(
    ("changed", "killed"),
    [(one, killed) for one in ({"body": "other"}, {"queue": "elsewhere"}) for killed in (0, 1)],
)
@pytest.mark.parametrize("puts", [True, False])
async def test_a_change_while_it_is_posted_for_an_instant_posts_no_second_message(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str],
    killed: int,
    puts: bool,
) -> None:
    await place.put(every="1h")
    original, calls = place.schedules.post, list[str]()

    async def post(project: str, schedule: Schedule, *, keyed: Sequence[int] | None) -> list[str]:
        ids = await original(project, schedule, keyed=keyed)
        if not calls:
            calls.append("changed")
            new = plan(every="1h", **changed)
            if puts:
                await place.schedules.put("p", "s", new)
            else:
                await place.schedules.change("p", "s", lambda _: new)
            if killed:
                raise _Killed
        return ids

    monkeypatch.setattr(place.schedules, "post", post)
    place.clock.advance(HOUR)
    with suppress(_Killed):
        await place.schedulers[0].step()
    place.clock.advance(10_000)
    await place.run()
    elsewhere = await place.messages.stats(QueueRef("p", "elsewhere"))
    assert (len(await place.posted()), elsewhere.total) == (1, 0)
    schedule = await place.schedules.kind.get("p", "s")
    assert (schedule.fired, schedule.failed, schedule.error) == (1, 0, "")
    place.clock.advance(HOUR)
    await place.run()
    assert (await place.schedules.kind.get("p", "s")).fired == 2


@pytest.mark.parametrize(
    ("jitter", "every", "later", "count"),
    [
        ("10m", "1h", 10 * MINUTE, 1),  # it has come, and is posted when its jitter is over
        (0, "1h", 0, 1),  # nobody has come to it yet
        (0, "1h", GRACE_MS, 1),  # it was missed, and is caught up with
        (0, "7m", 0, 0),
    ],
)
@pytest.mark.parametrize("puts", [True, False])
async def test_a_change_loses_no_instant_that_has_come(
    place: Place, jitter: str | int, every: str, later: int, count: int, *, puts: bool
) -> None:
    await place.put(every="1h", jitter=jitter)
    place.clock.advance(HOUR + (later if not jitter else 0))
    new = plan(every=every, jitter=jitter, body="new", start="2030-01-01T00:00:00Z")
    if puts:
        await place.schedules.put("p", "s", new)
    else:
        await place.schedules.change("p", "s", lambda _: new)
    place.clock.advance(later if jitter else 0)
    await place.run()
    assert [one.body for one in await place.posted()] == [b'"new"'] * count
    assert (await place.schedules.kind.get("p", "s")).fired == count


async def test_a_schedule_that_can_not_be_read_holds_up_no_other(place: Place) -> None:
    await place.put("bad", every="1h")
    await place.put("good", every="1h", start="2030-01-01T00:00:01Z")
    put = place.management.put_record
    await put(SCHEDULE, "p", "bad", b'{"name": "of a later version"}', expected=None)
    place.clock.advance(HOUR + 2_000)
    assert (await place.schedulers[0].step())[0] == 1
    assert len(await place.posted()) == 1


async def test_a_day_of_minutes_is_caught_up_with_in_small_steps() -> None:
    schedule = Schedule("s", plan(cron="* * * * *", catch_up=86_400), created_at=0)
    schedule.set_next(0)
    rounds, passed = await rounds_beside(schedule.pass_due(3 * DAY))
    assert rounds > 100
    assert (passed, schedule.missed) == ([3 * DAY - MINUTE, 3 * DAY], 3 * 1_440 - 2)


async def test_minutes_missed_more_than_a_week_ago_count_as_one() -> None:
    schedule = Schedule("s", plan(cron="* * * * *", missed="skip"), created_at=0)
    schedule.set_next(0)
    assert await schedule.pass_due(100 * DAY) == [100 * DAY]
    assert schedule.missed == 7 * 1_440


@pytest.mark.parametrize(("missed", "count"), [("skip", 31), ("one", 32), ("all", 100)])
async def test_days_of_seconds_are_caught_up_with_at_once(missed: str, count: int) -> None:
    """Those that are passed over are counted, and not made one by one."""
    schedule = Schedule("s", plan(every=1, catch_up=86_400, missed=missed), created_at=0)
    schedule.set_next(0)
    instants = await schedule.pass_due(300 * DAY)
    assert instants == [300 * DAY - 1000 * n for n in reversed(range(count))]
    assert schedule.missed == 300 * 86_400 - count


async def test_jitter_longer_than_the_interval_loses_no_instant() -> None:
    """An instant is late by its own jitter's end, and no earlier than the one before it."""
    schedule = Schedule("s", plan(every=60, jitter="10m", missed="skip"), created_at=0)
    schedule.set_next(0)
    posted: list[int] = []
    while len(posted) < 1_000:
        posted += await schedule.pass_due(schedule.due_at + 1_000)
    assert posted == [MINUTE * n for n in range(1, 1 + len(posted))]
    assert schedule.missed == 0


async def test_by_hand_it_posts_where_it_asked_whether_it_may(place: Place) -> None:
    await place.put(every="1h")
    asked: list[str] = []
    await place.schedules.fire("p", "s", asked.append)
    assert (asked, len(await place.posted())) == ([QUEUE.name], 1)

    def refuse(_: str) -> None:
        raise Invalid("not there")

    with pytest.raises(Invalid):
        await place.schedules.fire("p", "s", refuse)
    assert len(await place.posted()) == 1

"""Jobs: the seconds that one has left, and the process that runs it."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pytest

from tests.service.composed import Composed, Failing
from tests.services import RedisServer
from tests.waiting import at_work, until
from zaqar_lite.domain.clock import Clock, read_instant
from zaqar_lite.domain.errors import Conflict, LimitReached, Unavailable
from zaqar_lite.domain.models import ListQuery, Message, Page, QueueRef, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.settlements import Outcome
from zaqar_lite.service import records
from zaqar_lite.service.jobs import jobs as module
from zaqar_lite.service.jobs.bulk import Choice, Chooser, Job, JobAct, Order
from zaqar_lite.service.jobs.jobs import KEPT, MAX_RUNNING, RUNNING, JobRunner, Jobs, running_name
from zaqar_lite.storage.registry import create_stores

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("order", "examined", "selected", "left"),
    [
        (Order(filter=Choice()), 0, 0, None),
        (Order(filter=Choice()), 250, 10, 30),
        (Order(filter=Choice()), 1_000, 10, 0),
        (Order(filter=Choice()), 1_001, 10, 0),  # some came between the count and the start
        # It ends at the limit, however much is in the queue, or at the queue's end before that.
        (Order(filter=Choice(), limit=40), 50, 20, 10),
        (Order(filter=Choice(), limit=1 << 40), 250, 20, 30),
        (Order(filter=Choice(), limit=40), 100, 0, 90),
        # The queue's total says nothing about a group.
        (Order(filter=Choice(group="g")), 50, 50, None),
        (Order(filter=Choice(group="g"), limit=100), 50, 50, 10),
    ],
)
def test_the_seconds_left(order: Order, examined: int, selected: int, left: int | None) -> None:
    job = Job("j", "letters", JobAct.REDRIVE, order, 5_000, total=1_000)
    job.examined, job.selected = examined, selected
    assert job.seconds_left(15_000) == left
    job.state = "completed"
    assert job.seconds_left(15_000) is None


def test_a_hundred_queues_are_counted_by_name_and_all_others_together() -> None:
    job = Job("j", "letters", JobAct.REDRIVE, Order(filter=Choice()), 0)
    for names in (range(102), (0, 101)):
        job.count(0, {}, {f"q{name}": 1 for name in names})
    assert job.targets == {"q0": 2, **{f"q{name}": 1 for name in range(1, 100)}, "": 3}


DUE = "2030-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("choice", "matches"),
    [
        (Choice(due_before=DUE), False),
        (Choice(due_before=DUE.replace("Z", ".001Z")), True),
        (Choice(due_after=DUE), False),
        (Choice(due_after="2029-12-31T23:59:59.999Z"), True),
        (Choice(older_than=60), True),
        (Choice(older_than=61), False),
    ],
)
def test_what_is_due_at_an_instant_is_neither_before_nor_after_it(
    choice: Choice, matches: bool
) -> None:
    message = Message("m", 1, b"1", 60_000, 10_000, 0, 0, delay_expires_at=read_instant(DUE))
    assert Chooser(choice, 70_000).matches(message) is matches
    message.delay_expires_at = None
    assert Chooser(choice, 70_000).matches(message) is (matches and choice.older_than is not None)


ORDER = Order(filter=Choice(), to="back")


class Held(NamedTuple):
    """A queue with a letter, its jobs, one that a dead process holds, and until when."""

    queue: QueueRef
    jobs: Jobs
    job: Job

    async def ended(self, job: Job) -> Job:
        """Wait for the end of a job."""
        return await until(lambda: self.jobs.get(self.queue, job.act, job.id), Job.is_over)


@pytest.fixture
async def held(
    request: pytest.FixtureRequest, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Held]:
    """A job that is held for a while by nobody, and a process that may take it over."""
    monkeypatch.setattr(module, "_LOOK_EVERY", 600.0)
    clock, queue = Clock(), QueueRef(f"p-{uuid4().hex}", "letters")
    messages, management = create_stores(redis_server.url, clock=clock, options=StoreOptions())
    async with management, messages:
        jobs = Composed(clock, (messages, management)).jobs()
        await messages.post(queue, [NewMessage(b"1", 600_000)], client_id="c", version=None)
        newest = (await messages.stats(queue)).newest
        assert newest is not None
        job = Job("j", "letters", JobAct.REDRIVE, ORDER, 0, until=newest.position, total=1)
        job.holder, job.held_until, job.state = "another", clock.now_ms() + 1_500, request.param
        name = running_name(queue, job.act)
        value = msgspec.json.encode(job)
        await management.put_record(RUNNING, queue.project, name, value, expected=0)
        async with at_work(JobRunner(jobs, clock, lambda: 0)):
            yield Held(queue, jobs, job)


@pytest.mark.parametrize("held", ["running"], indirect=True)
async def test_a_job_is_taken_over_as_soon_as_it_is_held_no_more(held: Held) -> None:
    ended = await held.ended(held.job)
    assert (ended.state, ended.done) == ("completed", 1)
    assert ended.ended_at >= held.job.held_until


@pytest.mark.parametrize("held", ["cancelled"], indirect=True)
async def test_a_job_follows_a_cancelled_one_whose_process_has_ended(held: Held) -> None:
    begun = await held.jobs.begin(held.queue, JobAct.REDRIVE, ORDER)
    assert (await held.ended(begun)).done == 1
    assert (await held.jobs.get(held.queue, JobAct.REDRIVE, "j")).state == "cancelled"


async def test_a_job_that_begins_while_the_one_before_is_put_away_is_run_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY", 600.0)
    one, queue, begun = Composed(), QueueRef("p", "letters"), list[Job]()
    jobs = one.jobs()
    put_away = jobs.end

    async def end(work: records.Held[Job]) -> None:
        await put_away(work)
        if not begun:
            begun.append(await jobs.begin(queue, JobAct.REDRIVE, ORDER))
            await asyncio.sleep(0.05)  # its look finds that one of this name still runs

    monkeypatch.setattr(jobs, "end", end)
    async with at_work(JobRunner(jobs, one.clock, lambda: 0)):
        first = await jobs.begin(queue, JobAct.REDRIVE, ORDER)
        place = Held(queue, jobs, first)
        await place.ended(first)
        await place.ended(begun[0])


@pytest.mark.parametrize("held", ["running"], indirect=True)
async def test_a_job_that_can_not_be_read_holds_up_no_other(held: Held) -> None:
    name = running_name(QueueRef(held.queue.project, "a"), JobAct.REDRIVE)
    put = held.jobs.management.put_record
    await put(RUNNING, held.queue.project, name, b'{"act": "of a later version"}', expected=0)
    assert (await held.ended(held.job)).state == "completed"


async def test_the_last_twenty_jobs_of_a_kind_are_kept() -> None:
    one, queue = Composed(), QueueRef("p", "letters")
    jobs, made = one.jobs(), []
    for _ in range(KEPT + 1):
        made.append((await jobs.begin(queue, JobAct.REDRIVE, ORDER)).id)
        async for work in jobs.running():
            work.value.complete()
            await jobs.end(work)
        one.clock.advance(1)
    kept = await jobs.list_jobs(queue, JobAct.REDRIVE)
    assert [job.id for job in kept] == made[:0:-1]


async def test_a_project_runs_so_many_jobs() -> None:
    jobs = Composed().jobs()
    for number in range(MAX_RUNNING):
        await jobs.begin(QueueRef("p", f"letters-{number}"), JobAct.REDRIVE, ORDER)
    with pytest.raises(LimitReached, match="1000 running jobs in a project"):
        await jobs.begin(QueueRef("p", "letters"), JobAct.REDRIVE, ORDER)
    with pytest.raises(Conflict):
        await jobs.begin(QueueRef("p", "letters-0"), JobAct.REDRIVE, ORDER)
    await jobs.begin(QueueRef("q", "letters"), JobAct.REDRIVE, ORDER)
    async for work in jobs.running():
        work.value.complete()
        await jobs.end(work)
        break
    await jobs.begin(QueueRef("p", "letters"), JobAct.REDRIVE, ORDER)


async def test_slow_jobs_of_a_few_projects_hold_up_no_other_project() -> None:
    one = Composed()
    jobs = one.jobs()
    letters = [NewMessage(b"1", 600_000) for _ in range(60)]
    for project in "abcde":
        for number in range(1 if project == "e" else 8):
            queue = QueueRef(project, f"letters-{number}")
            await one.store.post(queue, letters, client_id="c", version=None)
            rate = None if project == "e" else 1
            order = Order(filter=Choice(), to="back", max_per_second=rate)
            last = await jobs.begin(queue, JobAct.REDRIVE, order)
    async with at_work(JobRunner(one.jobs(), one.clock, lambda: 0)):
        await until(lambda: jobs.get(queue, JobAct.REDRIVE, last.id), Job.is_over)


async def test_a_process_knows_for_some_seconds_that_another_serves_requests() -> None:
    one = Composed()
    jobs = one.jobs()
    assert not await jobs.has_others("one", serves=True)
    assert await jobs.has_others("two", serves=False)
    assert await jobs.has_others("two", serves=True)
    assert await jobs.has_others("one", serves=False)
    one.clock.advance(60_000)
    assert not await jobs.has_others("three", serves=False)


def test_five_requests_in_a_second_are_others_for_two_seconds() -> None:
    one, now, asked = Composed(), 0.0, 0
    runner = JobRunner(one.jobs(), one.clock, lambda: asked, lambda: now)
    steps = [(0.5, 4, True), (1.0, 5, False), (2.5, 5, False), (3.0, 5, True)]
    steps += [(4.5, 9, True), (6.0, 13, True), (6.5, 17, True)]  # four at a time
    for now, asked, is_alone in steps:  # noqa: B007 - the runner asks
        assert runner.is_alone() is is_alone, now


@pytest.mark.parametrize(
    ("alone", "longest", "size", "sizes"),
    [
        ([True] * 6, 60.0, 1, [20, 40, 80, 160, 320, 500]),
        ([True] * 6, 60.0, 10_000, [20, 40, 80, 104, 104, 104]),  # 1 MiB of bodies
        ([True, True, False, False, True, True], 60.0, 1, [20, 40, 20, 20, 320, 500]),
        ([True] * 6, 0.0, 1, [20, 10, 5, 2, 1, 1]),  # a step must end long before the lease
    ],
)
async def test_the_steps_of_a_job_are_large_alone_and_small_beside_others(
    monkeypatch: pytest.MonkeyPatch, alone: list[bool], longest: float, size: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(module, "_LONG", longest)
    one, queue, new = Composed(), QueueRef("p", "letters"), NewMessage(b"1" * size, 600_000)
    await one.store.post(queue, [new] * 2_000, client_id="c", version=None)
    jobs, read, seen = one.jobs(), one.store.list_messages, list[int]()
    at = list[float]()
    job = await jobs.begin(queue, JobAct.REDRIVE, Order(filter=Choice(), to="b", dry_run=True))

    async def noted(queue: QueueRef, query: ListQuery) -> Page:
        seen.append(query.limit)
        at.append(time.monotonic())
        await asyncio.sleep(0.001 if len(seen) <= len(sizes) else 0)
        return await read(queue, query)

    monkeypatch.setattr(one.store, "list_messages", noted)
    answers = iter([*alone, *[True] * 2_000])
    name, (_, version) = running_name(queue, job.act), await jobs.read(queue, job.act)
    held = records.Held(jobs._running, "p", name, job, version)
    await module._Run(jobs, records.Holder(one.clock), held, lambda: next(answers)).finish()
    assert seen[: len(sizes)] == sizes
    assert (await jobs.get(queue, job.act, job.id)).examined == 2_000
    # Three quarters of the time between two steps are a rest.
    steps = zip(alone, pairwise(at), strict=False)
    assert all(next_one - one > 0.004 for is_alone, (one, next_one) in steps if not is_alone)


async def test_a_job_acts_on_no_more_messages_a_second_than_it_may() -> None:
    one, queue = Composed(), QueueRef("p", "letters")
    await one.store.post(queue, [NewMessage(b"1", 600_000)] * 60, client_id="c", version=None)
    jobs = one.jobs()
    order = Order(filter=Choice(), to="b", max_per_second=100)
    job = await jobs.begin(queue, JobAct.REDRIVE, order)
    async with at_work(JobRunner(jobs, one.clock, lambda: 0)):
        ended = await Held(queue, jobs, job).ended(job)
    assert ended.done == 60
    assert ended.ended_at - ended.created_at >= 200  # the rest behind the first twenty


@pytest.mark.parametrize("fails_at", range(1, 5))
@pytest.mark.parametrize("what", ["a write", "an answer"])
async def test_a_job_moves_and_counts_as_many_as_its_limit_whatever_fails_once(
    monkeypatch: pytest.MonkeyPatch, what: str, fails_at: int
) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.05)
    one, queue, moves = Composed(), QueueRef("p", "letters"), 0
    await one.store.post(queue, [NewMessage(b"1", 600_000)] * 60, client_id="c", version=None)
    failing: Any = Failing(one.management)
    jobs, move = Composed(one.clock, (one.store, failing)).jobs(), one.store.move

    async def move_unheard(*moved: Any) -> Sequence[Outcome]:
        nonlocal moves
        moves += 1
        outcomes = await move(*moved)
        if what == "an answer" and moves == fails_at:
            raise Unavailable("It was moved, but nobody knows.")
        return outcomes

    monkeypatch.setattr(one.store, "move", move_unheard)
    job = await jobs.begin(queue, JobAct.REDRIVE, Order(filter=Choice(), to="back", limit=45))
    failing.writes, failing.fails_at = 0, fails_at if what == "a write" else 0
    async with at_work(JobRunner(jobs, one.clock, lambda: 0)):
        ended = await Held(queue, jobs, job).ended(job)
    assert (ended.state, ended.done, ended.targets) == ("completed", 45, {"back": 45})
    assert (await one.store.stats(QueueRef("p", "back"))).total == 45


async def test_a_job_that_moves_by_seconds_keeps_the_plan_of_one_step_only() -> None:
    """So a crash moves none twice, and the record stays small, whatever it has moved."""
    one, queue = Composed(), QueueRef("p", "q")
    await one.queues.create(queue, {"_default_message_delay": 60})
    new = [NewMessage(b"1", 600_000, 60_000)] * 250
    await one.store.post(queue, new, client_id="c", version=None)
    jobs = one.jobs()
    job = await jobs.begin(queue, JobAct.MOVE, Order(filter=Choice(), by=60))
    query = ListQuery(1, include_delayed=True)
    (moved,) = (await one.store.list_messages(queue, query)).messages
    due = job.plan[moved.id] = moved.delay_expires_at or 0  # by a process that has ended
    await jobs._running.put("p", running_name(queue, job.act), job, None)
    async with at_work(JobRunner(jobs, one.clock, lambda: 0)):
        ended = await Held(queue, jobs, job).ended(job)
    assert (ended.done, ended.plan) == (250, {})
    (moved,) = (await one.store.list_messages(queue, query)).messages
    assert abs((moved.delay_expires_at or 0) - due) < 30_000

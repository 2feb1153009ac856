"""Jobs: begin, look at, list and cancel them, and run them in steps.

While a job runs, its record is named by its queue and its act, so a queue has one job of a kind at
a time. When it has ended, it is kept for a day under its own id.

The steps have a bounded size; each writes into the job's record how far the job is. A process holds
the job that it works on, for a few seconds after each step. If it dies, another process goes on
from the record: messages that were acted on are gone, or the step's plan names them. If two
processes work on one job, because one was taken for dead, each message is still acted on once.

While there are no other requests, steps are large and follow each other without a rest. Beside
other requests steps are small, and most of the time is left to the requests.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from zaqar_lite.domain.clock import Clock, read_instant
from zaqar_lite.domain.errors import (
    Conflict,
    Invalid,
    LimitReached,
    NotFound,
    RecordChanged,
    Unavailable,
    ZaqarLiteError,
)
from zaqar_lite.domain.groups import check_group
from zaqar_lite.domain.ids import Marker, is_message_id
from zaqar_lite.domain.limits import MIN_MESSAGE_TTL, Limits, check_range
from zaqar_lite.domain.metadata import is_queue_name
from zaqar_lite.domain.models import Capability, ListQuery, Message, QueueRef
from zaqar_lite.domain.yielding import Slices
from zaqar_lite.service.background import Background, BackgroundWorker, LoggedErrors, cancelled
from zaqar_lite.service.jobs.bulk import (
    MAX_AT_ONCE,
    SAMPLE,
    Bulk,
    Chooser,
    Job,
    JobAct,
    Order,
    is_waiting,
)
from zaqar_lite.service.records import Held, Holder, Kind, Most, all_records, retried
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
RUNNING, ENDED, BESIDE = "job", "job-ended", "job-beside"
MAX_RUNNING = 1_000
"""Jobs of a project that run or wait for a process: each looks at all every two seconds."""
KEPT = 20
_KEPT_MS = 86_400_000
_MOMENT = 0.05
_ROOM_TRIES = 120
"""For six seconds a new job waits for a cancelled one of its kind to be put away."""
_BESIDE_MS = 5_000


@dataclass(eq=False, repr=False)
class Jobs:
    """Jobs of the queues of one store."""

    messages: MessageStore
    management: ManagementStore
    bulk: Bulk
    limits: Limits
    clock: Clock

    def __post_init__(self) -> None:
        most = Most(MAX_RUNNING, LimitReached, "running jobs in a project")
        self._running = Kind(self.management, RUNNING, "The job", Job, most)
        self._ended = Kind(self.management, ENDED, "The job", Job, lives=lambda _: _KEPT_MS)
        self.wake_runner: Callable[[], None] = lambda: None
        """Called when there is a job to run, or one that was cancelled."""

    async def begin(self, queue: QueueRef, act: JobAct, order: Order) -> Job:
        """Begin a job; up to 100 ids are acted on at once, and the job is over when it is answered.

        Raises:
            Invalid: the order breaks a rule.
            Conflict: a job of this kind runs in the queue.
            LimitReached: as many jobs as may be run in the project.
        """
        self._check(queue, act, order)
        now = self.clock.now_ms()
        job = Job(f"{now:011x}{secrets.token_hex(8)}", queue.name, act, order, now)
        if order.ids is not None and len(order.ids) <= MAX_AT_ONCE:
            return await self._do(queue, job)
        if order.ids is not None:
            job.total = job.until = len(order.ids)
        else:
            stats = await self.messages.stats(queue)
            job.total = stats.total
            job.until = 0 if stats.newest is None else stats.newest.position
        for _ in range(_ROOM_TRIES):
            try:
                await self._running.make(queue.project, running_name(queue, act), job)
            except RecordChanged:
                running = (await self.read(queue, act))[0]
                if running is not None and not running.is_over():
                    raise Conflict(
                        f"A job of this kind ({act.value}) runs in the queue {queue.name!r} "
                        "already: wait for its end, or cancel it."
                    ) from None
                await asyncio.sleep(_MOMENT)  # one that is over is about to be put away
            else:
                self.wake_runner()
                return job
        raise Conflict("A job of this kind ends just now: try again.")

    async def get(self, queue: QueueRef, act: JobAct, job_id: str) -> Job:
        """Read a job.

        Raises:
            NotFound: no such job (any more).
        """
        job = (await self.read(queue, act))[0]
        if job is None or job.id != job_id:
            job = await self._ended.find(queue.project, f"{running_name(queue, act)}/{job_id}")
        if job is None:
            raise NotFound(f"Job {job_id[:64]} does not exist.")
        return job

    async def list_jobs(self, queue: QueueRef, act: JobAct) -> Sequence[Job]:
        """The jobs of a kind in a queue, the newest first: one that runs, and those of a day."""
        running = (await self.read(queue, act))[0]
        ended = await self._ended_of(queue, act)
        return [*([] if running is None else [running]), *reversed(ended)]

    @retried("The job")
    async def cancel(self, queue: QueueRef, act: JobAct, job_id: str) -> None:
        """Cancel a job; what it has done stays done. No error when the job has ended.

        Raises:
            NotFound: no such job.
        """
        job, version = await self.read(queue, act)
        if job is None or job.id != job_id:
            await self.get(queue, act, job_id)
            return
        if job.is_over():
            return
        job.state, job.ended_at = "cancelled", self.clock.now_ms()
        await self._running.put(queue.project, running_name(queue, act), job, version)
        self.wake_runner()

    async def read(self, queue: QueueRef, act: JobAct) -> tuple[Job | None, int]:
        """The job of a kind that runs in a queue, and the version of its record."""
        return await self._running.read(queue.project, running_name(queue, act))

    async def has_others(self, process: str, *, serves: bool) -> bool:
        """Whether another process serves requests; that this one `serves` is kept for a while."""
        if serves:
            put = self.management.put_record
            await put(BESIDE, "", process, b"{}", expected=None, ttl_ms=_BESIDE_MS)
        found = await self.management.list_records(BESIDE, "", limit=2)
        return any(record.name != process for record in found)

    async def end(self, work: Held[Job]) -> None:
        """Keep a job that is over for a day; it makes room for the next one of its kind."""
        job = work.value
        queue = QueueRef(work.project, job.queue)
        await self._ended.put(work.project, f"{work.name}/{job.id}", job, None)
        for old in (await self._ended_of(queue, job.act))[:-KEPT]:
            await self._ended.delete(work.project, f"{work.name}/{old.id}")
        await work.delete()

    async def running(self) -> AsyncIterator[Held[Job]]:
        """The jobs that are not over, in any project."""
        async for one in all_records(self.management, RUNNING):
            try:
                job = self._running.decode(one)
            except msgspec.MsgspecError as exc:  # of a later version, for example
                logger.error("the job %s of %s can't be read: %s", one.name, one.project, exc)
            else:
                yield Held(self._running, one.project, one.name, job, one.version)

    async def _ended_of(self, queue: QueueRef, act: JobAct) -> list[Job]:
        prefix = f"{running_name(queue, act)}/"
        return await self._ended.page(queue.project, None, 2 * KEPT, prefix=prefix)

    async def _do(self, queue: QueueRef, job: Job) -> Job:
        """Act on a few messages at once."""
        order, ids = job.order, job.order.ids or []
        found = await self.messages.get_messages(queue, [one for one in ids if is_message_id(one)])
        job.total = job.examined = len(ids)
        job.refuse({"gone": len(ids) - len(found)})
        found = found[: order.limit]
        job.selected = len(found)
        plan = self.bulk.plan_moves(job.act, found, order)
        job.count(*await self.bulk.act(job.act, queue, found, order, plan))
        job.state, job.ended_at = "completed", self.clock.now_ms()
        return job

    def _check(self, queue: QueueRef, act: JobAct, order: Order) -> None:
        if (order.ids is None) == (order.filter is None):
            raise Invalid("Give either 'ids' or 'filter' ({} means all).")
        if order.ids is not None and len(set(order.ids)) < len(order.ids):
            raise Invalid("'ids' names a message twice.")
        if order.filter is not None:
            Chooser(order.filter, 0)
            if order.filter.group is not None:
                check_group(order.filter.group)
        if act is JobAct.REDRIVE:
            self._check_redrive(queue, order)
        else:
            self._check_delayed(act, order)

    def _check_redrive(self, queue: QueueRef, order: Order) -> None:
        if order.by is not None or order.if_due is not None:
            raise Invalid("'by' and 'if_due' are for moves of delayed messages.")
        if order.to is not None and (not is_queue_name(order.to) or order.to == queue.name):
            raise Invalid("'to' must be the name of another queue.")
        check_range("'delay'", order.delay, 0, self.limits.max_message_delay)
        check_range("'ttl'", order.ttl, MIN_MESSAGE_TTL, self.limits.max_message_ttl)

    def _check_delayed(self, act: JobAct, order: Order) -> None:
        if order.delay or order.force or order.ttl is not None or order.reset != "counts":
            raise Invalid("'delay', 'ttl', 'reset' and 'force' are for redrives.")
        if order.if_due is not None:
            read_instant(order.if_due)
        longest = self.limits.max_message_delay
        if act is not JobAct.MOVE:
            if order.to is not None or order.by is not None or order.if_due is not None:
                raise Invalid("'to', 'by' and 'if_due' are for moves.")
        elif (order.to is None) == (order.by is None):
            raise Invalid("A move needs 'to' (an instant) or 'by' (seconds).")
        elif order.to is None:
            check_range("'by'", order.by, -longest, longest)
        elif read_instant(order.to) - self.clock.now_ms() > longest * 1000:
            raise Invalid(
                f"'to' is further away than {longest} s, the longest delay that this server allows "
                "(max_message_delay)."
            )


def running_name(queue: QueueRef, act: JobAct) -> str:
    """The name of the record of the job of a kind that runs in a queue."""
    return f"{queue.name}/{act.value}"


_HELD_MS = 3_000
"""How long a process holds a job: a killed one delays its job by so much.

A step takes about a second at most, and so does a rest; a second is left for clocks that differ.
"""
_LOOK_EVERY = 2.0
"""Seconds between two searches for jobs that other processes have begun or abandoned."""
_MOST_JOBS, _MOST_OF_PROJECT, _MOST_AT_ALL = 32, 8, 256
"""The most jobs that a process works on, the most of one project among them, and the most with
the first ones of other projects: a few projects with slow jobs hold up no others."""
_SMALLEST, _PAGE, _BYTES = 20, 500, 1_048_576
"""The fewest and the most messages that one step looks at, and bytes of bodies that it may read."""
_PLANNED = 200
_LONG = 1.0
"""Seconds. After a longer step the next is smaller, so that a job renews its lease in time."""
_REST = 3.0
"""While there are other requests: the rest as a multiple of a step's time."""
_OTHERS, _WHILE = 5, 2.0
"""So many requests in a second count as other requests, for so many seconds afterwards."""


class _Look(NamedTuple):
    """The messages that a step has read, and which of them it acts on.

    gone    how many ids were not found
    cursor  up to where it has read, and `is_end` whether that is the end of the job
    most    how many messages like these the next step may read
    """

    found: Sequence[Message]
    chosen: Sequence[Message]
    gone: int
    cursor: int
    is_end: bool
    most: int


class JobRunner(BackgroundWorker):
    """Run the jobs of a store in the background, on every server process.

    `asked` returns how many requests for messages and claims this process has had.
    """

    def __init__(
        self,
        jobs: Jobs,
        clock: Clock,
        asked: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._asked = asked
        self._monotonic = monotonic
        self._seen, self._seen_at, self._serves_until = asked(), monotonic(), float("-inf")
        self._has_others = False
        self._holder = Holder(clock, shared=Capability.SHARED in jobs.messages.capabilities)
        self._work = Background("jobs", self._begin_all, rest=_LOOK_EVERY)
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        jobs.wake_runner = self._work.wake

    async def stop(self) -> None:
        """Stop after the steps under way; idempotent."""
        await super().stop()
        await cancelled(*self._running.values())

    async def _begin_all(self) -> float:
        """Begin the jobs that no process works on; answer the seconds until the next look."""
        rest, tells = _LOOK_EVERY, self._holder.shared
        async for work in self._jobs.running():
            if tells:
                serves, tells = self._serves_requests(), False
                self._has_others = await self._jobs.has_others(self._holder.name, serves=serves)
            key = work.project, work.name
            if key in self._running:
                continue
            if held := self._holder.wait_for(work.value):
                rest = min(rest, held / 1000)
            elif self._has_place(work.project):
                self._running[key] = asyncio.create_task(self._run(work), name="job")
        return rest

    def _serves_requests(self) -> bool:
        """Whether this process has, or had a moment ago, several requests in a second."""
        now, asked = self._monotonic(), self._asked()
        if asked - self._seen >= _OTHERS:
            self._serves_until = now + _WHILE
        if now < self._serves_until or now - self._seen_at > 1:
            self._seen, self._seen_at = asked, now
        return now < self._serves_until

    def is_alone(self) -> bool:
        """Whether no process serves requests, so that jobs may take all of the store's time."""
        return not (self._serves_requests() or self._has_others)

    def _has_place(self, project: str) -> bool:
        """Whether there is a place for a job of a project."""
        ours = sum(one == project for one, _ in self._running)
        most = _MOST_JOBS if ours else _MOST_AT_ALL
        return ours < _MOST_OF_PROJECT and len(self._running) < most

    async def _run(self, work: Held[Job]) -> None:
        """Do a job; one that another process has by now, or that fails, is looked for again."""
        try:
            with LoggedErrors(f"a job of {work.name}"):
                await _Run(self._jobs, self._holder, work, self.is_alone).finish()
                self._work.wake()  # the next job may have begun under its name
        finally:
            del self._running[work.project, work.name]


@dataclass(eq=False, repr=False)
class _Run:
    """A job that this process works on, from step to step."""

    jobs: Jobs
    holder: Holder
    work: Held[Job]
    is_alone: Callable[[], bool]

    def __post_init__(self) -> None:
        self._job = self.work.value
        self._queue = QueueRef(self.work.project, self._job.queue)

    async def finish(self) -> None:
        """Do the job to its end.

        Raises:
            RecordChanged: it is not this process's any more, or was cancelled.
        """
        await self._steps()
        self._job.ended_at = self._job.ended_at or self.holder.clock.now_ms()
        await self._hold()
        await self.jobs.end(self.work)

    async def _steps(self) -> None:
        job, size = self._job, _SMALLEST
        try:
            if job.under_way:
                await self._recount()
        except Exception as exc:  # noqa: BLE001 - it ends the job, or goes on
            self._fail(exc)
        while not job.is_over():
            began, before, is_alone = time.monotonic(), job.done, self.is_alone()
            try:
                now = size if is_alone else min(size, _SMALLEST)
                look = await self._look(job.cursor, job.until, now)
                await self._hold_and_act(look)
            except Exception as exc:  # noqa: BLE001 - it ends the job, or goes on
                self._fail(exc)
            if job.is_over():
                break
            took = time.monotonic() - began
            size = max(1, size // 2) if took > _LONG else min(look.most, size * 2)
            rest = 0.0 if is_alone else min(_LONG, took * _REST)
            if job.order.max_per_second is not None:
                rest = max(rest, (job.done - before) / job.order.max_per_second - took)
            await asyncio.sleep(rest)

    def _fail(self, exc: Exception) -> None:
        """End the job by an error, which would be met again at each new try.

        Raises:
            RecordChanged, Unavailable: raised again; another process has it, or it goes on later.
        """
        if isinstance(exc, RecordChanged | Unavailable):
            raise exc
        self._job.state, self._job.error = "failed", str(exc)
        if not isinstance(exc, ZaqarLiteError):
            logger.error("a job of %s failed", self.work.name, exc_info=exc)
            self._job.error = "The server failed; its log tells why."

    async def _recount(self) -> None:
        """Count what a step did whose process died before it could write that.

        Messages that the step had chosen and that are no longer there were done.
        """
        job = self._job
        left: list[Message] = []
        after, is_end = job.cursor, False
        while not is_end:
            look = await self._look(after, job.reached, _PAGE)
            left += look.chosen
            after, is_end = look.cursor, look.is_end
        done = max(0, job.under_way - len(left))
        bound = Counter(job.bound)
        bound.subtract(self.jobs.bulk.where_to(left, job.order))
        job.selected += done
        job.examined += done
        job.count(done, {}, +bound)
        if job.order.ids is not None:  # they are looked for again, and are not there
            job.refuse({"gone": -done})
        job.end_step(job.cursor)
        if job.has_reached_limit and not job.is_over():
            job.complete()

    async def _hold(self) -> None:
        """Write how far the job is, and hold it for this process, unless it was cancelled.

        It is tried again while it is held: what a step does meanwhile is in no other record.

        Raises:
            RecordChanged: another process has it.
        """
        job, until = self._job, self._job.held_until
        try:
            await self.holder.hold(self.work, _HELD_MS)
        except Unavailable:
            if self.holder.clock.now_ms() >= until:
                raise
            await asyncio.sleep(_MOMENT)
            job.held_until = until
            await self._hold()
        except RecordChanged:
            changed, version = await self.jobs.read(self._queue, job.act)
            ours = job.id, job.holder, "cancelled"
            if changed is None or (changed.id, changed.holder, changed.state) != ours:
                raise
            job.state, job.ended_at, self.work.version = changed.state, changed.ended_at, version
            await self.work.save()

    async def _look(self, after: int, until: int, size: int) -> _Look:
        """Read the first messages from `after` (exclusive) to `until`, and choose what matches.

        Both are positions, or indexes among the ids.
        """
        job = self._job
        order, limit = job.order, _most(job)
        if order.by is not None:
            size = min(size, _PLANNED)
        if order.ids is not None:
            size = min(size, limit)
        chooser = Chooser(order.filter, job.created_at)
        found, gone, cursor, is_end = await self._page(after, until, size, chooser)
        now = self.holder.clock.now_ms()
        any_state = order.ids is not None or job.act is JobAct.REDRIVE
        chosen: list[Message] = []
        slices = Slices()
        for one in found:
            # To match one message may take 10 ms, by its headers or by its body.
            await slices.next_turn()
            if one.id in job.plan or (chooser.matches(one) and (any_state or is_waiting(one, now))):
                chosen.append(one)
        if len(chosen) > limit:  # the next step reads again what comes after the last of them
            chosen, is_end = chosen[:limit], False
            cursor = chosen[-1].position
            found = [one for one in found if one.position <= cursor]
        if order.by is not None and not order.dry_run:
            job.plan = {**self.jobs.bulk.plan_moves(job.act, chosen, order), **job.plan}
        average = sum(len(one.body) for one in found) // (len(found) or 1)
        most = min(_PAGE, max(_SMALLEST, _BYTES // (average + 1)))
        return _Look(found, chosen, gone, cursor, is_end, most)

    async def _hold_and_act(self, look: _Look) -> None:
        """Write how far the job is, and act on what was chosen.

        Both run together, so that they share a batch of the store. They run one after the other if
        the record has a plan, which must be stored first, or if this process may have lost the job
        to another. What is done but not counted in the record is recounted after a crash.

        Raises:
            RecordChanged: another process has it.
        """
        job, chosen = self._job, look.chosen
        order = job.order
        if chosen and not order.dry_run:
            is_redrive = job.act is JobAct.REDRIVE
            bound = self.jobs.bulk.where_to(chosen, order) if is_redrive else {}
            job.begin_step(len(chosen), look.cursor, bound)
        # A process that comes here late may have lost the job; what it did would not be counted.
        is_late = self.holder.clock.now_ms() > job.held_until - _HELD_MS // 2
        saving = asyncio.create_task(self._hold(), name="job-record")
        try:
            # It begins first, so the record tells how far the job is without this step.
            await (saving if job.plan or is_late else asyncio.sleep(0))
            if not job.is_over():
                await self._act(look)
        except Exception as exc:  # noqa: BLE001 - it ends the job, or goes on
            self._fail(exc)
        finally:
            await saving

    async def _act(self, look: _Look) -> None:
        """Act on the chosen messages, and count them."""
        job, chosen = self._job, look.chosen
        order = job.order
        if len(job.sample) < SAMPLE and order.dry_run:
            job.sample += [_shown(one) for one in chosen[: SAMPLE - len(job.sample)]]
        job.selected += len(chosen)
        if chosen:
            plan = job.plan or self.jobs.bulk.plan_moves(job.act, chosen, order)
            job.count(*await self.jobs.bulk.act(job.act, self._queue, chosen, order, plan))
        job.end_step(look.cursor)
        job.refuse({"gone": look.gone})
        for one in look.found:
            job.plan.pop(one.id, None)
        job.examined += len(look.found)
        if (look.is_end or job.has_reached_limit) and not job.is_over():
            job.complete()

    async def _page(
        self, after: int, until: int, size: int, chooser: Chooser
    ) -> tuple[Sequence[Message], int, int, bool]:
        """Read messages: those found, how many ids were not, the cursor, and whether it ends."""
        ids = self._job.order.ids
        if ids is not None:
            some = ids[after : min(after + size, until)]
            known = [one for one in some if is_message_id(one)]
            found = await self.jobs.messages.get_messages(self._queue, known)
            end = after + len(some)
            return found, len(some) - len(found), end, end >= until
        page = await self.jobs.messages.list_messages(
            self._queue,
            ListQuery(
                size,
                Marker(after),
                Marker(until),
                include_claimed=True,
                include_delayed=True,
                details=chooser.needs_attempts,
                group=chooser.group,
            ),
        )
        if page.marker is None or not page.messages:
            return (), 0, after, True
        return page.messages, 0, page.marker, page.marker >= until


def _most(job: Job) -> int:
    """How many messages the next step may act on."""
    order = job.order
    left = _PAGE if order.limit is None else order.limit - job.selected
    return left if order.max_per_second is None else min(left, order.max_per_second)


def _shown(message: Message) -> dict[str, object]:
    origin = message.origin
    return {
        "id": message.id,
        "source": None if origin is None else origin.source,
        "reason": None if origin is None else origin.reason,
    }

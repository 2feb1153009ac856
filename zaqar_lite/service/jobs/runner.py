"""Run jobs in steps of bounded size; each step writes into the job's record how far the job is.

A process holds the job that it works on, for a few seconds after each step. If it dies, another
process goes on from the record: messages that were acted on are gone, or the step's plan names
them. If two processes work on one job, because one was taken for dead, each message is still acted
on once.

While there are no other requests, steps are large and follow each other without a rest. Beside
other requests steps are small, and most of the time is left to the requests.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import RecordChanged, Unavailable, ZaqarLiteError
from zaqar_lite.domain.ids import Marker, is_message_id
from zaqar_lite.domain.models import Capability, ListQuery, Message, QueueRef
from zaqar_lite.domain.yielding import Slices
from zaqar_lite.service.background import Background, BackgroundWorker, LoggedErrors, cancelled
from zaqar_lite.service.jobs.bulk import SAMPLE, Chooser, Job, JobAct, is_waiting
from zaqar_lite.service.jobs.jobs import Jobs
from zaqar_lite.service.records import Held, Holder

logger = logging.getLogger(__name__)
_HELD_MS = 3_000
"""How long a process holds a job: a killed one delays its job by so much.

A step takes about a second at most, and so does a rest; a second is left for clocks that differ.
"""
_LOOK_EVERY = 2.0
"""Seconds between two searches for jobs that other processes have begun or abandoned."""
_MOST_JOBS, _MOST_OF_PROJECT = 32, 8
"""The most jobs that a process works on, and the most of one project among them."""
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
                await self._tell_processes()
                tells = False
            key = work.project, work.name
            if key in self._running:
                continue
            if held := self._holder.wait_for(work.value):
                rest = min(rest, held / 1000)
            elif self._has_place(work.project):
                self._running[key] = asyncio.create_task(self._run(work), name="job")
        return rest

    async def _tell_processes(self) -> None:
        """Tell the processes that run jobs if this one serves requests, and learn of theirs."""
        if self._serves_requests():
            await self._jobs.note_requests(self._holder.name)
        self._has_others = await self._jobs.has_others(self._holder.name)

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
        return ours < _MOST_OF_PROJECT and len(self._running) < _MOST_JOBS

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

    async def _hold(self) -> None:
        """Write how far the job is, and hold it for this process, unless it was cancelled.

        Raises:
            RecordChanged: another process has it.
        """
        job = self._job
        try:
            await self.holder.hold(self.work, _HELD_MS)
        except RecordChanged:
            changed, version = await self.jobs.read(self._queue, job.act)
            if changed is None or (changed.id, changed.holder) != (job.id, job.holder):
                raise
            if changed.state != "cancelled":
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
        now, any_state = (
            self.holder.clock.now_ms(),
            order.ids is not None or job.act is JobAct.REDRIVE,
        )
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
            bound = (
                self.jobs.bulk.where_to(chosen, order) if job.act is JobAct.REDRIVE else Counter()
            )
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
    left = _PAGE if order.limit is None else max(1, order.limit - job.selected)
    return left if order.max_per_second is None else min(left, order.max_per_second)


def _shown(message: Message) -> dict[str, object]:
    origin = message.origin
    return {
        "id": message.id,
        "source": None if origin is None else origin.source,
        "reason": None if origin is None else origin.reason,
    }

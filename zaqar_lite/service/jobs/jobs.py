"""Jobs as users see them: begin, look at, list and cancel.

While a job runs, its record is named by its queue and its act, so a queue has one job of a kind at
a time. When it has ended, it is kept for a day under its own id.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import msgspec

from zaqar_lite.domain.clock import Clock, read_instant
from zaqar_lite.domain.errors import Conflict, Invalid, NotFound, RecordChanged
from zaqar_lite.domain.groups import check_group
from zaqar_lite.domain.ids import is_message_id
from zaqar_lite.domain.limits import MIN_MESSAGE_TTL, Limits, check_range
from zaqar_lite.domain.metadata import is_queue_name
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.jobs.bulk import (
    MAX_AT_ONCE,
    Bulk,
    Chooser,
    Job,
    JobAct,
    Order,
)
from zaqar_lite.service.records import Held, Kind, all_records, retried
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
RUNNING, ENDED, BESIDE = "job", "job-ended", "job-beside"
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
        self._running = Kind(self.management, RUNNING, "The job", Job)
        self._ended = Kind(self.management, ENDED, "The job", Job, lives=lambda _: _KEPT_MS)
        self.wake_runner: Callable[[], None] = lambda: None
        """Called when there is a job to run, or one that was cancelled."""

    async def begin(self, queue: QueueRef, act: JobAct, order: Order) -> Job:
        """Begin a job; up to 100 ids are acted on at once, and the job is over when it is answered.

        Raises:
            Invalid: the order breaks a rule.
            Conflict: a job of this kind runs in the queue.
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
                await self._running.put(queue.project, running_name(queue, act), job, 0)
            except RecordChanged:
                await self._make_room(queue, act)
            else:
                self.wake_runner()
                return job
        raise Conflict("A job of this kind ends just now: try again.")

    async def _make_room(self, queue: QueueRef, act: JobAct) -> None:
        """Wait a moment for a job that is over and about to be put away.

        Raises:
            Conflict: it still runs.
        """
        job = (await self.read(queue, act))[0]
        if job is not None and not job.is_over():
            raise Conflict(
                f"A job of this kind ({act.value}) runs in the queue {queue.name!r} already: wait "
                "for its end, or cancel it."
            )
        await asyncio.sleep(_MOMENT)

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

    async def note_requests(self, process: str) -> None:
        """Note for some seconds that a process serves requests."""
        await self.management.put_record(
            BESIDE, "", process, b"{}", expected=None, ttl_ms=_BESIDE_MS
        )

    async def has_others(self, process: str) -> bool:
        """Whether another process serves requests."""
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

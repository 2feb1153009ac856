"""Schedules as users see them, and the index of what is due.

A schedule is a record of its project. An index finds what is due: it has one more record for each
schedule, an entry, whose name begins with the next instant. The entry is written before the
schedule names that instant, and removed after the schedule has passed it. So a schedule that fires
always has an entry, and the first entry of all is due first. A crash may leave an entry for an
instant that its schedule does not name; it is removed when it is found.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import islice
from typing import NamedTuple

import msgspec

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid, LimitReached
from zaqar_lite.domain.metadata import is_queue_name
from zaqar_lite.domain.models import QueueRef, Record
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.records import Kind, Most
from zaqar_lite.service.schedules.schedule import KIND, NEVER, Plan, Schedule, check
from zaqar_lite.storage.management import ManagementStore

DUE = "schedule-due"
CLIENT_ID = "zaqar-lite-schedules"
MAX_SCHEDULES = 10_000
"""The schedules that a project may have."""
SHOWN_INSTANTS = 5
"""The next instants that are shown of a schedule."""
_DUE_PROJECT = "schedules"


class DueEntry(NamedTuple):
    """An entry of the index: a schedule, when it is due (milliseconds), and the entry's name."""

    project: str
    name: str
    at: int
    key: str


class Schedules:
    """The schedules of one store."""

    def __init__(self, management: ManagementStore, messages: Messages, clock: Clock) -> None:
        self._management = management
        self._messages = messages
        self._clock = clock
        full = f"The project has {MAX_SCHEDULES} schedules, the most that it may have."
        self._kind = Kind(
            management,
            KIND,
            "Schedule",
            encode=Schedule.encode,
            decode=lambda record: Schedule.decode(record.value),
            most=Most(MAX_SCHEDULES, LimitReached, full, clock),
        )
        self.wake_scheduler: Callable[[], None] = lambda: None
        """Called when something may be due earlier than was known."""

    async def put(self, project: str, name: str, plan: Plan) -> tuple[Schedule, bool]:
        """Make or replace a schedule; answer whether it is new.

        Raises:
            Invalid: it breaks a rule.
            LimitReached: the project has as many as it may have.
        """
        self._check(name, plan)

        async def build(_: Schedule | None) -> Schedule:
            schedule = Schedule(name, plan, self._clock.now_ms())
            schedule.set_next(schedule.created_at)
            await self._add_entry(project, schedule)
            return schedule

        made = await self._kind.write(project, name, build)
        self.wake_scheduler()
        return made

    async def change(self, project: str, name: str, apply: Callable[[Plan], Plan]) -> Schedule:
        """Change the plan of a schedule by `apply`; its counts stay.

        Raises:
            NotFound: no such schedule.
            Invalid: it would break a rule.
        """

        async def change(schedule: Schedule) -> Schedule:
            schedule = msgspec.structs.replace(schedule, plan=apply(schedule.plan))
            self._check(name, schedule.plan)
            schedule.set_next(self._clock.now_ms())
            await self._add_entry(project, schedule)
            return schedule

        changed = await self._kind.change(project, name, change)
        self.wake_scheduler()
        return changed

    async def get(self, project: str, name: str) -> Schedule:
        """Read a schedule.

        Raises:
            NotFound: no such schedule.
        """
        return await self._kind.get(project, name)

    async def read(self, project: str, name: str) -> tuple[Schedule | None, int]:
        """Read a schedule and its record's version."""
        return await self._kind.read(project, name)

    async def page(self, project: str, after: str | None, limit: int) -> Sequence[Schedule]:
        """List a project's schedules by name, those after `after`; a damaged one is left out."""
        return await self._kind.page(project, after, limit)

    async def delete(self, project: str, name: str) -> None:
        """Delete a schedule; its messages stay. No error when there is none."""
        await self._kind.delete(project, name)

    async def fire(self, project: str, name: str, may_post: Callable[[str], None]) -> str:
        """Post a schedule's message now, beside its instants; answer the message's id.

        `may_post` raises unless who asks may post to the queue. It is asked about the schedule that
        is posted: a change meanwhile alters neither.

        Raises:
            NotFound: no such schedule.
            Invalid: the queue does not take the message.
        """
        schedule = await self.get(project, name)
        may_post(schedule.plan.queue)
        return (await self.post(project, schedule, keyed=None))[0]

    async def post(
        self, project: str, schedule: Schedule, *, keyed: Sequence[int] | None
    ) -> list[str]:
        """Post a schedule's message once for each instant of `keyed`, or once without a key.

        Each message is a post of its own: together they may be larger than the queue allows.
        """
        plan = schedule.plan
        drafts = [plan.draft()]
        if keyed is not None:
            life = f"{schedule.name}@{schedule.created_at}"
            keys = (sha256(f"{life}@{at}".encode()).hexdigest()[:40] for at in keyed)
            drafts = [plan.draft(f"schedule-{key}") for key in keys]
        ids = []
        for draft in drafts:
            receipt = await self._messages.post(
                QueueRef(project, plan.queue),
                [draft],
                size=len(draft.body),
                client_id=CLIENT_ID,
            )
            ids += [posted.id for posted in receipt.posted]
        return ids

    def shown_instants(self, schedule: Schedule) -> list[int]:
        """The next instants of a schedule; none while it is paused."""
        if schedule.next == NEVER:
            return []
        return list(islice(schedule.instants(schedule.next - 1), SHOWN_INSTANTS))

    async def save(self, project: str, schedule: Schedule, version: int) -> int:
        """Write a schedule, after its entry in the index; answer the record's version.

        Raises:
            RecordChanged: it is at another version.
        """
        await self._add_entry(project, schedule)
        written = await self._kind.put(project, schedule.name, schedule, version)
        self.wake_scheduler()
        return written

    async def _add_entry(self, project: str, schedule: Schedule) -> None:
        if schedule.due_at != NEVER:
            value = msgspec.json.encode([project, schedule.name])
            await self._management.put_record(
                DUE, _DUE_PROJECT, _due_key(project, schedule), value, expected=None
            )

    async def due(self, limit: int, after: str | None = None) -> Sequence[DueEntry]:
        """The entries of the index that are due first, or those after the entry `after`."""
        start = None if after is None else (_DUE_PROJECT, after)
        found = await self._management.list_records(DUE, _DUE_PROJECT, after=start, limit=limit)
        return [_due(record) for record in found]

    async def remove_entry(self, due: DueEntry) -> None:
        """Remove an entry of the index."""
        await self._management.delete_record(DUE, _DUE_PROJECT, due.key)

    def _check(self, name: str, plan: Plan) -> None:
        if not is_queue_name(name):
            raise Invalid("A schedule's name has 1 to 64 letters, digits, '_', '-' or '.'.")
        if not is_queue_name(plan.queue):
            raise Invalid("'queue' must be the name of a queue.")
        check(plan, self._clock.now_ms())
        self._messages.check([plan.draft()])


def _due_key(project: str, schedule: Schedule) -> str:
    owner = sha256(f"{project}/{schedule.name}".encode()).hexdigest()[:32]
    return f"{schedule.due_at:014d}-{owner}"


def _due(record: Record) -> DueEntry:
    project, name = msgspec.json.decode(record.value, type=tuple[str, str])
    return DueEntry(project, name, int(record.name[:14]), record.name)

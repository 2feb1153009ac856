"""Fire schedules, on every server process, without a leader.

A due schedule is handled in three steps:

1. its record names the instants that messages are being posted for, and the instant that is next;
   the record is written at the version that was read, so only one process succeeds;
2. the messages are posted, each with an idempotency key made of its schedule and its instant;
3. the record says that they were posted.

After a crash between these steps the process that finds the schedule next posts again; the keys
keep it from posting anything twice. If no process came for longer than keys are kept, nothing is
posted again, and the instants count as uncertain.
"""

import asyncio
import logging

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    RecordChanged,
    Unavailable,
    ZaqarLiteError,
)
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.background import Background, BackgroundWorker
from zaqar_lite.service.schedules.schedule import Schedule
from zaqar_lite.service.schedules.schedules import DueEntry, Schedules
from zaqar_lite.storage.base import MessageStore

logger = logging.getLogger(__name__)
_STEP = 50
_AT_ONCE = 10
_LONGEST_REST = 1.0
"""Seconds between two looks at most: so late a process sees what another one has scheduled."""
_IDLE = 5.0
"""The same while there is nothing in the index."""
_POSTING_MS = 5_000
"""How long other processes leave a schedule alone that a process has begun to post for."""


class Scheduler(BackgroundWorker):
    """Fire the schedules that are due, in the background."""

    def __init__(
        self, schedules: Schedules, messages: MessageStore, clock: Clock, *, window_ms: int
    ) -> None:
        self._schedules = schedules
        self._messages = messages
        self._clock = clock
        self._window_ms = window_ms
        self._work = Background("schedules", self._fire, rest=_LONGEST_REST)
        schedules.wake_scheduler = self._work.wake

    async def step(self) -> tuple[int, float]:
        """Handle all due entries; answer how many were handled, and how many seconds to rest.

        An entry whose messages can't be posted now stays in the index and holds up no other.
        """
        done, after = 0, None
        while True:
            found = await self._schedules.due(_STEP, after)
            now = self._clock.now_ms()
            due = [one for one in found if one.at <= now]
            for first in range(0, len(due), _AT_ONCE):
                some = due[first : first + _AT_ONCE]
                done += sum(await asyncio.gather(*map(self._try, some)))
            if len(due) < _STEP:
                break
            after = due[-1].key
        if not found and after is None:
            return done, _IDLE
        if len(due) < len(found):
            return done, min(_LONGEST_REST, (found[len(due)].at - now) / 1000)
        return done, 0.0 if done else _LONGEST_REST

    async def _fire(self) -> float:
        _, rest = await self.step()
        return rest

    async def _try(self, due: DueEntry) -> bool:
        """Handle an entry of the index, if that is possible now; answer whether it was handled."""
        try:
            return await self._handle(due)
        except RecordChanged:
            return False  # another process was faster
        except Unavailable as exc:
            logger.warning("the schedule %r waits for the store: %s", due.name, exc)
            return False
        except Exception:
            # One that this version can't read, or whose time zone is gone, holds up no other.
            logger.exception("the schedule %r can't be handled", due.name)
            return False

    async def _handle(self, due: DueEntry) -> bool:
        schedule, version = await self._schedules.read(due.project, due.name)
        if schedule is None:
            await self._schedules.remove_entry(due)
            return True
        now = self._clock.now_ms()
        if schedule.firing:
            if 0 <= now - schedule.firing_since < _POSTING_MS:
                return False
            await self._post(due, schedule, version, again=True)
        elif schedule.due_at < due.at:
            return False  # an earlier entry of the schedule comes first
        elif schedule.due_at > due.at:
            await self._schedules.remove_entry(due)
        else:
            await self._begin_posting(due, schedule, version, now)
        return True

    async def _begin_posting(
        self, due: DueEntry, schedule: Schedule, version: int, now: int
    ) -> None:
        instants, missed = await schedule.due_instants(now)
        schedule.missed += missed
        if (
            instants
            and schedule.plan.overlap == "skip"
            and await self._last_is_there(due, schedule)
        ):
            schedule.overlapped += len(instants)
            instants = []
        schedule.firing, schedule.firing_since = instants, now
        schedule.set_next(max(schedule.next, now) if missed or len(instants) != 1 else instants[-1])
        version = await self._schedules.save(due.project, schedule, version)
        if instants:
            await self._post(due, schedule, version)
        else:
            await self._remove_passed(due, schedule)

    async def _remove_passed(self, due: DueEntry, schedule: Schedule) -> None:
        """Remove an entry, unless the schedule's next instant has the same one."""
        if schedule.due_at != due.at:
            await self._schedules.remove_entry(due)

    async def _post(
        self, due: DueEntry, schedule: Schedule, version: int, *, again: bool = False
    ) -> None:
        """Post for the instants that the record names, and note in the record that it is done."""
        instants = schedule.firing
        if again and self._clock.now_ms() - schedule.firing_since >= self._window_ms:
            schedule.missed += len(instants)
            schedule.uncertain += len(instants)
        else:
            try:
                schedule.last_ids = await self._schedules.post(
                    due.project, schedule, keyed=instants
                )
            except Unavailable:
                raise
            except ZaqarLiteError as exc:
                schedule.failed += len(instants)
                schedule.error = str(exc)[:512]
            else:
                schedule.fired += len(instants)
                schedule.error = ""
        schedule.last_at, schedule.firing = instants[-1], []
        await self._schedules.save(due.project, schedule, version)
        await self._remove_passed(due, schedule)

    async def _last_is_there(self, due: DueEntry, schedule: Schedule) -> bool:
        """Whether a message that was posted last is still in its queue."""
        queue = QueueRef(due.project, schedule.plan.queue)
        ids = schedule.last_ids
        return bool(ids) and bool(await self._messages.get_messages(queue, ids))

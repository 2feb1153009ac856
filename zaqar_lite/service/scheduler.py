"""Firing schedules, on every server process, without a leader.

A due schedule is taken in three steps: its record says for which instants messages are posted, and
which instant is next (compare-and-set: of all processes one succeeds); the messages are posted,
each with a key of its schedule and instant; the record says that they are. After a crash in
between, whoever meets the schedule next posts once more: what was posted is known by its key. Where
nobody came for longer than keys are kept, nothing is posted again, and the instant counts as
uncertain.
"""

import asyncio
import logging

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    NotFound,
    RecordChanged,
    Unavailable,
    ZaqarLiteError,
)
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.background import Background
from zaqar_lite.service.schedule import Schedule
from zaqar_lite.service.schedules import Due, Schedules
from zaqar_lite.storage.base import MessageStore

logger = logging.getLogger(__name__)
_STEP = 50
_AT_ONCE = 10
_LONGEST_REST = 1.0
"""Seconds after which this process sees, at the latest, what another one has scheduled."""
_IDLE = 5.0
"""The same while no schedule is due at all."""
_BUSY_MS = 5_000
"""How long other processes leave a schedule alone that one has begun to post for."""


class Scheduler:
    """Fire what is due."""

    def __init__(
        self, schedules: Schedules, messages: MessageStore, clock: Clock, *, window_ms: int
    ) -> None:
        self._schedules = schedules
        self._messages = messages
        self._clock = clock
        self._window_ms = window_ms
        self._work = Background("schedules", self._fire, rest=_LONGEST_REST)
        schedules.changed = self._work.wake

    def start(self) -> None:
        """Begin, in a task of the running event loop."""
        self._work.start()

    async def stop(self) -> None:
        """End; idempotent."""
        await self._work.stop()

    async def step(self) -> tuple[int, float]:
        """Do what is due; answer how much that was, and how long to rest.

        What can't be posted now stays in the index; the entries after it go on.
        """
        done, after = 0, None
        while True:
            found = await self._schedules.due(_STEP, after)
            now = self._clock.now_ms()
            due = [one for one in found if one.at <= now]
            for first in range(0, len(due), _AT_ONCE):
                some = due[first : first + _AT_ONCE]
                done += sum(await asyncio.gather(*map(self._meet, some)))
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

    async def _meet(self, due: Due) -> bool:
        """Do what an entry of the index stands for; answer whether something was done."""
        try:
            return await self._do(due)
        except RecordChanged:
            return False  # another process was faster
        except Unavailable as exc:
            logger.warning("the schedule %r waits for the store: %s", due.name, exc)
            return False

    async def _do(self, due: Due) -> bool:
        try:
            schedule, version = await self._schedules.load(due.project, due.name)
        except NotFound:
            await self._schedules.passed(due)
            return True
        now = self._clock.now_ms()
        if schedule.firing:
            if 0 <= now - schedule.firing_since < _BUSY_MS:
                return False
            await self._post(due, schedule, version, again=True)
        elif schedule.due_at < due.at:
            return False  # its own entry comes first
        elif schedule.due_at > due.at:
            await self._schedules.passed(due)
        else:
            await self._begin(due, schedule, version, now)
        return True

    async def _begin(self, due: Due, schedule: Schedule, version: int, now: int) -> None:
        instants, missed = schedule.fires_for(now)
        schedule.missed += missed
        if instants and schedule.plan.overlap == "skip" and await self._is_under_way(due, schedule):
            schedule.overlapped += len(instants)
            instants = []
        schedule.firing, schedule.firing_since = instants, now
        schedule.go_on(max(schedule.next, now) if missed or len(instants) != 1 else instants[-1])
        version = await self._schedules.save(due.project, schedule, version)
        if instants:
            await self._post(due, schedule, version)
        else:
            await self._pass(due, schedule)

    async def _pass(self, due: Due, schedule: Schedule) -> None:
        """Remove the entry, unless the schedule needs it for what is next."""
        if schedule.due_at != due.at:
            await self._schedules.passed(due)

    async def _post(
        self, due: Due, schedule: Schedule, version: int, *, again: bool = False
    ) -> None:
        """Post for the instants that the record names, and say so in the record."""
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
        await self._pass(due, schedule)

    async def _is_under_way(self, due: Due, schedule: Schedule) -> bool:
        """Whether a message of the last time is still in its queue."""
        queue = QueueRef(due.project, schedule.plan.queue)
        ids = schedule.last_ids
        return bool(ids) and bool(await self._messages.get_messages(queue, ids))

"""Schedules as users see them, and the index of what is due.

A schedule is a record of its project. An index finds what is due: it has one more record for each
schedule, an entry, whose name begins with the next instant. The entry is written before the
schedule names that instant, and removed after the schedule has passed it, has another one, or is
deleted. So a schedule that fires always has an entry, and the first entry of all is due first. A
crash may leave an entry for an instant that its schedule does not name; it is removed then.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from zaqar_lite.domain.clock import Clock, read_instant
from zaqar_lite.domain.errors import (
    Invalid,
    KeyReused,
    LimitReached,
    NotFound,
    Unavailable,
    ZaqarLiteError,
)
from zaqar_lite.domain.groups import GROUP_HEADER, check_group
from zaqar_lite.domain.metadata import is_queue_name
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.yielding import Slices
from zaqar_lite.service.background import Background, BackgroundWorker, LoggedErrors
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.post_validation import Draft
from zaqar_lite.service.records import Held, Kind, Most, retried
from zaqar_lite.service.schedules.timing import (
    LAST,
    Cron,
    Every,
    Once,
    Timing,
    jitter_ms,
    read_duration,
    read_zone,
)
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

KIND = "schedule"
NEVER = 1 << 62
MAX_BODY = 40_960
MAX_CATCH_UP = 86_400
MAX_JITTER = 86_400
MAX_CAUGHT_UP = 100
GRACE_MS = 30_000
"""An instant counts as missed when the servers come to it later than this."""
_POSTED_LATE = {"skip": 0, "one": 1, "all": MAX_CAUGHT_UP}
"""Missed instants that are posted for, by what the plan says of them."""
_COUNTED_MS = 604_800_000
"""How long ago instants may be that are counted one by one."""


class Plan(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule as its user writes it; durations in seconds or as texts."""

    queue: str
    body: Raw
    ttl: int | None = None
    delay: int | None = None
    headers: dict[str, str] | None = None
    group: str | None = None
    cron: str | None = None
    every: int | str | None = None
    at: str | None = None
    time_zone: str = "UTC"
    start: str | None = None
    end: str | None = None
    jitter: int | str = 0
    missed: Literal["skip", "one", "all"] = "one"
    catch_up: int | str = 3_600
    overlap: Literal["allow", "skip"] = "allow"
    paused: bool = False

    def draft(self, key: str | None = None) -> Draft:
        """The message to post, with an idempotency key."""
        headers = self.headers
        if self.group is not None:
            headers = {**(headers or {}), GROUP_HEADER: self.group}
        return Draft(bytes(self.body), self.ttl, self.delay, key, headers)

    def timing(self, anchor: int) -> Timing:
        """Its instants; an interval counts from its start, or from `anchor`.

        Raises:
            Invalid: not one of cron, every and at, or it can't be read.
        """
        given = [name for name in ("cron", "every", "at") if getattr(self, name) is not None]
        if len(given) != 1:
            raise Invalid("A schedule has one of 'cron', 'every' and 'at'.")
        if self.cron is not None:
            return Cron(self.cron, self.time_zone)
        if self.every is not None:
            seconds = read_duration(self.every, "every")
            if not seconds:
                raise Invalid("'every' must be at least 1 s.")
            return Every(seconds * 1000, anchor if self.start is None else read_instant(self.start))
        return Once(read_instant(self.at or ""))


class Schedule(Struct):
    """A schedule as it is stored; instants in milliseconds.

    next       its next instant; NEVER when there is none, or while it is paused
    due_at     when the message of that instant is posted: later by the jitter
    firing     instants that messages are being posted for, since `firing_since` and to `firing_to`
    last_ids   the ids of the messages that were posted last
    fired, missed, overlapped, failed    instants by what became of them
    uncertain  how many of those missed may have been posted just before a long outage

    Those that a cron expression missed more than a week ago count as one.
    """

    name: str
    plan: Plan
    created_at: int
    next: int = NEVER
    due_at: int = NEVER
    firing: list[int] = []
    firing_since: int = 0
    firing_to: str = ""
    last_at: int = 0
    last_ids: list[str] = []
    fired: int = 0
    missed: int = 0
    uncertain: int = 0
    overlapped: int = 0
    failed: int = 0
    error: str = ""

    def instants(self, after: int) -> Iterator[int]:
        """The instants strictly after `after`, within start and end."""
        plan = self.plan
        if plan.start is not None:
            after = max(after, read_instant(plan.start) - 1)
        found, end = plan.timing(self.created_at).after(after), self._end
        return takewhile(lambda instant: instant < end, found)

    @property
    def _end(self) -> int:
        return LAST if self.plan.end is None else min(read_instant(self.plan.end), LAST)

    def set_next(self, after: int, earliest: int = 0) -> None:
        """Make the first instant after `after` the next one.

        It is due when its jitter is over, and not before `earliest`: that of the one before.
        """
        self.next = self.due_at = NEVER
        if not self.plan.paused:
            for instant in islice(self.instants(after), 1):
                self.next, self.due_at = instant, max(self._due(instant), earliest)

    def _due(self, instant: int) -> int:
        """When the message of an instant is posted, if servers are there."""
        jitter = read_duration(self.plan.jitter, "jitter")
        return instant + jitter_ms(self.name, instant, jitter)

    async def pass_due(self, now: int) -> list[int]:
        """Pass over the instants that are due, and answer those to post for; count the others.

        A day of a cron expression's minutes takes 70 ms: others have their turn meanwhile.
        """
        if now < self.due_at + GRACE_MS:
            instants = [self.next]
            self.set_next(self.next, self.due_at)
            return instants
        plan, timing, last = self.plan, self.plan.timing(self.created_at), self.next - 1
        oldest = now - read_duration(plan.catch_up, "catch_up") * 1000
        come = 0
        if isinstance(timing, Every):
            longest = read_duration(plan.jitter, "jitter") * 1000
            come, last = timing.skip(last, min(now - GRACE_MS - longest, self._end), MAX_CAUGHT_UP)
        elif last < now - _COUNTED_MS:
            come, last = 1, now - _COUNTED_MS
        late: deque[int] = deque(maxlen=_POSTED_LATE[plan.missed])
        fresh: list[int] = []
        due, slices = self.due_at, Slices()
        for instant in self.instants(last):
            if max(self._due(instant), due) > now:
                break
            last, due, come = instant, max(self._due(instant), due), come + 1
            if due >= now - GRACE_MS:
                fresh.append(instant)
            elif instant >= oldest:
                late.append(instant)
            await slices.next_turn()
        instants = [*late, *fresh][-MAX_CAUGHT_UP:]
        self.missed += come - len(instants)
        self.set_next(last, due)
        return instants


DUE = "schedule-due"
CLIENT_ID = "zaqar-lite-schedules"
MAX_SCHEDULES = 10_000
"""The schedules that a project may have."""
SHOWN_INSTANTS = 5
"""The next instants that are shown of a schedule."""
DUE_PROJECT, _DIGITS = "schedules", 14


class DueEntry(NamedTuple):
    """An entry of the index: a schedule, and the entry's name, which begins with its due time."""

    project: str
    name: str
    key: str

    @property
    def at(self) -> int:
        """When the schedule is due (milliseconds)."""
        return int(self.key[:_DIGITS])


def _key(project: str, schedule: Schedule) -> str:
    """The name of the entry of a schedule's next instant."""
    owner = sha256(f"{project}/{schedule.name}".encode()).hexdigest()[:32]
    return f"{schedule.due_at:0{_DIGITS}d}-{owner}"


class Schedules:
    """The schedules of one store."""

    def __init__(self, management: ManagementStore, messages: Messages, clock: Clock) -> None:
        decode = msgspec.json.Decoder(tuple[str, str]).decode
        self.index = Kind[DueEntry](
            management,
            DUE,
            "The entry",
            encode=lambda due: msgspec.json.encode([due.project, due.name]),
            reads=lambda record: DueEntry(*decode(record.value), record.name),
        )
        """The entries of all projects, those that are due first before the others."""
        self._messages = messages
        self._clock = clock
        most = Most(MAX_SCHEDULES, LimitReached, "schedules in a project")
        self.kind = Kind(management, KIND, "Schedule", Schedule, most)
        """The schedules; to delete one leaves its messages."""
        self.wake_scheduler: Callable[[], None] = lambda: None
        """Called when something may be due earlier than was known."""

    async def put(self, project: str, name: str, plan: Plan) -> tuple[Schedule, bool]:
        """Make a schedule, or give the one of this name another plan; answer whether it is new.

        What `change` says of counts and instants holds for the one that is there.

        Raises:
            Invalid: it breaks a rule.
            LimitReached: the project has as many as it may have.
        """
        return await self._write(project, name, lambda _: plan)

    async def change(self, project: str, name: str, apply: Callable[[Plan], Plan]) -> Schedule:
        """Change the plan of a schedule by `apply`; its counts stay.

        An instant that has come, and that no message was posted for yet, stays if the new plan has
        it too.

        Raises:
            NotFound: no such schedule.
            Invalid: it would break a rule.
        """

        def changed(old: Schedule | None) -> Plan:
            if old is None:
                raise NotFound(f"Schedule {name[:64]} does not exist.")
            return apply(old.plan)

        return (await self._write(project, name, changed))[0]

    @retried("The schedule {2:.64}")
    async def delete(self, project: str, name: str) -> None:
        """Delete a schedule, if it is there, also one that can't be read; its messages stay."""
        try:
            held = await self.read(project, name)
        except (Unavailable, msgspec.MsgspecError):
            await self.kind.delete(project, name)
            return
        if held is not None:
            entry = await self._entry(project, held.value)
            if await held.delete():
                await self._remove(*entry)

    async def read(self, project: str, name: str) -> Held[Schedule] | None:
        """Read a schedule to change it, unless somebody else does."""
        schedule, version = await self.kind.read(project, name)
        return None if schedule is None else Held(self.kind, project, name, schedule, version)

    async def fire(self, project: str, name: str, may_post: Callable[[str], None]) -> str:
        """Post a schedule's message now, beside its instants; answer the message's id.

        `may_post` raises unless who asks may post to the queue. It is asked about the schedule that
        is posted: a change meanwhile alters neither.

        Raises:
            NotFound: no such schedule.
            Invalid: the queue does not take the message.
        """
        schedule = await self.kind.get(project, name)
        may_post(schedule.plan.queue)
        return (await self.post(project, schedule, keyed=None))[0]

    async def post(
        self, project: str, schedule: Schedule, *, keyed: Sequence[int] | None
    ) -> list[str]:
        """Post a schedule's message once for each instant of `keyed`, or once without a key.

        Each message is a post of its own: together they may be larger than the queue allows.
        """
        plan = schedule.plan
        drafts, queue = [plan.draft()], QueueRef(project, plan.queue)
        if keyed is not None:
            queue = QueueRef(project, schedule.firing_to or plan.queue)
            life = f"{schedule.name}@{schedule.created_at}"
            keys = (sha256(f"{life}@{at}".encode()).hexdigest()[:40] for at in keyed)
            drafts = [plan.draft(f"schedule-{key}") for key in keys]
        ids = []
        for draft in drafts:
            with suppress(KeyReused):  # it was posted before the plan was changed
                receipt = await self._messages.post(
                    queue, [draft], size=len(draft.body), client_id=CLIENT_ID
                )
                ids += [posted.id for posted in receipt.posted]
        return ids

    def shown_instants(self, schedule: Schedule) -> list[int]:
        """The next instants of a schedule; none while it is paused."""
        if schedule.next == NEVER:
            return []
        return list(islice(schedule.instants(schedule.next - 1), SHOWN_INSTANTS))

    async def save(self, held: Held[Schedule]) -> None:
        """Write a schedule, after its entry in the index.

        Raises:
            RecordChanged: it is at another version.
        """
        await self._add_entry(held.project, held.value)
        await held.save()
        self.wake_scheduler()

    async def note_posted(
        self, project: str, schedule: Schedule, done: Mapping[str, object]
    ) -> None:
        """Note in a schedule that was posted what is `done`, also if its plan changed meanwhile."""

        def note(found: Schedule) -> Schedule:
            if (found.created_at, found.firing) != (schedule.created_at, schedule.firing):
                return found  # it was made anew, or another process was faster
            return replace(found, **done)

        with suppress(NotFound):
            await self.kind.change(project, schedule.name, note)

    async def _write(
        self, project: str, name: str, plan_of: Callable[[Schedule | None], Plan]
    ) -> tuple[Schedule, bool]:
        """Write a schedule after its entry, and remove the entry that it had; tell if it is new."""
        entry, version = "", 0

        async def with_entry(old: Schedule | None) -> Schedule:
            nonlocal entry, version
            plan, now = plan_of(old), self._clock.now_ms()
            await self._check(name, plan)
            if old is not None:
                entry, version = await self._entry(project, old)
            new = replace(old or Schedule(name, plan, now), plan=plan)
            before = new.next
            new.set_next(min(now, before - 1))
            if new.next != before:
                new.set_next(now)
            await self._add_entry(project, new)
            return new

        new, is_new = await self.kind.write(project, name, with_entry)
        # While it is posted for an instant, whoever goes on after a crash needs its entries.
        if entry != _key(project, new) and not new.firing:
            await self._remove(entry, version)
        self.wake_scheduler()
        return new, is_new

    async def _entry(self, project: str, schedule: Schedule) -> tuple[str, int]:
        """The entry of a schedule's next instant by its name, and its version; 0 without one."""
        key = _key(project, schedule)
        return key, (await self.index.read(DUE_PROJECT, key))[1]

    async def _remove(self, entry: str, version: int) -> None:
        """Remove an entry, unless somebody has written it again for the same instant."""
        with LoggedErrors("an entry that a schedule left behind"):
            if version:
                await self.index.delete(DUE_PROJECT, entry, version)

    async def _add_entry(self, project: str, schedule: Schedule) -> None:
        if schedule.due_at != NEVER:
            key = _key(project, schedule)
            await self.index.put(DUE_PROJECT, key, DueEntry(project, schedule.name, key), None)

    async def _check(self, name: str, plan: Plan) -> None:
        if not is_queue_name(name):
            raise Invalid("A schedule's name has 1 to 64 letters, digits, '_', '-' or '.'.")
        if not is_queue_name(plan.queue):
            raise Invalid("'queue' must be the name of a queue.")
        plan.timing(self._clock.now_ms())
        read_zone(plan.time_zone)
        start, end = (
            None if text is None else read_instant(text) for text in (plan.start, plan.end)
        )
        if start is not None and end is not None and end <= start:
            raise Invalid("'end' must be later than 'start'.")
        for field, most in (("catch_up", MAX_CATCH_UP), ("jitter", MAX_JITTER)):
            read_duration(getattr(plan, field), field, most)
        if len(bytes(plan.body)) > MAX_BODY:
            raise Invalid(f"The body of a schedule has at most {MAX_BODY} bytes.")
        if plan.group is not None:
            check_group(plan.group)
        if GROUP_HEADER in (plan.headers or {}):
            raise Invalid(f"The header {GROUP_HEADER!r} is that of the group: give 'group'.")
        await self._messages.check([plan.draft()])


_AT_ONCE = 20
_LONGEST_REST = 1.0
"""Seconds between two looks at most: so late a process sees what another one has scheduled."""
_IDLE = 5.0
"""The same while there is nothing in the index."""
_STALE_MS = 60_000
"""How long after an entry its schedule is written at the latest."""
_PAUSE_MS, _MAX_CACHED = 15_000, 10_000
"""How long a process leaves an entry alone whose queue is full, for example; and so many."""
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
        self._left_until: Cache[str, int] = Cache(_MAX_CACHED)
        schedules.wake_scheduler = self._work.wake

    async def step(self) -> tuple[int, float]:
        """Handle all due entries; answer how many were handled, and how many seconds to rest.

        An entry whose messages can't be posted now stays in the index and holds up no other.
        """
        done, after = 0, None
        while True:
            found = await self._schedules.index.page(DUE_PROJECT, after, _AT_ONCE)
            now = self._clock.now_ms()
            due = [one for one in found if one.at <= now]
            done += sum(await asyncio.gather(*map(self._try, due)))
            if len(due) < _AT_ONCE:
                break
            after = due[-1].key
        if not found and after is None:
            return done, _IDLE
        if len(due) < len(found):
            return done, min(_LONGEST_REST, (found[len(due)].at - now) / 1000)
        return done, 0.0 if done else _LONGEST_REST

    async def _fire(self) -> float:
        return (await self.step())[1]

    async def _try(self, due: DueEntry) -> bool:
        """Handle an entry of the index, if that is possible now; answer whether it was handled."""
        if self._clock.now_ms() < self._left_until.get(due.key, 0):
            return False
        # One that this version can't read, or whose queue is full, holds up no other.
        with LoggedErrors(f"the schedule {due.name!r}"):
            return await self._handle(due)
        self._left_until[due.key] = self._clock.now_ms() + _PAUSE_MS
        return False

    async def _handle(self, due: DueEntry) -> bool:
        held, now = await self._schedules.read(due.project, due.name), self._clock.now_ms()
        if held is not None and held.value.firing:
            if 0 <= now - held.value.firing_since < _POSTING_MS:
                return False
            await self._post(due, held.value, again=True)
        elif held is not None and held.value.due_at == due.at:
            await self._begin_posting(due, held, now)
        elif (held is not None and held.value.due_at < due.at) or now - due.at < _STALE_MS:
            return False  # an earlier entry comes first, or its schedule is about to be written
        else:
            await self._schedules.index.delete(DUE_PROJECT, due.key)
        return True

    async def _begin_posting(self, due: DueEntry, held: Held[Schedule], now: int) -> None:
        schedule = held.value
        instants = await schedule.pass_due(now)
        queue = QueueRef(due.project, schedule.plan.queue)
        last = schedule.last_ids if schedule.plan.overlap == "skip" else []
        if instants and last and await self._messages.get_messages(queue, last):
            schedule.overlapped += len(instants)
            instants = []
        schedule.firing, schedule.firing_since = instants, now
        schedule.firing_to = schedule.plan.queue
        await self._schedules.save(held)
        if instants:
            await self._post(due, schedule)
        else:
            await self._remove_passed(due, schedule)

    async def _remove_passed(self, due: DueEntry, schedule: Schedule) -> None:
        """Remove an entry, unless the schedule's next instant has the same one."""
        if schedule.due_at != due.at:
            await self._schedules.index.delete(DUE_PROJECT, due.key)

    async def _post(self, due: DueEntry, schedule: Schedule, *, again: bool = False) -> None:
        """Post for the instants that the record names, and note in the record that it is done."""
        instants = schedule.firing
        count, done = len(instants), dict[str, Any](last_at=instants[-1], firing=[])
        if again and self._clock.now_ms() - schedule.firing_since >= self._window_ms:
            done["missed"] = schedule.missed + count
            done["uncertain"] = schedule.uncertain + count
        else:
            try:
                ids = await self._schedules.post(due.project, schedule, keyed=instants)
            except Unavailable:
                raise
            except ZaqarLiteError as exc:
                done |= {"failed": schedule.failed + count, "error": str(exc)[:512]}
            else:
                done |= {"fired": schedule.fired + count, "error": "", "last_ids": ids}
        await self._schedules.note_posted(due.project, schedule, done)
        await self._remove_passed(due, schedule)

"""A schedule as its user writes it, and as it is stored: with its next instant and its counts."""

import asyncio
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from zaqar_lite.domain.clock import read_instant
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.groups import GROUP_HEADER, check_group
from zaqar_lite.domain.sealed import check_opened
from zaqar_lite.service.post_validation import Draft
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

KIND = "schedule"
NEVER = 1 << 62
MAX_BODY = 40_960
MAX_CATCH_UP = 86_400
MAX_JITTER = 86_400
MAX_CAUGHT_UP = 100
GRACE_MS = 30_000
"""An instant counts as missed when the servers come to it later than this."""
_STEP = 10
"""Instants that are computed in one step: half a millisecond."""


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
    firing     instants that messages are being posted for, since `firing_since`
    last_ids   the ids of the messages that were posted last
    fired, missed, overlapped, failed    instants by what became of them
    uncertain  how many of those missed may have been posted just before a long outage
    """

    name: str
    plan: Plan
    created_at: int
    next: int = NEVER
    due_at: int = NEVER
    firing: list[int] = []
    firing_since: int = 0
    last_at: int = 0
    last_ids: list[str] = []
    fired: int = 0
    missed: int = 0
    uncertain: int = 0
    overlapped: int = 0
    failed: int = 0
    error: str = ""

    def encode(self) -> bytes:
        """As a record's value."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, value: bytes) -> "Schedule":
        """Read a record's value.

        Raises:
            Unavailable: it is sealed.
        """
        check_opened(value, "schedule")
        return _decode(value)

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

    def set_next(self, after: int) -> None:
        """Make the first instant after `after` the next one."""
        self.next = self.due_at = NEVER
        if not self.plan.paused:
            for instant in islice(self.instants(after), 1):
                self.next = instant
                jitter = read_duration(self.plan.jitter, "jitter")
                self.due_at = instant + jitter_ms(self.name, instant, jitter)

    async def due_instants(self, now: int) -> tuple[list[int], int]:
        """The instants to post for at `now`, and how many that have passed are missed.

        A day of a cron expression's minutes takes 70 ms: others have their turn meanwhile.
        """
        if now < self.due_at + GRACE_MS:
            return [self.next], 0
        plan = self.plan
        since = max(self.next, now - read_duration(plan.catch_up, "catch_up") * 1000)
        passed, after, timing = 0, since - 1, plan.timing(self.created_at)
        if isinstance(timing, Every):
            passed, after = timing.skip(after, min(now - GRACE_MS, self._end), MAX_CAUGHT_UP)
        come: list[int] = []
        for instant in takewhile(lambda instant: instant <= now, self.instants(after)):
            come.append(instant)
            if len(come) % _STEP == 0:
                await asyncio.sleep(0)
        late = [instant for instant in come if instant < now - GRACE_MS]
        fresh = come[len(late) :]
        if plan.missed == "skip":
            chosen = []
        elif plan.missed == "one":
            chosen = late[-1:]
        else:
            chosen = late[-MAX_CAUGHT_UP:]
        lost = passed + len(late) - len(chosen) + (self.next < since)
        return [*chosen, *fresh][-MAX_CAUGHT_UP:], lost


_decode = msgspec.json.Decoder(Schedule).decode


def check(plan: Plan, now: int) -> None:
    """Check a schedule.

    Raises:
        Invalid: what is wrong.
    """
    plan.timing(now)
    read_zone(plan.time_zone)
    start, end = (None if text is None else read_instant(text) for text in (plan.start, plan.end))
    if start is not None and end is not None and end <= start:
        raise Invalid("'end' must be later than 'start'.")
    for name, most in (("catch_up", MAX_CATCH_UP), ("jitter", MAX_JITTER)):
        if read_duration(getattr(plan, name), name) > most:
            raise Invalid(f"'{name}' must be at most {most} seconds.")
    if len(bytes(plan.body)) > MAX_BODY:
        raise Invalid(f"The body of a schedule has at most {MAX_BODY} bytes.")
    if plan.group is not None:
        check_group(plan.group)
    if GROUP_HEADER in (plan.headers or {}):
        raise Invalid(f"The header {GROUP_HEADER!r} is that of the group: give 'group'.")

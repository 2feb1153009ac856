"""Jobs as they are stored, and what a step of one does to the messages that it has chosen.

The choice is frozen when the job begins: the ids, or the filter and an upper position.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from zaqar_lite.domain.clock import Clock, read_instant
from zaqar_lite.domain.errors import Conflict, DueChanged, Invalid, NotFound
from zaqar_lite.domain.filters import parse_filter
from zaqar_lite.domain.groups import group_of
from zaqar_lite.domain.json_values import is_same
from zaqar_lite.domain.limits import MIN_MESSAGE_TTL, Limits
from zaqar_lite.domain.metadata import MAX_REDRIVES, max_redrives
from zaqar_lite.domain.models import (
    MAX_MOVED,
    Edit,
    Message,
    Move,
    QueueRef,
)
from zaqar_lite.domain.settlements import Outcome
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.records import Lease
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

MAX_AT_ONCE = 100
"""Up to this many ids are acted on within the request; more make a job."""
MAX_IDS = 1_000
MAX_RATE = 1_000_000
MAX_PATH = 256
"""Characters of the path to a value in a body."""
SAMPLE = 10
MAX_TARGETS = 100
"""The most target queues that a job counts letters for by name; "" stands for all others."""


class JobAct(Enum):
    """What a job does: put letters back; or cancel, move or fire what is delayed."""

    REDRIVE = "redrive"
    CANCEL = "cancel"
    MOVE = "move"
    FIRE = "fire"


class BodyPart(Struct, forbid_unknown_fields=True):
    """A value in the body by its path, names and indexes joined by dots, and what it must equal."""

    path: Annotated[str, Meta(max_length=MAX_PATH)]
    equals: Any


class Choice(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which messages are meant: every condition that is given must hold.

    reason      the reason of the last failure, or why the letter died (such as `max_failures`)
    older_than  seconds since the post
    due_before, due_after    instants (RFC 3339) that the delay ends before or after
    where       a text in the language of `_filter`, over the headers, `source`, `claim_count`,
                `failure_count`, `redriven`, `group` and `reason` (of the last failure if there was
                one, else why the letter died)
    """

    reason: str | None = None
    source: str | None = None
    older_than: Annotated[int, Meta(ge=0)] | None = None
    due_before: str | None = None
    due_after: str | None = None
    group: str | None = None
    headers: dict[str, str] | None = None
    body: BodyPart | None = None
    where: str | None = None


class Order(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a client asks a job to do; `to` is a queue for a redrive, and an instant for a move.

    A move with `if_due` (an instant) leaves alone messages that are not due in that second.
    """

    ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_IDS)] | None = None
    filter: Choice | None = None
    dry_run: bool = False
    max_per_second: Annotated[int, Meta(ge=1, le=MAX_RATE)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None
    to: str | None = None
    by: int | None = None
    if_due: str | None = None
    reset: Literal["counts", "none"] = "counts"
    delay: int = 0
    ttl: int | None = None
    force: bool = False


class Job(Lease):
    """A job as it is stored, leased by the process that runs it; instants in milliseconds.

    cursor     how far it is: a position, or how many of the ids were looked at
    until      the upper position, or how many ids there are; `total` messages were there at first
    targets    letters by the queue that they went to, or would go to in a dry run
    plan       of a move `by` seconds: when each message of the current step is to be due, so that
               a step that is repeated after a crash moves no message twice
    under_way  how many messages the current step has chosen
    reached    up to where the current step has looked
    bound      the letters of the current step by the queue that they are to go to

    After a crash, the messages of the current step that are no longer there count as done.
    """

    id: str
    queue: str
    act: JobAct
    order: Order
    created_at: int
    until: int = 0
    total: int = 0
    state: Literal["running", "completed", "cancelled", "failed"] = "running"
    cursor: int = 0
    examined: int = 0
    selected: int = 0
    done: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    sample: list[dict[str, Any]] = field(default_factory=list)
    plan: dict[str, int] = field(default_factory=dict)
    under_way: int = 0
    reached: int = 0
    bound: dict[str, int] = field(default_factory=dict)
    ended_at: int = 0
    error: str = ""

    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state != "running"

    @property
    def has_reached_limit(self) -> bool:
        """Whether it has selected as many messages as its limit allows."""
        return self.order.limit is not None and self.selected >= self.order.limit

    @property
    def _group(self) -> str | None:
        return None if self.order.filter is None else self.order.filter.group

    def seconds_left(self, now: int) -> int | None:
        """How many seconds the job will take at the pace that it had so far.

        None once it is over, and while nobody can know: before its first step has ended, and where
        it acts on a group without a limit, because a group is counted only by reading it.
        """
        progress = 0.0
        if self.total and self._group is None:
            progress = self.examined / self.total
        if self.order.limit is not None:
            progress = max(progress, self.selected / self.order.limit)
        if self.is_over() or not progress:
            return None
        return max(0, round((now - self.created_at) / 1000 * (1 / progress - 1)))

    def count(self, done: int, refused: Mapping[str, int], targets: Mapping[str, int]) -> None:
        """Count messages that were done, those left alone by the reason, and letters by target."""
        self.done += done
        self.refuse(refused)
        for name, count in targets.items():
            known = name in self.targets or len(self.targets) < MAX_TARGETS
            self.targets[name if known else ""] = self.targets.get(name if known else "", 0) + count

    def refuse(self, reasons: Mapping[str, int]) -> None:
        """Count messages that were left alone, by the reason."""
        for reason, count in reasons.items():
            if count:
                self.refused[reason] = self.refused.get(reason, 0) + count

    def begin_step(self, chosen: int, reached: int, bound: Mapping[str, int]) -> None:
        """Note what a step is about to do, for a process that goes on after a crash."""
        self.under_way, self.reached, self.bound = chosen, reached, dict(bound)

    def complete(self) -> None:
        """Note that all messages were looked at; only now it is known how large a group was."""
        self.state = "completed"
        if self._group is not None:
            self.total = self.examined

    def end_step(self, cursor: int) -> None:
        """Note that a step is counted, and where the next one begins."""
        self.cursor, self.under_way, self.reached, self.bound = cursor, 0, 0, {}


class Chooser:
    """Match messages of the choice's group against its other conditions, as of the instant `at`.

    Raises:
        Invalid: an instant or the filter can't be read.
    """

    def __init__(self, choice: Choice | None, at: int) -> None:
        self._choice = choice = choice or Choice()
        self._matches_all = choice == Choice()
        self._before = None if choice.due_before is None else read_instant(choice.due_before)
        self._after = None if choice.due_after is None else read_instant(choice.due_after)
        self._posted_before = None if choice.older_than is None else at - choice.older_than * 1000
        self._where = None if choice.where is None else parse_filter(choice.where)
        self._path = () if choice.body is None else tuple(choice.body.path.split("."))

    @property
    def group(self) -> str | None:
        """The group, whose messages the store finds by an index."""
        return self._choice.group

    @property
    def needs_attempts(self) -> bool:
        """Whether the messages must be read with their attempts."""
        return self._choice.reason is not None or self._where is not None

    def matches(self, message: Message) -> bool:
        """Whether a message of the group meets all conditions."""
        choice, origin = self._choice, message.origin
        if self._matches_all:
            return True
        due = message.delay_expires_at or 0
        headers = message.headers or {}
        return (
            (choice.reason is None or choice.reason in _reasons(message))
            and (choice.source is None or (origin is not None and origin.source == choice.source))
            and (self._posted_before is None or message.created_at <= self._posted_before)
            and (self._before is None or 0 < due < self._before)
            and (self._after is None or due > self._after)
            and all(headers.get(name) == text for name, text in (choice.headers or {}).items())
            and (self._where is None or self._where(_facts(message)))
            and self._has_body(message)
        )

    def _has_body(self, message: Message) -> bool:
        wanted = self._choice.body
        if wanted is None:
            return True
        value = msgspec.json.decode(message.body)
        for name in self._path:
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                return False
        return is_same(value, wanted.equals)


def _reasons(message: Message) -> list[str]:
    """Why the last attempt failed and why the letter died, those of the two that are known."""
    last = message.attempts[-1].reason if message.attempts else None
    died = None if message.origin is None else message.origin.reason
    return [reason for reason in (last, died) if reason is not None]


def _facts(message: Message) -> dict[str, str]:
    facts = {
        **(message.headers or {}),
        "claim_count": str(message.claim_count),
        "failure_count": str(message.failure_count),
    }
    origin, group = message.origin, group_of(message.headers)
    if origin is not None:
        facts |= {
            "reason": _reasons(message)[0],
            "source": origin.source,
            "redriven": str(origin.redriven),
        }
    if group is not None:
        facts["group"] = group
    return facts


DUE_CHANGED = "due_changed"
"""Why a message was left alone: it is due at another instant than the client knew."""
_AT_ONCE = 20
"""Edits that are under way at the same time."""
_REASONS = {Outcome.HELD: "claimed", Outcome.NOT_FOUND: "gone"}


class Tally(NamedTuple):
    """Counts of messages: acted on, left alone by reason, and sent where."""

    done: int
    refused: Mapping[str, int] = {}
    targets: Mapping[str, int] = {}


@dataclass(eq=False, repr=False)
class Bulk:
    """Act on messages that were just read: on each by itself, exactly once."""

    messages: MessageStore
    management: ManagementStore
    queues: Queues
    policies: Policies
    limits: Limits
    clock: Clock

    async def act(
        self,
        act: JobAct,
        queue: QueueRef,
        found: Sequence[Message],
        order: Order,
        plan: Mapping[str, int],
    ) -> Tally:
        """Act on the messages, unless it is a dry run; `plan` is what `plan_moves` answered."""
        if act is JobAct.REDRIVE:
            return await self._redrive(queue, found, order)
        if order.dry_run:
            return Tally(0)
        now = self.clock.now_ms()
        waiting = [one for one in found if is_waiting(one, now)]
        refused = Counter({"not_delayed": len(found) - len(waiting)})
        if act is JobAct.CANCEL:
            done, others = await self._cancel(queue, waiting)
        else:
            wanted = None if order.if_due is None else read_instant(order.if_due)
            done, others = await self._reschedule(act, queue, waiting, plan, wanted)
        return Tally(done, refused + others)

    def plan_moves(self, act: JobAct, found: Sequence[Message], order: Order) -> dict[str, int]:
        """When messages that are moved are to be due (instants, ms)."""
        if act is not JobAct.MOVE:
            return {}
        if order.by is None:
            return dict.fromkeys((one.id for one in found), read_instant(order.to or ""))
        return {
            one.id: one.delay_expires_at + order.by * 1000
            for one in found
            if one.delay_expires_at is not None
        }

    def where_to(self, found: Sequence[Message], order: Order) -> Counter[str]:
        """Count letters by the queue that they go to; those without a source are left out."""
        targets = (_target(one, order) for one in found)
        return Counter(target for target in targets if target is not None)

    async def _redrive(self, queue: QueueRef, found: Sequence[Message], order: Order) -> Tally:
        """Put letters back; a dry run only counts where they would go, and which would stay."""
        record = await self.management.get_queue(queue)
        most = max_redrives(record.metadata if record else {})
        refused: Counter[str] = Counter()
        targets: dict[str, list[str]] = {}
        for letter in found:
            origin, target = letter.origin, _target(letter, order)
            if target is None or target == queue.name:
                refused["no_source"] += 1
            elif origin is not None and origin.redriven >= most and not order.force:
                refused[MAX_REDRIVES.removeprefix("_")] += 1
            else:
                targets.setdefault(target, []).append(letter.id)
        if order.dry_run:
            return Tally(0, refused, {name: len(ids) for name, ids in targets.items()})
        done: Counter[str] = Counter()
        for name, ids in targets.items():
            done[name], others = await self._move(queue, QueueRef(queue.project, name), ids, order)
            refused += others
        return Tally(done.total(), refused, +done)

    async def _move(
        self, queue: QueueRef, target: QueueRef, ids: Sequence[str], order: Order
    ) -> tuple[int, Counter[str]]:
        policy = await self.policies.fresh(target)
        if order.delay and not policy.is_delayed:
            return 0, Counter({"target_not_delayed": len(ids)})
        ttl_ms = policy.default_ttl_ms if order.ttl is None else order.ttl * 1000
        delay_ms = order.delay * 1000
        ttl_ms = max(ttl_ms, delay_ms + MIN_MESSAGE_TTL * 1000)
        how = Move(target, ttl_ms, delay_ms, order.reset == "counts")
        outcomes: Counter[Outcome] = Counter()
        for first in range(0, len(ids), MAX_MOVED):
            outcomes.update(await self.messages.move(queue, ids[first : first + MAX_MOVED], how))
        done = outcomes.pop(Outcome.DONE, 0)
        if done:
            await self.queues.ensure_dead_letter_queue(target)
        return done, Counter({_REASONS[outcome]: n for outcome, n in outcomes.items()})

    async def _cancel(
        self, queue: QueueRef, waiting: Sequence[Message]
    ) -> tuple[int, Counter[str]]:
        ids = [one.id for one in waiting]
        while ids and (held := await self.messages.delete(queue, ids, claim_ids=())):
            claimed = {one.id for one in held}
            ids = [one for one in ids if one not in claimed]
        return len(ids), Counter({"claimed": len(waiting) - len(ids)})

    async def _reschedule(
        self,
        act: JobAct,
        queue: QueueRef,
        waiting: Sequence[Message],
        plan: Mapping[str, int],
        if_due: int | None,
    ) -> tuple[int, Counter[str]]:
        reasons: Counter[str] = Counter()
        for first in range(0, len(waiting), _AT_ONCE):
            some = waiting[first : first + _AT_ONCE]
            edits = (
                self._edit(queue, one, 0 if act is JobAct.FIRE else plan[one.id], if_due)
                for one in some
            )
            reasons.update(await asyncio.gather(*edits))
        return reasons.pop("", 0), reasons

    async def _edit(
        self, queue: QueueRef, message: Message, due_at: int, if_due: int | None
    ) -> str:
        """Change when a message is due; answer why it was left alone, or "" if it was changed.

        Its lifetime behind the delay stays the same. It must still be due at `if_due`, or at the
        instant that was read, so that nobody else's move is overwritten. A message that is already
        due at the wanted instant counts as moved.
        """
        now = self.clock.now_ms()
        delay_ms = max(0, due_at - now)
        if delay_ms > self.limits.max_message_delay * 1000:
            return "too_late"
        due = message.delay_expires_at or 0
        if if_due is not None and if_due // 1000 != due // 1000 and abs(due - due_at) < 1000:
            return ""  # done before, by a process that ended or for an answer that was lost
        lasts = max(message.expires_at - due, MIN_MESSAGE_TTL * 1000)
        ttl_ms = delay_ms + lasts if delay_ms else None
        try:
            seen = message.delay_expires_at if if_due is None else if_due
            edit = Edit(message.id, ttl_ms=ttl_ms, delay_ms=delay_ms, if_due=seen)
            await self.messages.edit(queue, edit)
        except NotFound:
            return "gone"
        except DueChanged:
            return DUE_CHANGED
        except (Conflict, Invalid):
            return "not_delayed"
        return ""


def _target(letter: Message, order: Order) -> str | None:
    """The queue that a letter is to go to."""
    return order.to or (None if letter.origin is None else letter.origin.source)


def is_waiting(message: Message, now: int) -> bool:
    """Whether a message is delayed."""
    return (
        message.delay_expires_at is not None
        and message.delay_expires_at > now
        and message.claim_id is None
        and message.parked_until is None
    )

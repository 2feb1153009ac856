"""What a step of a job does: put letters back, or cancel, move or fire delayed messages."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zaqar_lite.domain.clock import Clock, read_instant
from zaqar_lite.domain.errors import Conflict, DueChanged, Invalid, NotFound
from zaqar_lite.domain.limits import MIN_MESSAGE_TTL, Limits
from zaqar_lite.domain.metadata import MAX_REDRIVES, max_redrives
from zaqar_lite.domain.models import (
    MAX_MOVED,
    DelayMode,
    Edit,
    Message,
    Move,
    QueueRef,
    RefusalReason,
)
from zaqar_lite.domain.settlements import Outcome
from zaqar_lite.service.jobs.job import JobAct, Order
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.queues import Queues
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

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

    def __post_init__(self) -> None:
        self.turns = self.policies.turns
        """In which long work is done."""

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
        policy = await self.policies.get(target)
        if order.delay and policy.delay_mode is not DelayMode.HONOUR:
            return 0, Counter({"target_not_delayed": len(ids)})
        ttl_ms = policy.default_ttl_ms if order.ttl is None else order.ttl * 1000
        delay_ms = order.delay * 1000
        how = Move(
            target,
            max(ttl_ms, delay_ms + MIN_MESSAGE_TTL * 1000),
            delay_ms,
            order.reset == "counts",
        )
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
        ids, refused = [one.id for one in waiting], 0
        while ids:
            held = await self.messages.delete(queue, ids, claim_ids=())
            if not held:
                break
            gone = {one.id for one in held if one.reason is RefusalReason.CLAIMED}
            refused += len(gone)
            ids = [one for one in ids if one not in gone]
        return len(ids), Counter({"claimed": refused})

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

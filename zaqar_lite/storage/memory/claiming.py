"""The steps in memory that change which claim holds a message: claim, release, settle and move."""

from collections.abc import Callable
from random import random
from typing import NamedTuple

from zaqar_lite.domain.attempts import LAPSED, MAX_CLAIMS, MOVED, REJECTED, Ended
from zaqar_lite.domain.models import DeadLetter, DelayMode, Move, Origin, QueueRef, Retries, Take
from zaqar_lite.domain.refusals import no_failed_list
from zaqar_lite.domain.settlements import Act, Outcome, Settlement
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.memory.entries import Entry
from zaqar_lite.storage.memory.queue import Queue
from zaqar_lite.storage.memory.state import State

# Looking up a member of an Enum costs as much as calling a function.
_ACK, _RELEASE, _EXTEND = Act.ACK, Act.RELEASE, Act.EXTEND
_DONE, _NOT_FOUND = Outcome.DONE, Outcome.NOT_FOUND
_RELEASED, _FAILED, _DEAD = Ended.RELEASED, Ended.FAILED, Ended.DEAD

PARKED_MARGIN_MS = 60_000
"""A parked message lives at least this much longer than its parking lasts."""

_MAX_RETURNED = MAX_EXAMINED // 10
"""The most lapsed leases, and the most due messages, that one claim makes ready again."""

_MAX_SKIPPED = MAX_EXAMINED // 5
"""The most expired and exhausted messages that one claim removes from the queue: about 2 ms."""


class Step(NamedTuple):
    """A queue, the instant of an operation on it, and the queue's rules for messages that fail."""

    ref: QueueRef
    queue: Queue
    now: int
    retries: Retries


class Claiming:
    """The steps of claims, pops, settlements and sweeps on one queue at one instant.

    `announce(ref, count)` is called when `count` messages of a queue became ready.
    """

    def __init__(self, state: State, announce: Callable[[QueueRef, int], None]) -> None:
        self._state = state
        self._announce = announce

    def take(self, step: Step, take: Take) -> tuple[list[Entry], int, bool]:
        """Take up to `limit` ready entries, examining a bounded number.

        Returns them, how many dead letters were moved, and whether more may be ready.
        """
        _, queue, now, retries = step
        limit, delay_mode, letter = take.limit, take.delay_mode, retries.dead_letter
        _, moved = self.end_lapsed(step, _MAX_RETURNED)
        queue.unpark(now, _MAX_RETURNED)
        if delay_mode is DelayMode.HONOUR:
            queue.promote(now, _MAX_RETURNED)
        taken: list[Entry] = []
        budget = limit + _MAX_SKIPPED
        while len(taken) < limit and budget:
            if not queue.ready and not (
                delay_mode is DelayMode.EXPOSE and queue.expose(now, min(limit, budget))
            ):
                break
            budget -= 1
            entry = queue.pop_ready()
            if entry.expires_at <= now:
                queue.forget(entry)
            elif letter and entry.claim_count >= letter.max_claims:
                self._move(step, entry, letter, MAX_CLAIMS)
                moved += 1
            else:
                taken.append(entry)
        if len(taken) == limit:
            return taken, moved, False
        honours = delay_mode is DelayMode.HONOUR
        ripe = queue.next_ready_at() if honours else queue.next_lease_end()
        return taken, moved, bool(queue.ready) or (ripe is not None and ripe <= now)

    def end_lapsed(self, step: Step, limit: int) -> tuple[int, int]:
        """End up to `limit` lapsed leases; each counts as a failure.

        Returns how many were ended, and how many of their messages became dead letters.
        """
        lapsed = step.queue.lapsed(step.now, limit)
        moved = 0
        for entry in lapsed:
            if entry.expires_at <= step.now:
                step.queue.remove(entry)
                continue
            until = entry.lease_until
            step.queue.end_lease(entry)
            wait_ms = _retry_delay_ms(step, entry, None)
            moved += self._fail(step, entry, Ended.LAPSED, until, wait_ms, reason=LAPSED)
        return len(lapsed), moved

    def settle(self, step: Step, claim_id: str, settlement: Settlement) -> tuple[Outcome, int]:
        """Apply one settlement; return its outcome and how many messages became dead letters."""
        _, queue, now, retries = step
        entry = queue.live(settlement.message_id, now)
        if entry is None:
            return _NOT_FOUND, 0
        holder = entry.holder(now)
        if holder is None or holder.id != claim_id:
            return _not_held(entry, claim_id, settlement, now), 0
        moved, act = 0, settlement.act
        if act is _ACK:
            queue.remove(entry)
        elif act is _RELEASE:
            moved = self._release(step, entry, settlement)
        elif act is _EXTEND:
            before = holder.ends_at
            queue.extend(entry, holder, now, settlement.ttl_ms, settlement.grace_ms)
            if holder.ends_at < before:
                self._announce(step.ref, 0)
        elif retries.dead_letter is None:
            return Outcome.NO_TARGET, 0
        else:
            moved = self._reject(step, entry, retries.dead_letter, settlement)
        return _DONE, moved

    def release(self, step: Step, entry: Entry, delay_ms: int) -> None:
        """Release a held entry, at once or after a delay. This does not count as a failure."""
        step.queue.end_lease(entry)
        entry.end_attempt(Ended.RELEASED, step.now, delay_ms)
        self._make_available(step, entry, step.now + delay_ms)

    def _release(self, step: Step, entry: Entry, settlement: Settlement) -> int:
        step.queue.end_lease(entry)
        reason, detail = settlement.reason, settlement.detail
        if settlement.failed:
            wait_ms = _retry_delay_ms(step, entry, settlement.delay_ms)
            return self._fail(step, entry, _FAILED, step.now, wait_ms, reason=reason, detail=detail)
        delay_ms = settlement.delay_ms or 0
        entry.end_attempt(_RELEASED, step.now, delay_ms, reason, detail)
        self._make_available(step, entry, step.now + delay_ms)
        return 0

    def _reject(self, step: Step, entry: Entry, letter: DeadLetter, settlement: Settlement) -> int:
        step.queue.end_lease(entry)
        reason = settlement.reason or REJECTED
        entry.end_attempt(_DEAD, step.now, 0, reason, settlement.detail)
        self._move(step, entry, letter, reason)
        return 1

    def _fail(
        self,
        step: Step,
        entry: Entry,
        outcome: Ended,
        ended_at: int,
        wait_ms: int,
        *,
        reason: str | None,
        detail: str | None = None,
    ) -> int:
        """Count a failure of an entry that is in no state's index; move it or have it tried again.

        Returns how many dead letters were moved.
        """
        entry.failure_count += 1
        letter = step.retries.dead_letter
        spent = letter and letter.spent(entry.claim_count, entry.failure_count)
        entry.end_attempt(outcome, ended_at, 0 if spent else wait_ms, reason, detail)
        if letter and spent:
            self._move(step, entry, letter, spent)
            return 1
        self._make_available(step, entry, ended_at + wait_ms)
        return 0

    def _make_available(self, step: Step, entry: Entry, at: int) -> None:
        """Make an entry ready at the instant `at`; until then it is parked."""
        if at <= step.now:
            step.queue.make_ready(entry)
            self._announce(step.ref, 1)
        else:
            step.queue.park(entry, at, step.now, PARKED_MARGIN_MS)
            self._state.schedule_sweep(step.ref, step.queue, at)
            self._announce(step.ref, 0)

    def _move(self, step: Step, entry: Entry, letter: DeadLetter, reason: str) -> None:
        """Move an entry that is in no state's index to the dead-letter queue."""
        if letter.target is None:
            raise no_failed_list("memory")
        now, last = step.now, entry.last_claim
        step.queue.forget(entry)
        entry.origin = Origin(
            step.ref.name,
            now,
            entry.claim_count,
            None if last is None else last.id,
            None if last is None else last.client_id,
            reason,
            0 if entry.origin is None else entry.origin.redriven,
        )
        if letter.ttl_ms is not None:
            entry.ttl_ms, entry.expires_at = letter.ttl_ms, now + letter.ttl_ms
        self._add_to(letter.target, entry, now, 0)

    def move(self, step: Step, message_id: str, move: Move) -> Outcome:
        """Move an entry that nobody holds; see the seam."""
        queue, now = step.queue, step.now
        entry = queue.live(message_id, now)
        if entry is None:
            return Outcome.NOT_FOUND
        if entry.claim is not None or entry.is_parked:
            return Outcome.HELD
        queue.remove(entry)
        last = entry.last_claim
        origin = entry.origin or Origin(
            step.ref.name,
            now,
            entry.claim_count,
            None if last is None else last.id,
            None if last is None else last.client_id,
            MOVED,
        )
        entry.origin = origin.put_back()
        if move.reset:
            entry.claim_count = entry.failure_count = 0
        entry.ttl_ms, entry.expires_at = move.ttl_ms, now + move.ttl_ms
        entry.delay_expires_at = 0
        self._add_to(move.target, entry, now, now + move.delay_ms if move.delay_ms else 0)
        return Outcome.DONE

    def _add_to(self, ref: QueueRef, entry: Entry, now: int, delay_expires_at: int) -> None:
        """Add an entry that comes from another queue."""
        entry.position = self._state.take_positions(1, now * 1000)
        self._state.add(ref, entry, delay_expires_at)
        self._announce(ref, 0 if delay_expires_at else 1)


def _retry_delay_ms(step: Step, entry: Entry, delay_ms: int | None) -> int:
    """The delay after this failure: the one that was asked for, else the queue's back-off."""
    if delay_ms is not None:
        return delay_ms
    backoff = step.retries.backoff
    return 0 if backoff is None else backoff.delay_ms(entry.failure_count + 1, random())  # noqa: S311 - jitter


def _not_held(entry: Entry, claim_id: str, settlement: Settlement, now: int) -> Outcome:
    """The outcome of a settlement by a claim that does not hold the entry."""
    if entry.holder(now) is not None:
        return Outcome.HELD
    was_released = entry.last_ended in (Ended.RELEASED, Ended.FAILED)
    by_this = entry.last_claim is not None and entry.last_claim.id == claim_id
    if by_this and was_released and settlement.act is Act.RELEASE:
        return Outcome.DONE
    return Outcome.LAPSED

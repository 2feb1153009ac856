"""How a hand-out ends: acknowledged, given back, failed, lapsed or dead; each in one step.

Nothing waits here. What a step changes is durable with the batch that gathers, and who waits for
messages is told then.
"""

from collections.abc import Sequence
from random import random
from typing import NamedTuple

from zaqar_lite.domain.attempts import LAPSED, REJECTED, Attempt, Ended, with_attempt
from zaqar_lite.domain.models import NO_RETRIES, DeadLetter, Move, QueueRef, Retries
from zaqar_lite.domain.settlements import Act, Outcome, Settled, Settlement
from zaqar_lite.storage.opendata import due, past
from zaqar_lite.storage.opendata.entries import MAX_ATTEMPTS, MAX_CONSUMERS, Claim, Entry
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.records import Kept, encode_attempt
from zaqar_lite.storage.opendata.paging import cold_of_claim, prepared
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import cold_named, first_named
from zaqar_lite.storage.opendata.state import State

# Looking up a member of an Enum costs as much as calling a function.
_ACK, _RELEASE, _EXTEND = Act.ACK, Act.RELEASE, Act.EXTEND
_DONE, _NOT_FOUND = Outcome.DONE, Outcome.NOT_FOUND

MOST_LAPSES = 200
"""How many lapsed leases one step ends at most."""


class Step(NamedTuple):
    """Where and when something is done, and what becomes there of messages that fail."""

    db: State
    queue: Queue
    now: int
    retries: Retries


class _End(NamedTuple):
    """How a hand-out ends, and when."""

    outcome: Ended
    at: int
    reason: str | None = None
    detail: str | None = None


async def settle(  # noqa: PLR0917 - the seam's values
    db: State,
    ref: QueueRef,
    claim_id: str,
    settlements: Sequence[Settlement],
    retries: Retries,
    version: int | None,
) -> Settled:
    """Settle messages of a claim; see the seam."""
    ids = [settlement.message_id for settlement in settlements]
    there, now = await prepared(db, ref, version, cold_named(db, ids))
    if there is None:
        return Settled([Outcome.NOT_FOUND] * len(settlements))
    step = Step(db, there, now, retries)
    settled = [_settle(step, claim_id, settlement) for settlement in settlements]
    outcomes = [outcome for outcome, _ in settled]
    await db.finish(there, changed=Outcome.DONE in outcomes)
    return Settled(outcomes, sum(moved for _, moved in settled))


async def release(db: State, ref: QueueRef, claim_id: str, delay_ms: int) -> None:
    """End a claim; see the seam."""
    there, now = await prepared(db, ref, None, cold_of_claim(claim_id))
    if there is None:
        return
    held = due.live(there, there.claims.get(claim_id), now)
    step = Step(db, there, now, NO_RETRIES)
    for entry in held:
        _give_back(step, entry, _End(Ended.RELEASED, now), delay_ms)
    await db.finish(there, changed=held)


def end_lapsed(step: Step, limit: int) -> tuple[int, int]:
    """End up to `limit` leases whose time is over, each a failure.

    Answers how many, and how many of their messages were moved to the dead letters.
    """
    db, queue, now, _ = step
    found = due.lapsed(queue, now, limit)
    moved = 0
    for entry in found:
        claim = entry.claim
        if claim is None or entry.expires_at <= now:
            queue.remove(entry)
        else:
            lapse = _End(Ended.LAPSED, claim.lease(entry.position), LAPSED)
            moved += _fail(step, entry, lapse, _wait(step, entry, None))
    if found:
        db.changed(queue)
    return len(found), moved


def _settle(step: Step, claim_id: str, settlement: Settlement) -> tuple[Outcome, int]:
    """Do what a settlement says; answer what became of it, and how many dead letters moved."""
    db, queue, now, retries = step
    entry = first_named(db, queue, settlement.message_id, now)
    if entry is None:
        return _NOT_FOUND, 0
    holder = entry.holder(now)
    if holder is None or holder.id != claim_id:
        return _not_held(entry, holder, claim_id, settlement), 0
    moved, act = 0, settlement.act
    if act is _ACK:
        if past.keeps_done(queue):
            past.record_done(db, queue, entry, now, holder.client_id)
        queue.remove(entry)
    elif act is _RELEASE:
        moved = _release(step, entry, settlement)
    elif act is _EXTEND:
        due.extend(queue, holder, entry, now, settlement.ttl_ms, settlement.grace_ms)
        db.announce(queue.ref, 0)
    else:
        letter = retries.dead_letter
        if letter is None:
            return Outcome.NO_TARGET, 0
        reason = settlement.reason or REJECTED
        _end(step, entry, _End(Ended.DEAD, now, reason, settlement.detail), 0)
        past.move(db, queue, entry, letter, now, reason)
        moved = 1
    return _DONE, moved


def _not_held(entry: Entry, holder: Claim | None, claim_id: str, settlement: Settlement) -> Outcome:
    """What became of a settlement by a claim that does not hold the entry."""
    if holder is not None:
        return Outcome.HELD
    lived = entry.past
    is_lapsed = entry.claim is not None and bool(entry.claim.ttl_ms)
    if is_lapsed or lived is None or lived.last_claim is None:
        return Outcome.LAPSED
    by_this = lived.last_claim.hex() == claim_id
    was_released = lived.last_ended in (Ended.RELEASED, Ended.FAILED)
    is_again = by_this and was_released and settlement.act is Act.RELEASE
    return Outcome.DONE if is_again else Outcome.LAPSED


def _release(step: Step, entry: Entry, settlement: Settlement) -> int:
    reason, detail = settlement.reason, settlement.detail
    if settlement.failed:
        end = _End(Ended.FAILED, step.now, reason, detail)
        return _fail(step, entry, end, _wait(step, entry, settlement.delay_ms))
    end = _End(Ended.RELEASED, step.now, reason, detail)
    _give_back(step, entry, end, settlement.delay_ms or 0)
    return 0


def _fail(step: Step, entry: Entry, end: _End, wait_ms: int) -> int:
    """Count the failure of a claimed entry: a dead letter, or a later try."""
    lived = entry.remember()
    lived.failures += 1
    letter: DeadLetter | None = step.retries.dead_letter
    spent = letter and letter.spent(entry.attempts, lived.failures)
    if letter is None or not spent:
        _give_back(step, entry, end, wait_ms)
        return 0
    _end(step, entry, end, 0)
    past.move(step.db, step.queue, entry, letter, step.now, spent)
    return 1


def _give_back(step: Step, entry: Entry, end: _End, delay_ms: int) -> None:
    """End a hand-out, and make the entry ready, or park it until the delay is over."""
    db, queue, now, _ = step
    _end(step, entry, end, delay_ms)
    until = end.at + delay_ms
    if until <= now:
        queue.make_ready(entry)
        db.announce(queue.ref, 1)
    else:
        due.park(queue, entry, until, now)
        db.announce(queue.ref, 0)


def _end(step: Step, entry: Entry, end: _End, delay_ms: int) -> None:
    """Take an entry out of its claim, and write the hand-out into its history."""
    db, queue, _, _ = step
    claim = entry.claim
    if claim is None:
        return
    due.let_go(queue, entry, claim)
    lived = entry.remember()
    lived.last_claim, lived.last_ended = claim.raw, end.outcome
    lived.consumers.append(claim.client_id)
    if len(lived.consumers) > MAX_CONSUMERS:
        del lived.consumers[0]
    attempt = Attempt(
        entry.attempts, claim.claimed_at, end.at, end.outcome, delay_ms, end.reason, end.detail,
        claim.client_id,
    )  # fmt: skip
    if not lived.history:
        lived.history = db.ids.take(1, db.puts)
    number = attempt.number  # which begins anew when it is redriven
    if lived.kept and lived.kept[-1].number >= number:
        number = min(lived.kept[-1].number + 1, MAX_ATTEMPTS)
    before = [kept for kept in lived.kept if kept.number != number]
    lived.kept = with_attempt(before, Kept(number, attempt.size))
    db.put(keys.attempt_key(lived.history, number), encode_attempt(attempt))
    for gone in before:
        if gone not in lived.kept:
            db.delete(keys.attempt_key(lived.history, gone.number))
    queue.ended.append(entry)


async def move(db: State, ref: QueueRef, ids: Sequence[str], how: Move) -> list[Outcome]:
    """Move messages to another queue; see the seam."""
    if not db.shares.joins(ref.project, len(ids)):
        await db.shares.wait(ref.project, len(ids))
    there, now = await prepared(db, ref, None, cold_named(db, ids))
    if there is None:
        return [Outcome.NOT_FOUND] * len(ids)
    outcomes = []
    for message_id in ids:
        entry = first_named(db, there, message_id, now)
        if entry is None:
            outcomes.append(Outcome.NOT_FOUND)
        elif entry.claim is not None or (entry.past and entry.past.parked_until):
            outcomes.append(Outcome.HELD)
        else:
            past.put_back(db, there, entry, how, now)
            outcomes.append(Outcome.DONE)
    if Outcome.DONE in outcomes:
        db.changed(db.queues.make(how.target))
    await db.finish(there, changed=Outcome.DONE in outcomes)
    return outcomes


def _wait(step: Step, entry: Entry, delay_ms: int | None) -> int:
    """How long an entry waits after the failure of now: what was asked for, else the back-off."""
    if delay_ms is not None:
        return delay_ms
    backoff = step.retries.backoff
    failures = 1 if entry.past is None else entry.past.failures + 1
    return 0 if backoff is None else backoff.delay_ms(failures, random())  # noqa: S311 - jitter

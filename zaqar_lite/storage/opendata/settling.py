"""Ending a hand-out: acknowledged, released, failed, lapsed or dead; and moving messages.

Each act is one step of the event loop. Its changes are in the batch that gathers; waiting consumers
are told once that is durable.
"""

from collections.abc import Sequence
from functools import lru_cache
from random import random
from typing import NamedTuple

from zaqar_lite.domain.attempts import LAPSED, MOVED, REJECTED, Attempt, Ended, with_attempt
from zaqar_lite.domain.models import NO_RETRIES, DeadLetter, Move, Origin, QueueRef, RetryPolicy
from zaqar_lite.domain.settlements import Act, Outcome, Settled, Settlement
from zaqar_lite.storage.opendata import due, history
from zaqar_lite.storage.opendata.entries import MAX_ATTEMPTS, MAX_CONSUMERS, Claim, Entry
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.records import Kept, encode_attempt
from zaqar_lite.storage.opendata.paging import cold_of_claim, prepared
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import cold_of_ids, find_live
from zaqar_lite.storage.opendata.state import State

# Looking up a member of an Enum costs as much as calling a function.
_ACK, _RELEASE, _EXTEND = Act.ACK, Act.RELEASE, Act.EXTEND
_origin_put_back = lru_cache(256)(Origin.put_back)  # what died at once has one origin, and keeps it
_DONE, _NOT_FOUND = Outcome.DONE, Outcome.NOT_FOUND

MOST_LAPSES = 200
"""How many lapsed leases one step ends at most."""


class Step(NamedTuple):
    """The queue and the instant of an operation, and what happens to messages that fail."""

    db: State
    queue: Queue
    now: int
    retries: RetryPolicy


class _End(NamedTuple):
    """How and when a hand-out ends."""

    outcome: Ended
    at: int
    reason: str | None = None
    detail: str | None = None


async def settle(  # noqa: PLR0917 - the seam's values
    db: State,
    ref: QueueRef,
    claim_id: str,
    settlements: Sequence[Settlement],
    retries: RetryPolicy,
    version: int | None,
) -> Settled:
    """Settle messages of a claim; see the seam."""
    ids = [settlement.message_id for settlement in settlements]
    queue, now = await prepared(db, ref, version, cold_of_ids(db, ids))
    if queue is None:
        return Settled([Outcome.NOT_FOUND] * len(settlements))
    step = Step(db, queue, now, retries)
    settled = [_settle(step, claim_id, settlement) for settlement in settlements]
    outcomes = [outcome for outcome, _ in settled]
    await db.finish(queue, changed=Outcome.DONE in outcomes)
    return Settled(outcomes, sum(moved for _, moved in settled))


async def release(db: State, ref: QueueRef, claim_id: str, delay_ms: int) -> None:
    """End a claim; see the seam."""
    queue, now = await prepared(db, ref, None, cold_of_claim(claim_id))
    if queue is None:
        return
    held = due.live(queue, queue.claims.get(claim_id), now)
    step = Step(db, queue, now, NO_RETRIES)
    for entry in held:
        _give_back(step, entry, _End(Ended.RELEASED, now), delay_ms)
    await db.finish(queue, changed=held)


def end_lapsed(step: Step, limit: int) -> tuple[int, int]:
    """End up to `limit` lapsed leases, each of which is a failure.

    Answers how many, and how many of the messages became dead letters.
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
    """Apply a settlement; answer its outcome, and how many messages became dead letters."""
    db, queue, now, retries = step
    entry = find_live(db, queue, settlement.message_id, now)
    if entry is None:
        return _NOT_FOUND, 0
    holder = entry.holder(now)
    if holder is None or holder.id != claim_id:
        return _not_held(entry, holder, claim_id, settlement), 0
    moved, act = 0, settlement.act
    if act is _ACK:
        if history.keeps_done(queue):
            history.record_done(db, queue, entry, now, holder.client_id)
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
        move(db, queue, entry, letter, now, reason)
        moved = 1
    return _DONE, moved


def _not_held(entry: Entry, holder: Claim | None, claim_id: str, settlement: Settlement) -> Outcome:
    """The outcome of a settlement by a claim that does not hold the entry."""
    if holder is not None:
        return Outcome.HELD
    extras = entry.extras
    is_lapsed = entry.claim is not None and bool(entry.claim.ttl_ms)
    if is_lapsed or extras is None or extras.last_claim is None:
        return Outcome.LAPSED
    by_this = extras.last_claim.hex() == claim_id
    was_released = extras.last_ended in (Ended.RELEASED, Ended.FAILED)
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
    """Count the failure of a claimed entry, which becomes a dead letter or is tried again."""
    extras = entry.ensure_extras()
    extras.failures += 1
    letter: DeadLetter | None = step.retries.dead_letter
    spent = letter and letter.spent(entry.attempts, extras.failures)
    if letter is None or not spent:
        _give_back(step, entry, end, wait_ms)
        return 0
    _end(step, entry, end, 0)
    move(step.db, step.queue, entry, letter, step.now, spent)
    return 1


def _give_back(step: Step, entry: Entry, end: _End, delay_ms: int) -> None:
    """End a hand-out and make the entry ready, or park it until the delay ends."""
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
    """Take an entry out of its claim and record the attempt."""
    db, queue, _, _ = step
    claim = entry.claim
    if claim is None:
        return
    due.detach(queue, entry, claim)
    extras = entry.ensure_extras()
    extras.last_claim, extras.last_ended = claim.raw, end.outcome
    extras.consumers = (*extras.consumers, claim.client_id)[-MAX_CONSUMERS:]
    attempt = Attempt(
        entry.attempts, claim.claimed_at, end.at, end.outcome, delay_ms, end.reason, end.detail,
        claim.client_id,
    )  # fmt: skip
    if not extras.history:
        extras.history = db.ids.take(1, db.puts)
    number = attempt.number  # a redriven message counts from 1 again
    if extras.kept and extras.kept[-1].number >= number:
        number = min(extras.kept[-1].number + 1, MAX_ATTEMPTS)
    before = [kept for kept in extras.kept if kept.number != number]
    extras.kept = with_attempt(before, Kept(number, attempt.size))
    db.put(keys.attempt_key(extras.history, number), encode_attempt(attempt))
    for gone in before:
        if gone not in extras.kept:
            db.delete(keys.attempt_key(extras.history, gone.number))
    queue.changed_attempts.append(entry)


async def move_messages(db: State, ref: QueueRef, ids: Sequence[str], how: Move) -> list[Outcome]:
    """Move messages to another queue; see the seam."""
    if not db.shares.joins(ref.project, len(ids)):
        await db.shares.wait(ref.project, len(ids))
    queue, now = await prepared(db, ref, None, cold_of_ids(db, ids))
    if queue is None:
        return [Outcome.NOT_FOUND] * len(ids)
    outcomes = []
    for message_id in ids:
        entry = find_live(db, queue, message_id, now)
        if entry is None:
            outcomes.append(Outcome.NOT_FOUND)
        elif entry.claim is not None or (entry.extras and entry.extras.parked_until > now):
            outcomes.append(Outcome.HELD)
        else:
            _put_back(db, queue, entry, how, now)
            outcomes.append(Outcome.DONE)
    if Outcome.DONE in outcomes:
        db.changed(db.queues.make(how.target))
    await db.finish(queue, changed=Outcome.DONE in outcomes)
    return outcomes


def _wait(step: Step, entry: Entry, delay_ms: int | None) -> int:
    """How long an entry waits after this failure: as requested, else by the back-off."""
    if delay_ms is not None:
        return delay_ms
    backoff = step.retries.backoff
    failures = 1 if entry.extras is None else entry.extras.failures + 1
    return 0 if backoff is None else backoff.delay_ms(failures, random())  # noqa: S311 - jitter


def move(  # noqa: PLR0917 - the entry, its source and target, and the reason
    db: State, queue: Queue, entry: Entry, policy: DeadLetter, now: int, reason: str
) -> None:
    """Move an entry that is counted in no state to its dead-letter queue or the failed list.

    Source and target change in one batch.
    """
    if policy.target is None:
        queue.leave(entry)
        db.changed(queue)
        history.record(db, queue, queue.failed, entry, now)
        return
    extras = entry.ensure_extras()
    extras.origin = _origin(queue, entry, now, reason)
    if policy.ttl_ms is not None:
        entry.ttl_ms, entry.expires_at = policy.ttl_ms, now + policy.ttl_ms
    db.changed(queue)
    db.changed(_carry(db, queue, entry, policy.target))
    db.announce(policy.target, 1)


def _put_back(db: State, queue: Queue, entry: Entry, how: Move, now: int) -> None:
    """Move an entry that nobody holds as a request says.

    Both queues have changed then; the caller notes this.
    """
    queue.uncount(entry)
    extras = entry.ensure_extras()
    extras.origin = _origin_put_back(extras.origin or _origin(queue, entry, now, MOVED))
    if how.reset:
        entry.attempts = extras.failures = 0
    entry.ttl_ms, entry.expires_at = how.ttl_ms, now + how.ttl_ms
    entry.visible_at = now + how.delay_ms if how.delay_ms else 0
    entry.delayed = bool(how.delay_ms)
    _carry(db, queue, entry, how.target)
    db.announce(how.target, 0 if how.delay_ms else 1)


def _origin(queue: Queue, entry: Entry, now: int, reason: str) -> Origin:
    extras = entry.ensure_extras()
    return Origin(
        queue.ref.name,
        now,
        entry.attempts,
        None if extras.last_claim is None else extras.last_claim.hex(),
        extras.consumers[-1] if extras.consumers else None,
        reason,
        0 if extras.origin is None else extras.origin.redriven,
    )


def _carry(db: State, queue: Queue, entry: Entry, ref: QueueRef) -> Queue:
    """Take an entry that is counted in no state to another queue, with its extras."""
    queue.leave(entry)
    queue.removed.pop()  # the payload stays: the entry keeps it
    before, name = entry.ensure_extras(), entry.shown_id
    if entry.attempts or before.consumers:
        db.delete(keys.attempts_key(name, queue.raw))
    target = db.queues.make(ref)
    # A copied message may be in the target already: then this entry gets another id there.
    entry.position = db.ids.take(1, db.puts)
    before.renamed = before.renamed or _has_id(target, name)
    entry.page = target.tail(entry.position)
    target.add(entry)
    if before.consumers:
        target.changed_attempts.append(entry)
    return target


def _has_id(queue: Queue, shown_id: int) -> bool:
    """Whether a queue shows a message under this id already: one that was copied into it."""
    page = queue.page_of(queue.moved.get(shown_id, shown_id))
    if page is not None and page.summary is not None:
        return shown_id in page.summary.shared
    return queue.find_shown(shown_id) is not None

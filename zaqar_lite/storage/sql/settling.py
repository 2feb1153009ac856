"""How messages leave a claim or a queue: settlements, dead letters, deletes and moves."""

from collections.abc import Collection, Sequence

from zaqar_lite.domain.attempts import MOVED
from zaqar_lite.domain.models import Move, Origin, QueueRef, Refusal, RetryPolicy
from zaqar_lite.domain.refusals import delete_refusal
from zaqar_lite.domain.settlements import (
    PARKED_MARGIN_MS,
    Act,
    Ending,
    HandOut,
    Outcome,
    Settled,
    Settlement,
)
from zaqar_lite.storage.sql import claims, entries, history
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.entries import DELAYED, END_NUMBERS, ENDED, LEASED, PARKED, READY, Entry
from zaqar_lite.storage.sql.queues import Queue


def settle(
    db: Database,
    queue: Queue,
    claim_id: str,
    settlements: Sequence[Settlement],
    retries: RetryPolicy,
) -> Settled:
    """Do to each message of a claim what its settlement says; see the seam."""
    now, claim = db.clock.now_ms(), claims.number_of(claim_id)
    found = claims.find_claim(db, queue, claim_id)
    client = "" if found is None else found.client
    here = entries.find(db, queue, [one.message_id for one in settlements], now)
    outcomes: list[Outcome] = []
    acked: list[Entry] = []
    ended: list[tuple[Entry, Ending]] = []
    extended: dict[tuple[int, int], list[Entry]] = {}
    for wanted in settlements:
        entry, act, outcome = here.get(wanted.message_id), wanted.act, Outcome.DONE
        if entry is None:
            outcome = Outcome.NOT_FOUND
        elif (holder := entry.holder(now)) != claim:
            outcome = wanted.without_lease(
                is_held=holder is not None,
                is_last_claim=entry.claim == claim,
                ended=None if entry.last_end is None else ENDED[entry.last_end],
            )
        elif act is Act.ACK:
            acked.append(entry)
        elif act is Act.EXTEND:
            extended.setdefault((wanted.ttl_ms, wanted.grace_ms), []).append(entry)
        elif act is Act.DEAD and retries.dead_letter is None:
            outcome = Outcome.NO_TARGET
        else:
            ended.append((entry, Ending.by(wanted, now, retries)))
        outcomes.append(outcome)
    if acked and queue.keeps_done:
        history.append(db, queue, history.DONE, acked, now, client)
    entries.remove(db, queue, acked)
    for (ttl_ms, grace_ms), held in extended.items():
        db.touch(queue)
        claims.extend(db, queue, held, now, ttl_ms, grace_ms)
        until = now + ttl_ms
        if db.watchers and until < min(one.until for one in held):
            db.announce(queue.ref, 0)
        queue.ready_at = min(queue.ready_at, until)
        shorten = "UPDATE claim SET ends = min(ends, ?), is_even = 0 WHERE id = ?"
        db.execute(shorten, (until, claim))
    return Settled(outcomes, end_hand_outs(db, queue, ended, client, now))


def settle_all(
    db: Database, queue: Queue, claim_id: str, settlement: Settlement, retries: RetryPolicy
) -> Settled:
    """End a claim, or let it begin anew; see the seam."""
    found, now = claims.find_claim(db, queue, claim_id), db.clock.now_ms()
    moved, is_done = 0, False
    if found is not None and settlement.act is Act.EXTEND:
        is_done = claims.renew(db, queue, found, now, settlement.ttl_ms, settlement.grace_ms)
    elif found is not None:
        held = [one for one in found.held(db, queue) if one.until > now]
        ending = Ending.by(settlement, now, retries)
        moved = end_hand_outs(db, queue, [(one, ending) for one in held], found.client, now)
        is_done = bool(held)
    return Settled([Outcome.DONE if is_done else Outcome.NOT_FOUND], moved)


def end_hand_outs(
    db: Database, queue: Queue, endings: Sequence[tuple[Entry, Ending]], client: str, now: int
) -> int:
    """End hand-outs that `client` had: ready again, parked, or dead letters.

    Answers how many became dead letters.
    """
    if not endings:
        return 0
    entries.leave_state(db, queue, [entry for entry, _ in endings])
    rows = []
    ready = moved = 0
    for entry, ending in endings:
        hand_out = HandOut(entry.claims, entry.claimed_at, client, entry.failures)
        result = ending.apply(hand_out)
        entries.add_attempt(db, entry, result.attempt)
        last_end = END_NUMBERS[ending.outcome]
        if result.letter_reason:
            failed = entry._replace(failures=result.failures, last_end=last_end, has_attempts=1)
            bury(db, queue, failed, ending.retries, result.letter_reason, now, client)
            moved += 1
            continue
        until, state = 0, READY
        if result.ready_at > now:
            until, state = result.ready_at, PARKED
            queue.ready_at = min(queue.ready_at, until)
            if entry.expires < until + PARKED_MARGIN_MS:
                expires = until + PARKED_MARGIN_MS
                entries.raise_ttl(db, queue, (entry.position,), expires - now, expires)
        else:
            ready += 1
        rows.append((state, until, result.failures, last_end, queue.content, entry.position))
    db.executemany(
        "UPDATE entry SET state = ?, until = ?, failures = ?, last_end = ?, has_attempts = 1"
        " WHERE queue = ? AND position = ?",
        rows,
    )
    queue.ready += ready
    queue.parked += len(rows) - ready
    if db.watchers and rows:
        db.announce(queue.ref, ready)
    return moved


def bury(  # noqa: PLR0917 - which message of which queue, why, when, and who held it last
    db: Database,
    queue: Queue,
    entry: Entry,
    retries: RetryPolicy,
    reason: str,
    now: int,
    client: str | None = None,
) -> None:
    """Move a message to the dead letters: another queue, or this queue's list of failed ones.

    It has left its state (`leave_state`).
    """
    letter = retries.dead_letter
    if letter is None or letter.target is None:
        history.append(db, queue, history.FAILED, [entry], now)
        entries.delete(db, queue, [entry])
        return
    origin = _origin(db, queue, entry, reason, now, client)
    ttl_ms, expires = entry.ttl, entry.expires
    if letter.ttl_ms is not None:
        ttl_ms, expires = letter.ttl_ms, now + letter.ttl_ms
    moved = entry._replace(
        state=READY, until=0, ttl=ttl_ms, expires=expires, origin=entries.encode(origin).decode()
    )
    _put_into(db, queue, entry, letter.target, moved, now)


def _origin(  # noqa: PLR0917 - as `bury`
    db: Database, queue: Queue, entry: Entry, reason: str, now: int, client: str | None = None
) -> Origin:
    """Where a message comes from that leaves a queue now; `client` is who held it last."""
    if client is None and entry.has_attempts:
        ended = entries.kept_of(db, entry.id).attempts
        client = ended[-1].client_id if ended else None
    return Origin(
        queue.ref.name,
        now,
        entry.claims,
        None if entry.claim is None else entry.claim.hex(),
        client,
        reason,
        0 if entry.origin is None else entries.decode_origin(entry.origin).redriven,
    )


def _put_into(  # noqa: PLR0917 - what goes from where to where, and when
    db: Database, queue: Queue, entry: Entry, ref: QueueRef, moved: Entry, now: int
) -> None:
    """Let an entry that has left its state enter another queue, as `moved`, at a new position."""
    target = db.make_queue(ref)
    db.touch(target)
    position = db.take_positions(1, now * 1000)
    db.execute(
        "UPDATE entry SET queue = ?, position = ?, moved = 1, state = ?, until = ?, due = ?,"
        " ttl = ?, expires = ?, claims = ?, failures = ?, last_end = ?, has_attempts = ?,"
        " origin = ? WHERE queue = ? AND position = ?",
        (
            target.content, position, moved.state, moved.until, moved.due, moved.ttl,
            moved.expires, moved.claims, moved.failures, moved.last_end, moved.has_attempts,
            moved.origin, queue.content, entry.position,
        ),
    )  # fmt: skip
    queue.bytes -= entry.size
    target.bytes += entry.size
    target.over_at = min(target.over_at, moved.expires)
    if moved.state == DELAYED:
        target.delayed += 1
        target.ready_at = min(target.ready_at, moved.due)
    else:
        target.ready += 1
    db.announce(ref, int(moved.state == READY))


def move(db: Database, queue: Queue, ids: Sequence[str], wanted: Move) -> Sequence[Outcome]:
    """Move messages that nobody holds to another queue; see the seam."""
    db.check_growth()
    now = db.clock.now_ms()
    here = entries.find(db, queue, ids, now)
    outcomes = []
    for message_id in ids:
        entry = here.get(message_id)
        if entry is None:
            outcomes.append(Outcome.NOT_FOUND)
        elif entry.state == LEASED or (entry.state == PARKED and entry.until > now):
            outcomes.append(Outcome.HELD)
        else:
            entries.leave_state(db, queue, [entry])
            _put_into(db, queue, entry, wanted.target, _moved(db, queue, entry, wanted, now), now)
            outcomes.append(Outcome.DONE)
    return outcomes


def _moved(db: Database, queue: Queue, entry: Entry, wanted: Move, now: int) -> Entry:
    """An entry as it enters the queue that it is moved to on demand."""
    if entry.origin is not None:
        origin = entries.decode_origin(entry.origin)
    else:
        origin = _origin(db, queue, entry, MOVED, now)
    return entry._replace(
        state=DELAYED if wanted.delay_ms else READY,
        due=now + wanted.delay_ms if wanted.delay_ms else 0,
        ttl=wanted.ttl_ms,
        expires=now + wanted.ttl_ms,
        claims=0 if wanted.reset else entry.claims,
        failures=0 if wanted.reset else entry.failures,
        origin=entries.encode(origin.put_back()).decode(),
    )


def delete(
    db: Database, queue: Queue, ids: Collection[str], claim_ids: Collection[str] | None
) -> Sequence[Refusal]:
    """Delete messages, all or none; see the seam."""
    now = db.clock.now_ms()
    found = list(entries.find(db, queue, ids, now).values())
    if claim_ids is not None:
        refused = []
        for entry in found:
            holder = entry.holder(now)
            reason = delete_refusal(None if holder is None else holder.hex(), claim_ids)
            if reason is not None:
                refused.append(Refusal(entry.id.hex(), reason))
        if refused:
            return refused
    if queue.keeps_done:
        for entry in found:
            holder = entry.holder(now)
            if holder is not None:
                held_by = claims.find_claim(db, queue, holder.hex())
                client = None if held_by is None else held_by.client
                history.append(db, queue, history.DONE, [entry], now, client)
    entries.remove(db, queue, found)
    return ()

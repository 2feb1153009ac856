"""Handing out: claims take ready messages, and lapsed leases come back.

Entries are taken from the index `ready` in order. Nothing else in the queue is looked at, except
what time has ended since: lapsed leases, ended parkings and, on a delayed queue, ended delays.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from zaqar_lite.domain.attempts import MAX_CLAIMS
from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.limits import MAX_PAGE_BYTES
from zaqar_lite.domain.models import (
    Claimed,
    ClaimRequest,
    DelayMode,
    Message,
    RetryPolicy,
)
from zaqar_lite.domain.settlements import Ending
from zaqar_lite.storage.sql import claims, entries, expiring, history, settling
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.entries import MESSAGE
from zaqar_lite.storage.sql.queues import Queue

_MOST_DUE, _MOST_LAPSED = 40, 20
"""The most messages whose wait is over, and the most lapsed leases, that one claim ends."""
_MOST_SKIPPED = 40
"""The most expired and exhausted messages, and lapsed leases, that one claim ends: about 0.4 ms."""

_READY = f"""SELECT {MESSAGE} FROM entry e INDEXED BY ready CROSS JOIN body b ON b.number = e.body
    WHERE e.queue = ? AND e.state = 0 ORDER BY e.priority, e.position LIMIT ?"""
# A normal queue: `d` is not read at all.
_READY_WITHOUT_DUE = _READY.replace("e.due", "0")


def has_nothing(db: Database, queue: Queue | None) -> bool:
    """Whether a claim would find nothing and change nothing, so that no batch is needed."""
    return queue is None or (not queue.ready and queue.ready_at > db.clock.now_ms())


def claim(db: Database, queue: Queue, request: ClaimRequest) -> Claimed:
    """Hand out ready messages under a new claim, or for good; see the seam."""
    now = db.clock.now_ms()
    claimed = _take(db, queue, now, request)
    messages = claimed.messages
    if not messages:
        return claimed
    if request.details:
        entries.with_attempts(db, messages)
    if request.removes:
        popped = entries.entries_at(db, queue, [one.position for one in messages])
        if queue.keeps_done:
            history.append(db, queue, history.DONE, popped, now)
        entries.remove(db, queue, popped)
        return claimed
    claim_id = claimed.claim_id = new_claim_id()
    number, until = bytes.fromhex(claim_id), now + request.ttl_ms
    positions = [message.position for message in messages]
    for values, text in entries.in_lists(positions):
        db.execute(
            "UPDATE entry SET state = 2, until = ?, claims = claims + 1, claim = ?,"
            " claimed_at = ?, last_end = NULL"
            f" WHERE queue = ? AND position IN ({text})",
            (until, number, now, queue.content, *values),
        )
    db.execute(
        "INSERT INTO claim VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?)",
        (
            number, queue.content, request.client_id, now, request.ttl_ms, until, len(positions),
            array("q", positions).tobytes(),
        ),
    )  # fmt: skip
    short = [message for message in messages if message.expires_at < until]
    if short:
        ttl_ms = request.ttl_ms + request.grace_ms
        entries.raise_ttl(db, queue, [one.position for one in short], ttl_ms, now + ttl_ms)
        for message in short:
            message.ttl_ms, message.expires_at = ttl_ms, now + ttl_ms
    for message in messages:
        message.claim_id = claim_id
        message.claim_count += 1
    queue.ready -= len(messages)
    queue.leased += len(messages)
    queue.ready_at = min(queue.ready_at, until)
    if db.watchers:
        db.announce(queue.ref, 0)
    return claimed


def _take(db: Database, queue: Queue, now: int, request: ClaimRequest) -> Claimed:
    """Choose up to `limit` ready messages, examining a bounded number."""
    db.touch(queue)
    limit, letter = request.limit, request.retries.dead_letter
    honours = request.delay_mode is DelayMode.HONOUR
    ended = moved = 0
    if queue.ready_at <= now:
        ended, moved = end_lapsed(db, queue, now, _MOST_LAPSED, request.retries)
    if queue.ready_at <= now:
        expiring.end_waits(db, queue, now, _MOST_DUE, delays=honours)
    statement = _READY if honours else _READY_WITHOUT_DUE
    most_claims = None if letter is None else letter.max_claims
    taken: list[Message] = []
    if queue.ready:
        most_skipped = max(0, _MOST_SKIPPED - ended)
        rows = db.execute(statement, (queue.content, limit + most_skipped))
        taken, expired, exhausted = _sort_out(rows, limit, most_skipped, now, most_claims)
        entries.remove(db, queue, entries.entries_at(db, queue, expired))
        letters = {one.position: one for one in entries.entries_at(db, queue, exhausted)}
        entries.leave_state(db, queue, letters.values())
        for position in exhausted:  # in the order in which they would be handed out
            settling.bury(db, queue, letters[position], request.retries, MAX_CLAIMS, now)
            moved += 1
    more = len(taken) < limit and (
        queue.ready > len(taken)
        # `ready_at` is also of what is not honoured
        or (queue.ready_at <= now and expiring.next_ready(db, queue, delays=honours) <= now)
    )
    return Claimed(None, taken, moved, more)


def _sort_out(
    rows: Iterable[Sequence[Any]], limit: int, most_skipped: int, now: int, most_claims: int | None
) -> tuple[list[Message], list[int], list[int]]:
    """What can be handed out, and the positions of what has expired or is exhausted before it.

    Not all rows are read: those of large bodies take their time.
    """
    taken: list[Message] = []
    expired: list[int] = []
    exhausted: list[int] = []
    size = 0
    for row in rows:
        message = entries.message_of(row, now)
        if message.expires_at <= now:
            expired.append(message.position)
        elif most_claims is not None and message.claim_count >= most_claims:
            exhausted.append(message.position)
        else:
            taken.append(message)
            size += len(message.body)
            if len(taken) == limit or size >= MAX_PAGE_BYTES:
                break
        if len(expired) + len(exhausted) > most_skipped:
            break
    return taken, expired, exhausted


def end_lapsed(
    db: Database, queue: Queue, now: int, limit: int, retries: RetryPolicy
) -> tuple[int, int]:
    """End up to `limit` lapsed leases, those of the oldest claims first; each is a failure.

    Answers how many were ended, and how many of their messages became dead letters.
    """
    db.touch(queue)
    rows = db.execute(
        f"{claims.SELECT} INDEXED BY lapsing WHERE queue = ? AND ends <= ? ORDER BY ends LIMIT ?",
        (queue.content, now, limit),
    ).fetchall()
    if not rows:
        return 0, 0
    ended = moved = 0
    for found in map(claims.LiveClaim._make, rows):
        held = found.held(db, queue)
        lapsed = [one for one in held if one.until <= now]
        live = [one.until for one in held if one.until > now]
        if live and len(lapsed) <= limit - ended:
            db.execute(
                "UPDATE claim SET ends = ?, is_even = 0 WHERE id = ?", (min(live), found.number)
            )
        elif not held:  # nothing keeps it; a settled claim goes with its last message
            db.execute("DELETE FROM claim WHERE id = ?", (found.number,))
        lapsed = lapsed[: limit - ended]
        entries.remove(db, queue, [one for one in lapsed if one.expires <= now])
        endings = [
            (one, Ending.by_lapse(one.until, retries)) for one in lapsed if one.expires > now
        ]
        moved += settling.end_hand_outs(db, queue, endings, found.client, now)
        ended += len(lapsed)
        if ended >= limit:
            break
    queue.ready_at = expiring.next_ready(db, queue)
    return ended, moved


def lapsed_count(db: Database, queue: Queue, now: int) -> int:
    """How many leases have lapsed that nothing has met yet."""
    if queue.ready_at > now:
        return 0
    even, *_ = db.execute(
        "SELECT sum(held) FROM claim INDEXED BY lapsing"
        " WHERE queue = ? AND ends <= ? AND is_even = 1",
        (queue.content, now),
    ).fetchone()
    uneven = db.execute(
        f"{claims.SELECT} INDEXED BY lapsing WHERE queue = ? AND ends <= ? AND is_even = 0",
        (queue.content, now),
    ).fetchall()
    held = [one for row in uneven for one in claims.LiveClaim._make(row).held(db, queue)]
    return int(even or 0) + sum(one.until <= now for one in held)

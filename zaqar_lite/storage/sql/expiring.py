"""What time brings to a queue: what is over goes, and what waits no more becomes ready.

Each is a bounded step through an index. Leases end elsewhere (`claiming.py`), since what becomes of
a message then is for the queue's policy to say.
"""

from collections.abc import Callable

from zaqar_lite.domain.models import QueueRef, SweepResult
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.sql import entries, history
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.queues import NEVER, Queue

_STEP = MAX_EXAMINED // 20
"""The most of each kind that one step of `tidy` ends."""

_DELAYED = "SELECT position FROM entry INDEXED BY delayed WHERE state = 1 AND queue = ?"
_PARKED = "SELECT position FROM entry INDEXED BY parked WHERE state = 3 AND queue = ?"
_NEXT_EXPIRY = "SELECT min(expires) FROM entry INDEXED BY expiring WHERE queue = ?"
_NEXT_DELAY = "SELECT min(due) FROM entry INDEXED BY delayed WHERE state = 1 AND queue = ?"
_NEXT_PARKING = "SELECT min(until) FROM entry INDEXED BY parked WHERE state = 3 AND queue = ?"
_NEXT_LAPSE = "SELECT min(ends) FROM claim INDEXED BY lapsing WHERE queue = ?"
_NEXT_KEY = "SELECT min(ends) FROM idempotency INDEXED BY ending_key WHERE queue = ?"


async def tidy(
    db: Database, ref: QueueRef, is_enough: Callable[[Queue], bool] = lambda _: False
) -> bool:
    """Let time have its effect on a queue in bounded steps, until that `is_enough`.

    Leases stay as they are. Answers whether anything was over or waited no more.
    """
    now, has_changed = db.clock.now_ms(), False
    while True:
        await db.pass_gate()
        queue = db.queue(ref)
        if queue is None or queue.changes_at > now or is_enough(queue):
            return has_changed
        done = await db.change_queue(ref, None, SweepResult(), end, now, _STEP)
        if not done.total:  # only leases have lapsed
            return has_changed
        has_changed = True
        await next_turn()


def end(db: Database, queue: Queue, now: int, limit: int) -> SweepResult:
    """Remove up to `limit` of each kind that is over, and make as many ready that wait no more."""
    db.touch(queue)
    expired = ready = forgotten = 0
    if queue.over_at <= now:
        expired = _expire(db, queue, now, limit)
        forgotten = forget_keys(db, queue, now, limit) + history.trim(db, queue, now, limit)
        next_expiry = entries.first_of(db, _NEXT_EXPIRY, (queue.content,))
        queue.over_at = min(next_expiry, next_key_end(db, queue), history.next_end(db, queue))
    if queue.ready_at <= now:
        ready = end_waits(db, queue, now, limit)
    if ready:
        db.announce(queue.ref, ready)
    return SweepResult(expired, ready, deleted=forgotten)


def _expire(db: Database, queue: Queue, now: int, limit: int) -> int:
    found = entries.entries_where(
        db,
        "INDEXED BY expiring WHERE queue = ? AND expires <= ? ORDER BY expires LIMIT ?",
        (queue.content, now, limit),
    )
    entries.remove(db, queue, found)
    return len(found)


def end_waits(db: Database, queue: Queue, now: int, limit: int, *, delays: bool = True) -> int:
    """Make up to `limit` messages ready whose parking, or delay, is over; answer how many."""
    parked = delayed = 0
    if queue.parked:
        parked = len(_make_ready(db, queue, f"{_PARKED} AND until <= ? ORDER BY until", now, limit))
        queue.parked -= parked
    if queue.delayed and delays:
        delayed = len(_make_ready(db, queue, f"{_DELAYED} AND due <= ? ORDER BY due", now, limit))
        queue.delayed -= delayed
    queue.ready_at = next_ready(db, queue)
    return parked + delayed


def next_ready(db: Database, queue: Queue, *, delays: bool = True) -> int:
    """When the first parking, lease or delay of a queue ends."""
    found = [NEVER]
    if queue.parked:
        found.append(entries.first_of(db, _NEXT_PARKING, (queue.content,)))
    if queue.leased:
        found.append(entries.first_of(db, _NEXT_LAPSE, (queue.content,)))
    if queue.delayed and delays:
        found.append(entries.first_of(db, _NEXT_DELAY, (queue.content,)))
    return min(found)


def release_delayed(db: Database, queue: Queue, limit: int) -> int:
    """Make up to `limit` delayed messages ready, whatever their `d`; answer how many.

    They are not delayed any more for anyone: a `d` that is ahead becomes now.
    """
    now = db.clock.now_ms()
    db.touch(queue)
    positions = _make_ready(db, queue, f"{_DELAYED} ORDER BY due", limit)
    db.executemany(
        "UPDATE entry SET due = ? WHERE queue = ? AND position = ? AND due > ?",
        [(now, queue.content, position, now) for position in positions],
    )
    queue.delayed -= len(positions)
    queue.ready_at = next_ready(db, queue)
    db.announce(queue.ref, len(positions))
    return len(positions)


def _make_ready(db: Database, queue: Queue, entries_of: str, *values: int) -> list[int]:
    """Make entries of a queue ready, the first ones by an index; answer their positions."""
    found = db.execute(f"{entries_of} LIMIT ?", (queue.content, *values)).fetchall()
    positions = [position for (position,) in found]
    for some, text in entries.in_lists(positions):
        db.execute(
            f"UPDATE entry SET state = 0 WHERE queue = ? AND position IN ({text})",
            (queue.content, *some),
        )
    queue.ready += len(positions)
    return positions


def forget_keys(db: Database, queue: Queue, now: int, limit: int) -> int:
    """Forget up to `limit` idempotency keys whose window is over; answer how many."""
    if not queue.keys:
        return 0
    db.touch(queue)
    rows = db.execute(
        "SELECT kind, key FROM idempotency INDEXED BY ending_key WHERE queue = ? AND ends <= ?"
        " ORDER BY ends LIMIT ?",
        (queue.number, now, limit),
    ).fetchall()
    db.executemany(
        "DELETE FROM idempotency WHERE queue = ? AND kind = ? AND key = ?",
        [(queue.number, kind, key) for kind, key in rows],
    )
    queue.keys -= len(rows)
    return len(rows)


def next_key_end(db: Database, queue: Queue, now: int = -1) -> int:
    """When the next idempotency key of a queue ends that does not end until `now`."""
    return entries.first_of(db, f"{_NEXT_KEY} AND ends > ?", (queue.number, now))

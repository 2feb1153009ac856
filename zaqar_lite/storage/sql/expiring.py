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

_DELAYED = "SELECT position FROM entry INDEXED BY delayed WHERE state = 1 AND queue = ?1"
_PARKED = "SELECT position FROM entry INDEXED BY parked WHERE state = 3 AND queue = ?1"
_NEXT_EXPIRY = "SELECT min(expires) FROM entry INDEXED BY expiring WHERE queue = ?"
_NEXT_DELAY = "SELECT min(due) FROM entry INDEXED BY delayed WHERE state = 1 AND queue = ?"
_NEXT_PARKING = "SELECT min(until) FROM entry INDEXED BY parked WHERE state = 3 AND queue = ?"
_NEXT_LAPSE = "SELECT min(ends) FROM claim INDEXED BY lapsing WHERE queue = ?"
_NEXT_KEY = "SELECT min(ends) FROM idempotency INDEXED BY ending_key WHERE queue = ?"
_FORGET = """DELETE FROM idempotency WHERE queue = ?1 AND (kind, key) IN
    (SELECT kind, key FROM idempotency INDEXED BY ending_key
    WHERE queue = ?1 AND ends <= ?2 ORDER BY ends LIMIT ?3)"""


async def tidy(
    db: Database, ref: QueueRef, is_enough: Callable[[Queue], bool] = lambda _: False
) -> bool:
    """Let time have its effect on a queue in bounded steps, until that `is_enough`.

    Leases stay as they are. Answers whether anything was over or waited no more.
    """
    now, has_changed = db.clock.now_ms(), False
    while True:
        queue = await db.look(Database.queue, ref)
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
        parked = _make_ready(db, queue, now, limit, f"{_PARKED} AND until <= ?2 ORDER BY until")
        queue.parked -= parked
    if queue.delayed and delays:
        delayed = _make_ready(db, queue, now, limit, f"{_DELAYED} AND due <= ?2 ORDER BY due")
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
    db.touch(queue)
    released = _make_ready(db, queue, db.clock.now_ms(), limit, f"{_DELAYED} ORDER BY due")
    queue.delayed -= released
    queue.ready_at = next_ready(db, queue)
    db.announce(queue.ref, released)
    return released


def _make_ready(db: Database, queue: Queue, now: int, limit: int, entries_of: str) -> int:
    """Make entries of a queue ready, the first ones by an index; answer how many."""
    db.execute(
        "UPDATE entry SET state = 0, due = min(due, ?2) WHERE queue = ?1"
        f" AND position IN ({entries_of} LIMIT ?3)",
        (queue.content, now, limit),
    )
    changed = int(db.connection.changes())
    queue.ready += changed
    return changed


def forget_keys(db: Database, queue: Queue, now: int, limit: int) -> int:
    """Forget up to `limit` idempotency keys whose window is over; answer how many."""
    if not queue.keys:
        return 0
    db.touch(queue)
    db.execute(_FORGET, (queue.number, now, limit))
    forgotten = int(db.connection.changes())
    queue.keys -= forgotten
    return forgotten


def next_key_end(db: Database, queue: Queue, now: int = -1) -> int:
    """When the next idempotency key of a queue ends that does not end until `now`."""
    return entries.first_of(db, f"{_NEXT_KEY} AND ends > ?", (queue.number, now))

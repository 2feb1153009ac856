"""What time brings to a queue: expired messages go, delays and parkings end, keys are forgotten.

Each is one bounded step through an index, and sets the queue's lower bound of the next instant.
"""

from zaqar_lite.storage.sql import entries
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.queues import Queue

_DELAYED = "SELECT position FROM entry INDEXED BY delayed WHERE state = 1 AND queue = ?"
_PARKED = "SELECT position FROM entry INDEXED BY parked WHERE state = 3 AND queue = ?"
_NEXT_EXPIRY = "SELECT min(expires) FROM entry INDEXED BY expiring WHERE queue = ?"
_NEXT_DELAY = "SELECT min(due) FROM entry INDEXED BY delayed WHERE state = 1 AND queue = ?"
_NEXT_PARKING = "SELECT min(until) FROM entry INDEXED BY parked WHERE state = 3 AND queue = ?"
_NEXT_KEY = "SELECT min(ends) FROM idempotency INDEXED BY ending_key WHERE queue = ?"


def expire(db: Database, queue: Queue, now: int, limit: int) -> int:
    """Remove up to `limit` expired messages; answer how many."""
    if queue.expiry_at > now:
        return 0
    db.touch(queue)
    found = entries.entries_where(
        db,
        "INDEXED BY expiring WHERE queue = ? AND expires <= ? ORDER BY expires LIMIT ?",
        (queue.content, now, limit),
    )
    entries.remove(db, queue, found)
    if len(found) < limit:
        queue.expiry_at = entries.first_of(db, _NEXT_EXPIRY, (queue.content,))
    return len(found)


def end_waits(db: Database, queue: Queue, now: int, limit: int, *, delays: bool = True) -> int:
    """Make up to `limit` messages ready whose parking, or delay, is over; answer how many."""
    parked = delayed = 0
    if queue.parked_at <= now:
        parked = len(_make_ready(db, queue, f"{_PARKED} AND until <= ? ORDER BY until", now, limit))
        queue.parked -= parked
        if parked < limit:
            queue.parked_at = entries.first_of(db, _NEXT_PARKING, (queue.content,))
    if delays and queue.delayed_at <= now:
        delayed = len(_make_ready(db, queue, f"{_DELAYED} AND due <= ? ORDER BY due", now, limit))
        queue.delayed -= delayed
        if delayed < limit:
            queue.delayed_at = entries.first_of(db, _NEXT_DELAY, (queue.content,))
    return parked + delayed


def tidy(db: Database, queue: Queue, now: int, limit: int) -> tuple[int, int]:
    """Remove what has expired, and make ready what waits no more, up to `limit` of each.

    Answers how many expired, and how many became ready.
    """
    expired, ready = expire(db, queue, now, limit), end_waits(db, queue, now, limit)
    if ready:
        db.announce(queue.ref, ready)
    return expired, ready


def release_delayed(db: Database, queue: Queue, limit: int) -> int:
    """Make up to `limit` delayed messages ready, whatever their `d`; answer how many.

    They are not delayed any more for anyone: a `d` that is ahead becomes now.
    """
    now = db.clock.now_ms()
    positions = _make_ready(db, queue, f"{_DELAYED} ORDER BY due", limit)
    db.executemany(
        "UPDATE entry SET due = ? WHERE queue = ? AND position = ? AND due > ?",
        [(now, queue.content, position, now) for position in positions],
    )
    queue.delayed -= len(positions)
    queue.delayed_at = entries.first_of(db, _NEXT_DELAY, (queue.content,))
    db.announce(queue.ref, len(positions))
    return len(positions)


def _make_ready(db: Database, queue: Queue, entries_of: str, *values: int) -> list[int]:
    """Make entries of a queue ready, the first ones by an index; answer their positions."""
    db.touch(queue)
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
    if queue.keys_at > now:
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
    if len(rows) < limit:
        queue.keys_at = next_key_end(db, queue)
    return len(rows)


def next_key_end(db: Database, queue: Queue) -> int:
    """When the next idempotency key of a queue is forgotten."""
    return entries.first_of(db, _NEXT_KEY, (queue.number,))

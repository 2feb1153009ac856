"""What becomes due in a queue as time goes on: expiry, the lapse of claims, the end of delays."""

from heapq import heappop, heappush
from itertools import islice

from zaqar_lite.storage.opendata.entries import NEVER, Entry
from zaqar_lite.storage.opendata.queue import POSITION_BITS, POSITION_MASK, Queue

UNBOUNDED = 1 << 62


def settle(queue: Queue, now: int) -> None:
    """Bring expiry and lapses up to `now`."""
    if queue.expiries and queue.expiries[0][0] <= now:
        expire(queue, now)
    if queue.lapses and queue.lapses[0][0] <= now:
        lapse(queue, now)


def expire(queue: Queue, now: int, limit: int = UNBOUNDED) -> int:
    """Remove up to `limit` entries whose deadline has come; answer how many."""
    count = 0
    while count < limit and queue.expiries and queue.expiries[0][0] <= now:
        least, _, page = heappop(queue.expiries)
        if page.cold:
            queue.due_pages.append(page)
            continue
        if least != page.min_expires or not page.entries:
            continue
        queue.examined += len(page.entries)
        expired = (entry for entry in page.entries.values() if entry.expires_at <= now)
        gone = list(islice(expired, limit - count))
        for entry in gone:
            queue.remove(entry)
        count += len(gone)
        page.min_expires = min((entry.expires_at for entry in page.entries.values()), default=NEVER)
        if page.entries:
            heappush(queue.expiries, (page.min_expires, page.first, page))
    return count


def lapse(queue: Queue, now: int, limit: int = UNBOUNDED) -> int:
    """End up to `limit` claims whose deadline has come; answer how many."""
    count = 0
    while count < limit and queue.lapses and queue.lapses[0][0] <= now:
        deadline, _, claim = heappop(queue.lapses)
        if queue.claims.get(claim.id) is not claim or claim.deadline != deadline:
            continue  # released, or renewed since
        queue.examined += len(claim.held)
        queue.end(claim)
        count += 1
    return count


def promote(queue: Queue, now: int, limit: int = UNBOUNDED) -> int:
    """Make up to `limit` entries ready whose delay is over; answer how many."""
    delayed = queue.delayed
    bound = (now + 1) << POSITION_BITS
    count = 0
    while count < limit and delayed and delayed[0] < bound:
        if _end_delay(queue, heappop(delayed)) is not None:
            count += 1
    return count


def expose(queue: Queue, now: int, limit: int) -> int:
    """Make up to `limit` delayed entries ready, whatever their delay; answer how many."""
    count = 0
    while count < limit and queue.delayed:
        entry = _end_delay(queue, heappop(queue.delayed))
        if entry is not None:
            entry.visible_at = min(entry.visible_at, now)
            queue.change(entry.page)
            count += 1
    return count


def _end_delay(queue: Queue, key: int) -> Entry | None:
    queue.examined += 1
    entry = queue.find(key & POSITION_MASK)
    if entry is None or not entry.delayed or entry.visible_at != key >> POSITION_BITS:
        return None  # removed, or delayed until another instant
    entry.delayed = False
    queue.delayed_count -= 1
    queue.make_ready(entry)
    return entry


def next_due(queue: Queue) -> int:
    """The earliest instant at which something here may be due."""
    return min(
        queue.expiries[0][0] if queue.expiries else NEVER,
        queue.lapses[0][0] if queue.lapses else NEVER,
        queue.delayed[0] >> POSITION_BITS if queue.delayed else NEVER,
        queue.keys.next_due(),
    )

"""What becomes due in a queue as time goes on: expiry, the end of delays and of parkings.

However much is due at once, one step of the event loop does a bounded part of it. Nothing waits for
the rest: an entry past its deadline and a lease past its own are over for everybody, whether or
not a step came to them. Only who is handed out next depends on the order of all that is ready: so
a claim first ends what has lapsed (`settling.py`: what becomes of that is the queue's policy), and
lets `gather` look which pages hold something whose wait is over. Such a page takes its place among
those that are claimed from, and its entries are made ready when it is next; the sweep does the
rest. A cold page whose whole wait is over is counted as ready without being read.
"""

from heapq import heappop, heappush
from itertools import islice

from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.opendata.entries import NEVER, POSITION_BITS, Page
from zaqar_lite.storage.opendata.leases import first_lapse
from zaqar_lite.storage.opendata.queue import Queue

STEP = MAX_EXAMINED
"""About how many entries one step looks at: some milliseconds of work."""


def settle(queue: Queue, now: int) -> bool:
    """Bring a queue up to `now`, or one step nearer; answer whether it is there.

    Afterwards what has expired is gone, keys too, and the pages with ended waits are found. Leases
    that have ended are left alone.
    """
    gather(queue, now, STEP)
    waiting, expiries, keys = queue.waiting, queue.expiries, queue.keys
    is_settled = not (waiting and waiting[0][0] <= now)
    if expiries and expiries[0][0] <= now:
        expire(queue, now, STEP)
        is_settled = is_settled and not (expiries and expiries[0][0] <= now)
    if keys.next_due() <= now:
        keys.forget(now, STEP)
        is_settled = is_settled and keys.next_due() > now
    return is_settled


def expire(queue: Queue, now: int, limit: int) -> int:
    """Remove up to `limit` entries whose deadline has come; answer how many.

    Cold pages with such entries are noted in `expired_pages`, for about as many entries.
    """
    count = looked_at = 0
    while count < limit and looked_at < limit and queue.expiries and queue.expiries[0][0] <= now:
        least, _, page = heappop(queue.expiries)
        if least != page.min_expires:
            looked_at += 1
            continue
        looked_at += page.count
        if page.cold is not None:
            page.min_expires = NEVER
            queue.expired_pages.append(page)
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


def gather(queue: Queue, now: int, limit: int) -> int:
    """Find up to `limit` pages in which a wait has ended; answer what is ready by that alone."""
    waiting, count = queue.waiting, 0
    for _ in range(limit):
        if not waiting or waiting[0][0] > now:
            break
        visible_at, first, page = heappop(waiting)
        if visible_at != page.next_visible:
            continue
        page.next_visible = NEVER
        queue.offer(page, page.best_waiting << POSITION_BITS | first)
        cold = page.cold
        if cold is None:
            queue.due[page] = None
        elif cold.last_visible > now:
            queue.half_due[page] = None
        else:
            ready = cold.ready + cold.delayed + cold.parked
            page.cold = cold._replace(ready=ready, delayed=0, parked=0)
            count += cold.delayed + cold.parked
            queue.ready_count += cold.delayed + cold.parked
            queue.delayed_count -= cold.delayed
            queue.parked_count -= cold.parked
    return count


def promote(queue: Queue, now: int, limit: int) -> int:
    """Make up to `limit` entries in memory ready whose wait is over; answer how many are.

    It looks at about as many; what is left for the next call is in pages that are due still.
    """
    count = gather(queue, now, limit)
    looked_at = 0
    while count < limit and looked_at < limit and queue.due:
        page = next(iter(queue.due))
        looked_at += len(page.entries)
        count += queue.wake(page, now, limit - count)
    return count


def expose(queue: Queue, now: int, limit: int) -> tuple[int, Page | None]:
    """Make up to `limit` delayed entries ready, whatever their delay.

    Answers how many, and a page that must be loaded before others are.
    """
    before = queue.delayed_count
    kept: list[Page] = []  # with nothing delayed in them
    needed: Page | None = None
    while needed is None and queue.delayed_count and before - queue.delayed_count < limit:
        if promote(queue, now, limit - before + queue.delayed_count) or queue.due:
            continue
        page = next(iter(queue.half_due), None) or _next_waiting(queue)
        if page is None:
            break
        if page.cold is not None and page.cold.delayed:
            needed = page
            continue
        left = limit - before + queue.delayed_count
        delayed = list(islice((e for e in page.entries.values() if e.delayed), left))
        for entry in delayed:
            if entry.visible_at > now:
                queue.change(page)
                entry.visible_at = now
        if delayed:
            queue.wake(page, now, len(page.entries))
        else:
            heappop(queue.waiting)
            kept.append(page)
    for page in kept:
        heappush(queue.waiting, (page.next_visible, page.first, page))
    return before - queue.delayed_count, needed


def _next_waiting(queue: Queue) -> Page | None:
    waiting = queue.waiting
    while waiting and waiting[0][0] != waiting[0][2].next_visible:
        heappop(waiting)
    return waiting[0][2] if waiting else None


def next_due(queue: Queue) -> int:
    """The earliest instant at which something here may be due to be done."""
    if queue.due:
        return 0
    return min(
        queue.expiries[0][0] if queue.expiries else NEVER,
        queue.waiting[0][0] if queue.waiting else NEVER,
        first_lapse(queue),
        queue.keys.next_due(),
    )


def ripens_at(queue: Queue) -> int:
    """The earliest instant at which an entry may become ready by time."""
    if queue.due or queue.half_due:
        return 0
    return min(first_lapse(queue), queue.waiting[0][0] if queue.waiting else NEVER)

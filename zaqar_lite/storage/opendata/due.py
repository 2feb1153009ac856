"""What becomes due in a queue as time goes on: expiry, the end of delays and of parkings.

However much is due at once, one step of the event loop does a bounded part of it. Nothing waits for
the rest: an entry past its deadline and a lease past its own are over for everybody, whether or
not a step came to them. Only who is handed out next depends on the order of all that is ready: so
a claim first ends what has lapsed (`settling.py`: what becomes of that is the queue's policy), lets
back what was parked, and finds the delays that have ended (`bring_back`).

A delay that has ended is found by its page: `gather` enters the pages into the queue's `due`, by
what their first entry could be handed out as, and `open_first` makes the entries of one page
ready. A claim opens the pages that come before what is next in the ready index, and no others; so
nothing is overtaken, and the sweep does the rest.
"""

from heapq import heappop, heappush
from itertools import islice

from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.opendata.entries import MAX_PRIORITY, NEVER, Page
from zaqar_lite.storage.opendata.leases import first_lapse, first_return, unpark
from zaqar_lite.storage.opendata.queue import POSITION_BITS, Queue

STEP = MAX_EXAMINED
"""About how many entries one step looks at: some milliseconds of work."""


def bring_back(queue: Queue, now: int) -> bool:
    """Find what comes back into its place by `now`, or a step's worth; answer whether it is all."""
    delayed, parked = queue.delayed, queue.parked
    if parked and parked[0][0] <= now:
        unpark(queue, now, STEP)
    if delayed and delayed[0][0] <= now:
        gather(queue, now, STEP)
    return not (parked and first_return(queue) <= now) and not (delayed and delayed[0][0] <= now)


def settle(queue: Queue, now: int) -> bool:
    """Bring a queue up to `now`, or one step nearer; answer whether it is there.

    Afterwards what has expired is gone, keys too, what was parked is ready, and the pages with
    ended delays are in `due`. Leases that have ended are left alone.
    """
    is_settled = bring_back(queue, now)
    expiries, keys = queue.expiries, queue.keys
    if expiries and expiries[0][0] <= now:
        expire(queue, now, STEP)
        is_settled = is_settled and not (expiries and expiries[0][0] <= now)
    if keys.next_due() <= now:
        keys.forget(now, STEP)
        is_settled = is_settled and keys.next_due() > now
    return is_settled


def expire(queue: Queue, now: int, limit: int) -> int:
    """Remove up to `limit` entries whose deadline has come; answer how many.

    Cold pages with such entries are noted in `due_pages`, for about as many entries.
    """
    count = looked_at = 0
    while count < limit and looked_at < limit and queue.expiries and queue.expiries[0][0] <= now:
        least, _, page = heappop(queue.expiries)
        looked_at += page.cold or 1
        if page.cold:
            queue.due_pages.append(page)
            continue
        if least != page.min_expires:
            continue
        looked_at += len(page.entries)
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


def gather(queue: Queue, now: int, limit: int) -> None:
    """Enter up to `limit` pages in which a delay has ended into `due`."""
    delayed = queue.delayed
    for _ in range(limit):
        if not delayed or delayed[0][0] > now:
            return
        visible_at, first, page = heappop(delayed)
        if visible_at == page.next_visible:
            page.next_visible = NEVER
            if page.entries:
                heappush(queue.due, (page.best_delayed << POSITION_BITS | first, page))


def open_first(queue: Queue, now: int, limit: int = STEP) -> int:
    """Make up to `limit` entries of the first page in `due` ready; answer how many."""
    _, page = heappop(queue.due)
    return open_page(queue, page, now, limit)


def open_page(queue: Queue, page: Page, until: int, limit: int = STEP) -> int:
    """Make up to `limit` entries of a page ready whose delay ends up to an instant."""
    queue.examined += len(page.entries)
    count, next_visible, best = 0, NEVER, MAX_PRIORITY
    for entry in page.entries.values():
        if not entry.delayed:
            continue
        if entry.visible_at <= until and count < limit:
            entry.delayed = False
            queue.make_ready(entry)
            count += 1
        else:
            next_visible, best = min(next_visible, entry.visible_at), min(best, entry.priority)
    queue.delayed_count -= count
    page.next_visible, page.best_delayed = next_visible, best
    if next_visible != NEVER:
        heappush(queue.delayed, (next_visible, page.first, page))
    return count


def promote(queue: Queue, now: int, limit: int) -> int:
    """Make up to `limit` entries ready whose delay is over; answer how many."""
    gather(queue, now, limit)
    count = 0
    while count < limit and queue.due:
        count += open_first(queue, now, limit - count)
    return count


def expose(queue: Queue, now: int, limit: int) -> int:
    """Make up to `limit` delayed entries ready, whatever their delay; answer how many."""
    count = 0
    while count < limit and queue.delayed_count:
        if not queue.due:
            gather(queue, NEVER - 1, 1)
            continue
        _, page = queue.due[0]
        waiting = [entry for entry in page.entries.values() if entry.delayed]
        for entry in waiting[: limit - count]:
            if entry.visible_at > now:
                queue.change(page)
                entry.visible_at = now
        count += open_first(queue, now, limit - count)
    return count


def next_due(queue: Queue) -> int:
    """The earliest instant at which something here may be due."""
    return min(
        queue.expiries[0][0] if queue.expiries else NEVER,
        ripens_at(queue),
        queue.keys.next_due(),
    )


def ripens_at(queue: Queue) -> int:
    """The earliest instant at which an entry may become ready by time."""
    delayed = NEVER
    if queue.delayed_count:
        delayed = 0 if queue.due or not queue.delayed else queue.delayed[0][0]
    return min(first_lapse(queue), first_return(queue), delayed)

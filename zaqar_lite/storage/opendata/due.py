"""What time changes in a queue: expiry, and the ends of delays, leases and parkings.

However much is due at once, one step of the event loop handles a bounded part of it. Nothing has to
wait for the rest, since readers compare deadlines themselves: an expired entry or a lapsed lease is
over at its instant. Only the order of a claim needs to know everything that is ready. So a claim
first ends lapsed leases by the queue's policy (`settling.py`), and finds the pages in which a wait
has ended (`find_ended_waits`). Such a page enters the heap of ready pages; its entries are made
ready when the page comes first, or by the sweep. A cold page in which all waits have ended is
counted as ready without being read.

Queues keep a heap of their claims by the earliest end of a lease. Items of claims that have ended
or were renewed since are skipped.
"""

from heapq import heappop, heappush
from itertools import islice

from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.opendata.entries import (
    MAX_PRIORITY,
    NEVER,
    POSITION_BITS,
    Claim,
    Entry,
    Page,
)
from zaqar_lite.storage.opendata.queue import Queue

_PARKED_MARGIN_MS = 60_000
"""Milliseconds that a parked message lives beyond its wait, at least."""
_CLAIMS_AHEAD = 16


def start_leases(queue: Queue, claim: Claim, now: int, ttl_ms: int, grace_ms: int) -> None:
    """Let the leases of a new claim run for `ttl_ms` from now."""
    claim.claimed_at = now
    queue.claims[claim.id] = claim
    _set_end(queue, claim, now, ttl_ms, grace_ms)
    for entry in held_by(queue, claim):
        _keep_alive_until(queue, entry, claim.deadline, grace_ms, now)


def held_by(queue: Queue, claim: Claim) -> list[Entry]:
    """The entries that a claim holds, of those in memory."""
    return [entry for at in claim.held if (entry := queue.find(at)) is not None]


def live(queue: Queue, claim: Claim | None, now: int) -> list[Entry]:
    """The live entries that a claim holds by a live lease, in order of position."""
    if claim is None:
        return []
    found = (queue.find(at) for at in claim.live(now))
    return [entry for entry in found if entry is not None and entry.expires_at > now]


def renew(queue: Queue, claim: Claim, now: int, ttl_ms: int, grace_ms: int) -> None:
    """Let a claim, and those of its leases that have not lapsed, run for `ttl_ms` from now."""
    lapsed = {position: claim.lease(position) for position in claim.lapsed(now)}
    _set_end(queue, claim, now, ttl_ms, grace_ms)
    claim.leases = lapsed
    for entry in held_by(queue, claim):
        if entry.position not in lapsed:
            _keep_alive_until(queue, entry, claim.deadline, grace_ms, now)
    if lapsed:
        index_claim(queue, claim, min(lapsed.values()))


def _set_end(queue: Queue, claim: Claim, now: int, ttl_ms: int, grace_ms: int) -> None:
    claim.created_at, claim.ttl_ms, claim.grace_ms = now, ttl_ms, grace_ms
    claim.deadline = now + ttl_ms
    queue.changed_claims[claim.id] = claim
    index_claim(queue, claim, claim.deadline)


def extend(  # noqa: PLR0917 - a lease: its claim, its entry, and its times
    queue: Queue, claim: Claim, entry: Entry, now: int, ttl_ms: int, grace_ms: int
) -> None:
    """Let the lease of one entry that a claim holds end `ttl_ms` from now."""
    until = claim.leases[entry.position] = now + ttl_ms
    _keep_alive_until(queue, entry, until, grace_ms, now)
    if until < claim.due_at:
        index_claim(queue, claim, until)


def _keep_alive_until(queue: Queue, entry: Entry, until: int, margin_ms: int, now: int) -> None:
    """Let an entry that would expire before an instant live until then and a margin longer."""
    queue.change(entry.page)
    if now < entry.expires_at < until:
        queue.set_ttl(entry, until + margin_ms - now, now)


def index_claim(queue: Queue, claim: Claim, due_at: int) -> None:
    """Enter the earliest end of a claim's leases into the heap."""
    claim.due_at = due_at
    queue.lapse_count += 1
    heappush(queue.lapses, (due_at, queue.lapse_count, claim))


def first_lapse(queue: Queue) -> int:
    """The earliest instant at which a lease may end."""
    lapses = queue.lapses
    while lapses:
        due_at, _, claim = lapses[0]
        if queue.claims.get(claim.id) is claim and claim.due_at == due_at:
            return due_at
        heappop(lapses)
    return NEVER


def cold_lapsed(queue: Queue, now: int) -> list[Page]:
    """The cold pages that hold entries of the next lapsed leases."""
    if not queue.cold_pages or first_lapse(queue) > now:
        return []
    claims = (claim for due_at, _, claim in islice(queue.lapses, _CLAIMS_AHEAD) if due_at <= now)
    pages = {queue.page_of(at) for claim in claims for at in claim.lapsed(now)}
    return [page for page in pages if page is not None and page.summary is not None]


def lapsed(queue: Queue, now: int, limit: int) -> list[Entry]:
    """Up to `limit` entries whose lease has ended, of the claims that were due first.

    The caller must end all of these leases in the same step, since they are not found again. The
    search stops at an entry in a cold page (`cold_lapsed`).
    """
    found: list[Entry] = []
    while len(found) < limit and first_lapse(queue) <= now:
        claim = queue.lapses[0][2]
        ended = claim.lapsed(now)
        queue.examined += len(claim.held)
        room = limit - len(found)
        entries = {at: queue.find(at) for at in ended[:room]}
        lost = [at for at, entry in entries.items() if entry is None]
        if any((page := queue.page_of(at)) is not None and page.summary for at in lost):
            break
        found += [entry for entry in entries.values() if entry is not None]
        for position in lost:
            queue.drop_lease(claim, position)
        if len(ended) > room:
            break
        heappop(queue.lapses)
        claim.due_at = NEVER
        if len(ended) - len(lost) < len(claim.held):
            ends = (claim.lease(at) for at in claim.held)
            index_claim(queue, claim, min(end for end in ends if end > now))
        elif not claim.held:  # what it held is in a page that is lost
            queue.forget_claim(claim)
    return found


def count_lapsed(queue: Queue, now: int) -> int:
    """How many entries are still held by leases that have ended; they count as ready."""
    if first_lapse(queue) > now:
        return 0
    due = {
        claim
        for due_at, _, claim in queue.lapses
        if due_at <= now and queue.claims.get(claim.id) is claim
    }
    queue.examined += sum(len(claim.held) if claim.leases else 1 for claim in due)
    return sum(
        len(claim.lapsed(now)) if claim.leases else (claim.deadline <= now) * len(claim.held)
        for claim in due
    )


def detach(queue: Queue, entry: Entry, claim: Claim) -> None:
    """Take an entry out of its claim; afterwards it is counted in no state."""
    entry.claim = None
    queue.changed_claims[claim.id] = claim  # its record must not go on naming the message
    queue.drop_lease(claim, entry.position)
    queue.change(entry.page)


def park(queue: Queue, entry: Entry, until: int, now: int) -> None:
    """Let an entry that is counted in no state wait until an instant."""
    entry.ensure_extras().parked_until = until
    queue.change(entry.page)
    if entry.expires_at < until + _PARKED_MARGIN_MS:
        queue.set_ttl(entry, until + _PARKED_MARGIN_MS - now, now)
    queue.park(entry)


STEP = MAX_EXAMINED
"""About how many entries one step examines: some milliseconds of work."""


def catch_up(queue: Queue, now: int) -> bool:
    """Remove what has expired and find ended waits, one step's worth; answer whether that was all.

    Expired entries and idempotency keys go. Lapsed leases are left to `settling.py`.
    """
    find_ended_waits(queue, now, STEP)
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
    """Remove up to `limit` expired entries; answer how many.

    Cold pages that hold some are added to `expired_pages`, to be loaded by the caller.
    """
    count = looked_at = 0
    while count < limit and looked_at < limit and queue.expiries and queue.expiries[0][0] <= now:
        least, _, page = heappop(queue.expiries)
        if least != page.min_expires:
            looked_at += 1
            continue
        looked_at += page.count
        if page.summary is not None:
            page.min_expires = NEVER
            queue.expired_pages[page] = None
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


def find_ended_waits(queue: Queue, now: int, limit: int) -> int:
    """Examine up to `limit` pages with an ended wait; answer how many entries are ready by that."""
    waiting, count = queue.waiting, 0
    for _ in range(limit):
        if not waiting or waiting[0][0] > now:
            break
        visible_at, first, page = heappop(waiting)
        if visible_at != page.next_visible:
            continue
        page.next_visible = NEVER
        queue.offer(page, page.best_waiting << POSITION_BITS | first)
        cold = page.summary
        if cold is None:
            queue.due[page] = None
        elif cold.last_visible > now:
            queue.half_due[page] = None
        else:
            ready = cold.ready + cold.delayed + cold.parked
            page.summary = cold._replace(ready=ready, delayed=0, parked=0)
            count += cold.delayed + cold.parked
            queue.ready_count += cold.delayed + cold.parked
            queue.delayed_count -= cold.delayed
            queue.parked_count -= cold.parked
    return count


def promote(queue: Queue, now: int, limit: int) -> int:
    """Make up to `limit` entries in memory ready whose wait has ended; answer how many.

    The pages of the others stay in `queue.due` for the next call.
    """
    count = find_ended_waits(queue, now, limit)
    looked_at = 0
    while count < limit and looked_at < limit and queue.due:
        page = next(iter(queue.due))
        looked_at += len(page.entries)
        count += end_waits(queue, page, now, limit - count)
    return count


def end_waits(queue: Queue, page: Page, until: int, limit: int) -> int:
    """Make up to `limit` entries of a page ready whose wait ends by an instant; answer how many."""
    queue.due.pop(page, None)
    queue.examined += len(page.entries)
    count, next_visible, best = 0, NEVER, MAX_PRIORITY
    for entry in page.entries.values():
        extras = entry.extras
        if entry.delayed:
            visible_at = entry.visible_at
        elif extras is not None and extras.parked_until and entry.claim is None:
            visible_at = extras.parked_until
        else:
            continue
        if visible_at > until or count == limit:
            next_visible, best = min(next_visible, visible_at), min(best, entry.priority)
            continue
        count += 1
        if entry.delayed:
            entry.delayed = False
            queue.delayed_count -= 1
        else:
            entry.ensure_extras().parked_until = 0
            queue.parked_count -= 1
        queue.make_ready(entry)
    page.next_visible, page.best_waiting = NEVER, best
    queue.note_wait(page, next_visible)
    return count


def expose(queue: Queue, now: int, limit: int) -> tuple[int, Page | None]:
    """Make up to `limit` delayed entries ready before their delay has ended.

    Answers how many, and the page that must be loaded before more can be.
    """
    before = queue.delayed_count
    kept: list[Page] = []  # with nothing delayed in them
    needed: Page | None = None
    while needed is None and queue.delayed_count and before - queue.delayed_count < limit:
        if promote(queue, now, limit - before + queue.delayed_count) or queue.due:
            continue
        page = next(filter(_has_delayed, queue.half_due), None) or _next_waiting(queue)
        if page is None:
            break
        if _has_delayed(page):
            needed = page
            continue
        left = limit - before + queue.delayed_count
        delayed = list(islice((e for e in page.entries.values() if e.delayed), left))
        for entry in delayed:
            if entry.visible_at > now:
                queue.change(page)
                entry.visible_at = now
        if delayed:
            end_waits(queue, page, now, len(page.entries))
        else:
            heappop(queue.waiting)
            kept.append(page)
    for page in kept:
        heappush(queue.waiting, (page.next_visible, page.first, page))
    return before - queue.delayed_count, needed


def _has_delayed(page: Page) -> bool:
    """Whether a page is cold and has delayed entries."""
    return page.summary is not None and page.summary.delayed > 0


def _next_waiting(queue: Queue) -> Page | None:
    waiting = queue.waiting
    while waiting and waiting[0][0] != waiting[0][2].next_visible:
        heappop(waiting)
    return waiting[0][2] if waiting else None


def next_due(queue: Queue) -> int:
    """The earliest instant at which the sweep may have something to do in a queue."""
    if queue.due:
        return 0
    return min(
        queue.expiries[0][0] if queue.expiries else NEVER,
        queue.waiting[0][0] if queue.waiting else NEVER,
        first_lapse(queue),
        queue.keys.next_due(),
    )


def next_ready_at(queue: Queue) -> int:
    """The earliest instant at which time alone may make an entry ready."""
    if queue.due or queue.half_due:
        return 0
    return min(first_lapse(queue), queue.waiting[0][0] if queue.waiting else NEVER)

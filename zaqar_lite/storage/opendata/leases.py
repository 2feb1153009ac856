"""Who holds an entry, and until when: leases of single messages, and parking.

A lease ends, and a parking too, by its instant alone. The heap tells which claims come to it; what
it holds of claims that are over, or were renewed, is passed over.
"""

from heapq import heappop, heappush
from itertools import islice

from zaqar_lite.storage.opendata.entries import NEVER, Claim, Entry, Page
from zaqar_lite.storage.opendata.queue import Queue

_PARKED_MARGIN_MS = 60_000
"""How much longer than its wait a parked message lives at least."""
_CLAIMS_AHEAD = 16


def begin(queue: Queue, claim: Claim, now: int, ttl_ms: int, grace_ms: int) -> None:
    """Let a new claim hold what it was given for `ttl_ms` from now."""
    claim.claimed_at = now
    queue.claims[claim.id] = claim
    _set_end(queue, claim, now, ttl_ms, grace_ms)
    for entry in held_by(queue, claim):
        _outlive(queue, entry, claim.deadline, grace_ms, now)


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
    """Let a claim live `ttl_ms` from now, and of what it holds what has not lapsed."""
    lapsed = {position: claim.lease(position) for position in claim.lapsed(now)}
    _set_end(queue, claim, now, ttl_ms, grace_ms)
    claim.leases = lapsed
    for entry in held_by(queue, claim):
        if entry.position not in lapsed:
            _outlive(queue, entry, claim.deadline, grace_ms, now)
    if lapsed:
        index_claim(queue, claim, min(lapsed.values()))


def _set_end(queue: Queue, claim: Claim, now: int, ttl_ms: int, grace_ms: int) -> None:
    claim.created_at, claim.ttl_ms, claim.grace_ms = now, ttl_ms, grace_ms
    claim.deadline = now + ttl_ms
    queue.changed_claims[claim.id] = claim
    index_claim(queue, claim, claim.deadline)


def extend(  # noqa: PLR0917 - who holds what, from when, for how long
    queue: Queue, claim: Claim, entry: Entry, now: int, ttl_ms: int, grace_ms: int
) -> None:
    """Let the lease of one entry that a claim holds end `ttl_ms` from now."""
    until = claim.leases[entry.position] = now + ttl_ms
    _outlive(queue, entry, until, grace_ms, now)
    if until < claim.due_at:
        index_claim(queue, claim, until)


def _outlive(queue: Queue, entry: Entry, until: int, margin_ms: int, now: int) -> None:
    """Let an entry live until an instant; one that would not lives a margin longer."""
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
    """The pages to load before the first leases are ended whose time is over."""
    if not queue.cold_pages or first_lapse(queue) > now:
        return []
    claims = (claim for due_at, _, claim in islice(queue.lapses, _CLAIMS_AHEAD) if due_at <= now)
    pages = {queue.page_of(at) for claim in claims for at in claim.lapsed(now)}
    return [page for page in pages if page is not None and page.cold is not None]


def lapsed(queue: Queue, now: int, limit: int) -> list[Entry]:
    """Up to `limit` entries whose lease has ended, of the claims that were due first.

    Who asks lets all of them go in the same step: they are not found again. It stops where one is
    in a page that is not in memory (`cold_lapsed`).
    """
    found: list[Entry] = []
    while len(found) < limit and first_lapse(queue) <= now:
        claim = queue.lapses[0][2]
        ended = claim.lapsed(now)
        queue.examined += len(claim.held)
        room = limit - len(found)
        entries = {at: queue.find(at) for at in ended[:room]}
        lost = [at for at, entry in entries.items() if entry is None]
        if any((page := queue.page_of(at)) is not None and page.cold for at in lost):
            break
        found += [entry for entry in entries.values() if entry is not None]
        for position in lost:
            queue.drop_position(claim, position)
        if len(ended) > room:
            break
        heappop(queue.lapses)
        claim.due_at = NEVER
        if len(ended) - len(lost) < len(claim.held):
            ends = (claim.lease(at) for at in claim.held)
            index_claim(queue, claim, min(end for end in ends if end > now))
    return found


def count_lapsed(queue: Queue, now: int) -> int:
    """How many entries are claimed by leases that have ended, so that they are ready."""
    if first_lapse(queue) > now:
        return 0
    due = {
        claim
        for due_at, _, claim in queue.lapses
        if due_at <= now and queue.claims.get(claim.id) is claim
    }
    queue.examined += sum(len(claim.held) if claim.leases else 1 for claim in due)
    return sum(claim.count_lapsed(now) for claim in due)


def let_go(queue: Queue, entry: Entry, claim: Claim) -> None:
    """Take an entry out of its claim; it is counted in no state then."""
    entry.claim = None
    queue.changed_claims[claim.id] = claim  # or its record would name what another holds by then
    queue.drop_lease(claim, entry)
    queue.change(entry.page)


def park(queue: Queue, entry: Entry, until: int, now: int) -> None:
    """Let an entry that is counted in no state wait until an instant."""
    entry.remember().parked_until = until
    queue.change(entry.page)
    if entry.expires_at < until + _PARKED_MARGIN_MS:
        queue.set_ttl(entry, until + _PARKED_MARGIN_MS - now, now)
    queue.park(entry)

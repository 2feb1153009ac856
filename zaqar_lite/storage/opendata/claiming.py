"""Claim and pop: choosing ready entries, moving exhausted ones, and handing out the rest.

One call examines and moves a bounded number of entries. Where that was not enough, it answers with
what it has and sets `more`; the next call and the sweep continue from there.
"""

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from heapq import heapify, heappop, heapreplace
from itertools import repeat
from typing import NamedTuple, TypeAlias

from zaqar_lite.domain.attempts import MAX_CLAIMS, Attempt
from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.models import Claimed, ClaimRequest, DelayMode, QueueRef, RefusalReason
from zaqar_lite.domain.refusals import no_claim
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.opendata import due, history, reading
from zaqar_lite.storage.opendata.due import (
    STEP,
    cold_lapsed,
    end_waits,
    find_ended_waits,
    first_lapse,
    live,
)
from zaqar_lite.storage.opendata.entries import (
    NOTHING,
    POSITION_BITS,
    UNKNOWN,
    Claim,
    Entry,
    Page,
    is_damaged,
    is_ready,
    ready_key,
)
from zaqar_lite.storage.opendata.paging import cold_after, load, prepared
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import bodies_in_memory, read_bodies
from zaqar_lite.storage.opendata.settling import MOST_LAPSES, Step, end_lapsed, move
from zaqar_lite.storage.opendata.state import State

MOST_TAKEN = MAX_EXAMINED
MOST_MOVED = 200
_BUDGET = 4 * MAX_EXAMINED
_MOST_PAGES = 64
_REMOVAL = 4
"""What removing an expired entry costs, in entries examined."""

Finish: TypeAlias = Callable[[Queue, int, Sequence[Entry]], str | None]
"""Applied to the entries that are handed out: holds or removes them; answers the claim's id."""


_Readable: TypeAlias = tuple[Entry, bytes, Sequence[Attempt]]
"""An entry that can be handed out, its body, and its attempts if the request asked for details."""


class _Budget:
    """How many entries this call may still examine."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class _StopReason(Enum):
    """Why no further entry is taken: none is ready, or the budget is used up."""

    EMPTY = 1
    SPENT = 2


class _Taken(NamedTuple):
    """The queue, the instant, the entries taken, and how many others were moved as exhausted."""

    queue: Queue
    now: int
    entries: list[Entry]
    moved: int
    more: bool


async def hand_out(db: State, ref: QueueRef, request: ClaimRequest, finish: Finish) -> Claimed:
    """Hand out ready messages; answer once what `finish` did with them is durable."""
    if not db.shares.joins(ref.project, request.limit):
        await db.shares.wait(ref.project, request.limit)
    while True:
        taken = await _take_entries(db, ref, request)
        if taken is None:
            return Claimed(None)
        queue, now, entries, moved, more = taken
        readable = _in_memory(db, entries, request)
        if readable is None:
            readable = await _read(db, ref, request, queue, entries)
            if readable is None:
                continue  # the queue was recovered meanwhile: nothing was handed out
            more = more or len(readable) < len(entries)
            entries = [one[0] for one in readable]
        claim_id = finish(queue, now, entries) if entries else None
        with_delay, write = request.delay_mode is not DelayMode.IGNORE, db.id_texts.write
        messages = []
        for entry, body, attempts in readable:
            message = entry.view(write(entry.shown_id), now, with_delay=with_delay)
            message.body, message.attempts = body, attempts
            messages.append(message)
        if claim_id is not None:
            db.announce(ref, 0)
        if entries or moved or more:
            db.changed(queue)
            await db.committer.durable()
        return Claimed(claim_id, messages, moved, more)


def hold(request: ClaimRequest, queue: Queue, now: int, entries: Sequence[Entry]) -> str:
    """Let a new claim hold entries that were taken; answer its id."""
    claim = Claim(new_claim_id(), request.client_id)
    for entry in entries:
        queue.hold(entry, claim)
    due.start_leases(queue, claim, now, request.ttl_ms, request.grace_ms)
    return claim.id


def remove(db: State, queue: Queue, now: int, entries: Sequence[Entry]) -> None:
    """Let entries that were taken leave the queue: they are popped."""
    keeps = history.keeps_done(queue)
    for entry in entries:
        if keeps:
            history.record_done(db, queue, entry, now, None)
        queue.leave(entry)


async def _take_entries(db: State, ref: QueueRef, request: ClaimRequest) -> _Taken | None:
    """Take ready entries out of a queue; the caller holds or removes them before its next await.

    Where a page must be loaded first, what was taken goes back until it is.
    """
    budget = _Budget(_BUDGET)
    moved = lapses = 0
    limit = min(request.limit, MOST_TAKEN)
    kept: set[Page] = set()
    while True:
        queue, now = await prepared(
            db, ref, request.version, lambda queue: cold_lapsed(queue, db.clock.now_ms())
        )
        if queue is None:
            return None
        ended, spent = end_lapsed(Step(db, queue, now, request.retries), MOST_LAPSES - lapses)
        moved += spent
        lapses += ended
        find_ended_waits(queue, now, STEP)
        if lapses >= MOST_LAPSES or (queue.waiting and queue.waiting[0][0] <= now):
            return _Taken(queue, now, [], moved, more=True)
        if ended and first_lapse(queue) <= now:
            continue  # the pages of the next lapses may have to be loaded
        if len(kept) < _MOST_PAGES and (ahead := _cold_ahead(queue, limit)):
            kept.update(ahead)
            await load(db, queue, ahead, kept)
            continue
        entries, also_moved, stop = _take_loaded(db, queue, now, request, limit, budget)
        moved += also_moved
        if queue.is_changed:
            db.touched.add(queue)
        if not isinstance(stop, Page) or (entries and len(kept) >= _MOST_PAGES):
            more = stop is not None and stop is not _StopReason.EMPTY
            return _Taken(queue, now, entries, moved, more or limit < request.limit)
        for entry in entries:
            queue.make_ready(entry)
        kept.add(stop)
        await load(db, queue, [stop], kept)


def _cold_ahead(queue: Queue, limit: int) -> list[Page]:
    """The cold pages that this claim is likely to need, to be loaded together before it takes.

    Loading a page halfway means to put back what was taken, and concurrent claims would all do so
    for the same page.
    """
    first = head(queue) if queue.cold_pages else None
    pages = [] if first is None else cold_after(queue, first.first, limit)
    return [page for page in pages if page.best != NOTHING]


def _take_loaded(  # noqa: PLR0917 - what one call works with
    db: State, queue: Queue, now: int, request: ClaimRequest, limit: int, budget: _Budget
) -> tuple[list[Entry], int, _StopReason | Page | None]:
    """Take entries from pages in memory; answer them, how many others were moved, and the reason.

    The reason is a page where its entries must be loaded before any other is taken; None where the
    limit was reached.
    """
    letters = request.retries.dead_letter
    taken: list[Entry] = []
    moved = 0
    while len(taken) < limit:
        entry = _take_entry(queue, now, budget)
        if not isinstance(entry, Entry):
            return taken, moved, entry
        if letters is not None and entry.attempts >= letters.max_claims:
            move(db, queue, entry, letters, now, MAX_CLAIMS)
            moved += 1
            if moved >= MOST_MOVED:
                return taken, moved, _StopReason.SPENT
        else:
            taken.append(entry)
    return taken, moved, None


def _take_entry(queue: Queue, now: int, budget: _Budget) -> Entry | _StopReason | Page:
    """Take the first ready entry; the caller holds or removes it in the same step.

    Entries whose delay has ended are made ready on the way, and expired ones are removed.
    """
    while budget.left > 0:
        page = head(queue)
        if page is None:
            return _StopReason.EMPTY
        if page.summary is not None:
            return page
        if page in queue.due:
            budget.left -= len(page.entries)
            end_waits(queue, page, now, len(page.entries))
            continue
        examined = queue.examined
        entry = take_first(queue, page)
        budget.left -= queue.examined - examined
        if entry is None:
            continue
        if entry.expires_at > now:
            return entry
        queue.ready_count += 1  # as it was: it leaves as one that is ready
        queue.remove(entry)
        budget.left -= _REMOVAL
    return _StopReason.SPENT


def _in_memory(
    db: State, entries: Sequence[Entry], request: ClaimRequest
) -> list[_Readable] | None:
    """The taken entries with their bodies; None where some must be read from the engine."""
    if request.details and any(entry.extras and entry.extras.kept for entry in entries):
        return None
    bodies = bodies_in_memory(db, entries)
    return None if bodies is None else list(zip(entries, bodies, repeat(())))


async def _read(
    db: State,
    ref: QueueRef,
    request: ClaimRequest,
    queue: Queue,
    entries: Sequence[Entry],
) -> list[_Readable] | None:
    """Read the bodies of the taken entries; leave out what can't be read. None: take again.

    Bodies are read before anything is changed, because an answer must not fail once its batch is
    committed, and a message that can't be read must stay stored.
    """
    draft = Claim(new_claim_id(), "")
    for entry in entries:
        entry.claim = draft
        draft.held[entry.position] = entry.shown_id
    try:
        found = await read_bodies(db, queue, entries)
        attempts_of = await reading.read_attempts(db, entries) if request.details else {}
        is_current = db.queue_to_change(ref, request.version) is queue
    except BaseException:
        if db.is_current(queue):
            for entry in _end_draft(draft, entries):
                queue.make_ready(entry)
        raise
    if not is_current:
        return None
    left = _end_draft(draft, entries)  # not what a delete or a purge removed meanwhile
    return [
        (entry, found[entry.position], attempts_of.get(entry.position, ()))
        for entry in left
        if entry.position in found and not is_damaged(entry)
    ]


def _end_draft(draft: Claim, entries: Sequence[Entry]) -> list[Entry]:
    """End the draft claim; its entries are counted in no state now."""
    left = [entry for entry in entries if entry.position in draft.held]
    for entry in left:
        entry.claim = None
    return left


def live_claim(queue: Queue | None, claim_id: str, now: int) -> tuple[Queue, Claim]:
    """The claim of this id, and the queue.

    Raises NotFound: it does not exist, has lapsed, or holds no live message any more.
    """
    claim = None if queue is None else queue.claims.get(claim_id)
    if queue is None or claim is None or not live(queue, claim, now):
        raise no_claim(claim_id)
    return queue, claim


def refusal(holder: Claim | None, claim_ids: Collection[str]) -> RefusalReason | None:
    """Why a message may not be deleted by these claims; None when it may."""
    if holder is not None:
        return None if holder.id in claim_ids else RefusalReason.CLAIMED
    return RefusalReason.NOT_CLAIMED if claim_ids else None


_POSITION_MASK = (1 << POSITION_BITS) - 1


def head(queue: Queue) -> Page | None:
    """The page with the lowest bound of a ready entry."""
    heap = queue.ready
    while heap:
        key, page = heap[0]
        if key == page.best:
            return page
        heappop(heap)
    return None


def ready_since(queue: Queue, now: int) -> int | None:
    """When the first ready entry became ready; None where it is only on disk."""
    while (page := head(queue)) is not None:
        if page.summary is None and not _is_next(queue, page, _first_key(queue, page)):
            continue
        entry = page.entries.get(page.best & _POSITION_MASK)
        if entry is None or entry.created_at == UNKNOWN:
            return None
        return min(now, max(entry.created_at, entry.visible_at))
    return None


def take_first(queue: Queue, page: Page) -> Entry | None:
    """Take the first ready entry of a page; None where another page's comes before.

    The caller holds, removes or returns it in the same step.
    """
    key = _first_key(queue, page)
    if not _is_next(queue, page, key):
        return None
    order = page.order
    while order and order[0] == key:
        heappop(order)
    page.best = order[0] if order else NOTHING
    if order:
        heapreplace(queue.ready, (page.best, page))
    else:
        heappop(queue.ready)
    queue.examined += 1
    queue.ready_count -= 1
    return page.entries[key & _POSITION_MASK]


def _is_next(queue: Queue, page: Page, key: int) -> bool:
    """Whether a page's bound was right; if not, the page goes to its place in the heap."""
    if key == page.best:
        return True
    page.best = key
    if key == NOTHING:
        heappop(queue.ready)
    else:
        heapreplace(queue.ready, (key, page))
    return False


def _first_key(queue: Queue, page: Page) -> int:
    order, entries = page.order, page.entries
    if order is None:
        order = page.order = [ready_key(entry) for entry in entries.values() if is_ready(entry)]
        heapify(order)
    while order:
        entry = entries.get(order[0] & _POSITION_MASK)
        if entry is not None and is_ready(entry):
            return order[0]
        heappop(order)
        queue.examined += 1
    return NOTHING

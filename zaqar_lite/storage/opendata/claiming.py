"""Taking messages: who is next, who has been claimed too often, and who holds what.

One call examines and moves a bounded number of entries. Where that was not enough it answers with
what it has, and `more`: the next call goes on behind what this one has done, and so does the sweep.
"""

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from heapq import heappop
from itertools import repeat
from typing import NamedTuple, TypeAlias

from zaqar_lite.domain.attempts import MAX_CLAIMS, Attempt
from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.models import Claimed, DelayMode, QueueRef, RefusalReason, Take
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.opendata import histories, leases, past
from zaqar_lite.storage.opendata.due import bring_back, expose, open_first
from zaqar_lite.storage.opendata.entries import Claim, Entry, is_damaged, is_kept_back
from zaqar_lite.storage.opendata.paging import cold_at_head, prepared
from zaqar_lite.storage.opendata.queue import POSITION_MASK, Queue
from zaqar_lite.storage.opendata.reading import bodies_in_memory, read_bodies
from zaqar_lite.storage.opendata.settling import MOST_LAPSES, Step, end_lapsed
from zaqar_lite.storage.opendata.state import State

MOST_TAKEN = MAX_EXAMINED
MOST_MOVED = 200
_BUDGET = 4 * MAX_EXAMINED
_REMOVAL = 4
"""What removing one that has expired takes of the budget, which counts entries looked at."""

Finish: TypeAlias = Callable[[Queue, int, Sequence[Entry]], str | None]
"""What becomes of the entries that are handed out; answers the id of the claim, if there is one."""


_Readable: TypeAlias = tuple[Entry, bytes, Sequence[Attempt]]
"""An entry that can be handed out, its body, and its attempts for who asked."""


class _Budget:
    """What is left of the work that one call may do."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class _Stop(Enum):
    """Why no further entry is taken: none is ready, one must be loaded first, or the budget."""

    EMPTY = 1
    COLD = 2
    SPENT = 3


class _Taken(NamedTuple):
    """The queue, the instant, the entries that were taken, and how many others were moved."""

    queue: Queue
    now: int
    entries: list[Entry]
    moved: int
    more: bool


async def hand_out(db: State, queue: QueueRef, take: Take, finish: Finish) -> Claimed:
    """Hand out ready messages, once what `finish` does with them is durable."""
    while True:
        taken = await _take(db, queue, take)
        if taken is None:
            return Claimed(None)
        there, now, entries, moved, more = taken
        readable = _in_memory(db, entries, take)
        if readable is None:
            readable = await _read(db, queue, take, there, entries)
            if readable is None:
                continue  # the queue was recovered: nobody was given anything
            more = more or len(readable) < len(entries)
            entries = [one[0] for one in readable]
        claim_id = finish(there, now, entries) if entries else None
        with_delay, write = take.delay_mode is not DelayMode.IGNORE, db.names.write
        messages = []
        for entry, body, attempts in readable:
            message = entry.view(write(entry.name), now, with_delay=with_delay)
            message.body, message.attempts = body, attempts
            messages.append(message)
        if claim_id is not None:
            db.announce(queue, 0)
        if entries or moved or more:
            db.changed(there)
            await db.committer.durable()
        return Claimed(claim_id, messages, moved, more)


def hold(take: Take, there: Queue, now: int, entries: Sequence[Entry]) -> str:
    """Let a new claim hold entries that were taken; answer its id."""
    claim = Claim(new_claim_id(), take.client_id)
    for entry in entries:
        there.hold(entry, claim)
    leases.begin(there, claim, now, take.ttl_ms, take.grace_ms)
    return claim.id


def remove(db: State, there: Queue, now: int, entries: Sequence[Entry]) -> None:
    """Let entries that were taken leave the queue: they are popped."""
    keeps = past.keeps_done(there)
    for entry in entries:
        if keeps:
            past.record_done(db, there, entry, now, None)
        there.leave(entry)


async def _take(db: State, queue: QueueRef, take: Take) -> _Taken | None:
    """Take ready entries out of a queue, to be held or to leave before the next await."""
    budget = _Budget(_BUDGET)
    moved = 0
    limit = min(take.limit, MOST_TAKEN)
    while True:
        there, now = await prepared(
            db, queue, take.version, lambda there: cold_at_head(there, limit)
        )
        if there is None:
            return None
        ended, spent = end_lapsed(Step(db, there, now, take.retries), MOST_LAPSES)
        moved += spent
        if ended == MOST_LAPSES or not bring_back(there, now):
            return _Taken(there, now, [], moved, more=True)
        entries, also_moved, stop = _pick(db, there, now, take, limit, budget)
        moved += also_moved
        if there.removed or there.changed_pages:
            db.touched.add(there)
        if entries or stop is not _Stop.COLD:
            more = stop in {_Stop.COLD, _Stop.SPENT} or limit < take.limit
            return _Taken(there, now, entries, moved, more)


def _pick(  # noqa: PLR0917 - what one call works with
    db: State, there: Queue, now: int, take: Take, limit: int, budget: _Budget
) -> tuple[list[Entry], int, _Stop | None]:
    """Take entries within the budget; tell how many were moved, and what put an end to it."""
    exposes = take.delay_mode is DelayMode.EXPOSE
    until = now if take.delay_mode is DelayMode.HONOUR else -1
    letters = take.retries.dead_letter
    if exposes:
        expose(there, now, limit)
    taken: list[Entry] = []
    moved = 0
    while len(taken) < limit:
        entry = _first(there, now, until, budget)
        if isinstance(entry, _Stop):
            if exposes and entry is _Stop.EMPTY and expose(there, now, limit):
                continue
            return taken, moved, entry
        if letters is not None and entry.attempts >= letters.max_claims:
            past.move(db, there, entry, letters, now, MAX_CLAIMS)
            moved += 1
            if moved >= MOST_MOVED:
                return taken, moved, _Stop.SPENT
        else:
            taken.append(entry)
    return taken, moved, None


def _first(queue: Queue, now: int, until: int, budget: _Budget) -> Entry | _Stop:
    """Take the first ready entry out of its index; it is held or leaves in the same step.

    What was delayed up to `until` counts as ready; what has expired is removed.
    """
    ready, due = queue.ready, queue.due
    while budget.left > 0:
        if until >= 0 and due and (not ready or due[0][0] <= ready[0]):
            budget.left -= len(due[0][1].entries)
            open_first(queue, until)
            continue
        if not ready:
            return _Stop.COLD if queue.cold.count else _Stop.EMPTY
        queue.examined += 1
        budget.left -= 1
        key = heappop(ready)
        while ready and ready[0] == key:
            heappop(ready)  # of an entry that was only on disk meanwhile: twice in the heap
        entry = queue.find(key & POSITION_MASK)
        if entry is None or entry.claim is not None or entry.delayed or is_kept_back(entry):
            continue
        cold = queue.cold.first() if queue.cold.count else None
        if cold is not None and cold[0] < key:
            queue.push_ready(key)  # a cold page is first
            return _Stop.COLD
        if entry.expires_at <= now:
            queue.remove(entry)
            budget.left -= _REMOVAL
            continue
        queue.ready_count -= 1
        return entry
    return _Stop.SPENT


def _in_memory(db: State, entries: Sequence[Entry], take: Take) -> list[_Readable] | None:
    """The taken entries with their bodies, unless something of them must be read."""
    if take.details and any(map(histories.has_kept, entries)):
        return None
    bodies = bodies_in_memory(db, entries)
    return None if bodies is None else list(zip(entries, bodies, repeat(())))


async def _read(
    db: State,
    queue: QueueRef,
    take: Take,
    there: Queue,
    entries: Sequence[Entry],
) -> list[_Readable] | None:
    """Those of the taken entries that can be read, with their bodies; None: begin anew.

    All is read before anything is changed: an answer must not fail once it is committed, and a
    message that can't be read must stay.
    """
    draft = Claim(new_claim_id(), "")
    for entry in entries:
        entry.claim = draft
        draft.held[entry.position] = entry
    try:
        found = await read_bodies(db, there, entries)
        told = await histories.read(db, entries) if take.details else {}
        is_current = db.queue_to_change(queue, take.version) is there
    except BaseException:
        if db.is_current(there):
            for entry in _let_go(draft):
                there.make_ready(entry)
        raise
    if not is_current:
        return None
    left = _let_go(draft)  # without what others deleted, or a purge removed, meanwhile
    return [
        (entry, found[entry.position], told.get(entry.position, ()))
        for entry in left
        if entry.position in found and not is_damaged(entry)
    ]


def _let_go(draft: Claim) -> Collection[Entry]:
    """End what only kept others away; the entries are in no state's index now."""
    for entry in draft.held.values():
        entry.claim = None
    return draft.held.values()


def live_claim(there: Queue | None, claim_id: str, now: int) -> tuple[Queue, Claim]:
    """The claim of this id, and the queue.

    Raises:
        NotFound: it does not exist, has lapsed, or holds no live message any more.
    """
    claim = None if there is None else there.claims.get(claim_id)
    if there is None or claim is None or not claim.live(now):
        raise NotFound(f"Claim {claim_id} does not exist or has expired.")
    return there, claim


def refusal(holder: Claim | None, claim_ids: Collection[str]) -> RefusalReason | None:
    """Why a message may not be deleted by these claims; None when it may."""
    if holder is not None:
        return None if holder.id in claim_ids else RefusalReason.CLAIMED
    return RefusalReason.NOT_CLAIMED if claim_ids else None

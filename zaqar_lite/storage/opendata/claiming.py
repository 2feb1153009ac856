"""Taking messages: who is next, who has been claimed too often, and who holds what."""

import asyncio
from collections.abc import Collection
from heapq import heappop, heappush
from typing import NamedTuple

from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.models import Claimed, DeadLetter, DelayMode, QueueRef, RefusalReason
from zaqar_lite.storage.opendata import past
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.due import STEP, expose, open_first
from zaqar_lite.storage.opendata.entries import Claim, Entry, is_damaged
from zaqar_lite.storage.opendata.paging import cold_at_head, prepared
from zaqar_lite.storage.opendata.queue import POSITION_MASK, Queue
from zaqar_lite.storage.opendata.reading import fill

_MOST_MOVED = 1_000


class Taken(NamedTuple):
    """The queue, the instant, the entries that were taken, and how many others were moved."""

    queue: Queue | None
    now: int
    entries: list[Entry]
    moved: int


async def take(
    db: Database,
    ref: QueueRef,
    version: int | None,
    limit: int,
    *,
    delay_mode: DelayMode,
    dead_letter: DeadLetter | None,
) -> Taken:
    """Take up to `limit` ready entries out of a queue, to be held or removed before the next await.

    Exhausted entries are moved; where there are so many of these that they take a step of their
    own, the answer has fewer than `limit`.
    """
    moved = 0
    while True:
        there, now = await prepared(db, ref, version, lambda there: cold_at_head(there, limit))
        if there is None:
            return Taken(None, now, [], moved)
        found = _take(db, there, now, limit, delay_mode, dead_letter)
        moved += found.moved
        if found.entries:
            return Taken(there, now, found.entries, moved)
        if found.moved:
            await db.committer.durable()
        if not found.is_cut:
            return Taken(there, now, [], moved)
        await asyncio.sleep(0)


class _Step(NamedTuple):
    entries: list[Entry]
    moved: int
    is_cut: bool


def _take(  # noqa: PLR0917 - the claim's values, passed on as they are
    db: Database,
    there: Queue,
    now: int,
    limit: int,
    delay_mode: DelayMode,
    dead_letter: DeadLetter | None,
) -> _Step:
    exposes = delay_mode is DelayMode.EXPOSE
    until = now if delay_mode is DelayMode.HONOUR else -1
    if exposes:
        expose(there, now, limit)
    taken: list[Entry] = []
    moved = 0
    most = there.examined + limit + STEP
    while len(taken) < limit:
        if moved >= _MOST_MOVED:
            return _Step(taken, moved, is_cut=True)
        entry = _first(there, until, most)
        if entry is None:
            if there.examined > most:
                return _Step(taken, moved, is_cut=True)
            if exposes and expose(there, now, limit):
                continue
            break
        if dead_letter is not None and entry.attempts >= dead_letter.max_claims:
            past.move(db, there, entry, dead_letter, now)
            moved += 1
        else:
            taken.append(entry)
    return _Step(taken, moved, is_cut=False)


def _first(queue: Queue, until: int, most: int) -> Entry | None:
    """Take the first ready entry out of its index; it is held or leaves in the same step.

    What was delayed up to `until` counts as ready. Gives up when the queue's `examined` is above
    `most`.
    """
    ready, due = queue.ready, queue.due
    while queue.examined <= most:
        if until >= 0 and due and (not ready or due[0][0] <= ready[0]):
            open_first(queue, until)
            continue
        if not ready:
            return None
        queue.examined += 1
        key = heappop(ready)
        while ready and ready[0] == key:
            heappop(ready)  # of an entry that was only on disk meanwhile: twice in the heap
        entry = queue.find(key & POSITION_MASK)
        if entry is None or entry.claim is not None or entry.delayed or is_damaged(entry):
            continue
        cold = queue.cold.first() if queue.cold.count else None
        if cold is not None and cold[0] < key:
            heappush(ready, key)  # a cold page is first: whoever comes next loads it
            return None
        queue.ready_count -= 1
        return entry
    return None


async def pop(
    db: Database,
    queue: QueueRef,
    *,
    limit: int,
    delay_mode: DelayMode,
    dead_letter: DeadLetter | None = None,
    version: int | None,
) -> Claimed:
    """Remove and hand out ready messages; see the seam."""
    there, now, taken, moved = await take(
        db, queue, version, limit, delay_mode=delay_mode, dead_letter=dead_letter
    )
    if there is None or not taken:
        return Claimed(None, (), moved)
    with_delay = delay_mode is not DelayMode.IGNORE
    messages = [
        entry.view(db.names.write(entry.name), now, with_delay=with_delay) for entry in taken
    ]
    # The bodies come before anything goes, because a message that can't be read must stay.
    holder = Claim(new_claim_id(), "")
    holder.deadline = now
    for entry in taken:
        entry.claim = holder
        holder.held[entry.position] = entry
    try:
        await fill(db, there, taken, messages)
    except BaseException:
        for entry in list(holder.held.values()):  # nobody gets them: back to their places
            entry.claim = None
            there.make_ready(entry)
        raise
    keeps = past.keeps_done(there)
    for entry in list(holder.held.values()):
        if is_damaged(entry):
            entry.claim = None
            continue
        if keeps:
            past.record_done(db, there, entry, now, None)
        there.remove(entry)
    db.changed(there)
    await db.committer.durable()
    return Claimed(None, messages, moved)


def live_claim(there: Queue | None, claim_id: str) -> tuple[Queue, Claim]:
    """The claim of this id in a settled queue, and the queue.

    Raises:
        NotFound: it does not exist or has lapsed.
    """
    claim = None if there is None else there.claims.get(claim_id)
    if there is None or claim is None:
        raise NotFound(f"Claim {claim_id} does not exist or has expired.")
    return there, claim


def refusal(entry: Entry, claim_ids: Collection[str]) -> RefusalReason | None:
    """Why an entry may not be deleted by these claims; None when it may."""
    if entry.claim is not None:
        return None if entry.claim.id in claim_ids else RefusalReason.CLAIMED
    return RefusalReason.NOT_CLAIMED if claim_ids else None

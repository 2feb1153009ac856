"""Taking messages: who is next, who has been claimed too often, and who holds what."""

from collections.abc import Collection

from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.models import Claimed, DeadLetter, DelayMode, QueueRef, RefusalReason
from zaqar_lite.storage.opendata import past
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.due import expose, promote
from zaqar_lite.storage.opendata.entries import Claim, Entry
from zaqar_lite.storage.opendata.paging import cold_at_head, prepared
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import fill


def take(
    db: Database,
    there: Queue,
    now: int,
    limit: int,
    *,
    delay_mode: DelayMode,
    dead_letter: DeadLetter | None,
) -> tuple[list[Entry], int]:
    """Take up to `limit` ready entries; move the exhausted ones, and count them."""
    db.settle(there, now)
    exposes = delay_mode is DelayMode.EXPOSE
    if delay_mode is DelayMode.HONOUR:
        promote(there, now)
    elif exposes:
        expose(there, now, limit)
    taken: list[Entry] = []
    moved = 0
    while len(taken) < limit:
        entry = there.take_first()
        if entry is None:
            if exposes and expose(there, now, limit):
                continue
            break
        if dead_letter is not None and entry.attempts >= dead_letter.max_claims:
            past.move(db, there, entry, dead_letter, now)
            moved += 1
        else:
            taken.append(entry)
    return taken, moved


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
    there = await prepared(db, queue, version, lambda there: cold_at_head(there, limit))
    if there is None:
        return Claimed(None)
    now = db.clock.now_ms()
    taken, moved = take(db, there, now, limit, delay_mode=delay_mode, dead_letter=dead_letter)
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
    if taken or moved:
        keeps = past.keeps_done(there)
        for entry in list(holder.held.values()):
            if keeps:
                past.record_done(db, there, entry, now, None)
            there.remove(entry)
        db.changed(there)
        await db.committer.durable()
    return Claimed(None, messages, moved)


def live_claim(db: Database, there: Queue | None, claim_id: str, now: int) -> tuple[Queue, Claim]:
    """The claim of this id, and its queue.

    Raises:
        NotFound: it does not exist or has lapsed.
    """
    if there is not None:
        db.settle(there, now)
        claim = there.claims.get(claim_id)
        if claim is not None:
            return there, claim
    raise NotFound(f"Claim {claim_id} does not exist or has expired.")


def refusal(entry: Entry, claim_ids: Collection[str]) -> RefusalReason | None:
    """Why an entry may not be deleted by these claims; None when it may."""
    if entry.claim is not None:
        return None if entry.claim.id in claim_ids else RefusalReason.CLAIMED
    return RefusalReason.NOT_CLAIMED if claim_ids else None

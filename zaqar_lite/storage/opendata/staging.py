"""Storing a large post in parts, in several batches, so that all of it becomes visible at once.

While a batch is written, all requests wait. So the payloads and log entries of a large post, nearly
all of its records, are added to batches one part at a time, as each has room (`committer.py`). The
last batch adds the pages, which make the messages visible, and the keys. Each part also writes a
garbage record of its messages, and the last batch deletes these: what a crash or an error leaves is
deleted by the sweep.

The ids, and so the positions, are taken first. Other posts to the queue wait until the end, so that
no message enters before one that a reader has seen. A move into the queue does not wait, nor does a
post to a queue that gets copies: then the parts are given up and the post goes in one batch. So it
does where a key is known already.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted
from zaqar_lite.storage.opendata import posting
from zaqar_lite.storage.opendata.checkpoint import put_garbage
from zaqar_lite.storage.opendata.entries import Entry
from zaqar_lite.storage.opendata.idempotency import BATCH, MESSAGE, Known, digest_of
from zaqar_lite.storage.opendata.paging import cold_tail, prepared
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import State
from zaqar_lite.storage.sql.shares import cost_of

PART = 125
"""Messages of a part; a post of at most so many goes in one batch."""


@dataclass(slots=True)
class _Draft:
    """A post that is stored in part and not visible yet."""

    queue: Queue
    arrivals: dict[QueueRef, tuple[Queue | None, int]]
    """The queues that get messages, and how many had entered each when the ids were taken."""
    failures: int
    first: int
    entries: list[Entry] = field(default_factory=list)
    fresh: dict[bytes, Known] = field(default_factory=dict)
    garbage: list[bytes] = field(default_factory=list)


async def post(
    db: State,
    ref: QueueRef,
    messages: Sequence[NewMessage],
    *,
    client_id: str,
    batch_key: IdempotencyKey | None,
    version: int | None,
) -> Sequence[Posted] | None:
    """Store a large post in parts; None, with nothing visible, where it must go in one batch.

    Raises what `posting.post` does.
    """
    async with _alone(db, ref):
        queue, now = await _prepared(db, ref, version)
        if not _can_enter(db, queue, len(messages), batch_key, now):
            return None
        failures = db.committer.failures
        arrivals = {to: _arrivals(db, to) for to in _receivers(ref, messages)}
        draft = _Draft(queue, arrivals, failures, db.ids.take(len(messages), db.puts))
        try:
            if not await _stage(db, draft, messages, client_id, now):
                return None
            queue, now = await _prepared(db, ref, version)
            if (
                db.committer.failures != draft.failures
                or any(_arrivals(db, to) != before for to, before in draft.arrivals.items())
                or any(queue.keys.get(key, now) for key in draft.fresh)
                or not _can_enter(db, queue, len(messages), batch_key, now)
            ):
                return None
            count = len(draft.fresh) + (batch_key is not None)
            posting.check_limits(db, queue, messages, count, now)
            posting.let_in(db, queue, messages, draft.entries, now)
            numbers = range(draft.first, draft.first + len(messages))
            posting.remember(db, queue, draft.fresh, batch_key, numbers, now)
            for key in draft.garbage:
                db.delete(key)
            draft.garbage.clear()
            await db.committer.durable()
        finally:
            db.garbage.extend(draft.garbage)
    return await _answers(db, draft.first, len(messages))


@asynccontextmanager
async def _alone(db: State, ref: QueueRef) -> AsyncIterator[None]:
    """Keep other posts to the queue waiting."""
    while ref in db.staging:
        await db.staging[ref].wait()
    over = db.staging[ref] = asyncio.Event()
    try:
        yield
    finally:
        del db.staging[ref]
        over.set()


def _receivers(ref: QueueRef, messages: Sequence[NewMessage]) -> set[QueueRef]:
    """The queue of a post and those that get copies of its messages."""
    return {ref, *(copy.queue for message in messages for copy in message.copies)}


def _arrivals(db: State, ref: QueueRef) -> tuple[Queue | None, int]:
    """A queue, as it may be another of this name later, and how many messages have entered it."""
    queue = db.queues.get(ref)
    return queue, 0 if queue is None else queue.arrivals


async def _prepared(db: State, ref: QueueRef, version: int | None) -> tuple[Queue, int]:
    found, now = await prepared(db, ref, version, cold_tail)
    return found or db.queues.make(ref), now


def _can_enter(
    db: State, queue: Queue, count: int, batch_key: IdempotencyKey | None, now: int
) -> bool:
    """Whether the queue has room and does not know the key; else `posting.post` says why not."""
    if queue.total + count > db.options.max_messages:
        return False
    return batch_key is None or queue.keys.get(BATCH + digest_of(batch_key.text), now) is None


async def _stage(
    db: State, draft: _Draft, messages: Sequence[NewMessage], client_id: str, now: int
) -> bool:
    """Store payloads and log entries in parts; answer False where a key is known or repeated."""
    project = draft.queue.ref.project
    for start in range(0, len(messages), PART):
        if start:
            await db.turns.wait()
        part, first = messages[start : start + PART], draft.first + start
        if not _note_keys(draft, part, first, now):
            return False
        cost = cost_of(part)
        if not db.shares.joins(project, cost):
            await db.shares.wait(project, cost)
        db.committer.check_writable()
        entries = posting.make_entries(part, first, client_id, now)
        db.publish(draft.queue, entries, [message.body for message in part])
        draft.garbage += put_garbage(db, range(first, first + len(part)))
        draft.entries += entries
    return True


def _note_keys(draft: _Draft, part: Sequence[NewMessage], first: int, now: int) -> bool:
    fresh, get = draft.fresh, draft.queue.keys.get
    for number, message in enumerate(part, first):
        if message.idempotency_key is not None:
            text, digest = message.idempotency_key
            key = MESSAGE + digest_of(text)
            if key in fresh or get(key, now) is not None:
                return False
            fresh[key] = Known((number,), digest)
    return True


async def _answers(db: State, first: int, count: int) -> Sequence[Posted]:
    """Make the texts of the ids, a part at a time."""
    posted: list[Posted] = []
    write = db.id_texts.write
    for start in range(first, first + count, PART):
        await db.turns.wait()
        posted += [
            Posted(write(number)) for number in range(start, min(start + PART, first + count))
        ]
    return posted

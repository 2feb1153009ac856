"""The sweep: removes what has expired, ends waits and lapsed leases, deletes garbage.

It visits the queues that changed or in which something is due (`queues.py`), each for one bounded
step whose changes are one batch. A queue with more to do is visited again after the others.
"""

from dataclasses import dataclass, field
from functools import partial
from heapq import heapify

from zaqar_lite.domain.models import QueueRef, RetryPolicyOf, SweepResult
from zaqar_lite.storage.opendata import history
from zaqar_lite.storage.opendata.checkpoint import GARBAGE_STEP
from zaqar_lite.storage.opendata.due import (
    STEP,
    cold_lapsed,
    expire,
    first_lapse,
    next_due,
    promote,
)
from zaqar_lite.storage.opendata.engine import Damage
from zaqar_lite.storage.opendata.entries import NEVER, NOTHING, PAGE_SIZE, Page
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.bookkeeping import decode_garbage
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.paging import evict_pages, load_some, prepared
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.settling import MOST_LAPSES, Step, end_lapsed
from zaqar_lite.storage.opendata.state import State

_SPARE_PAGES = 8
_SPARE_BOUNDS = 64
_FOLDED = PAGE_SIZE * 3 // 4
_MOST_JOINED = 64
_BETWEEN = 32
"""Visits without any work after which the sweep lets other tasks run."""


async def sweep(db: State, limit: int, retries_of: RetryPolicyOf) -> SweepResult:
    """Tidy up about `limit` entries; what was changed is durable when this returns."""
    db.committer.check_writable()
    evict_pages(db)
    now = db.clock.now_ms()
    tidied = _Tidied()
    try:
        await _visit_queues(db, now, limit, retries_of, tidied)
    finally:
        for queue in tidied.waiting:
            db.queues.agenda.changed(queue)
    deleted = 0
    while True:
        deleted += await _delete_garbage(db) + await _delete_unrouted(db, now)
        if db.touched or db.puts or db.deletes:
            await db.committer.durable()
        if deleted >= limit or not (db.garbage or db.unrouted_due <= now):
            break
    return SweepResult(
        tidied.expired, tidied.promoted, tidied.lapsed, tidied.moved, deleted,
        frozenset(tidied.letters_in),
    )  # fmt: skip


@dataclass(slots=True)
class _Tidied:
    """What a sweep has done so far."""

    expired: int = 0
    promoted: int = 0
    lapsed: int = 0
    moved: int = 0
    letters_in: set[QueueRef] = field(default_factory=set)
    waiting: list[Queue] = field(default_factory=list)  # those that can't be put to rest yet

    @property
    def total(self) -> int:
        return self.expired + self.promoted + self.lapsed + self.moved


async def _visit_queues(
    db: State, now: int, limit: int, retries_of: RetryPolicyOf, tidied: _Tidied
) -> None:
    """Visit the queues of the agenda, each for one step."""
    agenda, idle = db.queues.agenda, 0
    while tidied.total < limit and (queue := agenda.next(now)) is not None:
        if not db.is_current(queue):
            continue
        before = tidied.total
        try:
            more = await _visit(db, queue, now, min(STEP, limit - before), retries_of, tidied)
        except BaseException:
            agenda.changed(queue)
            raise
        if more:
            agenda.changed(queue)
        elif _put_to_rest(db, queue):
            tidied.waiting.append(queue)
        else:
            agenda.note(queue, min(next_due(queue), history.next_over(queue)))
        if (more or tidied.total > before) and (db.touched or db.puts or db.deletes):
            await db.committer.durable()
        elif more or idle >= _BETWEEN:
            idle = 0
            await db.turns.wait()
        idle += 1


async def _visit(  # noqa: PLR0917 - the queue, the limits, and the counters
    db: State, queue: Queue, now: int, limit: int, retries_of: RetryPolicyOf, tidied: _Tidied
) -> bool:
    """Tidy up to about `limit` entries of a queue; answer whether there is more to do now.

    Raises Unavailable: a recovery began. It reads only what a failed batch had changed, so it would
    count wrongly what is changed now, and undo one side of a move.
    """
    db.committer.check_readable()
    if first_lapse(queue) <= now:
        await _end_lapsed(db, queue, now, min(limit, MOST_LAPSES), retries_of, tidied)
    if next_due(queue) <= now:
        _bring_up(db, queue, now, limit, tidied)
        db.touched.add(queue)
    if queue.expired_pages:
        await load_some(db, queue, queue.expired_pages)
        return True
    has_more = _tidy(queue)
    queue.write_holders(STEP)
    if queue.changed_pages or queue.changed_attempts:
        db.touched.add(queue)
    if (queue.done or queue.failed) and await history.trim(db, queue, now) >= STEP:
        return True
    return has_more or bool(queue.unrecorded_holds) or next_due(queue) <= now


def _bring_up(db: State, queue: Queue, now: int, limit: int, tidied: _Tidied) -> None:
    expired = expire(queue, now, limit)
    promoted = promote(queue, now, max(1, limit - expired))
    if promoted:
        db.announce(queue.ref, promoted)
    tidied.promoted += promoted
    tidied.expired += expired
    queue.keys.forget(now, STEP)


async def _end_lapsed(  # noqa: PLR0917 - as above
    db: State, queue: Queue, now: int, limit: int, retries_of: RetryPolicyOf, tidied: _Tidied
) -> None:
    """End lapsed leases by the queue's policy, which a separate management store may have."""
    retries = await retries_of(queue.ref)
    current, _ = await prepared(db, queue.ref, None, partial(cold_lapsed, now=now), reads=True)
    if current is not queue:
        return
    ended, moved = end_lapsed(Step(db, queue, now, retries), limit)
    tidied.lapsed += ended - moved
    tidied.moved += moved
    letter = retries.dead_letter
    if moved and letter is not None and letter.target is not None:
        tidied.letters_in.add(letter.target)


def _tidy(queue: Queue) -> bool:
    """Join neighbouring pages once many are nearly empty; answer whether there may be more.

    A few remaining messages would otherwise keep a page each, in memory and on disk. Heaps of which
    most items are outdated are made anew.
    """
    most, pages = 2 * len(queue.pages) + _SPARE_BOUNDS, queue.pages
    if len(queue.ready) > most:
        queue.ready = [(page.best, page) for page in pages if page.best != NOTHING]
        heapify(queue.ready)
    if len(queue.waiting) > most:
        waiting = [page for page in pages if page.next_visible != NEVER]
        queue.waiting = [(page.next_visible, page.first, page) for page in waiting]
        heapify(queue.waiting)
    if len(queue.expiries) > most:
        ending = [page for page in pages if page.min_expires != NEVER]
        queue.expiries = [(page.min_expires, page.first, page) for page in ending]
        heapify(queue.expiries)
    if len(queue.pages) <= 2 * (queue.total // PAGE_SIZE) + _SPARE_PAGES:
        return False
    left, joined = queue.pages[0], 0
    for right in queue.pages[1:]:
        if left.summary or right.summary or len(left.entries) + len(right.entries) > _FOLDED:
            left = right
            continue
        _join(queue, left, right)
        joined += 1
        if joined == _MOST_JOINED:
            return True
    return False


def _join(queue: Queue, left: Page, right: Page) -> None:
    for entry in right.entries.values():
        entry.page = left
        queue.note_expiry(entry)
    left.entries.update(right.entries)
    left.order = None
    left.best_waiting = min(left.best_waiting, right.best_waiting)
    queue.note_wait(left, right.next_visible)
    queue.offer(left, right.best)
    if right in queue.due:
        queue.due[left] = None
    right.entries = {}
    queue.change(left)
    queue.change(right)
    queue.drop_page(right)


def _put_to_rest(db: State, queue: Queue) -> bool:
    """Drop a queue from memory if only its record is left; answer whether that must wait.

    It waits while a batch, or a large post that is stored in parts, refers to the queue.
    """
    if not queue.is_bare or not db.is_current(queue):
        return False
    if queue in db.touched or queue in db.encoded or queue.ref in db.staging:
        return True
    if queue.epoch > db.committer.committed:
        return True
    db.queues.rest(queue)
    return False


async def _delete_garbage(db: State) -> int:
    """Delete the messages of one garbage record; answer how many."""
    if not db.garbage:
        return 0
    key = db.garbage[0]
    value = (await db.read([key])).get(key)
    if not db.garbage or db.garbage[0] != key:
        return 0
    db.garbage.popleft()
    db.deletes[key] = None
    db.puts.pop(key, None)
    gone = decode_garbage(value) if isinstance(value, bytes) else ()
    for message_id in gone:
        db.delete_message(message_id)
    return len(gone)


async def _delete_unrouted(db: State, now: int) -> int:
    """Delete one step of the messages that no queue received and whose retention has ended."""
    if db.unrouted_due > now:
        return 0
    due_at, over = NEVER, list[bytes]()
    async for key, value in db.rows(keys.prefix(RecordType.UNROUTED)):
        if isinstance(value, Damage):
            continue
        deadline = keys.read_message_id(key)
        if deadline > now or len(over) >= GARBAGE_STEP:
            due_at = deadline
            break
        over.append(key)
    db.unrouted_due = due_at
    for key in over:
        db.delete(key)
        db.delete_message(keys.read_message_id(key, 10))
    return len(over)

"""The sweep: what time has ended in any queue, and what purges and drops left behind.

A queue's row says when something is due (`sweep_at`), so the sweep visits only queues in which it
finds work, each for one bounded step that is a transaction of its own.
"""

from contextlib import suppress

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import NO_RETRIES, QueueRef, RetryPolicy, RetryPolicyOf, SweepResult
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.storage.sql import claiming, entries, expiring, posting
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.queues import Queue

_STEP = 20
"""Entries of a queue that one visit tidies: about 0.5 ms where leases lapse."""
_VISITS = 200
"""Queues that one sweep visits at most."""
_GARBAGE = 100
"""Entries of garbage that one step deletes: about 0.3 ms."""
_GIVEN_BACK = 50
"""Steps in which one sweep gives free pages of the file back to the disk."""


async def sweep(db: Database, limit: int, retries_of: RetryPolicyOf) -> SweepResult:
    """Tidy up about `limit` entries; see the seam."""
    db.check_writable()
    swept = SweepResult()
    for _ in range(_VISITS):
        now, ref = await db.read(_NO_QUEUE, _next_due)
        if ref is None or swept.total >= limit:
            break
        queue = await db.look(Database.queue, ref)
        has_lapsed = queue is not None and queue.leased > 0 and queue.ready_at <= now
        retries = await retries_of(ref) if has_lapsed else NO_RETRIES
        most = min(_STEP, limit - swept.total)
        done = await db.change_queue(ref, None, SweepResult(), _visit, now, most, retries)
        swept = swept.plus(done)
        if done.total:
            await next_turn()
    while swept.total < limit:
        number = await db.read(_NO_QUEUE, lambda db: db.execute(_ANY_GARBAGE).get)
        step = await db.write(_delete_garbage, number) if number else 0
        if not step:
            break
        swept = swept._replace(deleted=swept.deleted + step)
        await next_turn()
    for _ in range(_GIVEN_BACK):
        if not await db.read(_NO_QUEUE, lambda db: db.place.has_spare_pages()):
            break
        await db.write(lambda db: db.place.give_back_pages())
    with suppress(Unavailable):  # a full disk has more room after the next sweep
        await posting.finish_posts(db)
    return swept


_NO_QUEUE = QueueRef("", "")


def _next_due(db: Database) -> tuple[int, QueueRef | None]:
    """The instant, and the queue that has been due for longest."""
    db.write_queues()  # so that their rows say when something is due
    now = db.clock.now_ms()
    row = db.execute(
        "SELECT project, name FROM queue INDEXED BY sweeping"
        " WHERE sweep_at IS NOT NULL AND sweep_at <= ? ORDER BY sweep_at LIMIT 1",
        (now,),
    ).fetchone()
    return now, None if row is None else QueueRef(*row)


def _visit(db: Database, queue: Queue, now: int, limit: int, retries: RetryPolicy) -> SweepResult:
    """Tidy up to `limit` entries of a queue; its row goes when nothing is left of it."""
    db.touch(queue)
    if queue.is_bare:
        db.remove_queue(queue)
        return SweepResult()
    done, lapsed, moved = expiring.end(db, queue, now, limit), 0, 0
    if queue.ready_at <= now:
        lapsed, moved = claiming.end_lapsed(db, queue, now, limit - done.expired, retries)
    letter = retries.dead_letter
    target = {letter.target} if moved and letter and letter.target else set()
    return done._replace(lapsed=lapsed - moved, moved=moved, letters_in=frozenset(target))


def _delete_garbage(db: Database, number: int) -> int:
    """Delete one step of what a purged or dropped queue held; answer how much that was."""
    found = entries.entries_where(
        db, "WHERE queue = ? ORDER BY position LIMIT ?", (number, _GARBAGE)
    )
    if found:
        last = found[-1].position
        db.execute("DELETE FROM entry WHERE queue = ? AND position <= ?", (number, last))
        entries.delete_bodies(db, found)
        return len(found)
    for statement in _DELETE_REST:
        db.execute(statement, (number, _GARBAGE))
        if deleted := int(db.connection.changes()):
            return deleted
    db.execute("DELETE FROM garbage WHERE number = ?", (number,))
    return int(db.connection.changes())


_ANY_GARBAGE = "SELECT number FROM garbage LIMIT 1"
_DELETE_REST = (
    "DELETE FROM claim WHERE id IN"
    " (SELECT id FROM claim INDEXED BY lapsing WHERE queue = ?1 LIMIT ?2)",
    "DELETE FROM idempotency WHERE queue = ?1 AND (kind, key) IN"
    " (SELECT kind, key FROM idempotency WHERE queue = ?1 LIMIT ?2)",
    "DELETE FROM history WHERE queue = ?1 AND (state, number) IN"
    " (SELECT state, number FROM history WHERE queue = ?1 LIMIT ?2)",
)
"""Statements that delete some of what a queue has beside its entries."""

"""The sweep: bring queues up to now, move what is exhausted, delete what nobody holds any more."""

from zaqar_lite.domain.metadata import dead_letter_policy
from zaqar_lite.domain.models import QueueRef, Swept
from zaqar_lite.storage.opendata import past
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.due import STEP, expire, lapse, next_due, promote
from zaqar_lite.storage.opendata.engine import Damage
from zaqar_lite.storage.opendata.entries import is_damaged
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.bookkeeping import decode_garbage
from zaqar_lite.storage.opendata.paging import cool, load
from zaqar_lite.storage.opendata.queue import Queue


async def sweep(db: Database, limit: int) -> Swept:
    """Tidy up about `limit` entries; what was changed is durable when this returns."""
    db.committer.check_writable()
    now = db.clock.now_ms()
    expired = promoted = lapsed = moved = 0
    letters_in: set[QueueRef] = set()
    for queue in db.queues:
        left = limit - expired - promoted - lapsed - moved
        if left <= 0:
            break
        if next_due(queue) <= now:
            gone = expire(queue, now, left)
            if queue.due_pages:
                pages = queue.due_pages.copy()
                queue.due_pages.clear()
                await load(db, queue, pages)
                if db.queues.get(queue.ref) is not queue:
                    continue  # it was dropped or recovered meanwhile
                gone += expire(queue, now, left)
            free = lapse(queue, now, max(0, left - gone))
            due = promote(queue, now, max(0, left - gone - free))
            queue.keys.forget(now, STEP)
            expired, lapsed, promoted = expired + gone, lapsed + free, promoted + due
            db.touched.add(queue)
        queue.fold()
        queue.forget_stale_keys()
        cool(db, queue, all_pages=True)
        if queue.changed_pages:
            db.touched.add(queue)
        if queue.exhaustible:
            moved += _move_exhausted(db, queue, now, left, letters_in)
        if queue.done or queue.failed:
            await past.trim(db, queue, now)
        if queue.is_empty and queue not in db.touched and queue.epoch <= db.committer.committed:
            db.queues.discard(queue.ref)
    deleted = 0
    while True:
        deleted += await _delete_garbage(db)
        if db.touched or db.puts or db.deletes:
            await db.committer.durable()
        if not db.garbage or deleted >= limit:
            break
    return Swept(expired, promoted, lapsed, moved, deleted, frozenset(letters_in))


def _move_exhausted(
    db: Database, queue: Queue, now: int, limit: int, letters_in: set[QueueRef]
) -> int:
    """Move entries whose last attempt has ended, by the policy in the queue's own record."""
    record = queue.record
    policy = None if record is None else dead_letter_policy(queue.ref, record.metadata)
    waiting = queue.exhaustible[:STEP]
    del queue.exhaustible[:STEP]
    moved = 0
    for entry in waiting:
        if policy is None or entry.claim is not None or queue.find(entry.position) is not entry:
            continue
        if is_damaged(entry) or entry.attempts < policy.max_claims:
            continue
        if moved >= limit:
            queue.exhaustible.append(entry)
            continue
        queue.ready_count -= 1  # its key in the ready index is passed over from now on
        past.move(db, queue, entry, policy, now)
        moved += 1
        if policy.target is not None:
            letters_in.add(policy.target)
    return moved


async def _delete_garbage(db: Database) -> int:
    """Delete one step of what was left behind by a purge; answer how many messages."""
    if not db.garbage:
        return 0
    key = db.garbage[0]
    value = db.puts.get(key) or db.written.puts.get(key)
    if value is None:
        stored = (await db.engine.get([key])).get(key)
        value = None if isinstance(stored, Damage) else stored
    db.garbage.popleft()
    db.deletes[key] = None
    db.puts.pop(key, None)
    gone = () if value is None else decode_garbage(value)
    for message_id in gone:
        db.deletes[keys.message_key(keys.RecordType.PAYLOAD, message_id)] = None
        db.deletes[db.log_key(message_id)] = None
    return len(gone)

"""What changed in a queue since the last batch, as records of the next one."""

from collections.abc import Sequence

from zaqar_lite.storage.opendata.format import keys, records
from zaqar_lite.storage.opendata.format.active import encode_active
from zaqar_lite.storage.opendata.format.bookkeeping import encode_garbage
from zaqar_lite.storage.opendata.format.keys import PAYLOAD_PREFIX, RecordType
from zaqar_lite.storage.opendata.pages import encode_page
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.remembered import History
from zaqar_lite.storage.opendata.state import State

EMPTY_ACTIVE = encode_active((), ())
EMPTY_ENDED = records.encode_ended(())
GARBAGE_STEP = 125
"""Messages that a sweep deletes with one batch; the commits of others wait for all of them."""


def encode_changes(db: State, queue: Queue) -> None:
    """Put the records of what changed in a queue into the batch."""
    if queue.removed:
        _encode_removed(db, queue)
    for number in queue.changed_pages:
        page = queue.numbered.get(number)
        if page is not None:
            page.epoch = db.committer.epoch
            db.resident.use(page, queue)
        key = keys.queue_key(RecordType.ACTIVE, queue.raw, number)
        if page is not None and (page.entries or number is None):
            db.put(key, encode_page(page))
        elif number is None:
            db.put(key, EMPTY_ACTIVE)
        else:
            db.delete(key)
    queue.changed_pages.clear()
    _encode_claims(db, queue)
    prefix = keys.queue_key(RecordType.IDEMPOTENCY, queue.raw)
    for name, value in queue.keys.changed.items():
        _write(db, prefix + name, value)
    queue.keys.changed.clear()
    for history in (queue.done, queue.failed):
        if history.changed:
            _encode_history(db, queue, history)
    if queue.record is None and not queue.total and not queue.damaged_pages:
        for kind in (RecordType.ACTIVE, RecordType.DONE, RecordType.FAILED):
            key = keys.queue_key(kind, queue.raw)
            if key in db.puts or kind is not RecordType.ACTIVE:
                db.delete(key)


def _write(db: State, key: bytes, value: bytes | None) -> None:
    if value is None:
        db.delete(key)
    else:
        db.put(key, value)


def _encode_claims(db: State, queue: Queue) -> None:
    for claim_id, claim in queue.changed_claims.items():
        value = None if claim is None else records.encode_claim(
            records.ClaimRecord(
                claim.created_at, claim.ttl_ms, claim.grace_ms, claim.client_id,
                list(claim.held.values()),
            )
        )  # fmt: skip
        _write(db, keys.claim_key(queue.raw, bytes.fromhex(claim_id)), value)
    queue.changed_claims.clear()
    plain: dict[str, bytes] = {}  # of those that are held for the first time, by holder
    for entry in queue.ended:
        past, claim = entry.past, entry.claim
        holder = claim.client_id if claim is not None and claim.ttl_ms else None
        if queue.find(entry.position) is not entry:
            continue
        if past is not None:
            value = records.encode_attempts(past.attempts, holder)
        elif holder is None:
            continue
        else:
            value = plain.get(holder) or records.encode_attempts(records.Attempts([]), holder)
            plain[holder] = value
        db.put(keys.attempts_key(entry.name, queue.raw), value)
    queue.ended.clear()


def _encode_removed(db: State, queue: Queue) -> None:
    gone: list[int] = []
    for entry in queue.removed:
        past = entry.past
        if entry.attempts or (past is not None and past.consumers):
            key = keys.attempts_key(entry.name, queue.raw)
            if key not in db.puts:  # a history that began in this batch needs it
                db.deletes[key] = None
        if past is not None:
            for kept in past.kept:
                db.delete(keys.attempt_key(past.history, kept.number))
            if past.shared and _has_other_holder(db, entry.id):
                continue
        gone.append(entry.id)
    queue.removed.clear()
    if len(gone) > GARBAGE_STEP:
        _put_garbage(db, gone)
        return
    for message_id in gone:
        db.delete(PAYLOAD_PREFIX + message_id.to_bytes(8, "big"))
        db.delete(db.log_key(message_id))
        db.bodies.forget(message_id)


def _has_other_holder(db: State, message_id: int) -> bool:
    """Count one holder less; tell whether another queue still holds the message."""
    holders = db.shared.get(message_id, 1) - 1
    if holders > 1:
        db.shared[message_id] = holders
    else:
        db.shared.pop(message_id, None)
    return holders > 0


def _put_garbage(db: State, gone: Sequence[int]) -> None:
    """Leave the deleting of many messages to the sweep, in steps that survive a crash."""
    for start in range(0, len(gone), GARBAGE_STEP):
        key = keys.message_key(RecordType.GARBAGE, db.next_garbage)
        db.next_garbage += 1
        db.puts[key] = encode_garbage(gone[start : start + GARBAGE_STEP])
        db.garbage.append(key)


def _encode_history(db: State, queue: Queue, history: History) -> None:
    for number in history.changed:
        value = None
        if number == history.number and (history.tail or number is None):
            value = records.encode_ended(history.tail)
        elif number in history.filled:
            value = records.encode_ended(history.filled.pop(number))
        elif number is None:
            value = EMPTY_ENDED
        _write(db, keys.queue_key(history.kind, queue.raw, number), value)
    history.changed.clear()

"""What changed in a queue since the last batch, as records of the next one."""

from collections.abc import Sequence

from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.active import encode_active
from zaqar_lite.storage.opendata.format.attempts import Attempts, encode_attempts
from zaqar_lite.storage.opendata.format.bookkeeping import encode_garbage
from zaqar_lite.storage.opendata.format.keys import PAYLOAD_PREFIX, RecordType
from zaqar_lite.storage.opendata.format.records import (
    ClaimRecord,
    encode_claim,
    encode_ended,
)
from zaqar_lite.storage.opendata.history import History
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import State

EMPTY_ACTIVE = encode_active((), ())
EMPTY_ENDED = encode_ended(())
GARBAGE_STEP = 125
"""Messages that a sweep deletes with one batch; the commits of others wait for all of them."""


def encode_changes(
    db: State, queue: Queue, puts: dict[bytes, bytes], deletes: dict[bytes, None]
) -> None:
    """Add the records of what changed in a queue to a batch."""
    if queue.removed:
        _encode_removed(db, queue, puts, deletes)
    root = keys.queue_key(RecordType.ACTIVE, queue.raw)
    for number in queue.changed_pages:
        page = queue.numbered.get(number)
        if page is not None:
            page.epoch = db.committer.epoch
            db.resident.use(page, queue)
        if number is None:
            puts[root] = EMPTY_ACTIVE if page is None else page.encode()
            deletes.pop(root, None)
            continue
        key = root + number.to_bytes(8, "big")
        if page is None or not page.entries:
            deletes[key] = None
        else:
            puts[key] = page.encode()
            deletes.pop(key, None)
    queue.changed_pages.clear()
    _encode_claims(queue, puts, deletes)
    if queue.keys.changed:
        _encode_keys(queue, puts, deletes)
    for history in (queue.done, queue.failed):
        if history.changed:
            _encode_history(queue, history, puts, deletes)
    if queue.record is None and not queue.total and not queue.damaged_pages:
        for kind in (RecordType.ACTIVE, RecordType.DONE, RecordType.FAILED):
            key = keys.queue_key(kind, queue.raw)
            if puts.pop(key, None) is not None or kind is not RecordType.ACTIVE:
                deletes[key] = None


def _encode_claims(queue: Queue, puts: dict[bytes, bytes], deletes: dict[bytes, None]) -> None:
    for claim_id, claim in queue.changed_claims.items():
        key = keys.claim_key(queue.raw, bytes.fromhex(claim_id))
        if claim is None:
            puts.pop(key, None)
            deletes[key] = None
        else:
            ids = list(claim.held.values())
            puts[key] = encode_claim(
                ClaimRecord(claim.created_at, claim.ttl_ms, claim.grace_ms, claim.client_id, ids)
            )
    queue.changed_claims.clear()
    plain: dict[str, bytes] = {}  # of those that are held for the first time, by holder
    for entry in queue.ended:
        past, claim = entry.past, entry.claim
        holder = claim.client_id if claim is not None and claim.ttl_ms else None
        if queue.find(entry.position) is not entry:
            continue
        if past is not None:
            value = encode_attempts(past.attempts, holder)
        elif holder is None:
            continue
        else:
            value = plain.get(holder) or encode_attempts(Attempts([]), holder)
            plain[holder] = value
        key = keys.attempts_key(entry.name, queue.raw)
        puts[key] = value
        deletes.pop(key, None)
    queue.ended.clear()


def _encode_removed(
    db: State, queue: Queue, puts: dict[bytes, bytes], deletes: dict[bytes, None]
) -> None:
    gone: list[int] = []
    for entry in queue.removed:
        message_id = entry.id
        past = entry.past
        if entry.attempts:
            key = keys.attempts_key(entry.name, queue.raw)
            if key not in puts:  # a history that began in this batch needs it
                deletes[key] = None
        if past is not None:
            if past.consumers:
                for kept in past.kept:
                    key = keys.attempt_key(past.history, kept.number)
                    puts.pop(key, None)
                    deletes[key] = None
            if past.shared and _has_other_holder(db, message_id):
                continue
        gone.append(message_id)
    queue.removed.clear()
    if len(gone) > GARBAGE_STEP:
        put_garbage(db, gone, puts)
        return
    for message_id in gone:
        key = PAYLOAD_PREFIX + message_id.to_bytes(8, "big")
        puts.pop(key, None)
        deletes[key] = None
        deletes[db.log_key(message_id)] = None
        db.bodies.forget(message_id)


def _has_other_holder(db: State, message_id: int) -> bool:
    """Count one holder less; tell whether another queue still holds the message."""
    holders = db.shared.get(message_id, 1) - 1
    if holders > 1:
        db.shared[message_id] = holders
    else:
        db.shared.pop(message_id, None)
    return holders > 0


def put_garbage(db: State, gone: Sequence[int], puts: dict[bytes, bytes]) -> None:
    """Leave the deleting of many messages to the sweep, in steps that survive a crash."""
    for start in range(0, len(gone), GARBAGE_STEP):
        step = gone[start : start + GARBAGE_STEP]
        key = keys.message_key(RecordType.GARBAGE, db.next_garbage)
        db.next_garbage += 1
        puts[key] = encode_garbage(step)
        db.garbage.append(key)


def _encode_keys(queue: Queue, puts: dict[bytes, bytes], deletes: dict[bytes, None]) -> None:
    prefix = keys.queue_key(RecordType.IDEMPOTENCY, queue.raw)
    for name, value in queue.keys.changed.items():
        if value is None:
            deletes[prefix + name] = None
            puts.pop(prefix + name, None)
        else:
            puts[prefix + name] = value
            deletes.pop(prefix + name, None)
    queue.keys.changed.clear()


def _encode_history(
    queue: Queue, history: History, puts: dict[bytes, bytes], deletes: dict[bytes, None]
) -> None:
    for number in history.changed:
        key = keys.queue_key(history.kind, queue.raw, number)
        if number == history.number and (history.tail or number is None):
            puts[key] = encode_ended(history.tail)
            deletes.pop(key, None)
        elif history.is_full(number):
            puts[key] = encode_ended(history.filled.pop(number))
        elif number is None:
            puts[key] = EMPTY_ENDED
        else:
            deletes[key] = None
    history.changed.clear()

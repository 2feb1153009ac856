"""Between queues and records: encoding what changed for a batch, and reading pages back."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count as counted
from itertools import islice

from zaqar_lite.storage.opendata.entries import (
    PAGE_SIZE,
    POSITION_BITS,
    UNKNOWN,
    Claim,
    Entry,
    Page,
    Summary,
)
from zaqar_lite.storage.opendata.format import active, keys, records
from zaqar_lite.storage.opendata.format.active import ActivePage, encode_active
from zaqar_lite.storage.opendata.format.bookkeeping import encode_garbage
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import State

EMPTY_ACTIVE = encode_active((), ())
EMPTY_ENDED = records.encode_ended(())
GARBAGE_STEP = 125
"""Messages that the sweep deletes in one batch: other requests wait while they are written."""


def encode_changes(db: State, queue: Queue) -> None:
    """Put what changed in a queue into the batch."""
    if queue.removed:
        _encode_removed(db, queue)
    _encode_pages(db, queue)
    _encode_groups(db, queue)
    _encode_claims(db, queue)
    if queue.keys.changed:
        _encode_keys(db, queue)
    for history in (queue.done, queue.failed):
        for number, items in history.changed.items():
            value = records.encode_ended(items) if items or number is None else None
            _write(db, keys.queue_key(history.kind, queue.raw, number), value)
        history.changed.clear()
    if queue.record is None and not queue.total and not queue.damaged_pages:
        for kind in (RecordType.ACTIVE, RecordType.DONE, RecordType.FAILED):
            db.delete(keys.queue_key(kind, queue.raw))


def _write(db: State, key: bytes, value: bytes | None) -> None:
    if value is None:
        db.delete(key)
    else:
        db.put(key, value)


def _encode_pages(db: State, queue: Queue) -> None:
    for number in queue.changed_pages:
        page = queue.numbered.get(number)
        if page is not None:
            page.epoch = db.committer.epoch
            db.page_cache.use(page, queue)
        key = keys.queue_key(RecordType.ACTIVE, queue.raw, number)
        if page is not None and (page.entries or number is None):
            db.put(key, encode_page(page))
        elif number is None:
            db.put(key, EMPTY_ACTIVE)
        else:
            db.delete(key)
    queue.changed_pages.clear()


def _encode_keys(db: State, queue: Queue) -> None:
    prefix = keys.queue_key(RecordType.IDEMPOTENCY, queue.raw)
    for name, value in queue.keys.changed.items():
        _write(db, prefix + name, value)
    queue.keys.changed.clear()


def _encode_groups(db: State, queue: Queue) -> None:
    for (group, position), is_there in queue.changed_groups.items():
        _write(db, keys.group_key(queue.raw, group, position), b"" if is_there else None)
    queue.changed_groups.clear()


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
    if queue.changed_attempts:
        _encode_attempts(db, queue)


def _encode_attempts(db: State, queue: Queue) -> None:
    """Put the records of ended attempts and current claimants."""
    puts, deletes, find, key = db.puts, db.deletes, queue.find, keys.attempts_keys(queue.raw)
    plain: dict[Claim, bytes] = {}  # of entries in their first attempt
    for entry in queue.changed_attempts:
        extras, claim = entry.extras, entry.claim
        if find(entry.position) is not entry:
            continue
        if extras is not None:
            holder = claim.client_id if claim is not None and claim.ttl_ms else None
            value = records.encode_attempts(extras.attempts, holder)
        elif claim is None or not claim.ttl_ms:
            continue
        else:
            value = plain.get(claim, b"")
            if not value:
                value = records.encode_attempts(records.Attempts(()), claim.client_id)
                plain[claim] = value
        name = key(entry.shown_id)
        puts[name] = value
        if deletes:
            deletes.pop(name, None)
    queue.changed_attempts.clear()


def _encode_removed(db: State, queue: Queue) -> None:
    gone: list[int] = []
    attempts_key = keys.attempts_keys(queue.raw)
    unrecorded = queue.unrecorded_holds
    for entry in queue.removed:
        extras = entry.extras
        was_written = entry.attempts and entry.position not in unrecorded
        unrecorded.discard(entry.position)
        if was_written or (extras is not None and extras.consumers):
            key = attempts_key(entry.shown_id)
            if key not in db.puts:  # the done or failed list needs the one of this batch
                db.deletes[key] = None
        if extras is not None:
            for kept in extras.kept:
                db.delete(keys.attempt_key(extras.history, kept.number))
            if extras.shared and _drop_holder(db, entry.id):
                continue
        gone.append(entry.id)
    queue.removed.clear()
    if len(gone) > GARBAGE_STEP:
        db.garbage.extend(put_garbage(db, gone))
        return
    for message_id in gone:
        db.delete_message(message_id)


def _drop_holder(db: State, message_id: int) -> bool:
    """Note that a queue holds a message no more; answer whether another queue still does."""
    holders = db.shared.get(message_id, 1) - 1
    if holders > 1:
        db.shared[message_id] = holders
    else:
        db.shared.pop(message_id, None)
    return holders > 0


def put_garbage(db: State, gone: Sequence[int]) -> list[bytes]:
    """Write garbage records: messages to be deleted by the sweep, or after the next start.

    Answers the keys. The sweep deletes what the records in `db.garbage` name.
    """
    noted: list[bytes] = []
    for start in range(0, len(gone), GARBAGE_STEP):
        key = keys.message_key(RecordType.GARBAGE, db.next_garbage)
        db.next_garbage += 1
        db.puts[key] = encode_garbage(gone[start : start + GARBAGE_STEP])
        noted.append(key)
    return noted


_NO_EXTRA = active.Extra()


def encode_page(page: Page) -> bytes:
    """Encode a page as it is now."""
    available: list[int] = []
    in_flight: list[int] = []
    encoded_extras: list[bytes] = []
    for entry in islice(page.entries.values(), page.encoded_count, None):
        claim, extras = entry.claim, entry.extras
        if claim is not None and claim.ttl_ms:
            in_flight += (
                entry.id, entry.priority, claim.claimed_at,
                claim.lease(entry.position) if claim.leases else claim.deadline,
                entry.attempts,
            )  # fmt: skip
        elif extras is not None and extras.parked_until:
            until = extras.parked_until
            in_flight += (entry.id, entry.priority, until, until, entry.attempts)
        else:
            available += (
                entry.id, entry.priority, entry.visible_at, entry.expires_at, entry.attempts,
            )  # fmt: skip
            if extras is None and entry.is_plain:
                continue
        extra = _extra(entry)
        if extra is not None:
            encoded_extras.append(extra)
    elements = page.encoded + active.encode_elements(available)
    number = page.encoded_count + len(available) // 5
    encoded_extras = [*page.encoded_extras, *encoded_extras]
    if not in_flight and number < PAGE_SIZE:
        page.encoded, page.encoded_count, page.encoded_extras = elements, number, encoded_extras
    else:
        page.forget_encoded()  # nothing more is appended to a full page
    return active.join_active(number, elements, in_flight, encoded_extras)


def _extra(entry: Entry) -> bytes | None:
    """Encode what the entry has beyond the RFC's fields."""
    extras, claim = entry.extras, entry.claim
    if extras is not None and extras.is_only_shared and claim is None and entry.is_plain:
        return _shared_extra(entry.id)
    if extras is None and claim is not None and claim.ttl_ms and entry.position == entry.id:
        ttl_ms = None if entry.is_plain else entry.ttl_ms or None
        return active.encode_held_extra(entry.id, entry.visible_at, entry.expires_at, ttl_ms)
    extra = active.Extra()
    if extras is not None:
        extra.last_claim, extra.parked = extras.last_claim, extras.parked_until != 0
        extra.renamed, extra.shared, extra.origin = extras.renamed, extras.shared, extras.origin
        extra.group = extras.group
    if extra.parked or (claim is not None and claim.ttl_ms):
        extra.visible_at, extra.deadline = entry.visible_at, entry.expires_at
    if not entry.is_plain and entry.ttl_ms:
        extra.ttl_ms = entry.ttl_ms
    if entry.position != entry.id:
        extra.position = entry.position
    if extra.deadline is None and extra == _NO_EXTRA:
        return None
    return active.encode_extra(entry.id, extra)


@lru_cache(PAGE_SIZE)  # the copies of a message have the same
def _shared_extra(message_id: int) -> bytes:
    """Encode that a message was copied, which is all that most copies have."""
    return active.encode_extra(message_id, active.Extra(shared=True))


def plain_summary(
    page: Page, stored: ActivePage, moved_here: dict[int, int], now: int
) -> Summary | None:
    """Set the bounds of a page and summarise it without making its entries, where that can be.

    It can if all entries are ready, or all are delayed, and none is shared or renamed; else None.
    The positions of entries that were moved here go into `moved_here`.
    """
    available, in_flight, extras = stored
    if in_flight or not available or any(one.shared or one.renamed for one in extras.values()):
        return None
    ids: Sequence[int] = available[::5]
    moved = {ids[place]: one.position for place, one in extras.items() if one.position is not None}
    if moved:
        moved_here.update(moved)
        ids = [moved.get(one, one) for one in ids]
    number, visible = len(available) // 5, available[2::5]
    last = max(visible)
    page.first = min(ids)
    priority = min(available[1::5])
    if last <= now:
        page.best = priority << POSITION_BITS | page.first
        summary = Summary(number, ready=number)
    elif (first := min(visible)) > now:
        page.next_visible, page.best_waiting = first, priority
        summary = Summary(number, delayed=number, last_visible=last)
    else:
        return None
    page.min_expires = min(available[3::5])
    return summary


def entries_of(
    page: Page, stored: ActivePage, holders: Mapping[int, Claim], now: int
) -> tuple[dict[int, Entry], list[tuple[Entry, int, int]]]:
    """Make the entries of a page from its record, by position, without their ended attempts.

    `holders` are the claims by the shown ids of what they hold. Also answers the claimed entries,
    each with the start of its claim and the end of its lease.
    """
    available, in_flight, extras = stored
    entries: list[Entry] = []
    held: list[tuple[Entry, int, int]] = []
    places = counted()
    for message_id, priority, visible_at, deadline, attempts in active.rows_of_five(available):
        extra = extras.get(next(places)) if extras else None
        if extra is None and not attempts:
            entry = Entry(
                message_id, message_id, page, priority, visible_at, deadline, 0, UNKNOWN, None, None
            )
        else:
            entry = _restored(page, message_id, priority, attempts, extra)
            entry.visible_at, entry.expires_at = visible_at, deadline
        entry.delayed = visible_at > now
        entries.append(entry)
    for message_id, priority, claimed_at, lease, attempts in active.rows_of_five(in_flight):
        extra = extras.get(next(places))
        entry = _restored(page, message_id, priority, attempts, extra)
        if extra is not None and extra.deadline is not None:
            entry.visible_at, entry.expires_at = extra.visible_at or 0, extra.deadline
        else:  # a record of another writer has no deadline here: outlive the lease
            entry.expires_at = lease + 1
        entries.append(entry)
        if extra is not None and extra.parked:
            entry.ensure_extras().parked_until = lease if lease > now else 0
            continue
        entry.claim = holders.get(entry.shown_id)
        held.append((entry, claimed_at, lease))
    entries.sort(key=lambda entry: entry.position)
    return {entry.position: entry for entry in entries}, held


def _restored(
    page: Page, message_id: int, priority: int, attempts: int, extra: active.Extra | None
) -> Entry:
    """Make an entry from a page's record; deadlines and metadata are the caller's to add."""
    extra = extra or _NO_EXTRA
    position = message_id if extra.position is None else extra.position
    entry = Entry(
        message_id, position, page, priority, 0, 0, extra.ttl_ms or 0, UNKNOWN, None, None
    )
    entry.attempts = attempts
    if extra.last_claim or extra.shared or extra.renamed or extra.origin or extra.group:
        extras = entry.ensure_extras()
        extras.last_claim, extras.shared = extra.last_claim, extra.shared
        extras.renamed, extras.origin, extras.group = extra.renamed, extra.origin, extra.group
    return entry

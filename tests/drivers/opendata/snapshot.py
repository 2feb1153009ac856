"""A database as plain values, and the invariants of its records."""

from typing import Any

from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.due import promote
from zaqar_lite.storage.opendata.entries import NEVER, NOTHING, Entry, is_ready, ready_key
from zaqar_lite.storage.opendata.format import after_prefix, keys
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.format.records import Attempts
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.recovery import unrouted_ids


def snapshot(db: Database, now: int) -> dict[Any, Any]:
    """All queues as values that compare."""
    return {
        "queues": {
            queue.ref: _queue(queue, now)
            for queue in db.queues
            if queue.record or not queue.is_bare
        },
        "shared": db.shared,
        "records": db.catalogue.all(),
    }


def _queue(queue: Queue, now: int) -> dict[str, Any]:
    promote(queue, now, 1 << 60)
    check_bounds(queue)
    entries = [entry for page in queue.pages for entry in page.entries.values()]
    assert [entry.position for entry in entries] == sorted(entry.position for entry in entries)
    assert len(entries) == queue.total
    assert sum(entry.claim is not None for entry in entries) == queue.claimed_count
    assert sum(bool(entry.extras and entry.extras.parked_until) for entry in entries) == (
        queue.parked_count
    )
    assert sum(entry.delayed for entry in entries) == queue.delayed_count
    return {
        "record": queue.record,
        "entries": [_entry(entry) for entry in entries],
        "ready": sorted(ready_key(entry) for entry in entries if is_ready(entry)),
        "claims": {
            claim.id: (claim.claimed_at, claim.created_at, claim.ttl_ms, claim.grace_ms,
                       claim.client_id, {at: claim.lease(at) for at in sorted(claim.held)})
            for claim in queue.claims.values()
        },
        "keys": dict(queue.keys._known),
        "done": list(queue.done.tail),
        "failed": list(queue.failed.tail),
        "full": (queue.done.full, queue.failed.full),
    }  # fmt: skip


def check_bounds(queue: Queue) -> None:
    """The heaps find every entry when it is next, ready or over, and not after."""
    for page in queue.pages:
        ready = [ready_key(entry) for entry in page.entries.values() if is_ready(entry)]
        assert page.best <= min(ready, default=NOTHING)
        assert page.best == NOTHING or (page.best, page) in queue.ready
        assert page.order is None or set(ready) <= set(page.order)
        ends = [
            entry.visible_at if entry.delayed else entry.extras.parked_until if entry.extras else 0
            for entry in page.entries.values()
            if entry.delayed or (entry.extras and entry.extras.parked_until)
        ]
        assert page.next_visible <= min(ends, default=NEVER) or page in queue.due
        assert page.next_visible == NEVER or (page.next_visible, page.first, page) in queue.waiting
        expires = [entry.expires_at for entry in page.entries.values()]
        assert page.min_expires <= min(expires, default=NEVER)
        if page.entries:
            assert (page.min_expires, page.first, page) in queue.expiries


def _entry(entry: Entry) -> tuple[Any, ...]:
    extras = entry.extras
    shown: tuple[Any, ...] | None = None
    if extras is not None:
        shown = (
            extras.attempts, extras.last_claim, extras.origin, extras.shared, extras.renamed,
            extras.parked_until,
        )  # fmt: skip
        if shown == (Attempts(()), None, None, False, False, 0):
            shown = None
    return (
        entry.id, entry.shown_id, entry.position, entry.priority, entry.visible_at,
        entry.expires_at, entry.ttl_ms or entry.expires_at - entry.created_at, entry.created_at,
        entry.client_id, entry.headers or None, entry.attempts, entry.delayed, shown,
        None if entry.claim is None else entry.claim.id,
    )  # fmt: skip


async def check_invariants(db: Database) -> None:
    """Every message has its payload and metadata, and none is left of a message that is gone."""
    while db.garbage:
        return  # a purge is still being deleted, step by step
    unrouted = await unrouted_ids(db)
    live = unrouted | {e.id for q in db.queues for p in q.pages for e in p.entries.values()}
    prefix = keys.prefix(RecordType.PAYLOAD)
    payloads = {
        keys.read_message_id(key)
        async for chunk in db.engine.scan(prefix, after_prefix(prefix))
        for key, _ in chunk
    }
    assert payloads == live
    logged = {
        keys.read_log_entry_key(key)[2] + start
        for start, segment in db.segments
        async for chunk in db.engine.scan(
            keys.log_prefix(segment), after_prefix(keys.log_prefix(segment))
        )
        for key, _ in chunk
    }
    assert logged == live
    attempts = keys.prefix(RecordType.ATTEMPTS)
    held = {
        (keys.read_message_id(key), keys.read_queue_key(key, 10).queue)
        async for chunk in db.engine.scan(attempts, after_prefix(attempts))
        for key, _ in chunk
    }
    known = {
        (e.shown_id, q.raw) for q in db.queues for p in q.pages for e in p.entries.values()
        if e.extras is not None or e.claim is not None
    } | {
        (item.message_id, q.raw) for q in db.queues for h in (q.done, q.failed) for item in h.tail
    }  # fmt: skip
    if not any(q.done.full or q.failed.full for q in db.queues):
        assert held <= known
    attempts = keys.prefix(RecordType.ATTEMPT)
    recorded = {
        key async for chunk in db.engine.scan(attempts, after_prefix(attempts)) for key, _ in chunk
    }
    assert recorded == {
        keys.attempt_key(e.extras.history, kept.number)
        for q in db.queues for p in q.pages for e in p.entries.values() if e.extras is not None
        for kept in e.extras.kept
    }  # fmt: skip

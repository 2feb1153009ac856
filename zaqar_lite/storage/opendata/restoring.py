"""Messages whose page is lost, put back from the metadata log.

A message's metadata leaves the log in the batch in which its last queue lets it go. So metadata
that no queue holds, and that no purge has left behind, is of a message whose page is lost: it
enters again where it was, with its claim, its attempts and the rest of its delay, where these can
be read. What an edit, an exposure or an extended claim had changed was in the page only. So was
where a dead letter had gone: it enters the queue that it was posted to. A message that went to
several queues enters each that can have lost it, also where one of them had let it go: which of the
lost ones it had, nothing tells.
"""

import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata.engine import Damage
from zaqar_lite.storage.opendata.entries import PAGE_SIZE, Claim, Entry, Page
from zaqar_lite.storage.opendata.format import keys, records
from zaqar_lite.storage.opendata.format.active import read_active
from zaqar_lite.storage.opendata.format.bookkeeping import decode_garbage
from zaqar_lite.storage.opendata.format.encoding import CodecError, after_prefix
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.loading import count_shared
from zaqar_lite.storage.opendata.paging import cold_for_names, load
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.replay import Router
from zaqar_lite.storage.opendata.state import State

logger = logging.getLogger(__name__)
_CHUNK = 1_000
T = TypeVar("T")


async def put_back(db: State) -> None:
    """Enter the messages whose page was lost into their queues again, and make that durable.

    Only queues that lost something get any: where nothing was lost, metadata without a holder is
    not of a live message.
    """
    if not _may_miss(db, RecordType.ACTIVE):
        return
    held, shared = await _held(db)
    held |= await garbage_ids(db) | await unrouted_ids(db)
    router = Router(db)
    lost: dict[QueueRef, list[Entry]] = {}
    async for metadata in _logged(db):
        if metadata.message_id in held:
            continue
        for ref, entry in router.entries(metadata):
            if (entry.id, ref) in shared:
                continue
            queue = db.queues.make(ref)
            await load(db, queue, cold_for_names(queue, (entry.position,)))
            if _may_have_lost(db, ref, entry):
                lost.setdefault(ref, []).append(entry)
    claimed = await _claimed(db) if lost else {}
    for ref, entries in lost.items():
        queue = db.queues.make(ref)
        await _recall_attempts(db, queue, entries)
        for entry in entries:
            claim = queue.claims.get(claimed.get((queue.raw, entry.id), ""))
            if claim is not None:
                _give_to(claim, entry)
        _enter(queue, entries)
        db.changed(queue)
        logger.error(
            "%d messages of %s were put back from the metadata log: their page was lost",
            len(entries), ref,
        )  # fmt: skip
    if lost:
        if _may_miss(db, RecordType.GARBAGE):
            logger.error("the list of what purges left behind is damaged: some of it may be back")
        count_shared(db)
        await db.committer.durable()


async def _intact(
    db: State, kind: RecordType, decode: Callable[[bytes], T]
) -> AsyncIterator[tuple[keys.QueueKey, T]]:
    """The records of a type; those that can't be read were named when they were loaded."""
    async for key, value in db.rows(keys.prefix(kind)):
        with suppress(CodecError):
            if isinstance(value, bytes):
                yield keys.read_queue_key(key), decode(value)


def _may_miss(db: State, kind: RecordType) -> bool:
    start = keys.prefix(kind)
    return db.engine.may_miss(start, after_prefix(start)) or any(
        damage.key.startswith(start) for damage in db.damages
    )


async def garbage_ids(db: State) -> set[int]:
    """The ids of messages that a purge has left behind to be deleted."""
    stored = await db.engine.get(list(db.garbage))
    return {
        message_id
        for value in stored.values()
        if isinstance(value, bytes)
        for message_id in decode_garbage(value)
    }


async def unrouted_ids(db: State) -> set[int]:
    """The ids of messages in the log that no queue received."""
    return {
        keys.read_message_id(key, 10)
        async for key, value in db.rows(keys.prefix(RecordType.UNROUTED))
        if not isinstance(value, Damage)
    }


async def _held(db: State) -> tuple[set[int], set[tuple[int, QueueRef]]]:
    """Which messages a queue holds alone, and which of those that several were given it has.

    A queue has what it has moved to its dead-letter queue: it has not lost it.
    """
    held: set[int] = set()
    shared: set[tuple[int, QueueRef]] = set()
    async for where, (available, in_flight, extras) in _intact(db, RecordType.ACTIVE, read_active):
        ids = (*available[::5], *in_flight[::5])
        held.update(ids)
        for place, extra in extras.items():
            if extra.shared:
                ref = keys.read_queue_id(where.queue)
                held.discard(ids[place])
                shared.add((ids[place], ref))
                if extra.source is not None:
                    shared.add((ids[place], QueueRef(ref.project, extra.source)))
    return held, shared


async def _claimed(db: State) -> dict[tuple[bytes, int], str]:
    """Who holds what, by queue and message, as the claims' own records say."""
    return {
        (where.queue, message_id): where.rest.hex()
        async for where, claim in _intact(db, RecordType.CLAIM, records.decode_claim)
        for message_id in claim.message_ids
    }


async def _logged(db: State) -> AsyncIterator[records.Metadata]:
    """Read the whole log below the "routed up to" mark; what lies behind it is replayed."""
    for start, segment in db.segments:
        first, last = keys.log_entry_key(segment, 0), after_prefix(keys.log_prefix(segment))
        async for key, value in db.rows(first, last):
            with suppress(CodecError):  # nothing tells whose it is
                if isinstance(value, bytes) and start + keys.read_log_entry_key(key)[2] < db.routed:
                    yield records.decode_metadata(value)


def _may_have_lost(db: State, ref: QueueRef, entry: Entry) -> bool:
    """Whether a queue can have held an entry in a page that was lost."""
    queue = db.queues.make(ref)
    record = queue.record
    is_shared = entry.past is not None and entry.past.shared
    if is_shared and record is not None and record.version > entry.id:
        return False  # perhaps it had another filter when the message came
    index = bisect_right(queue.firsts, entry.position) - 1
    if index >= 0:
        of_page = queue.pages[index].entries
        if of_page and entry.position < next(reversed(of_page)):
            return False  # the page that would hold it is intact: it had left
    root = keys.queue_key(RecordType.ACTIVE, queue.raw)
    return bool(queue.damaged_pages) or db.engine.may_miss(root, after_prefix(root))


async def _recall_attempts(db: State, queue: Queue, entries: Sequence[Entry]) -> None:
    for start in range(0, len(entries), _CHUNK):
        of_key = {
            keys.attempts_key(entry.name, queue.raw): entry
            for entry in entries[start : start + _CHUNK]
        }
        for key, value in (await db.engine.get(list(of_key))).items():
            try:
                attempts = records.decode_attempts(value if isinstance(value, bytes) else b"")
            except CodecError:
                continue
            of_key[key].remember().attempts = attempts
            last = attempts.kept[-1].number if attempts.kept else len(attempts.consumers)
            of_key[key].attempts = last


def _give_to(claim: Claim, entry: Entry) -> None:
    entry.claim = claim
    entry.delayed = False
    entry.attempts += 1
    entry.expires_at = max(entry.expires_at, claim.deadline + claim.grace_ms)
    claim.held[entry.position] = entry.name


def _enter(queue: Queue, entries: list[Entry]) -> None:
    """Put entries into new pages between those that the queue has."""
    entries.sort(key=lambda entry: entry.position)
    pages: list[Page] = []
    before = -1
    for entry in entries:
        place = bisect_right(queue.firsts, entry.position)
        if place != before or len(pages[-1].entries) == PAGE_SIZE:
            pages.append(queue.number_page(entry.position))
            before = place
        entry.page = pages[-1]
        entry.page.entries[entry.position] = entry
    for page in pages:
        queue.insert(page)
        for entry in page.entries.values():
            queue.index(entry)

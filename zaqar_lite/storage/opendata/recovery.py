"""Reading the metadata log: to route messages of other writers, and to restore lost pages.

Messages that another writer published are routed as the service would have done. In the queue that
a message was published to it has the log's visible-at and retention. A queue that receives it by a
filter uses its own default delay and default ttl, or the log's retention if it has no ttl. Each
queue uses its own priority. A message that names no queue is offered to the filters of all
projects. A message that no queue receives is kept until its retention ends (`sweeping.py`). Two
kinds of messages are refused, named in the server's log and kept in the same way: those whose
payload is a reference, because this server neither fetches it nor hands it out, and those whose
payload is no JSON, because one would make the whole answer invalid.

A message's metadata is deleted in the batch in which its last queue removes it. So metadata that no
queue holds, and that is no garbage of a purge, belongs to a message whose page is lost. The message
is put back in its place, with its claim, its attempts and the rest of its delay, where these can be
read. Changes by an edit, an exposure or an extended lease are lost, because only the page had them.
A dead letter returns to the queue that it was posted to, for the same reason. A message that went
to several queues is put back in each that may have lost it, even one that had already removed it:
the log does not tell which of them still had it.
"""

import json
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters.matching import Filter, Priority, compile_priority
from zaqar_lite.domain.filters.text import parse_filter, parse_rules
from zaqar_lite.domain.filters.tree import Headers
from zaqar_lite.domain.metadata import FILTER, PRIORITY
from zaqar_lite.domain.models import DEFAULT_PRIORITY, QueueRecord, QueueRef
from zaqar_lite.storage.opendata.engine import Damage, Stored
from zaqar_lite.storage.opendata.entries import NEVER, NOWHERE, PAGE_SIZE, Claim, Entry, Page
from zaqar_lite.storage.opendata.format import CodecError, after_prefix, keys, records
from zaqar_lite.storage.opendata.format.active import read_active
from zaqar_lite.storage.opendata.format.bookkeeping import decode_garbage
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.loading import count_shared
from zaqar_lite.storage.opendata.paging import cold_of_shown_ids, load, recall_attempts
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import State

logger = logging.getLogger(__name__)
_CHUNK = 1_000
_LONGEST_S = 0xFFFF_FFFF
"""The retention, in seconds, of what is to be kept for ever: 136 years, the longest there is."""


async def replay(db: State) -> None:
    """Route the entries of the log above the "routed up to" mark, in all of its segments.

    The mark is raised in steps, so that no batch is as large as all that others published.
    """
    router, begin = Router(db), db.routed or 0
    routed = seen = 0
    for first, segment in db.segments:
        start = keys.log_entry_key(segment, max(0, begin - first))
        async for key, value in db.rows(start, after_prefix(keys.log_prefix(segment))):
            metadata = _published(db, key, value, first)
            if metadata is not None:
                seen += 1
                routed += await _route(db, router, metadata)
                if seen % _CHUNK == 0:
                    db.routed = metadata.message_id + 1
                    await db.committer.durable()
    db.routed = None
    if seen:
        count_shared(db)
        logger.info("routed %d of %d messages of the metadata log to queues", routed, seen)
        await db.committer.durable()


def _published(db: State, key: bytes, value: Stored, first: int) -> records.Metadata | None:
    """Read an entry of the log; None, and logged, where it is damaged or at a wrong place."""

    def read(data: bytes) -> records.Metadata:
        metadata = records.decode_metadata(data)
        if first + keys.read_log_entry_key(key)[2] != metadata.message_id:
            raise CodecError(f"message {metadata.message_id} has its metadata at another's place")
        return metadata

    return db.decoded(key, value, read)


async def _route(db: State, router: "Router", metadata: records.Metadata) -> bool:
    """Add a message to its queues; answer whether there are any."""
    db.ids.reserve(metadata.message_id)
    entries = router.entries(metadata)
    if entries and (why := await _refusal(db, metadata.message_id)) is not None:
        logger.error("message %d of the metadata log is refused: %s", metadata.message_id, why)
        entries = []
    for ref, entry in entries:
        queue = db.queues.make(ref)
        await load(db, queue, cold_of_shown_ids(queue, (entry.position,)))
        if queue.find(entry.position) is None:
            entry.page = queue.tail(entry.position)
            queue.add(entry)
            db.changed(queue)
    if not entries:
        db.put(keys.unrouted_key(_deadline(metadata), metadata.message_id), b"")
    return bool(entries)


def _deadline(metadata: records.Metadata) -> int:
    """When a message's retention ends; 0 seconds are for ever."""
    return metadata.received_at + metadata.retention_s * 1000 if metadata.retention_s else NEVER - 1


async def _refusal(db: State, message_id: int) -> str | None:
    """Why a message's payload can't be handed out: it is a reference, or no JSON."""
    key = keys.message_key(RecordType.PAYLOAD, message_id)
    value = (await db.engine.get([key])).get(key)
    if not isinstance(value, bytes):
        return None  # logged when the message is read
    try:
        json.loads(records.decode_payload(value))
    except CodecError as exc:
        return str(exc)
    except (ValueError, RecursionError):
        return "the payload is no JSON"
    return None


class _Receiver(NamedTuple):
    """A queue with its filter, priorities, default ttl and default delay."""

    queue: QueueRef
    matches: Filter | None
    priority: Priority | None
    ttl_ms: int | None
    delay_ms: int

    def receives(self, headers: Headers) -> bool:
        try:
            return self.matches is not None and self.matches(headers)
        except Invalid as exc:
            logger.warning("a message was not copied into %s: %s", self.queue, exc)
            return False

    def priority_of(self, headers: Headers) -> int:
        try:
            found = None if self.priority is None else self.priority(headers)
        except Invalid as exc:
            logger.warning("a message has the default priority in %s: %s", self.queue, exc)
            found = None
        return DEFAULT_PRIORITY if found is None else found


class Router:
    """Makes the entries of logged messages; parses each queue's filter once."""

    def __init__(self, db: State) -> None:
        self._db = db
        self._known: dict[QueueRef, _Receiver] = {}

    def entries(self, metadata: records.Metadata) -> list[tuple[QueueRef, Entry]]:
        """Make a message's entry, without a page, for each of its queues.

        These are the queue it was published to and those whose filter matches.
        """
        own, client_id, headers = records.split_headers(metadata)
        queues, seen, ref = self._db.queues.records, headers, _queue_of(own)
        received, visible = metadata.received_at, metadata.visible_at
        retention = (metadata.retention_s or _LONGEST_S) * 1000
        targets = []
        if ref is not None:
            seen = {**headers, records.QUEUE_HEADER: ref.name}
            first = self._receiver(ref, queues.get(ref))
            targets.append((first, retention, visible if visible != received else 0))
        for record in queues.all_filtered() if ref is None else queues.filtered(ref.project):
            receiver = self._receiver(record.queue, record)
            if record.queue != ref and receiver.receives(seen):
                visible = received + receiver.delay_ms if receiver.delay_ms else 0
                targets.append((receiver, receiver.ttl_ms or retention, visible))
        entries: list[tuple[QueueRef, Entry]] = []
        for receiver, ttl_ms, visible in targets:
            entry = Entry(
                metadata.message_id, metadata.message_id, NOWHERE, receiver.priority_of(seen),
                visible, received + ttl_ms, ttl_ms, received, client_id, headers or None,
            )  # fmt: skip
            entry.delayed = visible > self._db.clock.now_ms()
            if len(targets) > 1:
                entry.ensure_extras().shared = True
            entries.append((receiver.queue, entry))
        return entries

    def _receiver(self, ref: QueueRef, record: QueueRecord | None) -> _Receiver:
        known = self._known.get(ref)
        if known is None:
            known = self._known[ref] = _read_receiver(ref, record)
        return known


def _queue_of(header: str | None) -> QueueRef | None:
    """The queue that a header names; None where it is missing, or no `project/name`."""
    with suppress(CodecError):
        return None if header is None else keys.read_queue_id(header.encode())
    return None


def _read_receiver(ref: QueueRef, record: QueueRecord | None) -> _Receiver:
    metadata = {} if record is None else record.metadata
    text, rules = metadata.get(FILTER), metadata.get(PRIORITY)
    try:
        matches = Filter(parse_filter(text)) if isinstance(text, str) else None
        priority = compile_priority(parse_rules(rules)) if isinstance(rules, str) else None
    except Invalid as exc:
        logger.warning("the filter and the priorities of %s are not used: %s", ref, exc)
        matches = priority = None
    ttl, delay = metadata.get("_default_message_ttl"), metadata.get("_default_message_delay")
    return _Receiver(
        ref,
        matches,
        priority,
        ttl * 1000 if isinstance(ttl, int) else None,
        delay * 1000 if isinstance(delay, int) else 0,
    )


T = TypeVar("T")


async def put_back(db: State) -> None:
    """Put the messages of lost pages back into their queues, and make that durable.

    Only queues that lost a page get any: in others, metadata without a holder belongs to no live
    message.
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
            await load(db, queue, cold_of_shown_ids(queue, (entry.position,)))
            if _may_have_lost(db, ref, entry):
                lost.setdefault(ref, []).append(entry)
    claimed = await _claimed(db) if lost else {}
    for ref, entries in lost.items():
        queue = db.queues.make(ref)
        await recall_attempts(db, queue, entries)
        for entry in entries:
            if entry.extras is not None:
                kept = entry.extras.kept
                entry.attempts = kept[-1].number if kept else len(entry.extras.consumers)
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
            logger.error("the list of purged messages is damaged: some of them may be back")
        count_shared(db)
        await db.committer.durable()


async def _intact(
    db: State, kind: RecordType, decode: Callable[[bytes], T]
) -> AsyncIterator[tuple[keys.QueueKey, T]]:
    """The intact records of a type; damaged ones were logged when they were loaded."""
    async for key, value in db.rows(keys.prefix(kind)):
        with suppress(CodecError):
            if isinstance(value, bytes):
                yield keys.read_queue_key(key), decode(value)


def _may_miss(db: State, kind: RecordType) -> bool:
    start = keys.prefix(kind)
    return db.is_rebuilt or any(damage.key.startswith(start) for damage in db.damages)


async def garbage_ids(db: State) -> set[int]:
    """The ids of messages in garbage records, which the sweep is to delete."""
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
    """The messages that one queue holds alone; and pairs of a shared message and a holder of it.

    A queue that moved a message to its dead-letter queue counts as a holder: it has not lost it.
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
                if extra.origin is not None:
                    shared.add((ids[place], QueueRef(ref.project, extra.origin.source)))
    return held, shared


async def _claimed(db: State) -> dict[tuple[bytes, int], str]:
    """The claim ids by queue and message, from the records of claims."""
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
            with suppress(CodecError):  # a damaged entry does not tell its queue
                place = start + keys.read_log_entry_key(key)[2]
                if isinstance(value, bytes) and place < (db.routed or 0):
                    yield records.decode_metadata(value)


def _may_have_lost(db: State, ref: QueueRef, entry: Entry) -> bool:
    """Whether a queue may have had an entry in a page that was lost."""
    queue = db.queues.make(ref)
    record = queue.record
    is_shared = entry.extras is not None and entry.extras.shared
    if is_shared and record is not None and record.version > entry.id:
        return False  # its filter may have changed since the message came
    index = bisect_right(queue.firsts, entry.position) - 1
    if index >= 0:
        of_page = queue.pages[index].entries
        if of_page and entry.position < next(reversed(of_page)):
            return False  # its page would be intact: it was removed before
    return bool(queue.damaged_pages) or db.is_rebuilt


def _give_to(claim: Claim, entry: Entry) -> None:
    entry.claim = claim
    entry.delayed = False
    entry.attempts += 1
    entry.expires_at = max(entry.expires_at, claim.deadline + claim.grace_ms)
    claim.held[entry.position] = entry.shown_id


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
        queue.adopt(page)
        queue.changed_pages.add(page.number)
        for entry in page.entries.values():
            queue.join_group(entry)
            queue.index(entry)

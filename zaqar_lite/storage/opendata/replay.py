"""Replaying the metadata log: messages that another writer published there.

They come out as the service would have routed them. The queue that a message was published to has
the log's visible-at and retention; one that receives it by its filter has its own default delay,
its own default ttl, where it has none the log's retention, and both have their own priority. For a
message that names no queue, the filters of all projects are asked. What no queue receives is kept
until its retention ends (`sweeping.py`); so is a message whose payload lies elsewhere, which is
refused by name: this server neither fetches a reference nor hands it out. So is one whose payload
is no JSON, which would spoil the whole answer that it is in.
"""

import json
import logging
from contextlib import suppress
from typing import NamedTuple

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters import (
    Filter,
    Headers,
    Priority,
    compile_priority,
    parse_filter,
    parse_rules,
)
from zaqar_lite.domain.metadata import FILTER, PRIORITY
from zaqar_lite.domain.models import DEFAULT_PRIORITY, QueueRecord, QueueRef
from zaqar_lite.storage.opendata.engine import Stored
from zaqar_lite.storage.opendata.entries import NEVER, NOWHERE, Entry
from zaqar_lite.storage.opendata.format import keys, records
from zaqar_lite.storage.opendata.format.encoding import CodecError, after_prefix
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.loading import count_shared
from zaqar_lite.storage.opendata.paging import cold_for_names, load
from zaqar_lite.storage.opendata.reading import split_headers
from zaqar_lite.storage.opendata.state import State

logger = logging.getLogger(__name__)
_LONGEST_S = 0xFFFF_FFFF
"""How long a queue holds what is to be kept for ever: 136 years, as long as a retention can be."""


async def replay(db: State) -> None:
    """Replay the log above the "routed up to" mark, in all of its segments."""
    router = Router(db)
    routed = seen = 0
    for first, segment in db.segments:
        start = keys.log_entry_key(segment, max(0, db.routed - first))
        async for key, value in db.rows(start, after_prefix(keys.log_prefix(segment))):
            metadata = _published(db, key, value, first)
            if metadata is not None:
                seen += 1
                routed += await _route(db, router, metadata)
    if seen:
        count_shared(db)
        logger.info("routed %d of %d messages of the metadata log to queues", routed, seen)
        await db.committer.durable()


def _published(db: State, key: bytes, value: Stored, first: int) -> records.Metadata | None:
    """Read an entry of the log; None, and named, where it can't be, or is at another's place."""

    def read(data: bytes) -> records.Metadata:
        metadata = records.decode_metadata(data)
        if first + keys.read_log_entry_key(key)[2] != metadata.message_id:
            raise CodecError(f"message {metadata.message_id} has its metadata at another's place")
        return metadata

    return db.decoded(key, value, read)


async def _route(db: State, router: "Router", metadata: records.Metadata) -> bool:
    """Enter a message into its queues; answer whether there are any."""
    db.ids.reserve(metadata.message_id)
    entries = router.entries(metadata)
    if entries and (why := await _refusal(db, metadata.message_id)) is not None:
        logger.error(
            "message %d of the metadata log is refused: its payload %s", metadata.message_id, why
        )
        entries = []
    for ref, entry in entries:
        queue = db.queues.make(ref)
        await load(db, queue, cold_for_names(queue, (entry.position,)))
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
    """Why a message's payload can't be handed out: it is not in the store, or is no JSON."""
    key = keys.message_key(RecordType.PAYLOAD, message_id)
    value = (await db.engine.get([key])).get(key)
    if not isinstance(value, bytes):
        return None
    try:
        payload = records.decode_payload(value)
    except CodecError:
        return None  # named when somebody reads it
    if isinstance(payload, records.Uri):
        return f"lies at {payload.uri}"
    try:
        json.loads(payload)
    except (ValueError, RecursionError):
        return "is no JSON"
    return None


class _Receiver(NamedTuple):
    """A queue, what it receives, at which priority, and its own ttl and delay."""

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
    """Makes the entries of logged messages; knows each queue's filter once."""

    def __init__(self, db: State) -> None:
        self._db = db
        self._known: dict[QueueRef, _Receiver] = {}

    def entries(self, metadata: records.Metadata) -> list[tuple[QueueRef, Entry]]:
        """Make a message's entry for each of its queues; they have no page there yet.

        These are the queue it was published to and those whose filter matches.
        """
        own, client_id, headers = split_headers(metadata)
        queues, seen, ref = self._db.queues, headers, _queue_of(own)
        received, visible = metadata.received_at, metadata.visible_at
        retention = (metadata.retention_s or _LONGEST_S) * 1000
        targets = []
        if ref is not None:
            seen = {**headers, records.QUEUE_HEADER: ref.name}
            first = self._receiver(ref, queues.record(ref))
            targets.append((first, retention, visible if visible != received else 0))
        for record in queues.all_filtered() if ref is None else queues.filtered(ref.project):
            receiver = self._receiver(record.ref, record)
            if record.ref != ref and receiver.receives(seen):
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
                entry.remember().shared = True
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

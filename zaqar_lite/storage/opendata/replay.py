"""Replaying the metadata log: messages that are published there and not in their queues yet.

They come out as the service would have routed them. The queue that a message was published to has
the log's visible-at and retention; one that receives it by its filter has its own default delay,
its own default ttl, where it has none the log's retention, and both have their own priority.
"""

import logging
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
from zaqar_lite.storage.opendata.engine import Damage
from zaqar_lite.storage.opendata.entries import NEVER, NOWHERE, Entry
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.encoding import CodecError, after_prefix
from zaqar_lite.storage.opendata.format.records import QUEUE_HEADER, Metadata, decode_metadata
from zaqar_lite.storage.opendata.loading import count_shared
from zaqar_lite.storage.opendata.paging import cold_for_names, load
from zaqar_lite.storage.opendata.reading import split_headers
from zaqar_lite.storage.opendata.state import State

logger = logging.getLogger(__name__)


async def replay(db: State) -> None:
    """Replay the log above the "routed up to" mark: what another writer published there."""
    segment_start, segment = db.segments[-1]
    start = keys.log_entry_key(segment, max(0, db.routed - segment_start))
    router = Router(db)
    routed = 0
    async for chunk in db.engine.scan(start, after_prefix(keys.log_prefix(segment))):
        for key, value in chunk:
            if isinstance(value, Damage):
                db.damaged(value)
                continue
            try:
                metadata = decode_metadata(value)
            except CodecError as exc:
                db.damaged(Damage(key, str(exc)))
                continue
            routed += 1
            db.ids.reserve(metadata.message_id)
            for ref, entry in router.entries(metadata):
                queue = db.queues.make(ref)
                await load(db, queue, cold_for_names(queue, (entry.position,)))
                if queue.find(entry.position) is None:
                    entry.page = queue.tail(entry.position)
                    queue.add(entry)
                    db.changed(queue)
    if routed:
        count_shared(db)
        logger.info("routed %d messages of the metadata log into their queues", routed)
        await db.committer.durable()


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

    def entries(self, metadata: Metadata) -> list[tuple[QueueRef, Entry]]:
        """Make a message's entry for each of its queues; they have no page there yet.

        These are the queue it was published to and those whose filter matches; none if another
        program than a queue's service wrote it.
        """
        own, client_id, headers = split_headers(metadata)
        if own is None:
            return []
        try:
            ref = keys.read_queue_id(own.encode())
        except CodecError:
            return []
        seen = {**headers, QUEUE_HEADER: ref.name}
        received, visible = metadata.received_at, metadata.visible_at
        retention = metadata.retention_s * 1000 or NEVER - 1 - received
        first = self._receiver(ref, self._db.queues.record(ref))
        targets = [(first, retention, visible if visible != received else 0)]
        for record in self._db.queues.filtered(ref.project):
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

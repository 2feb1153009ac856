"""Replaying the metadata log: messages that are published there and not in their queues yet."""

import logging
from typing import TYPE_CHECKING

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters import compile_filter, parse_filter
from zaqar_lite.domain.metadata import FILTER
from zaqar_lite.domain.models import DEFAULT_PRIORITY
from zaqar_lite.storage.opendata import keys
from zaqar_lite.storage.opendata.encoding import CodecError, after_prefix
from zaqar_lite.storage.opendata.engine import Damage
from zaqar_lite.storage.opendata.entries import NEVER, Entry
from zaqar_lite.storage.opendata.loading import damaged
from zaqar_lite.storage.opendata.reading import split_headers
from zaqar_lite.storage.opendata.records import Metadata, decode_metadata

if TYPE_CHECKING:
    from zaqar_lite.storage.opendata.database import Database

logger = logging.getLogger(__name__)


async def replay(db: "Database") -> None:
    """Replay the log above the "routed up to" mark: what another writer published there."""
    segment_start, segment = db.segments[-1]
    start = keys.log_entry_key(segment, max(0, db.routed - segment_start))
    routed = 0
    async for chunk in db.engine.scan(start, after_prefix(keys.log_prefix(segment))):
        for key, value in chunk:
            try:
                if isinstance(value, Damage):
                    raise CodecError(value.why)
                metadata = decode_metadata(value)
            except CodecError as exc:
                damaged(db, Damage(key, str(exc)))
                continue
            routed += 1
            db.ids.reserve(metadata.message_id)
            _route_one(db, metadata)
    if routed:
        logger.info("routed %d messages of the metadata log into their queues", routed)
        await db.committer.durable()


def _route_one(db: "Database", metadata: Metadata) -> None:
    own, client_id, headers = split_headers(metadata)
    if own is None:
        return
    try:
        ref = keys.read_queue_id(own.encode())
    except CodecError:
        return
    targets = {ref: DEFAULT_PRIORITY}
    for record in db.queues.filtered(ref.project):
        try:
            matches = compile_filter(parse_filter(record.metadata[FILTER]))
        except Invalid as exc:
            logger.warning("the filter of %s is not used: %s", record.ref, exc)
            continue
        if matches({"queue": ref.name, **headers}):
            targets[record.ref] = DEFAULT_PRIORITY
    deadline = (
        metadata.received_at + metadata.retention_s * 1000 if metadata.retention_s else NEVER - 1
    )
    now = db.clock.now_ms()
    for target, priority in targets.items():
        queue = db.queues.make(target)
        if queue.find(metadata.message_id) is not None:
            continue
        page = queue.tail(metadata.message_id)
        visible = metadata.visible_at if metadata.visible_at != metadata.received_at else 0
        entry = Entry(
            metadata.message_id, metadata.message_id, page, priority, visible, deadline, 0,
            metadata.received_at, client_id, headers or None,
        )  # fmt: skip
        entry.delayed = visible > now
        if len(targets) > 1:
            entry.remember().shared = True
        queue.add(entry)
        db.changed(queue)
    if len(targets) > 1:
        db.shared[metadata.message_id] = len(targets)

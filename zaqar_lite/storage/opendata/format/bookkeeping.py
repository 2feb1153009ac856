"""Values of the records about queues and the store itself: configuration, counters, state, keys.

The RFC defines the queue configuration, and the blocks and segments of the metadata log; the other
records are additions. A queue's record is stored as the RFC's configuration:

    filter          `queue = 'project/name'`: what was posted to the queue
    max attempts    `_max_claim_count`; 0 where there is none: unlimited
    done retention  `_done_retention` in seconds, 0 for ever; 1 where no history is kept, since the
                    RFC's field can't say less
    extensions      x-version, x-exposing, and the metadata as the user wrote them, as JSON:
                    x-metadata, in pieces where it is longer than a Utf8 can be

What the service decides by are the extensions: a queue's own filter and priorities are text in its
metadata, and only there. The RFC leaves open how a filter is written in bytes. Ours is a u16
length, a version (1), the code of "this header equals this text" (10), and both as Utf8. The length
lets a reader that does not know a filter step over it to the fields behind.
"""

import json
from collections.abc import Mapping
from typing import Any

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.metadata import DONE_RETENTION
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.opendata.format import (
    BYTES_16,
    PAIR,
    REST,
    U64S,
    Codec,
    CodecError,
    Layout,
    array,
    count,
    number,
    optional,
    read_count,
    take,
    utf8,
)
from zaqar_lite.storage.opendata.format.keys import queue_id
from zaqar_lite.storage.opendata.format.records import QUEUE_HEADER

FORMAT_MARKER = "opendata-queue/2026-01-26+pages1"
BLOCK = Layout("block", number(">Q"), number(">Q"))
"""A block of ids or sequences, by its first and its size; big-endian, though a value."""
SEGMENT = Layout("segment", number(">Q"), number(">q"))
"""The first sequence of a segment of the log, and when it began; big-endian, though a value."""
STATE = Layout("state", number("<Q"), number("<q"), BYTES_16)
"""Where the log is not routed yet, the store's clock at its last commit, the secret of the ids."""
IDEMPOTENCY = Layout("idempotency keys", number("<q"), U64S, REST)
"""Until when they are known, the ids that they were answered with, and digests of 16 bytes.

A record of one key has the digest of what was posted. A record of several keys has one key for each
id, and then the digest of what was posted with each. Records of earlier versions lack the digests
of what was posted.
"""
RECORD = Layout("record", number("<Q"), number("<q"), REST)
"""A record of some kind: its version, when it ends (-1: never), and its value."""
GARBAGE = Layout("garbage", U64S)
"""Messages to be deleted, of earlier versions."""


# -- configuration of queues --


def _read_filter(data: bytes, offset: int) -> tuple[bytes, int]:
    return take(data, offset + 2, read_count(data, offset))


CONFIG = Layout(
    "configuration",
    Codec(lambda filter_: count(len(filter_), "bytes of a filter") + filter_, _read_filter),
    number("<H"),
    number("<I"),
    optional(array(PAIR)),
)
"""A queue's configuration: filter, attempts, retention, and extensions (None: there are none)."""
_VERSION, _EXPOSING, _METADATA = "x-version", "x-exposing", "x-metadata"
_PIECE = 16_000  # characters; at most four bytes each
_NO_HISTORY_S = 1


def encode_queue_record(record: QueueRecord) -> bytes:
    """Encode a queue's record. Raises Invalid: its metadata does not fit."""
    metadata = record.metadata
    text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))
    extensions = [(_VERSION, str(record.version))]
    if record.exposing:
        extensions.append((_EXPOSING, "1"))
    extensions += [
        (_METADATA, text[start : start + _PIECE]) for start in range(0, len(text), _PIECE)
    ]
    attempts = _number(metadata, "_max_claim_count")
    retention_s = _number(metadata, DONE_RETENTION, _NO_HISTORY_S)
    try:
        own = b"\x01\x10" + utf8(QUEUE_HEADER) + utf8(queue_id(record.queue).decode())
        return CONFIG.encode(own, attempts, retention_s, extensions)
    except CodecError as exc:
        raise Invalid(f"The metadata of {record.queue.name!r} can't be stored: {exc}.") from exc


def decode_queue_record(ref: QueueRef, data: bytes) -> QueueRecord:
    """Read a queue's record; one without our extensions is a queue with what the RFC says.

    Raises CodecError: it can't be read.
    """
    _, attempts, retention_s, found = CONFIG.decode(data)
    pairs = found or []
    extensions = dict(pairs)
    text = "".join([value for key, value in pairs if key == _METADATA])
    try:
        metadata: dict[str, Any] = json.loads(text) if text else {}
        version = int(extensions.get(_VERSION, "1"))
    except (ValueError, RecursionError) as exc:
        raise CodecError(f"configuration of {ref}: {exc}") from exc
    if not isinstance(metadata, dict):
        raise CodecError(f"configuration of {ref}: its metadata is no object")
    if not text and attempts:
        metadata["_max_claim_count"] = attempts
    if not text and retention_s != _NO_HISTORY_S:
        metadata[DONE_RETENTION] = retention_s
    return QueueRecord(ref, metadata, version, _EXPOSING in extensions)


def _number(metadata: Mapping[str, Any], key: str, otherwise: int = 0) -> int:
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise

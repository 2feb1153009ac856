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
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.metadata import DONE_RETENTION
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.opendata.format import (
    CodecError,
    count,
    finish,
    pack,
    read_array,
    read_count,
    read_u64s,
    read_utf8,
    u64s,
    unpack,
    utf8,
)
from zaqar_lite.storage.opendata.format.keys import queue_id
from zaqar_lite.storage.opendata.format.records import QUEUE_HEADER, encode_headers

FORMAT_MARKER = "opendata-queue/2026-01-26+pages1"
_BLOCK = struct.Struct(">QQ")
_SEGMENT = struct.Struct(">Qq")
_STATE = struct.Struct("<Qq16s")
_I64 = struct.Struct("<q")
_RECORD = struct.Struct("<Qq")
_DIGEST = 16


def encode_block(base: int, size: int) -> bytes:
    """Encode a block of ids or sequences, `[base, base + size)`; big-endian, though a value."""
    return pack(_BLOCK, base, size)


def decode_block(data: bytes) -> tuple[int, int]:
    """Read a block: base and size. Raises CodecError: not 16 bytes."""
    (base, size), end = unpack(_BLOCK, data, 0)
    finish(data, end, "block")
    return base, size


def encode_segment(start_sequence: int, started_at: int) -> bytes:
    """Encode the start of a segment of the log; big-endian, though a value."""
    return pack(_SEGMENT, start_sequence, started_at)


def decode_segment(data: bytes) -> tuple[int, int]:
    """Read the start of a segment: sequence and instant. Raises CodecError: not 16 bytes."""
    (sequence, started_at), end = unpack(_SEGMENT, data, 0)
    finish(data, end, "segment")
    return sequence, started_at


class State(NamedTuple):
    """The state of the store: all entries of the log below `routed` are in their queues.

    `last_instant` is the store's clock at its last commit; `secret` makes message ids unguessable.
    """

    routed: int
    last_instant: int
    secret: bytes


def encode_state(routed: int, last_instant: int, secret: bytes) -> bytes:
    """Encode the state of the store."""
    return _STATE.pack(routed, last_instant, secret)


def decode_state(data: bytes) -> State:
    """Read the state of the store. Raises CodecError: of another size."""
    if len(data) != _STATE.size:
        raise CodecError(f"state of {len(data)} bytes")
    return State(*_STATE.unpack(data))


class KeyRecord(NamedTuple):
    """Idempotency keys: until when they are known, and the ids that they were answered with.

    `digests` are 16 bytes each. A record of one key has the digest of what was posted. A record of
    several keys has one key for each id, and then the digest of what was posted with each. Records
    of earlier versions lack the digests of what was posted.
    """

    expires_at: int
    ids: tuple[int, ...]
    digests: tuple[bytes, ...] = ()


def encode_keys(expires_at: int, ids: Sequence[int], digests: bytes = b"") -> bytes:
    """Encode a record of idempotency keys."""
    return _I64.pack(expires_at) + u64s(ids, "ids") + digests


def decode_keys(data: bytes) -> KeyRecord:
    """Read a record of idempotency keys. Raises CodecError: cut short or bytes left over."""
    (expires_at,), offset = unpack(_I64, data, 0)
    ids, offset = read_u64s(data, offset)
    number = len(ids)
    if len(data) - offset not in {size * _DIGEST for size in (0, 1, number, 2 * number)}:
        raise CodecError(f"{len(data) - offset} bytes of digests for {number} ids")
    digests = tuple(data[at : at + _DIGEST] for at in range(offset, len(data), _DIGEST))
    return KeyRecord(expires_at, ids, digests)


def encode_record(version: int, expires_at: int | None, value: bytes) -> bytes:
    """Encode a record of some kind: its version, when it ends (-1: never), and its value."""
    return pack(_RECORD, version, -1 if expires_at is None else expires_at) + value


def decode_record(data: bytes) -> tuple[int, int | None, bytes]:
    """Read a record of some kind: its version, when it ends, and its value.

    Raises CodecError: cut short.
    """
    (version, expires_at), offset = unpack(_RECORD, data, 0)
    return version, None if expires_at < 0 else expires_at, data[offset:]


def decode_garbage(data: bytes) -> tuple[int, ...]:
    """Read ids of messages to be deleted. Raises CodecError: cut short or bytes left over."""
    ids, end = read_u64s(data, 0)
    finish(data, end, "garbage")
    return ids


# -- configuration of queues --

_CONFIG = struct.Struct("<HI")
_VERSION, _EXPOSING, _METADATA = "x-version", "x-exposing", "x-metadata"
_PIECE = 16_000  # characters; at most four bytes each
_NO_HISTORY_S = 1


def encode_config(
    filter_: bytes, attempts: int, retention_s: int, extensions: Sequence[tuple[str, str]]
) -> bytes:
    """Encode a queue's configuration; `extensions` follow the RFC's fields, absent where empty.

    Raises CodecError: a field does not fit.
    """
    fixed = (
        count(len(filter_), "bytes of a filter") + filter_ + pack(_CONFIG, attempts, retention_s)
    )
    if not extensions:
        return fixed
    return fixed + count(len(extensions), "extensions") + encode_headers(extensions)


def decode_config(data: bytes) -> tuple[int, int, list[tuple[str, str]]]:
    """Read a queue's configuration: attempts, retention and extensions; the filter is stepped over.

    Raises CodecError: cut short or bytes left over.
    """
    (attempts, retention), offset = unpack(_CONFIG, data, 2 + read_count(data, 0))
    pairs: list[tuple[str, str]] = []
    if offset < len(data):
        pairs, offset = read_array(data, offset, _read_pair)
    finish(data, offset, "configuration")
    return attempts, retention, pairs


def _read_pair(data: bytes, offset: int) -> tuple[tuple[str, str], int]:
    name, offset = read_utf8(data, offset)
    value, offset = read_utf8(data, offset)
    return (name, value), offset


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
        return encode_config(own, attempts, retention_s, extensions)
    except CodecError as exc:
        raise Invalid(f"The metadata of {record.queue.name!r} can't be stored: {exc}.") from exc


def decode_queue_record(ref: QueueRef, data: bytes) -> QueueRecord:
    """Read a queue's record; one without our extensions is a queue with what the RFC says.

    Raises CodecError: it can't be read.
    """
    attempts, retention_s, pairs = decode_config(data)
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

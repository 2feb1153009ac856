"""A queue's record as RFC 0001's queue configuration, and back.

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
from typing import Any

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.metadata import DONE_RETENTION
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.opendata.format.encoding import (
    CodecError,
    count,
    finish,
    pack,
    read_array,
    read_count,
    read_utf8,
    unpack,
    utf8,
)
from zaqar_lite.storage.opendata.format.keys import queue_id
from zaqar_lite.storage.opendata.format.records import QUEUE_HEADER, encode_headers

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


def encode_record(record: QueueRecord) -> bytes:
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
        own = b"\x01\x10" + utf8(QUEUE_HEADER) + utf8(queue_id(record.ref).decode())
        return encode_config(own, attempts, retention_s, extensions)
    except CodecError as exc:
        raise Invalid(f"The metadata of {record.ref.name!r} can't be stored: {exc}.") from exc


def decode_record(ref: QueueRef, data: bytes) -> QueueRecord:
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

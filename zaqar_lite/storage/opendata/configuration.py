"""A queue's record as RFC 0001's queue configuration, and back.

    filter          `queue = 'project/name'`, or that OR the queue's own filter, or its RULES
    max attempts    `_max_claim_count`; 0 where there is none: unlimited
    done retention  `_done_retention` in seconds, 0 where there is none or it is for ever
    extensions      x-version, x-exposing, and the metadata as the user wrote them, as JSON:
                    x-metadata, in pieces where it is longer than a Utf8 can be

What the service decides by are the extensions; the RFC's fields say the same to other readers.
"""

import json
from collections.abc import Mapping
from typing import Any

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters import Compare, Expression, Or, parse_filter, parse_rules
from zaqar_lite.domain.metadata import DONE_RETENTION, FILTER, PRIORITY
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.opendata.encoding import CodecError
from zaqar_lite.storage.opendata.keys import queue_id
from zaqar_lite.storage.opendata.records import QUEUE_HEADER, Config, decode_config, encode_config

_VERSION, _EXPOSING, _METADATA = "x-version", "x-exposing", "x-metadata"
_PIECE = 16_000  # characters; at most four bytes each


def encode_record(record: QueueRecord) -> bytes:
    """Encode a queue's record.

    Raises:
        Invalid: its metadata does not fit.
    """
    metadata = record.metadata
    text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))
    extensions = [(_VERSION, str(record.version))]
    if record.exposing:
        extensions.append((_EXPOSING, "1"))
    extensions += [
        (_METADATA, text[start : start + _PIECE]) for start in range(0, len(text), _PIECE)
    ]
    config = Config(
        _filter(record.ref, metadata),
        _number(metadata, "_max_claim_count"),
        _number(metadata, DONE_RETENTION),
        extensions,
    )
    try:
        return encode_config(config)
    except CodecError as exc:
        raise Invalid(f"The metadata of {record.ref.name!r} can't be stored: {exc}.") from exc


def decode_record(ref: QueueRef, data: bytes) -> QueueRecord:
    """Read a queue's record; one without our extensions is a queue with what the RFC says.

    Raises:
        CodecError: it can't be read.
    """
    config = decode_config(data)
    extensions = dict(config.extensions)
    text = "".join(value for key, value in config.extensions if key == _METADATA)
    try:
        metadata: dict[str, Any] = json.loads(text) if text else {}
        version = int(extensions.get(_VERSION, "1"))
    except ValueError as exc:
        raise CodecError(f"configuration of {ref}: {exc}") from exc
    if not text and config.max_attempts:
        metadata["_max_claim_count"] = config.max_attempts
    return QueueRecord(ref, metadata, version, _EXPOSING in extensions)


def _filter(ref: QueueRef, metadata: Mapping[str, Any]) -> Expression:
    own = Compare("=", QUEUE_HEADER, queue_id(ref).decode())
    rules, text = metadata.get(PRIORITY), metadata.get(FILTER)
    try:
        if isinstance(text, str):
            return Or((own, parse_filter(text)))
        return parse_rules(rules) if isinstance(rules, str) else own
    except Invalid:
        return own  # what a filter may be is the service's to say; the text is kept as it is


def _number(metadata: Mapping[str, Any], key: str) -> int:
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0

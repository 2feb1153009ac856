"""A queue's record as RFC 0001's queue configuration, and back.

    filter          `queue = 'project/name'`, or that OR the queue's own filter; where it has
                    priority rules, RULES of that AND each condition
    max attempts    `_max_claim_count`; 0 where there is none: unlimited
    done retention  `_done_retention` in seconds, 0 for ever; 1 where no history is kept, since the
                    RFC's field can't say less
    extensions      x-version, x-exposing, and the metadata as the user wrote them, as JSON:
                    x-metadata, in pieces where it is longer than a Utf8 can be

What the service decides by are the extensions; the RFC's fields say the same to other readers. In
a filter as users write it, the header `queue` is the bare name of a queue of their project; in the
records, as in the metadata log, it is `project/name`: `stored_filter` translates. A filter that is
too large to be stored with that is left out of the RFC's field.
"""

import json
from collections.abc import Mapping
from typing import Any

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters import (
    And,
    Between,
    Compare,
    Constant,
    EndsWith,
    Exists,
    Expression,
    In,
    Like,
    Node,
    Not,
    Or,
    Rule,
    Rules,
    StartsWith,
    check_size,
    parse_filter,
    parse_rules,
)
from zaqar_lite.domain.metadata import DONE_RETENTION, FILTER, PRIORITY
from zaqar_lite.domain.models import DEFAULT_PRIORITY, QueueRecord, QueueRef
from zaqar_lite.storage.opendata.format import records
from zaqar_lite.storage.opendata.format.encoding import CodecError
from zaqar_lite.storage.opendata.format.keys import queue_id

_VERSION, _EXPOSING, _METADATA = "x-version", "x-exposing", "x-metadata"
_PIECE = 16_000  # characters; at most four bytes each
_NO_HISTORY_S = 1


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
    config = records.Config(
        _filter(record.ref, metadata),
        _number(metadata, "_max_claim_count"),
        _number(metadata, DONE_RETENTION, _NO_HISTORY_S),
        extensions,
    )
    try:
        return records.encode_config(config)
    except CodecError as exc:
        raise Invalid(f"The metadata of {record.ref.name!r} can't be stored: {exc}.") from exc


def decode_record(ref: QueueRef, data: bytes) -> QueueRecord:
    """Read a queue's record; one without our extensions is a queue with what the RFC says.

    Raises CodecError: it can't be read.
    """
    config = records.decode_config(data)
    extensions = dict(config.extensions)
    text = "".join(value for key, value in config.extensions if key == _METADATA)
    try:
        metadata: dict[str, Any] = json.loads(text) if text else {}
        version = int(extensions.get(_VERSION, "1"))
    except ValueError as exc:
        raise CodecError(f"configuration of {ref}: {exc}") from exc
    if not text and config.max_attempts:
        metadata["_max_claim_count"] = config.max_attempts
    if not text and config.done_retention_s != _NO_HISTORY_S:
        metadata[DONE_RETENTION] = config.done_retention_s
    return QueueRecord(ref, metadata, version, _EXPOSING in extensions)


def _filter(ref: QueueRef, metadata: Mapping[str, Any]) -> Expression:
    own = Compare("=", records.QUEUE_HEADER, queue_id(ref).decode())
    rules, text = metadata.get(PRIORITY), metadata.get(FILTER)
    try:
        matching: Node = own
        if isinstance(text, str):
            matching = Or((own, stored_filter(parse_filter(text), ref.project)))
        tree: Expression = matching
        if isinstance(rules, str):
            tree = _ranked(matching, parse_rules(rules), ref.project)
        check_size(tree)
    except Invalid:
        return own  # what a filter may be is the service's to say; the text is kept as it is
    return tree


def _ranked(matching: Node, rules: Rules, project: str) -> Rules:
    """Add priorities to a filter; what no rule matches has the default."""
    ranked = [
        Rule(And((matching, stored_filter(rule.condition, project))), rule.priority)
        for rule in rules.rules
    ]
    return Rules((*ranked, Rule(matching, DEFAULT_PRIORITY)), rules.default)


def stored_filter(node: Node, project: str) -> Node:
    """Translate a user's filter into one over the headers of the metadata log.

    Whoever compares the name of a queue as a number is not understood by other readers.
    """
    if isinstance(node, And | Or):
        return type(node)(tuple(stored_filter(child, project) for child in node.nodes))
    if isinstance(node, Not):
        return Not(stored_filter(node.node, project))
    if isinstance(node, Constant | Exists | Between) or node.name != records.QUEUE_HEADER:
        return node
    return _stored_condition(node, f"{project}/")


def _stored_condition(
    node: Compare | StartsWith | EndsWith | Like | In, prefix: str
) -> Compare | StartsWith | EndsWith | Like | In | Constant:
    match node:
        case Compare(value=str(value)) | StartsWith(value=value):
            return node._replace(value=prefix + value)
        case In(values=values):
            return node._replace(values=tuple(prefix + value for value in values))
        case EndsWith(value=value) if "/" in value:
            return Constant(value=False)  # no name has a slash
        case Like():
            return _like(node, prefix)
    return node


def _like(node: Like, prefix: str) -> Like:
    escape, pattern = node.escape, node.pattern
    if not escape and any(wildcard in prefix for wildcard in "%_"):
        escape = next(c for c in map(chr, range(33, 0x10FFFF)) if c not in prefix + pattern + "%_")
    literal = "".join(escape + c if c in ("%", "_", escape) else c for c in prefix)
    return Like(node.name, literal + pattern, escape)


def _number(metadata: Mapping[str, Any], key: str, otherwise: int = 0) -> int:
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise

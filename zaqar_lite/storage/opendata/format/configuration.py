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

The binary form of a filter is a u16 length, a version (1), and one node in prefix order.

The length lets a reader that does not know a filter step over it to the fields behind.

    00 TRUE  01 FALSE  02 AND n nodes  03 OR n nodes  04 NOT node  05 EXISTS name
    10-15 text = <> < <= > >= : name, Utf8      20-25 the same for numbers: name, i64
    16 prefix  17 suffix: name, Utf8            18 LIKE: name, pattern, escape
    19 IN: name, Array<Utf8>                    26 BETWEEN: name, i64, i64
    40 RULES (at the root only): u16 n, n times (node, u8 priority), u8 default
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters import (
    OPERATORS,
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
from zaqar_lite.storage.opendata.format.encoding import (
    CodecError,
    array,
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

VERSION = 1
_I64 = struct.Struct("<q")
_TRUE, _FALSE, _AND, _OR, _NOT, _EXISTS = range(6)
_TEXT, _PREFIX, _SUFFIX, _LIKE, _IN, _NUMBER, _BETWEEN, _RULES = (
    0x10, 0x16, 0x17, 0x18, 0x19, 0x20, 0x26, 0x40,
)  # fmt: skip


def encode_filter(tree: Expression) -> bytes:
    """Encode a filter or rules, with the length before it.

    Raises CodecError: longer than 65,535 bytes.
    """
    root = _encode_rules(tree) if isinstance(tree, Rules) else _encode(tree)
    body = bytes((VERSION,)) + root
    return count(len(body), "bytes of a filter") + body


def _encode_rules(tree: Rules) -> bytes:
    rules = b"".join(_encode(condition) + bytes((number,)) for condition, number in tree.rules)
    return bytes((_RULES,)) + count(len(tree.rules), "rules") + rules + bytes((tree.default,))


def _encode(node: Node) -> bytes:  # noqa: PLR0911 - one branch a node of the table
    match node:
        case Constant(value):
            return bytes((_TRUE if value else _FALSE,))
        case And(nodes):
            return bytes((_AND, len(nodes))) + b"".join(map(_encode, nodes))
        case Or(nodes):
            return bytes((_OR, len(nodes))) + b"".join(map(_encode, nodes))
        case Not(inner):
            return bytes((_NOT,)) + _encode(inner)
        case Exists(name):
            return bytes((_EXISTS,)) + utf8(name)
        case Compare(operator, name, str(value)):
            return bytes((_TEXT + OPERATORS.index(operator),)) + utf8(name) + utf8(value)
        case Compare(operator, name, int(value)):
            code = _NUMBER + OPERATORS.index(operator)
            return bytes((code,)) + utf8(name) + pack(_I64, value)
        case StartsWith(name, value):
            return bytes((_PREFIX,)) + utf8(name) + utf8(value)
        case EndsWith(name, value):
            return bytes((_SUFFIX,)) + utf8(name) + utf8(value)
        case Like(name, pattern, escape):
            return bytes((_LIKE,)) + utf8(name) + utf8(pattern) + utf8(escape)
        case In(name, values):
            return bytes((_IN,)) + utf8(name) + array(values, utf8)
        case Between(name, low, high):
            return bytes((_BETWEEN,)) + utf8(name) + pack(_I64, low) + pack(_I64, high)
    raise CodecError(f"{node!r} is no node of a filter")


_CONFIG = struct.Struct("<HI")


def encode_config(
    tree: Expression, attempts: int, retention_s: int, extensions: Sequence[tuple[str, str]]
) -> bytes:
    """Encode a queue's configuration; `extensions` follow the RFC's fields, absent where empty.

    Raises CodecError: a field does not fit.
    """
    fixed = encode_filter(tree) + pack(_CONFIG, attempts, retention_s)
    if not extensions:
        return fixed
    return fixed + count(len(extensions), "extensions") + encode_headers(extensions)


def decode_config(data: bytes) -> tuple[int, int, list[tuple[str, str]]]:
    """Read a queue's configuration: attempts, retention and extensions.

    The filter is stepped over, which is most of a record: who decides by one reads it in the
    metadata. Raises CodecError: cut short or bytes left over.
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
    attempts = _number(metadata, "_max_claim_count")
    retention_s = _number(metadata, DONE_RETENTION, _NO_HISTORY_S)
    try:
        return encode_config(_filter(record.ref, metadata), attempts, retention_s, extensions)
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


def _filter(ref: QueueRef, metadata: Mapping[str, Any]) -> Expression:
    own = Compare("=", QUEUE_HEADER, queue_id(ref).decode())
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
    if isinstance(node, Constant | Exists | Between) or node.name != QUEUE_HEADER:
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

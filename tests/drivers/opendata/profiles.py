"""What the RFC's vectors have and the store does not write or read.

That is: other keys, payloads and metadata, and filters in their binary form.

Of the forms of keys that the RFCs' texts have, the store writes and reads one.

SEED         version 01 and the type as it is: the RFC's literal bytes, which the store writes.
TAG_2026_01  the type in the high nibble: the key-prefix RFC of January 2026.
SUBSYSTEM    a subsystem byte (05) before SEED: the key-prefix RFC's later form.
"""

import struct
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters.tree import (
    MAX_DEPTH,
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
)
from zaqar_lite.storage.opendata.format import (
    CodecError,
    array,
    count,
    finish,
    keys,
    pack,
    read_array,
    read_count,
    read_utf8,
    take,
    terminated,
    unpack,
    utf8,
    var_u64,
)
from zaqar_lite.storage.opendata.format.active import Extra, read_active, rows_of_five
from zaqar_lite.storage.opendata.format.bookkeeping import decode_config, encode_config
from zaqar_lite.storage.opendata.format.records import Metadata, encode_headers


class Profile(Enum):
    """How the two bytes before a key are laid out."""

    SEED = "seed"
    TAG_2026_01 = "tag2026_01"
    SUBSYSTEM = "subsystem"


class LogLayout(Enum):
    """How an entry of the log is keyed; the store writes HEAD."""

    HEAD = "head"
    TEXT = "text"
    SOURCE_2026_01 = "2026_01"


def in_profile(key: bytes, profile: Profile) -> bytes:
    """A key of the store in another profile."""
    if profile is Profile.TAG_2026_01:
        return bytes((key[0], key[1] << 4)) + key[2:]
    return b"\x05" + key if profile is Profile.SUBSYSTEM else key


def read_kind(key: bytes, profile: Profile) -> int:
    """The type of a key of a profile."""
    if profile is Profile.TAG_2026_01:
        return key[1] >> 4
    return keys.read_prefix(key[1:] if profile is Profile.SUBSYSTEM else key)[0]


def log_entry_key(segment: int, sequence: int, log: bytes, layout: LogLayout) -> bytes:
    """Key of a log entry; `sequence` counts from the segment's start (TEXT: from zero)."""
    if layout is LogLayout.TEXT:
        return b"\x01\x01" + terminated(log) + sequence.to_bytes(8, "big")
    if layout is LogLayout.SOURCE_2026_01:
        return b"\x01\x10" + segment.to_bytes(4, "big") + terminated(log) + var_u64(sequence)
    return keys.log_entry_key(segment, sequence, log)


def encode_raw_payload(body: bytes) -> bytes:
    """Encode a body as raw bytes to the end of the value."""
    return b"\x03" + body


class Uri(NamedTuple):
    """A payload that lies elsewhere."""

    uri: str
    size: int
    sha256: bytes | None = None


def decode_uri(data: bytes) -> Uri:
    """Read a payload that lies elsewhere."""
    uri, end = read_utf8(data, 1)
    (size,), end = unpack(struct.Struct("<Q"), data, end)
    return Uri(uri, size, data[end + 1 :] or None)


def encode_uri(payload: Uri) -> bytes:
    """Encode a payload that lies elsewhere."""
    digest = b"\x00" if payload.sha256 is None else b"\x01" + payload.sha256
    return b"\x02" + utf8(payload.uri) + payload.size.to_bytes(8, "little") + digest


def encode_metadata(metadata: Metadata) -> bytes:
    """Encode an entry of the metadata log.

    Raises CodecError: more than 255 headers, or one longer than 65,535 bytes.
    """
    *fixed, headers = metadata
    return pack(struct.Struct("<QqqqIB"), *fixed, len(headers)) + encode_headers(headers)


class Available(NamedTuple):
    """A message that waits."""

    message_id: int
    priority: int
    visible_at: int
    retention_deadline: int
    attempts: int


class Active(NamedTuple):
    """An active page: what waits, the fields of what is claimed, and extras by place."""

    available: list[Available]
    in_flight: list[tuple[int, int, int, int, int]]
    extras: Mapping[int, Extra]


def decode_active(data: bytes) -> Active:
    """Read an active page."""
    available, in_flight, extras = read_active(data)
    rows = [Available(*row) for row in rows_of_five(available)]
    return Active(rows, list(rows_of_five(in_flight)), extras)


class Config(NamedTuple):
    """A queue's configuration."""

    filter: Expression
    max_attempts: int
    done_retention_s: int
    extensions: Sequence[tuple[str, str]] = ()


def write_config(config: Config) -> bytes:
    """Encode a queue's configuration with its filter."""
    return encode_config(encode_filter(config.filter)[2:], *config[1:])


def read_config(data: bytes) -> Config:
    """Read a queue's configuration with its filter."""
    return Config(decode_filter(data)[0], *decode_config(data))


_I64 = struct.Struct("<q")
_TRUE, _FALSE, _AND, _OR, _NOT, _EXISTS = range(6)
_TEXT, _PREFIX, _SUFFIX, _LIKE, _IN, _NUMBER, _BETWEEN, _RULES = (
    0x10, 0x16, 0x17, 0x18, 0x19, 0x20, 0x26, 0x40,
)  # fmt: skip
_VERSION = 1
"""Of the binary form of a filter: a u16 length, this, and one node in prefix order."""


def encode_filter(tree: Expression) -> bytes:
    """Encode a filter or rules, with the length before it.

    Raises CodecError: longer than 65,535 bytes.
    """
    root = _encode_rules(tree) if isinstance(tree, Rules) else _encode(tree)
    body = bytes((_VERSION,)) + root
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


def decode_filter(data: bytes, offset: int = 0) -> tuple[Expression, int]:
    """Read a filter or rules; answer the tree and the offset after it.

    Raises CodecError: cut short, of another version, or beyond the bounds of a filter.
    """
    body, end = take(data, offset + 2, read_count(data, offset))
    if body[:1] != bytes((_VERSION,)):
        raise CodecError(f"filter of version {body[:1].hex()}; this reads 01")
    tree: Expression
    if body[1:2] == bytes((_RULES,)):
        tree, used = _decode_rules(body, 2)
    else:
        tree, used = _decode(body, 1, 1)
    finish(body, used, "filter")
    try:
        check_size(tree)
    except Invalid as exc:
        raise CodecError(str(exc)) from exc
    return tree, end


def _decode_rules(data: bytes, offset: int) -> tuple[Rules, int]:
    rules, offset = read_array(data, offset, _decode_rule)
    default, offset = take(data, offset, 1)
    return Rules(tuple(rules), default[0]), offset


def _decode_rule(data: bytes, offset: int) -> tuple[Rule, int]:
    condition, offset = _decode(data, offset, 1)
    number, offset = take(data, offset, 1)
    return Rule(condition, number[0]), offset


def _decode(data: bytes, offset: int, depth: int) -> tuple[Node, int]:
    code, offset = take(data, offset, 1)
    operation = code[0]
    if operation in (_TRUE, _FALSE):
        return Constant(operation == _TRUE), offset
    if operation in (_AND, _OR, _NOT):
        if depth > MAX_DEPTH:
            raise CodecError(f"filter nested more than {MAX_DEPTH} deep")
        return _decode_group(operation, data, offset, depth)
    name, offset = read_utf8(data, offset)
    return _decode_condition(operation, name, data, offset)


def _decode_group(operation: int, data: bytes, offset: int, depth: int) -> tuple[Node, int]:
    if operation == _NOT:
        inner, offset = _decode(data, offset, depth + 1)
        return Not(inner), offset
    number, offset = take(data, offset, 1)
    nodes = []
    for _ in range(number[0]):
        node, offset = _decode(data, offset, depth + 1)
        nodes.append(node)
    return (And if operation == _AND else Or)(tuple(nodes)), offset


def _decode_condition(  # noqa: PLR0911 - one a form
    operation: int, name: str, data: bytes, offset: int
) -> tuple[Node, int]:
    if operation == _EXISTS:
        return Exists(name), offset
    if operation == _IN:
        values, offset = read_array(data, offset, read_utf8)
        return In(name, tuple(values)), offset
    if operation == _BETWEEN:
        (low,), offset = unpack(_I64, data, offset)
        (high,), offset = unpack(_I64, data, offset)
        return Between(name, low, high), offset
    if _NUMBER <= operation < _BETWEEN:
        (number,), offset = unpack(_I64, data, offset)
        return Compare(OPERATORS[operation - _NUMBER], name, number), offset
    text, offset = read_utf8(data, offset)
    if _TEXT <= operation < _PREFIX:
        return Compare(OPERATORS[operation - _TEXT], name, text), offset
    if operation == _LIKE:
        escape, offset = read_utf8(data, offset)
        return Like(name, text, escape), offset
    if operation not in (_PREFIX, _SUFFIX):
        raise CodecError(f"filter with the unknown operation {operation:02x}")
    return (StartsWith if operation == _PREFIX else EndsWith)(name, text), offset

"""The binary form of filters and rules: u16 length, version (1), one node in prefix order.

The length lets a reader that does not know a filter step over it to the fields behind.

    00 TRUE  01 FALSE  02 AND n nodes  03 OR n nodes  04 NOT node  05 EXISTS name
    10-15 text = <> < <= > >= : name, Utf8      20-25 the same for numbers: name, i64
    16 prefix  17 suffix: name, Utf8            18 LIKE: name, pattern, escape
    19 IN: name, Array<Utf8>                    26 BETWEEN: name, i64, i64
    40 RULES (at the root only): u16 n, n times (node, u8 priority), u8 default
"""

import struct

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters import (
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
from zaqar_lite.storage.opendata.format.encoding import (
    CodecError,
    array,
    count,
    finish,
    pack,
    read_array,
    read_count,
    read_utf8,
    take,
    unpack,
    utf8,
)

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


def decode_filter(data: bytes, offset: int = 0) -> tuple[Expression, int]:
    """Read a filter or rules; answer the tree and the offset after it.

    Raises CodecError: cut short, of another version, or beyond the bounds of a filter.
    """
    body, end = take(data, offset + 2, read_count(data, offset))
    if body[:1] != bytes((VERSION,)):
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


def _encode_rules(tree: Rules) -> bytes:
    rules = b"".join(_encode(condition) + bytes((number,)) for condition, number in tree.rules)
    return bytes((_RULES,)) + count(len(tree.rules), "rules") + rules + bytes((tree.default,))


def _decode_rules(data: bytes, offset: int) -> tuple[Rules, int]:
    rules, offset = read_array(data, offset, _decode_rule)
    default, offset = take(data, offset, 1)
    return Rules(tuple(rules), default[0]), offset


def _decode_rule(data: bytes, offset: int) -> tuple[Rule, int]:
    condition, offset = _decode(data, offset, 1)
    number, offset = take(data, offset, 1)
    return Rule(condition, number[0]), offset


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

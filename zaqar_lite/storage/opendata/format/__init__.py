"""The bytes of the records: keys and values, both ways, with nothing else behind them.

`keys.py` lists the records; `records.py` has the RFC's values, `active.py` the pages of waiting
messages, `bookkeeping.py` the configuration of queues and the records that are additions. Here is
what all of them are made of, the primitive encodings of RFC 0001.

Integers in keys are big-endian, so that keys sort by number; integers in values are little-endian.
`Utf8` is a u16 length and the text; `Array<T>` a u16 count and its elements, back to back;
`TerminatedBytes` escapes 00 and 01 and ends with 00, so that no key is a prefix of another;
`var_u64` says in its first nibble how many bytes follow, and keeps the order of numbers.
"""

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

MAX_U16 = 0xFFFF
MAX_U64 = (1 << 64) - 1
_U16 = struct.Struct("<H")

T = TypeVar("T")


class CodecError(ValueError):
    """Bytes that are no valid record, or a value that does not fit its field; says which."""


def terminated(raw: bytes) -> bytes:
    """Escape and terminate bytes for use inside a key (the form of the log's source)."""
    if b"\x01" in raw or b"\x00" in raw:
        raw = raw.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01")
    return raw + b"\x00"


def read_terminated(data: bytes, offset: int = 0) -> tuple[bytes, int]:
    """Read TerminatedBytes; answer the raw bytes and the offset after the terminator.

    The escape 01 03 of the log RFC's table is accepted and never written: it breaks the order.
    Raises CodecError: no terminator, or an unknown or cut escape.
    """
    end = data.find(b"\x00", offset)
    if end < 0:
        raise CodecError("TerminatedBytes without a terminator")
    escaped = data[offset:end]
    if b"\x01" not in escaped:
        return escaped, end + 1
    out = bytearray()
    position = 0
    while position < len(escaped):
        byte = escaped[position]
        if byte == 1:
            position += 1
            code = escaped[position] if position < len(escaped) else 0
            if code not in _ESCAPES:
                raise CodecError(f"TerminatedBytes with the unknown escape 01 {code:02x}")
            byte = _ESCAPES[code]
        out.append(byte)
        position += 1
    return bytes(out), end + 1


_ESCAPES = {1: 0x00, 2: 0x01, 3: 0xFF}


def utf8(text: str) -> bytes:
    """Encode a Utf8. Raises CodecError: longer than 65,535 bytes."""
    data = text.encode()
    return count(len(data), "Utf8 bytes") + data


def read_utf8(data: bytes, offset: int = 0) -> tuple[str, int]:
    """Read a Utf8; answer the text and the offset after it.

    Raises CodecError: cut short, or no UTF-8.
    """
    raw, end = take(data, offset + 2, read_count(data, offset))
    try:
        return raw.decode(), end
    except UnicodeDecodeError as exc:
        raise CodecError(f"Utf8 that is no UTF-8 at byte {offset + 2 + exc.start}") from exc


def count(number: int, what: str) -> bytes:
    """Encode the count of an array.

    Raises CodecError: more than 65,535, which the format cannot hold.
    """
    if number > MAX_U16:
        raise CodecError(f"{number} {what} are more than the 65535 that a u16 count holds")
    return _U16.pack(number)


def read_count(data: bytes, offset: int) -> int:
    """Read the count of an array. Raises CodecError: cut short."""
    if offset + 2 > len(data):
        raise CodecError(f"cut short at byte {offset}: a count is missing")
    return data[offset] | data[offset + 1] << 8


def take(data: bytes, offset: int, size: int) -> tuple[bytes, int]:
    """Read `size` bytes; answer them and the offset after them. Raises CodecError: cut short."""
    end = offset + size
    if end > len(data):
        raise CodecError(f"cut short: {size} bytes expected at byte {offset}")
    return data[offset:end], end


def unpack(layout: struct.Struct, data: bytes, offset: int) -> tuple[tuple[int, ...], int]:
    """Read fixed fields; answer them and the offset after them. Raises CodecError: cut short."""
    if offset + layout.size > len(data):
        raise CodecError(f"cut short: {layout.size} bytes expected at byte {offset}")
    return layout.unpack_from(data, offset), offset + layout.size


def pack(layout: struct.Struct, *values: int) -> bytes:
    """Encode fixed fields. Raises CodecError: a value does not fit its field."""
    try:
        return layout.pack(*values)
    except struct.error as exc:
        raise CodecError(f"{values} does not fit {layout.format!r}: {exc}") from exc


def array(items: Sequence[T], encode: Callable[[T], bytes]) -> bytes:
    """Encode an Array<T>. Raises CodecError: more than 65,535 elements."""
    return count(len(items), "elements") + b"".join(map(encode, items))


def read_array(
    data: bytes, offset: int, read: Callable[[bytes, int], tuple[T, int]]
) -> tuple[list[T], int]:
    """Read an Array<T>; answer its elements and the offset after them.

    Raises CodecError: cut short.
    """
    number, offset = read_count(data, offset), offset + 2
    items = []
    for _ in range(number):
        item, offset = read(data, offset)
        items.append(item)
    return items, offset


def u64s(numbers: Sequence[int], what: str) -> bytes:
    """Encode an Array<u64>. Raises CodecError: more than 65,535 elements."""
    return count(len(numbers), what) + struct.pack(f"<{len(numbers)}Q", *numbers)


def read_u64s(data: bytes, offset: int) -> tuple[tuple[int, ...], int]:
    """Read an Array<u64>; answer its numbers and the offset after them.

    Raises CodecError: cut short.
    """
    return unpack(struct.Struct(f"<{read_count(data, offset)}Q"), data, offset + 2)


def finish(data: bytes, offset: int, what: str) -> None:
    """Check that a record ends where its last field does.

    Raises CodecError: bytes are left over.
    """
    if offset != len(data):
        raise CodecError(f"{what}: {len(data) - offset} bytes are left over")


def var_u64(value: int) -> bytes:
    """Encode a number for a log key: the first nibble counts the bytes that follow.

    Raises CodecError: negative or above 64 bits.
    """
    if not 0 <= value <= MAX_U64:
        raise CodecError(f"{value} is no u64")
    follow = (value.bit_length() + 3) // 8
    return (value | follow << (8 * follow + 4)).to_bytes(follow + 1, "big")


def after_prefix(prefix: bytes) -> bytes:
    """The smallest key above every key that begins with `prefix`; b"" when there is none.

    Not `prefix + FF`: a raw FF inside a name sorts above that.
    """
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else b""

"""The bytes of the records: keys and values, both ways, with nothing else behind them.

`keys.py` lists the records; `records.py` has the RFC's values, `active.py` the pages of waiting
messages, `bookkeeping.py` the configuration of queues and the records that are additions. Here is
what all of them are made of, the primitive encodings of RFC 0001.

Integers in keys are big-endian, so that keys sort by number; integers in values are little-endian.
`Utf8` is a u16 length and the text; `Array<T>` a u16 count and its elements, back to back;
`TerminatedBytes` escapes 00 and 01 and ends with 00, so that no key is a prefix of another;
`var_u64` says in its first nibble how many bytes follow, and keeps the order of numbers.

Every encoder raises CodecError where a value does not fit its field, and every reader where the
bytes are cut short or say nothing.
"""

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

MAX_U16 = 0xFFFF
MAX_U64 = (1 << 64) - 1
_U16 = struct.Struct("<H")

T = TypeVar("T")


class CodecError(ValueError):
    """Bytes that are no valid record, or a value that does not fit its field; says which."""


class Codec(NamedTuple, Generic[T]):
    """How a value is written and read; `read` answers it, and the offset after it."""

    encode: Callable[[T], bytes]
    read: Callable[[bytes, int], tuple[T, int]]


def several(*fields: Codec[Any]) -> Codec[tuple[Any, ...]]:
    """Fields back to back: a value for each."""

    def encode(values: tuple[Any, ...]) -> bytes:
        return b"".join([field.encode(value) for field, value in zip(fields, values, strict=True)])

    def read(data: bytes, offset: int) -> tuple[tuple[Any, ...], int]:
        values = []
        for field in fields:
            value, offset = field.read(data, offset)
            values.append(value)
        return tuple(values), offset

    return Codec(encode, read)


class Layout:
    """The fields of a record, with nothing behind the last."""

    def __init__(self, name: str, *fields: Codec[Any]) -> None:
        self._name = name
        self._fields = several(*fields)

    def encode(self, *values: Any) -> bytes:  # noqa: ANN401 - each is what its field takes
        """Encode a value for each field."""
        return self._fields.encode(values)

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Read the value of each field. Raises CodecError: also where bytes are left over."""
        values, offset = self._fields.read(data, 0)
        finish(data, offset, self._name)
        return values


# -- numbers and bytes --


def pack(layout: struct.Struct, *values: Any) -> bytes:  # noqa: ANN401 - as `struct` has it
    """Encode fixed fields."""
    try:
        return layout.pack(*values)
    except struct.error as exc:
        raise CodecError(f"{values} does not fit {layout.format!r}: {exc}") from exc


def unpack(layout: struct.Struct, data: bytes, offset: int) -> tuple[tuple[Any, ...], int]:
    """Read fixed fields."""
    if offset + layout.size > len(data):
        raise CodecError(f"cut short: {layout.size} bytes expected at byte {offset}")
    return layout.unpack_from(data, offset), offset + layout.size


def fixed(form: str) -> Codec[Sequence[Any]]:
    """Several fields of the form that `struct` has."""
    layout = struct.Struct(form)
    return Codec(
        lambda values: pack(layout, *values), lambda data, offset: unpack(layout, data, offset)
    )


def number(form: str) -> Codec[Any]:
    """One field of the form that `struct` has."""
    layout = struct.Struct(form)

    def read(data: bytes, offset: int) -> tuple[Any, int]:
        (value,), offset = unpack(layout, data, offset)
        return value, offset

    return Codec(lambda value: pack(layout, value), read)


def take(data: bytes, offset: int, size: int) -> tuple[bytes, int]:
    """Read `size` bytes."""
    end = offset + size
    if end > len(data):
        raise CodecError(f"cut short: {size} bytes expected at byte {offset}")
    return data[offset:end], end


def count(size: int, what: str) -> bytes:
    """Encode the count of an array."""
    if size > MAX_U16:
        raise CodecError(f"{size} {what} are more than the 65535 that a u16 count holds")
    return _U16.pack(size)


def read_count(data: bytes, offset: int) -> int:
    """Read the count of an array, which takes two bytes."""
    if offset + 2 > len(data):
        raise CodecError(f"cut short at byte {offset}: a count is missing")
    return data[offset] | data[offset + 1] << 8


def utf8(text: str) -> bytes:
    """Encode a Utf8."""
    data = text.encode()
    return count(len(data), "Utf8 bytes") + data


def read_utf8(data: bytes, offset: int = 0) -> tuple[str, int]:
    """Read a Utf8. Raises CodecError: also where it is no UTF-8."""
    start = offset + 2
    end = start + read_count(data, offset)
    if end > len(data):
        raise CodecError(f"cut short: {end - start} bytes expected at byte {start}")
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError as exc:
        raise CodecError(f"Utf8 that is no UTF-8 at byte {start + exc.start}") from exc


def array(of: Codec[T], counted: str = "<H") -> Codec[Sequence[T]]:
    """An Array of what a codec reads and writes, behind its count."""
    size = number(counted)

    def encode(items: Sequence[T]) -> bytes:
        return size.encode(len(items)) + b"".join(map(of.encode, items))

    def read(data: bytes, offset: int) -> tuple[Sequence[T], int]:
        length, offset = size.read(data, offset)
        items = []
        for _ in range(length):
            item, offset = of.read(data, offset)
            items.append(item)
        return items, offset

    return Codec(encode, read)


def optional(of: Codec[T]) -> Codec[T | None]:
    """A last field that may be absent; None is its absence."""
    return Codec(
        lambda value: b"" if value is None else of.encode(value),
        lambda data, offset: (None, offset) if offset == len(data) else of.read(data, offset),
    )


def encode_flagged(of: Sequence[Codec[Any]], values: Sequence[Any]) -> tuple[int, bytes]:
    """Encode the values that are not None; answer the flags that name them, and their bytes."""
    flags, parts = 0, []
    for bit, value in enumerate(values):
        if value is not None:
            flags |= 1 << bit
            parts.append(of[bit].encode(value))
    return flags, b"".join(parts)


def read_flagged(
    of: Sequence[Codec[Any]], flags: int, data: bytes, offset: int
) -> tuple[list[Any], int]:
    """Read the values that flags name; the others are None."""
    values: list[Any] = []
    for bit, codec in enumerate(of):
        value = None
        if flags >> bit & 1:
            value, offset = codec.read(data, offset)
        values.append(value)
    return values, offset


UTF8 = Codec(utf8, read_utf8)
PAIR = several(UTF8, UTF8)
U64S: Codec[Sequence[int]] = array(number("<Q"))
BYTES_16: Codec[bytes] = Codec(lambda value: value, lambda data, offset: take(data, offset, 16))
REST: Codec[bytes] = Codec(lambda value: value, lambda data, offset: (data[offset:], len(data)))
NOTHING: Codec[bool] = Codec(lambda _: b"", lambda _, offset: (True, offset))
"""Of a flag that says all."""


def finish(data: bytes, offset: int, what: str) -> None:
    """Check that a record ends where its last field does."""
    if offset != len(data):
        raise CodecError(f"{what}: {len(data) - offset} bytes are left over")


# -- keys --


def terminated(raw: bytes) -> bytes:
    """Escape and terminate bytes for use inside a key (the form of the log's source)."""
    if b"\x01" in raw or b"\x00" in raw:
        raw = raw.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01")
    return raw + b"\x00"


_ESCAPED = re.compile(b"\x01(.?)", re.DOTALL)
_ESCAPES = {b"\x01": b"\x00", b"\x02": b"\x01", b"\x03": b"\xff"}


def read_terminated(data: bytes, offset: int = 0) -> tuple[bytes, int]:
    """Read TerminatedBytes; answer the raw bytes and the offset after the terminator.

    The escape 01 03 of the log RFC's table is accepted and never written: it breaks the order.
    """
    end = data.find(b"\x00", offset)
    if end < 0:
        raise CodecError("TerminatedBytes without a terminator")
    try:
        return _ESCAPED.sub(lambda found: _ESCAPES[found[1]], data[offset:end]), end + 1
    except KeyError as exc:
        raise CodecError(f"TerminatedBytes with an unknown escape: 01 {exc}") from exc


def var_u64(value: int) -> bytes:
    """Encode a number for a log key: the first nibble counts the bytes that follow."""
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

"""SlateDB's files of rows, read without SlateDB: what is intact in a damaged one.

Tables and files of the write-ahead log are alike, all numbers big-endian:

    block*  filter  index  statistics      each followed by its crc32; all but the index may miss
    layout  crc32                          a flatbuffer: where those parts lie
    offset of the layout (u64), version (u16)

    a block:  row*  restart (u16)*  count of restarts (u16)  crc32
    a row:    shared, rest, length of the value (varints)  rest of the key  value
              sequence (u64)  flags (u8)  [expires (i64)]  [created (i64)]

A key shares its first bytes with the key before it; every 16th row is a restart and has a whole
one. The restarts are the offsets of these rows, the first is 0. No row begins with two zeros,
because no key is empty: so rows tell where their block ends, its crc32 proves it, and neither index
nor layout is needed to read what is left of a file. The rows of a batch have one sequence.
"""

import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

VERSION = 2
"""The version of the files that this module reads."""
_WINDOW = 8 * 1024 * 1024
"""What is read at once, in bytes: a block longer than half of it is not found behind damage."""
_LONGEST = 128 * 1024 * 1024
"""What is read at once where no block begins in a window: the longest block that can be read."""
_TAIL = struct.Struct(">QH")
_CRC = struct.Struct(">I")
_SEQUENCE_AND_FLAGS = struct.Struct(">QB")
_RESTART_INTERVAL = 16
_END_OF_ROWS = b"\x00\x00"
_BEGIN_OF_BLOCK = re.compile(rb"\x00[^\x00]")  # nothing shared, and a key
_TOMBSTONE, _EXPIRES, _CREATED = 1, 2, 4
_INDEX, _FILTER, _STATISTICS = (1, 2), (3, 4), (8, 9)  # fields of the layout: offset and length
_COMPRESSION = 5


class Row(NamedTuple):
    """A row; `value` is None where it says that the key was deleted."""

    key: bytes
    sequence: int
    value: bytes | None


class Lost(NamedTuple):
    """Bytes of a file in which no block can be read."""

    start: int
    end: int


class Layout(NamedTuple):
    """Where the blocks of a file end, and which parts with a crc32 follow them (offset, length)."""

    blocks_end: int
    index_at: tuple[int, int]
    parts: tuple[tuple[int, int], ...]


class UnknownVersion(Exception):
    """A file is of a version that this module does not read."""


class BadLayout(Exception):
    """The layout of a file can't be read; says why."""


def read_layout(file: Path) -> Layout:
    """Read where the parts of a file lie.

    Raises:
        BadLayout: the file is cut short, or damaged there.
        UnknownVersion: another release wrote it.
        OSError: it can't be read.
    """
    with file.open("rb", buffering=0) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size < _TAIL.size:
            raise BadLayout(f"it has {size} bytes")
        offset, version = _TAIL.unpack(os.pread(opened.fileno(), _TAIL.size, size - _TAIL.size))
        length = size - _TAIL.size - offset
        if length < _CRC.size or (raw := _checked(opened.fileno(), offset, length)) is None:
            raise BadLayout("its end is missing or damaged")
    if version != VERSION:
        if abs(version - VERSION) == 1:
            raise UnknownVersion(f"{file} is of version {version}; this reads {VERSION}")
        raise BadLayout("its version is damaged")
    try:
        return _decode_layout(raw, offset)
    except struct.error as exc:
        raise BadLayout("its layout is no flatbuffer") from exc


def is_intact_behind_blocks(file: Path, layout: Layout) -> bool:
    """Whether the index and the filter of a file are what was written.

    Raises:
        OSError: it can't be read.
    """
    with file.open("rb", buffering=0) as opened:
        return all(_checked(opened.fileno(), *part) is not None for part in layout.parts)


def are_blocks_intact(file: Path, layout: Layout) -> bool:
    """Whether all blocks are where the index says, and what was written; reads the whole file.

    Raises:
        OSError: it can't be read.
    """
    with file.open("rb", buffering=0) as opened:
        index = _checked(opened.fileno(), *layout.index_at)
        try:
            offsets = [] if index is None else _decode_index(index)
        except struct.error:
            return False
        ends = [*offsets[1:], layout.blocks_end]
        return bool(offsets) and all(
            _checked(opened.fileno(), offset, end - offset) is not None
            for offset, end in zip(offsets, ends, strict=True)
        )


def read_blocks(file: Path, end: int | None) -> Iterator[Sequence[Row] | Lost]:
    """Read the rows of each block, and which bytes hold none, up to `end` or the file's.

    Where `end` is unknown, what is behind the last block is lost bytes, too.

    Raises:
        OSError: it can't be read.
    """
    with file.open("rb", buffering=0) as opened:
        size = os.fstat(opened.fileno()).st_size
        readable = size if end is None else min(end, size)
        at = lost = 0  # what lies between is lost
        length = _WINDOW
        while at < readable:
            window = os.pread(opened.fileno(), min(length, readable - at), at)
            if not window:
                break
            begin = 0
            while (found := _read_block(window, begin)) is not None:
                if lost < at:
                    yield Lost(lost, at)
                rows, following = found
                yield rows
                at, lost, begin = at + following - begin, at + following - begin, following
            is_last = at + len(window) >= readable
            if begin or (length == _WINDOW and not is_last and lost == at):
                length = _WINDOW if begin else _LONGEST
                continue
            step = _next_block(window[:_WINDOW])
            if step is None:  # it may begin in this window and end in the next one
                step = len(window) if len(window) < _WINDOW else _WINDOW // 2
            at, length = at + step, _WINDOW
        whole = size if end is None else end
        if lost < whole:
            yield Lost(lost, whole)


def _checked(descriptor: int, offset: int, length: int) -> bytes | None:
    """Read bytes that are followed by their crc32; None if they are not what was written."""
    raw = os.pread(descriptor, length, offset)
    if len(raw) != length or length < _CRC.size:
        return None
    content, checksum = raw[: -_CRC.size], raw[-_CRC.size :]
    return content if _CRC.pack(zlib.crc32(content)) == checksum else None


def _field(raw: bytes, table: int, field: int) -> int:
    """Where a field of a flatbuffer's table lies; 0 if it is absent."""
    fields = table - struct.unpack_from("<i", raw, table)[0]
    slot = 4 + 2 * field
    if slot >= struct.unpack_from("<H", raw, fields)[0]:
        return 0
    (where,) = struct.unpack_from("<H", raw, fields + slot)
    return table + int(where) if where else 0


def _number(raw: bytes, table: int, field: int, form: str = "<Q") -> int:
    where = _field(raw, table, field)
    return int(struct.unpack_from(form, raw, where)[0]) if where else 0


def _decode_layout(raw: bytes, size: int) -> Layout:
    """Read the fields of the flatbuffer that are needed here; `size` is where it begins."""
    (table,) = struct.unpack_from("<I", raw)
    if _number(raw, table, _COMPRESSION, "<B"):
        raise UnknownVersion("a compressed file can't be read here")
    parts = [
        (_number(raw, table, offset), _number(raw, table, length))
        for offset, length in (_FILTER, _INDEX, _STATISTICS)
    ]
    index = parts[1]
    parts = [(offset, length) for offset, length in parts if length]
    if not parts or any(offset + length > size for offset, length in parts):
        raise BadLayout("its parts do not fit into it")
    return Layout(min(offset for offset, _ in parts), index, tuple(parts))


def _decode_index(raw: bytes) -> list[int]:
    """Read the offsets of the blocks: the first field of each table in the first vector."""
    (table,) = struct.unpack_from("<I", raw)
    vector = _field(raw, table, 0)
    vector += struct.unpack_from("<I", raw, vector)[0]
    (count,) = struct.unpack_from("<I", raw, vector)
    slots = range(vector + 4, vector + 4 + 4 * count, 4)
    return [_number(raw, slot + struct.unpack_from("<I", raw, slot)[0], 0) for slot in slots]


def _next_block(window: bytes) -> int | None:
    """Find the first intact block behind damage at the beginning."""
    for found in _BEGIN_OF_BLOCK.finditer(window, 1):
        if _read_block(window, found.start()) is not None:
            return found.start()
    return None


def _read_block(data: bytes, begin: int) -> tuple[Sequence[Row], int] | None:
    """Read the block that begins here, and where it ends; None if none that is intact does."""
    rows: list[Row] = []
    restarts: list[int] = []
    key, at = b"", begin
    try:
        while data[at : at + 2] != _END_OF_ROWS or not rows:
            is_restart = len(rows) % _RESTART_INTERVAL == 0
            if is_restart:
                restarts.append(at - begin)
            shared, at = _varint(data, at)
            rest, at = _varint(data, at)
            length, at = _varint(data, at)
            if not rest or shared > len(key) or (shared and is_restart):
                return None
            if at + rest + length > len(data):
                return None
            key = key[:shared] + data[at : at + rest]
            at += rest
            value = data[at : at + length]
            at += length
            sequence, flags = _SEQUENCE_AND_FLAGS.unpack_from(data, at)
            at += _SEQUENCE_AND_FLAGS.size
            if flags & ~(_TOMBSTONE | _EXPIRES | _CREATED):
                return None
            at += 8 * (bool(flags & _EXPIRES) + bool(flags & _CREATED))
            rows.append(Row(key, sequence, None if flags & _TOMBSTONE else value))
        ends = struct.pack(f">{len(restarts) + 1}H", *restarts, len(restarts))
        if data[at : at + len(ends)] != ends:
            return None
        at += len(ends)
        (checksum,) = _CRC.unpack_from(data, at)
    except (IndexError, struct.error):
        return None
    return (rows, at + _CRC.size) if checksum == zlib.crc32(data[begin:at]) else None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 28:
            raise IndexError

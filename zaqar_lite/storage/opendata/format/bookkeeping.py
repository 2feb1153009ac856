"""Values of the records that are about the store itself: counters, state, keys, and garbage.

None but the blocks and segments of the metadata log are the RFC's; see `records.py` for the others.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from zaqar_lite.storage.opendata.format.encoding import (
    CodecError,
    count,
    finish,
    pack,
    read_count,
    unpack,
)

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


class Remembered(NamedTuple):
    """Idempotency keys: until when they are known, and the ids that they were answered with.

    `digests` are 16 bytes each. A record of one key has the digest of what was posted. A record of
    several keys has one key for each id, and then the digest of what was posted with each. Records
    of earlier versions lack the digests of what was posted.
    """

    expires_at: int
    ids: tuple[int, ...]
    digests: tuple[bytes, ...] = ()


def encode_remembered(expires_at: int, ids: Sequence[int], digests: bytes = b"") -> bytes:
    """Encode `Remembered`."""
    size = len(ids)
    return _I64.pack(expires_at) + count(size, "ids") + struct.pack(f"<{size}Q", *ids) + digests


def decode_remembered(data: bytes) -> Remembered:
    """Read a record of idempotency keys. Raises CodecError: cut short or bytes left over."""
    (expires_at,), offset = unpack(_I64, data, 0)
    number, offset = read_count(data, offset), offset + 2
    ids, offset = unpack(struct.Struct(f"<{number}Q"), data, offset)
    if len(data) - offset not in {size * _DIGEST for size in (0, 1, number, 2 * number)}:
        raise CodecError(f"{len(data) - offset} bytes of digests for {number} ids")
    digests = tuple(data[at : at + _DIGEST] for at in range(offset, len(data), _DIGEST))
    return Remembered(expires_at, ids, digests)


def encode_record(version: int, expires_at: int | None, value: bytes) -> bytes:
    """Encode a record of some kind: its version, when it ends (-1: never), and its value."""
    return pack(_RECORD, version, -1 if expires_at is None else expires_at) + value


def decode_record(data: bytes) -> tuple[int, int | None, bytes]:
    """Read a record of some kind: its version, when it ends, and its value.

    Raises CodecError: cut short.
    """
    (version, expires_at), offset = unpack(_RECORD, data, 0)
    return version, None if expires_at < 0 else expires_at, data[offset:]


def encode_garbage(ids: Sequence[int]) -> bytes:
    """Encode ids of messages that no queue holds any more, to be deleted in steps."""
    return count(len(ids), "ids") + struct.pack(f"<{len(ids)}Q", *ids)


def decode_garbage(data: bytes) -> tuple[int, ...]:
    """Read ids of messages to be deleted. Raises CodecError: cut short or bytes left over."""
    number = read_count(data, 0)
    ids, end = unpack(struct.Struct(f"<{number}Q"), data, 2)
    finish(data, end, "garbage")
    return ids

"""Active pages: the RFC's available and in-flight messages, and our extras behind them."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from msgspec import Struct

from zaqar_lite.domain.attempts import MAX_CLAIMS
from zaqar_lite.domain.models import Origin
from zaqar_lite.storage.opendata.format import (
    CodecError,
    count,
    finish,
    pack,
    read_count,
    take,
    unpack,
    utf8,
)
from zaqar_lite.storage.opendata.format.records import encode_consumer, read_consumer

_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_MILLISECONDS = struct.Struct("<qq")
_CACHED_COUNT = 512
_NOTHING_HELD = count(0, "messages")


@cache
def _layout_of_page(number: int) -> struct.Struct:
    return struct.Struct("<" + "QBqqH" * number)


def _layout(number: int) -> struct.Struct:
    """The layout of so many elements; long arrays, of other writers, are not cached."""
    return (
        _layout_of_page(number) if number <= _CACHED_COUNT else _layout_of_page.__wrapped__(number)
    )


def encode_elements(fields: Sequence[int]) -> bytes:
    """Encode available or in-flight messages, given as their fields in one row, without a count.

    Raises CodecError: a field out of range.
    """
    return pack(_layout(len(fields) // 5), *fields)


def encode_active(
    available: Sequence[int], in_flight: Sequence[int], extras: Sequence[bytes] = ()
) -> bytes:
    """Encode an active page: the RFC's two arrays, then our extras, absent where there are none.

    Raises CodecError: more than 65,535 elements, or a field out of range.
    """
    return join_active(len(available) // 5, encode_elements(available), in_flight, extras)


def join_active(
    number: int, available: bytes, in_flight: Sequence[int], extras: Sequence[bytes]
) -> bytes:
    """Encode an active page whose `number` available messages are encoded already."""
    beyond = count(len(extras), "extras") + b"".join(extras) if extras else b""
    held = _NOTHING_HELD
    if in_flight:
        held = count(len(in_flight) // 5, "messages") + encode_elements(in_flight)
    return count(number, "messages") + available + held + beyond


class Extra(Struct):
    """What an entry has beyond the RFC's fields; written only where there is something to say.

    visible_at, deadline  of a message in flight, whose element has no room for them
    ttl_ms                where it is not the deadline minus the creation
    position              where it is not the message id: the entry was moved here
    renamed               its id in this queue is its position, because the id was taken
    last_claim            the 16 bytes of the claim that held it last
    shared                more than one queue was given the message
    parked                released with a delay: stored as in flight until then, but not claimed
    origin                where a dead letter came from
    group                 the group that its headers name
    """

    visible_at: int | None = None
    deadline: int | None = None
    ttl_ms: int | None = None
    position: int | None = None
    renamed: bool = False
    last_claim: bytes | None = None
    shared: bool = False
    parked: bool = False
    origin: Origin | None = None
    group: str | None = None


_EXTRA = struct.Struct("<QH")
_HELD_EXTRA = struct.Struct("<QHqq")
_HELD_TTL_EXTRA = struct.Struct("<QHqqq")
_HELD, _TTL, _POSITION, _RENAMED, _LAST_CLAIM, _SHARED, _ORIGIN, _ORIGIN_CLAIM, _ORIGIN_CLIENT = (
    1, 2, 4, 8, 16, 32, 64, 128, 256,
)  # fmt: skip
_ORIGIN_REASON, _PARKED, _REDRIVEN, _GROUP = 512, 1024, 2048, 4096
_SELDOM = _RENAMED | _SHARED | _PARKED
_ORIGIN_FIELDS = struct.Struct("<qI")
_ORIGIN_HEAD = struct.Struct("<qIH")


def encode_extra(message_id: int, extra: Extra) -> bytes:
    """Encode one entry's extras: id, flags, and the fields that the flags name."""
    flags = 0
    parts: list[bytes] = []
    if extra.deadline is not None:
        flags |= _HELD
        parts.append(_MILLISECONDS.pack(extra.visible_at or 0, extra.deadline))
    if extra.ttl_ms is not None:
        flags |= _TTL
        parts.append(_I64.pack(extra.ttl_ms))
    if extra.position is not None:
        flags |= _POSITION
        parts.append(_U64.pack(extra.position))
    if extra.last_claim is not None:
        flags |= _LAST_CLAIM
        parts.append(extra.last_claim)
    if extra.origin is not None:
        of_origin, encoded = _encode_origin(extra.origin)
        flags |= of_origin
        parts.append(encoded)
    if extra.group is not None:
        flags |= _GROUP
        parts.append(utf8(extra.group))
    flags |= _RENAMED * extra.renamed | _SHARED * extra.shared | _PARKED * extra.parked
    return _EXTRA.pack(message_id, flags) + b"".join(parts)


def encode_held_extra(message_id: int, visible_at: int, deadline: int, ttl_ms: int | None) -> bytes:
    """Encode the extras of a message in flight that has no others, in a third of the time."""
    if ttl_ms is None:
        return _HELD_EXTRA.pack(message_id, _HELD, visible_at, deadline)
    return _HELD_TTL_EXTRA.pack(message_id, _HELD | _TTL, visible_at, deadline, ttl_ms)


@lru_cache(256)  # what died in one step has one origin
def _encode_origin(origin: Origin) -> tuple[int, bytes]:
    """Encode an origin, and tell the flags that name its fields."""
    claim, client, reason = origin.last_claim_id, origin.last_client_id, origin.reason
    flags = _ORIGIN
    parts = [_ORIGIN_FIELDS.pack(origin.moved_at, origin.claim_count), utf8(origin.source)]
    if claim is not None:
        flags |= _ORIGIN_CLAIM
        parts.append(bytes.fromhex(claim))
    if client is not None:
        flags |= _ORIGIN_CLIENT
        parts.append(encode_consumer(client))
    if reason != MAX_CLAIMS:
        flags |= _ORIGIN_REASON
        parts.append(utf8(reason))
    if origin.redriven:
        flags |= _REDRIVEN
        parts.append(bytes((origin.redriven,)))
    return flags, b"".join(parts)


def _read_extras(data: bytes, offset: int) -> tuple[list[tuple[int, Extra]], int]:
    """Read the extras of a page. Raises CodecError: cut short, or no UTF-8."""
    found: list[tuple[int, Extra]] = []
    number, offset = read_count(data, offset), offset + 2
    known_flags, known, origin = 0, b"", None  # of the previous origin, which is mostly the same
    try:
        for _ in range(number):
            message_id, flags = _EXTRA.unpack_from(data, offset)
            offset += 10
            extra = Extra()
            if flags & _HELD:
                extra.visible_at, extra.deadline = _MILLISECONDS.unpack_from(data, offset)
                offset += 16
            if flags & _TTL:
                (extra.ttl_ms,) = _I64.unpack_from(data, offset)
                offset += 8
            if flags & _POSITION:
                (extra.position,) = _U64.unpack_from(data, offset)
                offset += 8
            if flags & _LAST_CLAIM:
                extra.last_claim = data[offset : offset + 16]
                offset += 16
            if flags & _ORIGIN:
                if flags == known_flags and data.startswith(known, offset):
                    offset += len(known)
                else:
                    start = offset
                    origin, offset = _read_origin(data, start, flags)
                    known_flags, known = flags, data[start:offset]
                extra.origin = origin
            if flags & _GROUP:
                extra.group, offset = _text(data, offset + 2, read_count(data, offset))
            if flags & _SELDOM:
                extra.renamed = bool(flags & _RENAMED)
                extra.shared = bool(flags & _SHARED)
                extra.parked = bool(flags & _PARKED)
            found.append((message_id, extra))
    except struct.error as exc:
        raise CodecError(f"cut short at byte {offset}: {exc}") from exc
    if offset > len(data):
        raise CodecError(f"cut short: {offset} bytes expected")
    return found, offset


def _read_origin(data: bytes, offset: int, flags: int) -> tuple[Origin, int]:
    claim, client, reason, redriven = None, None, MAX_CLAIMS, 0
    moved_at, claims, size = _ORIGIN_HEAD.unpack_from(data, offset)
    source, offset = _text(data, offset + 14, size)
    if flags & _ORIGIN_CLAIM:
        claim, offset = data[offset : offset + 16].hex(), offset + 16
    if flags & _ORIGIN_CLIENT:
        client, offset = read_consumer(data, offset)
    if flags & _ORIGIN_REASON:
        reason, offset = _text(data, offset + 2, read_count(data, offset))
    if flags & _REDRIVEN:
        (redriven,), offset = take(data, offset, 1)
    return Origin(source, moved_at, claims, claim, client, reason, redriven), offset


def _text(data: bytes, offset: int, size: int) -> tuple[str, int]:
    raw, end = take(data, offset, size)
    return _decoded(raw), end


@lru_cache(1024)
def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise CodecError(f"text that is no UTF-8: {exc}") from exc


def _read_entries(data: bytes, offset: int) -> tuple[Sequence[int], int]:
    number, offset = read_count(data, offset), offset + 2
    return unpack(_layout(number), data, offset)


def _by_place(
    available: Sequence[int], in_flight: Sequence[int], pairs: Iterable[tuple[int, Extra]]
) -> dict[int, Extra]:
    """Match extras with entries, by the entries' places in the page.

    Extras are in the order of the entries, and those of messages in flight have a deadline: so they
    find their entries even where a queue has an id twice, as dead letters from two queues.
    """
    waiting, held = available[::5], in_flight[::5]
    next_waiting = next_held = 0
    found = {}
    for message_id, extra in pairs:
        try:
            if extra.deadline is None:
                next_waiting = 1 + waiting.index(message_id, next_waiting)
                found[next_waiting - 1] = extra
            else:
                next_held = 1 + held.index(message_id, next_held)
                found[len(waiting) + next_held - 1] = extra
        except ValueError:
            continue  # no entry has its id
    return found


class ActivePage(NamedTuple):
    """An active page: the fields of its available and of its in-flight messages, and the extras.

    These are by the place of their entry in the page, those in flight behind the others.
    """

    available: Sequence[int]
    in_flight: Sequence[int]
    extras: Mapping[int, Extra]


def read_active(data: bytes) -> ActivePage:
    """Read an active page. Raises CodecError: cut short or bytes left over."""
    available, offset = _read_entries(data, 0)
    in_flight, offset = _read_entries(data, offset)
    extras: Mapping[int, Extra] = {}
    if offset < len(data):
        pairs, offset = _read_extras(data, offset)
        extras = _by_place(available, in_flight, pairs)
    finish(data, offset, "active page")
    return ActivePage(available, in_flight, extras)


def rows_of_five(fields: Sequence[int]) -> "zip[tuple[int, int, int, int, int]]":
    """Cut the fields of a page's array into its elements."""
    rows = iter(fields)
    return zip(rows, rows, rows, rows, rows, strict=True)

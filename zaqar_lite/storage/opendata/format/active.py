"""Active pages: the RFC's available and in-flight messages, and our extras behind them."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
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
    read_utf8,
    take,
    unpack,
    utf8,
)
from zaqar_lite.storage.opendata.format.records import encode_consumer, read_consumer

_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_MILLISECONDS = struct.Struct("<qq")


@lru_cache(512)
def _layout(number: int) -> struct.Struct:
    return struct.Struct("<" + "QBqqH" * number)


def encode_active(
    available: Sequence[int], in_flight: Sequence[int], extras: Sequence[bytes] = ()
) -> bytes:
    """Encode an active page: the RFC's two arrays, then our extras, absent where there are none.

    The messages are given as their fields in one row. Raises CodecError: more than 65,535 elements,
    or a field out of range.
    """
    page = b"".join(
        count(len(fields) // 5, "messages") + pack(_layout(len(fields) // 5), *fields)
        for fields in (available, in_flight)
    )
    return page + count(len(extras), "extras") + b"".join(extras) if extras else page


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


_EXTRA = struct.Struct("<QH")
_HELD, _TTL, _POSITION, _RENAMED, _LAST_CLAIM, _SHARED, _ORIGIN, _ORIGIN_CLAIM, _ORIGIN_CLIENT = (
    1, 2, 4, 8, 16, 32, 64, 128, 256,
)  # fmt: skip
_ORIGIN_REASON, _PARKED, _REDRIVEN, _GROUP = 512, 1024, 2048, 4096
_ORIGIN_FIELDS = struct.Struct("<qI")


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
    flags |= _RENAMED * extra.renamed | _SHARED * extra.shared | _PARKED * extra.parked
    return _EXTRA.pack(message_id, flags) + b"".join(parts)


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
                extra.origin, offset = _read_origin(data, offset, flags)
            if flags & _GROUP:  # earlier versions repeated it; the headers have it
                _, offset = read_utf8(data, offset)
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
    (moved_at, claims), offset = unpack(_ORIGIN_FIELDS, data, offset)
    source, offset = read_utf8(data, offset)
    if flags & _ORIGIN_CLAIM:
        claim, offset = data[offset : offset + 16].hex(), offset + 16
    if flags & _ORIGIN_CLIENT:
        client, offset = read_consumer(data, offset)
    if flags & _ORIGIN_REASON:
        reason, offset = read_utf8(data, offset)
    if flags & _REDRIVEN:
        (redriven,), offset = take(data, offset, 1)
    return Origin(source, moved_at, claims, claim, client, reason, redriven), offset


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

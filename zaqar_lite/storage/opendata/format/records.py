"""Values of the records of queues and messages, each with its encoder and decoder; all pure.

What RFC 0001 defines is encoded exactly so. Additions are fields behind the RFC's own (a reader
that knows only the RFC stops before them), and record types of their own (`keys.py`). Instants are
i64 milliseconds since 1970; retentions stay seconds.

The RFC's record of a message's attempts lists their consumers, oldest first. Our addition to it has
what is needed without reading an attempt: how many failed, how the last one ended, and which have a
record. Each of these is a record of its own, so that one can be added without reading the others.
"""

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from zaqar_lite.domain.attempts import Attempt, Ended
from zaqar_lite.storage.opendata.format import (
    MAX_U16,
    CodecError,
    array,
    count,
    finish,
    pack,
    read_array,
    read_count,
    read_u64s,
    read_utf8,
    take,
    u64s,
    unpack,
    utf8,
)

_U64 = struct.Struct("<Q")
_METADATA = struct.Struct("<QqqqIB")
_ENDED = "QqH"
_CLAIM = struct.Struct("<qII")
_MILLISECONDS = struct.Struct("<qq")


# -- payload ----------------------------------------------------------------------------------


def encode_payload(body: bytes) -> bytes:
    """Encode a body: as Array<Byte> where its count fits in 16 bits, else as raw bytes."""
    size = len(body)
    if size <= MAX_U16:
        return b"\x01" + size.to_bytes(2, "little") + body
    return b"\x03" + body


def decode_payload(data: bytes) -> bytes:
    """Read a payload.

    Raises CodecError: cut short, bytes left over, of an unknown type, or a reference to a place
    where it lies, which is named: this server neither fetches nor hands out what lies elsewhere.
    """
    kind = data[:1]
    if kind == b"\x01":
        body, end = take(data, 3, read_count(data, 1))
        finish(data, end, "payload")
        return body
    if kind == b"\x03":
        return data[1:]
    if kind == b"\x02":
        raise CodecError(f"the payload lies at {read_utf8(data, 1)[0]}")
    raise CodecError(f"payload of the unknown type {kind.hex() or 'none'}")


# -- metadata ---------------------------------------------------------------------------------

QUEUE_HEADER = "queue"
CLIENT_HEADER = "sys.client"


class Metadata(NamedTuple):
    """An entry of the metadata log."""

    message_id: int
    created_at: int
    received_at: int
    visible_at: int
    retention_s: int
    headers: Sequence[tuple[str, str]]


def encode_headers(headers: Sequence[tuple[str, str]]) -> bytes:
    """Encode headers without their count. Raises CodecError: one is longer than 65,535 bytes."""
    return b"".join(utf8(name) + utf8(value) for name, value in headers)


def encode_posted(  # noqa: PLR0917 - one call a message: positional costs least
    message_id: int, now: int, visible_at: int, retention_s: int, number: int, headers: bytes
) -> bytes:
    """Encode the entry of a message posted now, from headers that are encoded already."""
    return _METADATA.pack(message_id, now, now, visible_at, retention_s, number) + headers


def decode_metadata(data: bytes) -> Metadata:
    """Read an entry of the metadata log. Raises CodecError: cut short or bytes left over."""
    fixed, offset = unpack(_METADATA, data, 0)
    headers = []
    for _ in range(fixed[5]):
        name, offset = read_utf8(data, offset)
        value, offset = read_utf8(data, offset)
        headers.append((name, value))
    finish(data, offset, "metadata")
    return Metadata(fixed[0], fixed[1], fixed[2], fixed[3], fixed[4], headers)


def split_headers(metadata: Metadata) -> tuple[str | None, str | None, dict[str, str]]:
    """Split a metadata record's headers: the queue, the client, and the message's own."""
    headers = list(metadata.headers)
    queue, client_id = _taken(headers, QUEUE_HEADER), _taken(headers, CLIENT_HEADER)
    return queue, client_id, dict(headers)


def _taken(headers: list[tuple[str, str]], name: str) -> str | None:
    """Remove and answer the first header of a name, wherever another writer put it."""
    for place, (known, value) in enumerate(headers):
        if known == name:
            del headers[place]
            return value
    return None


# -- done, failed, consumers ------------------------------------------------------------------


class EndedMessage(NamedTuple):
    """A message in the list of done or of failed messages."""

    message_id: int
    ended_at: int
    attempts: int


def encode_ended(items: Sequence[EndedMessage]) -> bytes:
    """Encode a page of done or failed messages.

    Raises CodecError: more than 65,535 elements, or a field out of range.
    """
    layout = struct.Struct("<" + _ENDED * len(items))
    return count(len(items), "ended messages") + pack(
        layout, *(value for item in items for value in item)
    )


def decode_ended(data: bytes) -> list[EndedMessage]:
    """Read a page of done or failed messages. Raises CodecError: cut short or bytes left over."""
    layout = struct.Struct("<" + _ENDED * read_count(data, 0))
    fields, end = unpack(layout, data, 2)
    finish(data, end, "page of ended messages")
    rows = iter(fields)
    return [EndedMessage(*row) for row in zip(rows, rows, rows, strict=True)]


@lru_cache(4096)
def encode_consumer(consumer: str | int) -> bytes:
    """Encode a ConsumerID: a UUID as its 16 bytes, other text as Utf8, a number as u64.

    Text that is a UUID in another spelling than the usual stays text, so that it reads back.
    """
    if isinstance(consumer, int):
        return b"\x03" + pack(_U64, consumer)
    try:
        parsed = uuid.UUID(consumer)
    except ValueError:
        return b"\x02" + utf8(consumer)
    return b"\x01" + parsed.bytes if str(parsed) == consumer else b"\x02" + utf8(consumer)


def read_consumer(data: bytes, offset: int = 0) -> tuple[str, int]:
    """Read a ConsumerID as text; answer it and the offset after it.

    Raises CodecError: cut short, or of an unknown kind.
    """
    kind, offset = take(data, offset, 1)
    if kind == b"\x01":
        raw, offset = take(data, offset, 16)
        return str(uuid.UUID(bytes=raw)), offset
    if kind == b"\x02":
        return read_utf8(data, offset)
    if kind == b"\x03":
        (number,), offset = unpack(_U64, data, offset)
        return str(number), offset
    raise CodecError(f"ConsumerID of the unknown kind {kind.hex()}")


# -- configuration, claims --------------------------------------------------------------------


@dataclass(slots=True)
class ClaimRecord:
    """A claim: when it was made or last renewed, its ttl and grace, its client and its messages.

    Ttl and grace are whole seconds in the fixed fields; where they are not whole, the milliseconds
    follow at the end.
    """

    created_at: int
    ttl_ms: int
    grace_ms: int
    client_id: str
    message_ids: Sequence[int] = field(default_factory=list)


def encode_claim(claim: ClaimRecord) -> bytes:
    """Encode a claim. Raises CodecError: a field does not fit."""
    ttl_s, grace_s = -(-claim.ttl_ms // 1000), -(-claim.grace_ms // 1000)
    exact = ttl_s * 1000 == claim.ttl_ms and grace_s * 1000 == claim.grace_ms
    return b"".join((
        pack(_CLAIM, claim.created_at, ttl_s, grace_s),
        encode_consumer(claim.client_id),
        u64s(claim.message_ids, "messages of a claim"),
        b"" if exact else _MILLISECONDS.pack(claim.ttl_ms, claim.grace_ms),
    ))  # fmt: skip


def decode_claim(data: bytes) -> ClaimRecord:
    """Read a claim. Raises CodecError: cut short or bytes left over."""
    (created_at, ttl_s, grace_s), offset = unpack(_CLAIM, data, 0)
    client_id, offset = read_consumer(data, offset)
    ids, offset = read_u64s(data, offset)
    ttl_ms, grace_ms = ttl_s * 1000, grace_s * 1000
    if offset < len(data):
        (ttl_ms, grace_ms), offset = unpack(_MILLISECONDS, data, offset)
    finish(data, offset, "claim")
    return ClaimRecord(created_at, ttl_ms, grace_ms, client_id, list(ids))


_SUMMARY = struct.Struct("<QIB")
_KEPT = struct.Struct("<HI")
_ATTEMPT = struct.Struct("<HqqqBB")
_REASON, _DETAIL, _CLIENT = 1, 2, 4
_ENDINGS = (Ended.RELEASED, Ended.FAILED, Ended.LAPSED, Ended.DEAD)
_CODES = {ending: code for code, ending in enumerate(_ENDINGS)}
_NONE_ENDED, _IS_HELD = 0x7F, 0x80


class Kept(Struct, frozen=True, gc=False):
    """An ended attempt that has a record, and how much it counts (`Attempt.size`)."""

    number: int
    size: int


class Attempts(NamedTuple):
    """The ended attempts of a message, except for their own records.

    consumers   the RFC's, without the current claimant
    history     the number in the keys of the attempts' own records
    failures    how many attempts were failures
    last_ended  how the last one ended
    kept        the attempts that have a record

    All but the consumers are an addition, absent where there is nothing to say.
    """

    consumers: tuple[str, ...]
    history: int = 0
    failures: int = 0
    last_ended: Ended | None = None
    kept: tuple[Kept, ...] = ()


def _encode_kept(kept: Kept) -> bytes:
    return pack(_KEPT, kept.number, kept.size)


def encode_attempts(attempts: Attempts, holder: str | None = None) -> bytes:
    """Encode the ended attempts of a message, and its current claimant.

    The claimant is the last of the RFC's consumers; a flag in the addition marks it.
    Raises CodecError: a field does not fit.
    """
    consumers, history, failures, last_ended, kept = attempts
    if holder is None and (not history or last_ended is None):
        return array(consumers, encode_consumer)
    code = _NONE_ENDED if last_ended is None else _CODES[last_ended]
    if holder is not None:
        consumers, code = (*consumers, holder), code | _IS_HELD
    fixed = pack(_SUMMARY, history, failures, code)
    return array(consumers, encode_consumer) + fixed + array(kept, _encode_kept)


def decode_attempts(data: bytes) -> Attempts:
    """Read the ended attempts of a message.

    Raises CodecError: cut short, bytes left over, or an unknown ending.
    """
    found, offset = read_array(data, 0, read_consumer)
    consumers = tuple(found)
    if offset == len(data):
        return Attempts(consumers)
    (history, failures, code), offset = unpack(_SUMMARY, data, offset)
    number, rest = read_count(data, offset), data[offset + 2 :]
    if len(rest) != number * _KEPT.size:
        raise CodecError(f"attempts: {len(rest)} bytes for {number} that have a record")
    kept = tuple([Kept(*fields) for fields in _KEPT.iter_unpack(rest)])
    ended = None if code & ~_IS_HELD == _NONE_ENDED else _ending(code & ~_IS_HELD)
    if code & _IS_HELD:
        consumers = consumers[:-1]
    return Attempts(consumers, history, failures, ended, kept)


def _ending(code: int) -> Ended:
    if code >= len(_ENDINGS):
        raise CodecError(f"attempt with the unknown ending {code}")
    return _ENDINGS[code]


def encode_attempt(attempt: Attempt) -> bytes:
    """Encode an ended attempt: its fixed fields, and the texts that the flags name.

    Raises CodecError: a field does not fit.
    """
    number, claimed_at, ended_at, outcome, delay_ms, reason, detail, client_id = attempt
    flags = 0
    parts = []
    if reason is not None:
        flags |= _REASON
        parts.append(utf8(reason))
    if detail is not None:
        flags |= _DETAIL
        parts.append(utf8(detail))
    if client_id is not None:
        flags |= _CLIENT
        parts.append(encode_consumer(client_id))
    fixed = pack(_ATTEMPT, number, claimed_at, ended_at, delay_ms, _CODES[outcome], flags)
    return fixed + b"".join(parts)


def decode_attempt(data: bytes) -> Attempt:
    """Read an ended attempt.

    Raises CodecError: cut short, bytes left over, or an unknown ending.
    """
    (number, claimed_at, ended_at, delay_ms, code, flags), offset = unpack(_ATTEMPT, data, 0)
    reason = detail = client_id = None
    if flags & _REASON:
        reason, offset = read_utf8(data, offset)
    if flags & _DETAIL:
        detail, offset = read_utf8(data, offset)
    if flags & _CLIENT:
        client_id, offset = read_consumer(data, offset)
    finish(data, offset, "attempt")
    return Attempt(number, claimed_at, ended_at, _ending(code), delay_ms, reason, detail, client_id)

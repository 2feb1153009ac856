"""Values of the records of queues and messages, both ways; all pure.

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
from functools import lru_cache
from typing import NamedTuple

from zaqar_lite.domain.attempts import Attempt, Ended
from zaqar_lite.storage.opendata.format import (
    MAX_U16,
    PAIR,
    REST,
    U64S,
    UTF8,
    Codec,
    CodecError,
    Layout,
    array,
    encode_flagged,
    finish,
    fixed,
    number,
    optional,
    pack,
    read_count,
    read_flagged,
    read_utf8,
    take,
    unpack,
    utf8,
)

# -- payload and metadata --


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


LONGEST_S = 0xFFFF_FFFF
"""The longest retention in seconds, 136 years: of what is to be kept for ever."""
QUEUE_HEADER = "queue"
CLIENT_HEADER = "sys.client"
HEADERS = array(PAIR, "<B")
POSTED = Layout("metadata", fixed("<QqqqI"), REST)
"""An entry of the metadata log: id, created, received, visible, retention; and its headers."""
_METADATA = Layout("metadata", fixed("<QqqqI"), HEADERS)


class Metadata(NamedTuple):
    """An entry of the metadata log."""

    message_id: int
    created_at: int
    received_at: int
    visible_at: int
    retention_s: int
    headers: list[tuple[str, str]]

    def take(self, name: str) -> str | None:
        """Remove and answer the first header of a name, wherever another writer put it."""
        for place, (known, value) in enumerate(self.headers):
            if known == name:
                del self.headers[place]
                return value
        return None


def decode_metadata(data: bytes) -> Metadata:
    """Read an entry of the metadata log."""
    numbers, headers = _METADATA.decode(data)
    return Metadata._make((*numbers, headers))


# -- done and failed messages, and consumers --

ENDED = Layout("page of ended messages", array(fixed("<QqH")))
"""Done or failed messages: their numbers, instants and attempts."""
_U64 = number("<Q")


@lru_cache(4096)
def encode_consumer(consumer: str | int) -> bytes:
    """Encode a ConsumerID: a UUID as its 16 bytes, other text as Utf8, a number as u64.

    Text that is a UUID in another spelling than the usual stays text, so that it reads back.
    """
    if isinstance(consumer, int):
        return b"\x03" + _U64.encode(consumer)
    try:
        parsed = uuid.UUID(consumer)
    except ValueError:
        return b"\x02" + utf8(consumer)
    return b"\x01" + parsed.bytes if str(parsed) == consumer else b"\x02" + utf8(consumer)


def read_consumer(data: bytes, offset: int = 0) -> tuple[str, int]:
    """Read a ConsumerID as text."""
    kind, offset = take(data, offset, 1)
    if kind == b"\x01":
        raw, offset = take(data, offset, 16)
        return str(uuid.UUID(bytes=raw)), offset
    if kind == b"\x02":
        return read_utf8(data, offset)
    if kind == b"\x03":
        value, offset = _U64.read(data, offset)
        return str(value), offset
    raise CodecError(f"ConsumerID of the unknown kind {kind.hex()}")


CONSUMER: Codec[str] = Codec(encode_consumer, read_consumer)

# -- claims --

_CLAIM = Layout(
    "claim", number("<q"), number("<I"), number("<I"), CONSUMER, U64S, optional(fixed("<qq"))
)


class ClaimRecord(NamedTuple):
    """A claim: when it was made or last renewed, its ttl, its client and its messages.

    The ttl is whole seconds in its fixed field; where it is not whole, the milliseconds follow at
    the end. The fields of the grace are 0, as nothing asks for it later; earlier versions wrote it.
    """

    created_at: int
    ttl_ms: int
    client_id: str
    message_ids: Sequence[int]


def encode_claim(claim: ClaimRecord) -> bytes:
    """Encode a claim."""
    created_at, ttl_ms, client_id, ids = claim
    ttl_s = -(-ttl_ms // 1000)
    exact = None if ttl_s * 1000 == ttl_ms else (ttl_ms, 0)
    return _CLAIM.encode(created_at, ttl_s, 0, client_id, ids, exact)


def decode_claim(data: bytes) -> ClaimRecord:
    """Read a claim."""
    created_at, ttl_s, _, client_id, ids, exact = _CLAIM.decode(data)
    return ClaimRecord(created_at, exact[0] if exact else ttl_s * 1000, client_id, ids)


# -- attempts --

_ENDINGS = (Ended.RELEASED, Ended.FAILED, Ended.LAPSED, Ended.DEAD)
_CODES = {ending: code for code, ending in enumerate(_ENDINGS)}
_NONE_ENDED, _IS_HELD = 0x7F, 0x80
_ATTEMPTS = Layout(
    "attempts", array(CONSUMER), optional(fixed("<QIB")), optional(array(fixed("<HI")))
)
_ATTEMPT = struct.Struct("<HqqqBB")
_TEXTS = (UTF8, UTF8, CONSUMER)


class Attempts(NamedTuple):
    """The ended attempts of a message, except for their own records.

    consumers   the RFC's, without the current claimant
    history     the number in the keys of the attempts' own records
    failures    how many attempts were failures
    last_ended  how the last one ended
    kept        the number of each attempt that has a record, and how much it counts
    holder      the current claimant, the last of the RFC's consumers; a flag marks it

    All but the consumers are an addition, absent where there is nothing to say.
    """

    consumers: tuple[str, ...]
    history: int = 0
    failures: int = 0
    last_ended: Ended | None = None
    kept: Sequence[tuple[int, int]] = ()
    holder: str | None = None


def encode_attempts(attempts: Attempts) -> bytes:
    """Encode the ended attempts of a message, and its current claimant."""
    consumers, history, failures, last_ended, kept, holder = attempts
    if holder is None and (not history or last_ended is None):
        return _ATTEMPTS.encode(consumers, None, None)
    code = _NONE_ENDED if last_ended is None else _CODES[last_ended]
    if holder is not None:
        consumers, code = (*consumers, holder), code | _IS_HELD
    return _ATTEMPTS.encode(consumers, (history, failures, code), kept)


def decode_attempts(data: bytes) -> Attempts:
    """Read the ended attempts of a message."""
    found, summary, kept = _ATTEMPTS.decode(data)
    consumers, holder = tuple(found), None
    if summary is None:
        return Attempts(consumers)
    history, failures, code = summary
    if code & _IS_HELD:
        *found, holder = consumers or ("",)
        consumers, code = tuple(found), code & ~_IS_HELD
    ended = None if code == _NONE_ENDED else _ending(code)
    return Attempts(consumers, history, failures, ended, tuple(kept or ()), holder)


def _ending(code: int) -> Ended:
    if code >= len(_ENDINGS):
        raise CodecError(f"attempt with the unknown ending {code}")
    return _ENDINGS[code]


def encode_attempt(attempt: Attempt) -> bytes:
    """Encode an ended attempt: its fixed fields, and the texts that the flags name."""
    count, claimed_at, ended_at, outcome, delay_ms, *texts = attempt
    flags, encoded = encode_flagged(_TEXTS, texts)
    return pack(_ATTEMPT, count, claimed_at, ended_at, delay_ms, _CODES[outcome], flags) + encoded


def decode_attempt(data: bytes) -> Attempt:
    """Read an ended attempt."""
    (count, claimed_at, ended_at, delay_ms, code, flags), offset = unpack(_ATTEMPT, data, 0)
    texts, offset = read_flagged(_TEXTS, flags, data, offset)
    finish(data, offset, "attempt")
    return Attempt(count, claimed_at, ended_at, _ending(code), delay_ms, *texts)

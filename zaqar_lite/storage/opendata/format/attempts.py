"""What a message remembers of its hand-outs: the RFC's record of consumers, and attempts of ours.

One record, the RFC's, lists who held the message, the oldest first. Behind that is what is needed
without reading an attempt: how many failed, how the last one ended, which are kept. Each kept
attempt is a record of its own, so that the next one is added without reading the others, and their
texts take no memory.
"""

import struct
from typing import NamedTuple

from zaqar_lite.domain.attempts import Attempt, Ended
from zaqar_lite.storage.opendata.format.encoding import (
    CodecError,
    array,
    finish,
    pack,
    read_array,
    read_utf8,
    unpack,
    utf8,
)
from zaqar_lite.storage.opendata.format.records import encode_consumer, read_consumer

_SUMMARY = struct.Struct("<QIB")
_KEPT = struct.Struct("<HI")
_ATTEMPT = struct.Struct("<HqqqBB")
_REASON, _DETAIL, _CLIENT = 1, 2, 4
_ENDINGS = (Ended.RELEASED, Ended.FAILED, Ended.LAPSED, Ended.DEAD)
_CODES = {ending: code for code, ending in enumerate(_ENDINGS)}
_NONE_ENDED, _IS_HELD = 0x7F, 0x80


class Kept(NamedTuple):
    """An ended attempt that has a record, and how much it counts (`Attempt.size`)."""

    number: int
    size: int


class Attempts(NamedTuple):
    """What a message remembers of its ended attempts.

    The consumers are the RFC's, without who holds it now. The others are an addition, absent where
    there is nothing to say: the number that keys the attempts' own records, how many attempts were
    failures, how the last one ended, and which have a record.
    """

    consumers: list[str]
    history: int = 0
    failures: int = 0
    last_ended: Ended | None = None
    kept: tuple[Kept, ...] = ()


def encode_attempts(attempts: Attempts, holder: str | None = None) -> bytes:
    """Encode what a message remembers of its ended attempts, and who holds it now.

    The holder is the last of the RFC's consumers; a flag in the addition tells it from the others.

    Raises:
        CodecError: a field does not fit.
    """
    consumers, history, failures, last_ended, kept = attempts
    if holder is None and (not history or last_ended is None):
        return array(consumers, encode_consumer)
    code = _NONE_ENDED if last_ended is None else _CODES[last_ended]
    if holder is not None:
        consumers, code = [*consumers, holder], code | _IS_HELD
    fixed = pack(_SUMMARY, history, failures, code)
    return array(consumers, encode_consumer) + fixed + array(kept, lambda one: pack(_KEPT, *one))


def decode_attempts(data: bytes) -> Attempts:
    """Read what a message remembers of its ended attempts.

    Raises:
        CodecError: cut short, bytes left over, or an unknown ending.
    """
    consumers, offset = read_array(data, 0, read_consumer)
    if offset == len(data):
        return Attempts(consumers)
    (history, failures, code), offset = unpack(_SUMMARY, data, offset)
    kept, offset = read_array(data, offset, _read_kept)
    finish(data, offset, "attempts")
    ended = None if code & ~_IS_HELD == _NONE_ENDED else _ending(code & ~_IS_HELD)
    if code & _IS_HELD:
        del consumers[-1:]
    return Attempts(consumers, history, failures, ended, tuple(kept))


def _read_kept(data: bytes, offset: int) -> tuple[Kept, int]:
    fields, offset = unpack(_KEPT, data, offset)
    return Kept(*fields), offset


def _ending(code: int) -> Ended:
    if code >= len(_ENDINGS):
        raise CodecError(f"attempt with the unknown ending {code}")
    return _ENDINGS[code]


def encode_attempt(attempt: Attempt) -> bytes:
    """Encode an ended attempt: its fixed fields, and the texts that the flags name.

    Raises:
        CodecError: a field does not fit.
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

    Raises:
        CodecError: cut short, bytes left over, or an unknown ending.
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

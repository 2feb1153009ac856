"""Messages as packed bytes, and back: `layout.py` has the fields, and what is between them.

The attempts of a message, oldest first: length of the rest 2, size as the domain counts it 2,
ATTEMPT, reason 1+n (255: none), detail 2+n (65535: none), client.

The entry of an idempotency key has the ids that it answers. Those of messages that were new to the
post have the number among these in place of their position, which counts from `first` on:

    0   deadline 6   1   digest 16   ids 16 each
    0   deadline 6   2   digest 16   first 8   ids 16 each

A client is one byte of kind and: 0 length 2 and UTF-8; 1 the 16 bytes of a dashed UUID;
2 those of 32 hex digits.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

from msgspec.structs import astuple

from zaqar_lite.domain.attempts import MAX_CLAIMS, REJECTED, Attempt, Ended
from zaqar_lite.domain.groups import GROUP_HEADER, group_of
from zaqar_lite.domain.models import Message, Origin
from zaqar_lite.domain.posts import IdempotencyKey, KnownKey, NewMessage, OutboxEntry
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.redis.keys import tag_of
from zaqar_lite.storage.redis.layout import (
    ATTEMPT,
    ORIGIN,
    RECORD,
    TRACK,
    packed,
    struct_of,
    unpacked,
)

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEX = re.compile(r"[0-9a-f]{32}")
_FLAGS_AND_OFFSET = Struct(">BH")
_RECORD, _TRACK = struct_of(RECORD), struct_of(TRACK)
_ORIGIN_SIZE, _ATTEMPT_SIZE = sum(ORIGIN.values()), sum(ATTEMPT.values())
_OUTBOX_MESSAGE = Struct(">IIH")
_HAS_HEADERS, _HAS_GROUP, _IS_APART = 2, 4, 8
_FLAGS_AT = sum(RECORD.values()) - RECORD["body_at"] - RECORD["flags"]
_NO_ORIGIN = 32_768
_HELD, _PARKED, _REMEMBERED, _WAITS = 8, 16, 32, 64
_OUTCOMES = (Ended.RELEASED, Ended.RELEASED, Ended.FAILED, Ended.LAPSED, Ended.DEAD)
_NO_DELAY = (1 << 48) - 1
_MOST_NEW = 1 << 32
_NO_REASON, _NO_DETAIL = b"\xff", b"\xff\xff"
_number = int.from_bytes


@lru_cache(maxsize=10_000)
def pack_client(client_id: str) -> bytes:
    """Write a Client-ID; a UUID takes 17 bytes."""
    if _UUID.fullmatch(client_id):
        return b"\x01" + bytes.fromhex(client_id.replace("-", ""))
    if _HEX.fullmatch(client_id):
        return b"\x02" + bytes.fromhex(client_id)
    text = client_id.encode("utf-8", "surrogatepass")
    return b"\x00" + len(text).to_bytes(2, "big") + text


@lru_cache(maxsize=10_000)
def _client_at_start(packed: bytes) -> str:
    digits = packed[1:17].hex()
    if packed[0] == 1:
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    if packed[0] == 2:
        return digits
    return packed[3:].decode("utf-8", "surrogatepass")


def _client_length(data: bytes, at: int) -> int:
    return 3 + _number(data[at + 1 : at + 3], "big") if data[at] == 0 else 17


def pack_new(message: NewMessage, client: bytes, randomness: bytes) -> bytes:
    """Write a new message as scripts take it: ttl, delay, and the record after its `d`."""
    flags, extra = pack_headers(message.headers) if message.headers else (0, b"")
    return b"".join(
        (
            message.ttl_ms.to_bytes(5, "big"),
            message.delay_ms.to_bytes(5, "big"),
            randomness,
            _FLAGS_AND_OFFSET.pack(flags, _RECORD.size + len(client) + len(extra)),
            client,
            extra,
            message.body,
        )
    )


def pack_outbox_entry(number: int, entry: OutboxEntry, client: bytes, randomness: bytes) -> bytes:
    """Write what the `number`-th message, whose id has `randomness`, brings, as scripts take it.

    It has the random half of the id, the script writes the position before it.
    """
    body = entry.body_with("0" * 16 + randomness.hex())
    new = NewMessage(body, entry.ttl_ms, entry.delay_ms)
    rest, tag = pack_new(new, client, randomness), tag_of(entry.queue).encode()
    id_at = len(rest) - len(body) + entry.id_at
    return _OUTBOX_MESSAGE.pack(number, id_at, len(tag)) + tag + rest


def pack_key(
    key: IdempotencyKey, answers: Sequence[int | bytes], randomness: Sequence[bytes]
) -> bytes:
    """Write the key of a whole post as scripts take it.

    `answers` are the ids that it answers, or indexes of new messages, whose ids have `randomness`.
    """
    ids = [
        one if isinstance(one, bytes) else one.to_bytes(8, "big") + randomness[one]
        for one in answers
    ]
    return b"".join((key.digest, sized(key.text, 2), *ids))


def pack_message_key(message: NewMessage, randomness: bytes) -> bytes:
    """Write the key of a message, whose id has `randomness`, as scripts take it."""
    key = message.idempotency_key
    return b"" if key is None else randomness + key.digest + key.text.encode()


def read_key(entry: bytes) -> KnownKey:
    """What the entry of an idempotency key says."""
    first, start = (0, 23) if entry[6] == 1 else (_number(entry[23:31], "big"), 31)
    ids: list[str] = []
    for at in range(start, len(entry), 16):
        position = _number(entry[at : at + 8], "big")
        position += first if position < _MOST_NEW else 0
        ids.append(f"{position:016x}{entry[at + 8 : at + 16].hex()}")
    return KnownKey(ids, entry[7:23])


def new_randomness(count: int) -> list[bytes]:
    """The random halves of `count` ids: 64 bits each."""
    pool = os.urandom(8 * count)
    return [pool[at : at + 8] for at in range(0, len(pool), 8)]


def read_message(
    position: bytes,
    record: bytes,
    track: bytes,
    now: int,
    history: bytes = b"",
    *,
    show_delay: bool = True,
    body: bytes | None = None,
) -> Message:
    """Make the message of a record, its track and its attempts (empty where it has none).

    `body` is the one that is not in the record.
    """
    (
        created_high,
        created,
        expires_high,
        expires,
        ttl_high,
        ttl,
        d_high,
        d,
        randomness,
        flags,
        offset,
    ) = _RECORD.unpack_from(record)
    client_end = _RECORD.size + _client_length(record, _RECORD.size)
    headers = read_headers(record[client_end:offset], flags) if flags else None
    message_id = position + randomness
    count = failures = 0
    claim_id = origin = parked_until = None
    if track:
        (
            expires_high,
            expires,
            ttl_high,
            ttl,
            count,
            last_claim,
            origin_length,
            state,
            until_high,
            until,
            _,
            _,
            failures,
        ) = _TRACK.unpack_from(track)
        until |= until_high << 32
        if until > now:
            if state & _HELD:
                claim_id = last_claim.hex()
            elif state & _PARKED:
                parked_until = until
        if origin_length > _NO_ORIGIN:
            message_id, origin = _read_origin(track, origin_length - _NO_ORIGIN)
    return Message(
        message_id.hex(),
        _number(position, "big"),
        record[offset:] if body is None else body,
        ttl_high << 32 | ttl,
        created_high << 32 | created,
        expires_high << 32 | expires,
        now,
        claim_id,
        count,
        _client_at_start(record[_RECORD.size : client_end]),
        (d_high << 32 | d or None) if show_delay else None,
        headers,
        origin,
        failures,
        parked_until,
        _read_attempts(history) if history else (),
    )


def pack_letter(message: Message) -> bytes:
    """Write a message of another store as `accept` takes it, behind its number."""
    expires, ttl, due = message.expires_at, message.ttl_ms, message.delay_expires_at or 0
    client = pack_client(message.client_id or "")
    flags, headers = pack_headers(message.headers) if message.headers else (0, b"")
    body_at = _RECORD.size + len(client) + len(headers)
    record = packed(RECORD, message.created_at, expires, ttl, due, os.urandom(8), flags, body_at)
    history = b"".join(map(_pack_attempt, message.attempts))
    origin = _pack_origin(message.id, message.origin)
    last_client = pack_client(message.attempts[-1].client_id or "" if message.attempts else "")
    state = _WAITS * bool(due) | _REMEMBERED * bool(history)
    counts, size = (message.claim_count, message.failure_count), _NO_ORIGIN + len(origin)
    track = packed(TRACK, expires, ttl, counts[0], bytes(16), size, state, 0, 0, counts[1])
    track += origin + last_client
    sizes = len(track).to_bytes(2, "big"), len(history).to_bytes(4, "big")
    return b"".join((sizes[0], track, sizes[1], history, record, client, headers, message.body))


def _pack_origin(message_id: str, origin: Origin | None) -> bytes:
    """Write the id and the origin of a letter; no source where there is none."""
    own_id = bytes.fromhex(message_id)
    if origin is None:
        return packed(ORIGIN, own_id, 0, 0, 0, bytes(16)) + b"\x00" + pack_client("")
    claim = bytes(16) if origin.last_claim_id is None else bytes.fromhex(origin.last_claim_id)
    count = min(origin.claim_count, 0xFFFFFF)
    return b"".join(
        (
            packed(ORIGIN, own_id, origin.moved_at, origin.redriven, count, claim),
            sized(origin.source, 1),
            pack_client(origin.last_client_id or ""),
            origin.reason.encode(),
        )
    )


def _pack_attempt(attempt: Attempt) -> bytes:
    outcome = _OUTCOMES.index(attempt.outcome, 1)
    instants = attempt.claimed_at, attempt.ended_at
    rest = b"".join(
        (
            packed(ATTEMPT, attempt.number, *instants, attempt.delay_ms, outcome),
            _NO_REASON if attempt.reason is None else sized(attempt.reason, 1),
            _NO_DETAIL if attempt.detail is None else sized(attempt.detail, 2),
            pack_client(attempt.client_id or ""),
        )
    )
    return len(rest).to_bytes(2, "big") + attempt.size.to_bytes(2, "big") + rest


def _read_origin(track: bytes, size: int) -> tuple[bytes, Origin | None]:
    """The id of a message that was moved, and its origin, which has `size` bytes with the id."""
    message_id, moved_at, redriven, count, claim_id = unpacked(ORIGIN, track, _TRACK.size)
    source, client_at = _read_text(track, _TRACK.size + _ORIGIN_SIZE, 1)
    if not source:  # it came from another store, and from no queue
        return message_id, None
    client_end = client_at + _client_length(track, client_at)
    return message_id, Origin(
        source=source,
        moved_at=moved_at,
        claim_count=count,
        last_claim_id=claim_id.hex() if any(claim_id) else None,
        last_client_id=_client_at_start(track[client_at:client_end]) or None,
        reason=track[client_end : _TRACK.size + size].decode() or MAX_CLAIMS,
        redriven=redriven,
    )


def _read_attempts(history: bytes) -> list[Attempt]:
    found, at = [], 0
    while at < len(history):
        end = at + 4 + _number(history[at : at + 2], "big")
        number, claimed, ended, wait, outcome = unpacked(ATTEMPT, history, at + 4)
        reason, rest = _read_text(history, at + 4 + _ATTEMPT_SIZE, 1)
        detail, rest = _read_text(history, rest, 2)
        client = _client_at_start(history[rest:end])
        found.append(
            Attempt(number, claimed, ended, _OUTCOMES[outcome], wait, reason, detail, client)
        )
        at = end
    return found


def _read_text(data: bytes, at: int, width: int) -> tuple[str | None, int]:
    """Read a text after its length; answer also where it ends."""
    start = at + width
    if data[at:start] == b"\xff" * width:
        return None, start
    end = start + _number(data[at:start], "big")
    return data[start:end].decode("utf-8", "surrogatepass"), end


def pack_settlements(settlements: Sequence[Settlement]) -> list[bytes]:
    """Write settlements as `settle` takes them; their message ids must be such.

    Those that follow one another and say the same are one pair: what they say, and the ids.
    """
    words: list[bytes] = []
    ids: list[str] = []
    said: list[object] = []
    for settlement in settlements:
        name, *saying = astuple(settlement)
        if saying != said:
            if ids:
                words.append(bytes.fromhex("".join(ids)))
                ids.clear()
            said = saying
            words.append(_said(settlement))
        ids.append(name)
    return [*words, bytes.fromhex("".join(ids))] if ids else words


def _said(settlement: Settlement) -> bytes:
    """Write what a settlement says of its message."""
    _, act, delay, failed, reason, detail, ttl, grace = astuple(settlement)
    letter, first, second = b"A", 0, 0
    if act is Act.RELEASE:
        letter, first = b"F" if failed else b"R", _NO_DELAY if delay is None else delay
    elif act is Act.EXTEND:
        letter, first, second = b"E", ttl, grace
    elif act is Act.DEAD:
        letter, reason = b"X", reason or REJECTED
    return b"".join(
        (
            letter,
            first.to_bytes(6, "big"),
            second.to_bytes(6, "big"),
            _NO_REASON if reason is None else sized(reason, 1),
            _NO_DETAIL if detail is None else sized(detail, 2),
        )
    )


def read_messages(
    reply: Sequence[Any],
    start: int,
    now: int,
    bodies: Mapping[bytes, bytes | None] = {},
    *,
    details: bool = False,
    show_delay: bool = True,
) -> list[Message]:
    """Make the messages of a reply: position, record, track and, as details, attempts of each.

    `bodies` are those that are not in the records, by position; a message without one is left out.
    """
    return [
        read_message(
            reply[at],
            reply[at + 1],
            reply[at + 2],
            now,
            reply[at + 3] if details else b"",
            show_delay=show_delay,
            body=bodies.get(reply[at]),
        )
        for at in range(start, len(reply), 4 if details else 3)
        if bodies.get(reply[at], b"") is not None
    ]


def large_bodies(reply: Sequence[Any], start: int, *, details: bool = False) -> dict[bytes, int]:
    """The bodies that are not in the records of a reply: their sizes by position."""
    return {
        reply[at]: _number(reply[at + 1][-4:], "big")
        for at in range(start, len(reply), 4 if details else 3)
        if reply[at + 1][_FLAGS_AT] & _IS_APART
    }


def pack_group(group: str | None) -> bytes:
    """Write a group as scripts take it; nothing for none, and what is in no index for no group."""
    if group is None:
        return b""
    return sized(group, 1) if group_of({GROUP_HEADER: group}) else b"\0"


def pack_headers(headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Write headers, and tell the flags of a record that has them."""
    group = group_of(headers)
    if group is None:
        return _HAS_HEADERS, json.dumps(dict(headers)).encode()
    others = {name: text for name, text in headers.items() if name != GROUP_HEADER}
    if not others:
        return _HAS_GROUP, sized(group, 1)
    return _HAS_GROUP | _HAS_HEADERS, sized(group, 1) + json.dumps(others).encode()


def read_headers(extra: bytes, flags: int) -> dict[str, str]:
    """Read what is between the client and the body of a record."""
    own: dict[str, str] = {}
    if flags & _HAS_GROUP:
        own[GROUP_HEADER] = extra[1 : 1 + extra[0]].decode("utf-8", "surrogatepass")
        extra = extra[1 + extra[0] :]
    return json.loads(extra) | own if flags & _HAS_HEADERS else own


def sized(text: str, width: int) -> bytes:
    """Write a text behind its length in so many bytes."""
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(width, "big") + data

"""Records and tracks as bytes (big-endian; instants and durations in milliseconds).

A record is written once, when a message enters a queue, and again only by an edit:

    0   created 6   expires 6   ttl 5   d 6 (0: none)   randomness of the id 8
    31  flags 1 (1: a priority, 2: headers)   offset of the body 2
    34  client   headers (JSON)   priority 4 (signed)   body

A track is what changes, and is there once a message was claimed or moved:

    0   expires 6   ttl 5   claim count 4   claim id 16 (of the last claim, live or not)
    31  length of the origin 2   origin   client of the last claim

    origin: message id 16   moved at 6   claim count 4   claim id 16   source 1+n   client

The entry of an idempotency key has the ids that it answers; those of versions without digests
had neither the 1 nor the digest, which is told by the length:

    0   deadline 6   1   digest 16   ids 16 each

A client is one byte of kind and: 0 length 2 and UTF-8; 1 the 16 bytes of a dashed UUID;
2 those of 32 hex digits.
"""

import json
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

from zaqar_lite.domain.models import (
    DEFAULT_PRIORITY,
    IdempotencyKey,
    Message,
    NewMessage,
    Origin,
)

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEX = re.compile(r"[0-9a-f]{32}")
_FLAGS_AND_OFFSET = Struct(">BH")
_HAS_PRIORITY, _HAS_HEADERS = 1, 2
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
    """Write a new message as `post.lua` takes it: ttl, delay, and the record after its `d`."""
    flags, extra = 0, b""
    if message.headers:
        flags, extra = _HAS_HEADERS, json.dumps(dict(message.headers)).encode()
    if message.priority != DEFAULT_PRIORITY:
        flags |= _HAS_PRIORITY
        extra += message.priority.to_bytes(4, "big", signed=True)
    return b"".join(
        (
            message.ttl_ms.to_bytes(5, "big"),
            message.delay_ms.to_bytes(5, "big"),
            randomness,
            _FLAGS_AND_OFFSET.pack(flags, 34 + len(client) + len(extra)),
            client,
            extra,
            message.body,
        )
    )


def pack_key(key: IdempotencyKey | None) -> bytes:
    """Write an idempotency key as `post.lua` takes it; nothing where there is none."""
    return b"" if key is None else key.digest + key.text.encode()


def new_randomness(count: int) -> list[bytes]:
    """The random halves of `count` ids: 64 bits each."""
    pool = os.urandom(8 * count)
    return [pool[at : at + 8] for at in range(0, len(pool), 8)]


def read_message(
    position: bytes, record: bytes, track: bytes, now: int, *, held: bool, show_delay: bool = True
) -> Message:
    """Make the message of a record and its track (empty where it has none)."""
    flags, offset = _FLAGS_AND_OFFSET.unpack_from(record, 31)
    client_end = 34 + _client_length(record, 34)
    headers = None
    if flags & _HAS_HEADERS:
        end = offset - 4 if flags & _HAS_PRIORITY else offset
        headers = json.loads(record[client_end:end])
    message_id = position + record[23:31]
    expires, ttl, count, claim_id, origin = record[6:12], record[12:17], 0, None, None
    if track:
        expires, ttl, count = track[:6], track[6:11], _number(track[11:15], "big")
        if held:
            claim_id = track[15:31].hex()
        if track[31:33] != b"\0\0":
            message_id, origin = _read_origin(track)
    d = _number(record[17:23], "big") if show_delay else 0
    return Message(
        message_id.hex(),
        _number(position, "big"),
        record[offset:],
        _number(ttl, "big"),
        _number(record[:6], "big"),
        _number(expires, "big"),
        now,
        claim_id,
        count,
        _client_at_start(record[34:client_end]),
        d or None,
        headers,
        origin,
    )


def _read_origin(track: bytes) -> tuple[bytes, Origin]:
    origin = track[33 : 33 + _number(track[31:33], "big")]
    end = 43 + origin[42]
    return origin[:16], Origin(
        source=origin[43:end].decode(),
        moved_at=_number(origin[16:22], "big"),
        claim_count=_number(origin[22:26], "big"),
        last_claim_id=origin[26:42].hex(),
        last_client_id=_client_at_start(origin[end:]),
    )


def read_messages(reply: Sequence[Any], start: int, now: int) -> list[Message]:
    """Make the messages of a reply that holds position, record, track and '1' if held of each."""
    return [
        read_message(reply[at], reply[at + 1], reply[at + 2], now, held=bool(reply[at + 3]))
        for at in range(start, len(reply), 4)
    ]

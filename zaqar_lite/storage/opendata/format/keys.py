"""Keys of the records: RFC 0001's literal bytes, and beside them the metadata log's.

    01 01 id                     payload                    (id: u64, big-endian)
    01 02 TB(queue) [page]       active messages            (page: u64, big-endian; none: the root)
    01 03 TB(queue) [page]       done messages
    01 04 TB(queue) [page]       failed messages
    01 05 id TB(queue)           consumers of ended attempts, and what is known of these
    01 06 TB(queue)              queue configuration
    01 07                        block of message ids
    01 08                        format marker
    01 09 TB(queue) uuid         claim
    01 0b TB(queue) kind digest  idempotency key
    01 0b TB(queue) 't' id       idempotency keys of a post's messages; the first one's id
    01 0c                        state of the store
    01 0d number                 messages that nobody holds any more, to be deleted in steps
    01 0e history attempt        one ended attempt of a message (history: u64, attempt: u16)
    01 0f TB(kind) TB(project) TB(name)    a record that is neither a queue nor a message
    01 10 deadline id            message of the log that no queue received, until its retention ends
    01 11 id                     id of a message that another store had given it
    01 11 id TB(queue)           the same of one that ended in a queue; `id` is what it begins with
    03 01 segment 10 TB(log) var_u64(sequence - start of the segment)     entry of the log
    03 01 segment 40 log         listing of the log's keys
    03 01 00000000 20            block of the log's sequences
    03 01 00000000 30 segment    segment

The first bytes 01 and 03 never meet, so one database holds both. Types 07 and above, the page
numbers and the queue in the attempts key are additions; type 0a stays free for a journal. A
queue's id is `project/name`. Readers step over types they do not know.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import NamedTuple

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata.format import (
    CodecError,
    read_terminated,
    terminated,
    var_u64,
)

LOG_KEY = b"opendata-queue/messages/metadata"
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_HISTORY = struct.Struct(">QH")


class RecordType(Enum):
    """Type discriminators; 07 and above are additions."""

    PAYLOAD = 0x01
    ACTIVE = 0x02
    DONE = 0x03
    FAILED = 0x04
    ATTEMPTS = 0x05
    CONFIG = 0x06
    ID_BLOCK = 0x07
    FORMAT = 0x08
    CLAIM = 0x09
    IDEMPOTENCY = 0x0B
    STATE = 0x0C
    GARBAGE = 0x0D
    ATTEMPT = 0x0E
    RECORD = 0x0F
    UNROUTED = 0x10
    ADOPTED = 0x11


@cache
def prefix(kind: RecordType) -> bytes:
    """The bytes before every key of a type."""
    return bytes((1, kind.value))


PAYLOAD_PREFIX = prefix(RecordType.PAYLOAD)


def queue_id(ref: QueueRef) -> bytes:
    """A queue's id in keys. A name holds no '/', so the last one ends the project."""
    return f"{ref.project}/{ref.name}".encode()


class ForeignQueue(CodecError):
    """A queue's id that is no `project/name`: it is another writer's."""


def read_queue_id(raw: bytes) -> QueueRef:
    """Read a queue's id. Raises ForeignQueue: no `project/name`."""
    try:
        project, slash, name = raw.decode().rpartition("/")
    except UnicodeDecodeError as exc:
        raise ForeignQueue(f"queue id that is no UTF-8: {raw.hex()}") from exc
    if not slash:
        raise ForeignQueue(f"queue id without a project: {raw!r}")
    return QueueRef(project, name)


def message_key(kind: RecordType, message_id: int, queue: bytes | None = None) -> bytes:
    """Key of a record of a message, or of what one queue says of it: a queue follows the RFC's key.

    That of an id which another store had given has the number that the id begins with.
    """
    key = prefix(kind) + _U64.pack(message_id)
    return key if queue is None else key + terminated(queue)


def queue_key(kind: RecordType, queue: bytes, page: int | None = None) -> bytes:
    """Key of a record of a queue: active, done, failed, configuration; None is the root page."""
    key = prefix(kind) + terminated(queue)
    return key if page is None else key + _U64.pack(page)


def attempt_key(history: int, number: int) -> bytes:
    """Key of one ended attempt; `history` is the number of the message's history in its queue."""
    return prefix(RecordType.ATTEMPT) + _HISTORY.pack(history, number)


def record_key(kind: str, project: str, name: str) -> bytes:
    """Key of a record of some kind."""
    parts = (terminated(part.encode()) for part in (kind, project, name))
    return prefix(RecordType.RECORD) + b"".join(parts)


def read_record_key(key: bytes) -> tuple[str, str, str]:
    """Read kind, project and name.

    Raises CodecError: something is missing or left over, or no UTF-8.
    """
    kind, end = read_terminated(key, 2)
    project, end = read_terminated(key, end)
    name, end = read_terminated(key, end)
    if end != len(key):
        raise CodecError(f"key of a record with bytes left over: {key.hex()}")
    try:
        return kind.decode(), project.decode(), name.decode()
    except UnicodeDecodeError as exc:
        raise CodecError(f"key of a record that is no UTF-8: {key.hex()}") from exc


def unrouted_key(deadline: int, message_id: int) -> bytes:
    """Key of a message that no queue received; such keys are in the order of their deadlines."""
    return prefix(RecordType.UNROUTED) + _U64.pack(deadline) + _U64.pack(message_id)


class QueueKey(NamedTuple):
    """What a key of a queue's record says: the queue, and the bytes after it."""

    queue: bytes
    rest: bytes


def read_queue_key(key: bytes, start: int = 2) -> QueueKey:
    """Read the queue of a key, and what follows (a page, a claim, a digest).

    Raises CodecError: no terminator.
    """
    queue, end = read_terminated(key, start)
    return QueueKey(queue, key[end:])


def read_page(rest: bytes) -> int | None:
    """Read the page number behind a queue; None is the root.

    Raises CodecError: neither nothing nor a u64.
    """
    if not rest:
        return None
    if len(rest) != 8:
        raise CodecError(f"page number of {len(rest)} bytes")
    return int.from_bytes(rest, "big")


def read_message_id(key: bytes, start: int = 2) -> int:
    """Read the message id that begins at `start`. Raises CodecError: cut short."""
    if len(key) < start + 8:
        raise CodecError(f"key cut short: {key.hex()}")
    return int.from_bytes(key[start : start + 8], "big")


def log_prefix(segment: int, log: bytes = LOG_KEY) -> bytes:
    """The bytes before every entry of a log in one segment."""
    return LOG + _U32.pack(segment) + b"\x10" + terminated(log)


class Log:
    """Where the entries of the metadata log are.

    `segments` are their first sequences and their numbers, in order. A message's number is the
    sequence of its entry.
    """

    def __init__(self, segments: Sequence[tuple[int, int]]) -> None:
        self.starts = [start for start, _ in segments]
        self.prefixes = [log_prefix(segment) for _, segment in segments]

    def key(self, number: int) -> bytes:
        """The key of a message's entry. Raises CodecError: it is before all segments."""
        at = max(0, bisect_right(self.starts, number) - 1)
        return self.prefixes[at] + var_u64(number - self.starts[at])


def log_listing_key(segment: int, log: bytes = LOG_KEY) -> bytes:
    """Key of a log's listing in a segment; the log's key is raw here."""
    return LOG + _U32.pack(segment) + LOG_LISTING + log


def log_segment_key(segment: int) -> bytes:
    """Key of a segment's start."""
    return LOG_SEGMENTS + _U32.pack(segment)


LOG = b"\x03\x01"
LOG_SEGMENTS = b"\x03\x01\x00\x00\x00\x00\x30"
LOG_BLOCK = b"\x03\x01\x00\x00\x00\x00\x20"
LOG_LISTING = b"\x40"
ID_BLOCK = prefix(RecordType.ID_BLOCK)
FORMAT = prefix(RecordType.FORMAT)
STATE = prefix(RecordType.STATE)


_OF_QUEUE = (
    RecordType.ACTIVE, RecordType.DONE, RecordType.FAILED, RecordType.CONFIG, RecordType.CLAIM,
    RecordType.IDEMPOTENCY,
)  # fmt: skip
_OF_MESSAGE = RecordType.PAYLOAD, RecordType.ATTEMPTS, RecordType.ADOPTED


def describe(key: bytes) -> str:
    """Name a record for people: its type, its queue or message, and its key in hex."""
    name = "record of the metadata log" if key[:2] == LOG else "record of an unknown type"
    with suppress(ValueError, IndexError):
        kind = RecordType(key[1] if key[:1] == b"\x01" else None)
        name = kind.name.lower()
        if kind is RecordType.RECORD:
            name = "{0} {2!r} of project {1!r}".format(*read_record_key(key))
        elif kind in _OF_MESSAGE:
            name += f" of message {read_message_id(key)}"
        elif kind in _OF_QUEUE:
            name += f" of queue {read_queue_key(key).queue.decode(errors='replace')!r}"
    return f"{name} (key {key.hex()})"

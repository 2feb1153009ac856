"""Bodies, metadata and attempts: from memory while there is room, else from the records."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from zaqar_lite.domain.attempts import Attempt
from zaqar_lite.domain.models import Message
from zaqar_lite.storage.opendata.engine import Damage, Stored
from zaqar_lite.storage.opendata.entries import UNKNOWN, Entry
from zaqar_lite.storage.opendata.format import keys, records
from zaqar_lite.storage.opendata.format.encoding import CodecError
from zaqar_lite.storage.opendata.format.keys import PAYLOAD_PREFIX, RecordType
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import State

logger = logging.getLogger(__name__)


async def fill(db: State, queue: Queue, entries: Sequence[Entry], messages: list[Message]) -> None:
    """Give messages the bodies of their entries, and what else is only in the log.

    A message that was deleted meanwhile, or that can't be read, leaves the list.
    """
    bodies = bodies_in_memory(db, entries)
    if bodies is not None:
        for message, body in zip(messages, bodies, strict=True):
            message.body = body
        return
    found = await read_bodies(db, queue, entries)
    kept: list[Message] = []
    for entry, message in zip(entries, messages, strict=True):
        if entry.position not in found:
            continue
        message.body = found[entry.position]
        message.created_at, message.client_id = entry.created_at, entry.client_id
        message.headers = entry.headers
        message.ttl_ms = entry.ttl_ms or message.expires_at - entry.created_at
        kept.append(message)
    messages[:] = kept


def bodies_in_memory(db: State, entries: Sequence[Entry]) -> list[bytes] | None:
    """The bodies of entries, unless one of them, or what the log says of it, must be read."""
    get = db.bodies.get
    found = []
    for entry in entries:
        body = get(entry.id)
        if body is None or entry.created_at == UNKNOWN:
            return None
        found.append(body)
    return found


async def read_bodies(db: State, queue: Queue, entries: Sequence[Entry]) -> dict[int, bytes]:
    """Read the bodies of entries, by position, and what else is only in the log.

    One that can't be read is left out and set aside: it is named in the log and never handed out
    again, and stays stored as it is.
    """
    stored = await _read(db, entries)
    found = {}
    for entry in entries:
        with _setting_aside(db, queue, entry):
            body = _body_of(entry.id, stored)
            _learn(db, entry, stored)
            found[entry.position] = body
    return found


async def warm(db: State, queue: Queue, entries: Iterable[Entry]) -> None:
    """Read the metadata of entries that do not have it yet."""
    cold = [entry for entry in entries if entry.created_at == UNKNOWN]
    stored = await db.read([db.log_key(entry.id) for entry in cold])
    for entry in cold:
        with _setting_aside(db, queue, entry):
            _learn(db, entry, stored)


@contextmanager
def _setting_aside(db: State, queue: Queue, entry: Entry) -> Iterator[None]:
    """Set an entry aside when it can't be read, unless it has left the queue."""
    try:
        yield
    except CodecError as exc:
        if db.is_current(queue) and queue.find(entry.position) is entry:
            set_aside(db, queue, entry, str(exc))


async def _read(db: State, entries: Sequence[Entry]) -> dict[bytes, Stored]:
    """Read the payloads of entries, and the metadata of those that do not have it yet."""
    wanted: list[bytes] = []
    known: dict[bytes, Stored] = {}
    for entry in entries:
        key = PAYLOAD_PREFIX + entry.id.to_bytes(8, "big")
        body = db.bodies.get(entry.id)
        if body is None:
            wanted.append(key)
        else:
            known[key] = b"\x03" + body
        if entry.created_at == UNKNOWN:
            wanted.append(db.log_key(entry.id))
    return known | await db.read(wanted)


def _body_of(message_id: int, stored: Mapping[bytes, Stored]) -> bytes:
    payload = records.decode_payload(
        readable(stored, keys.message_key(RecordType.PAYLOAD, message_id))
    )
    if isinstance(payload, records.Uri):
        raise CodecError(f"the payload lies at {payload.uri}, which this server does not fetch")
    return payload


def _learn(db: State, entry: Entry, stored: Mapping[bytes, Stored]) -> None:
    if entry.created_at == UNKNOWN:
        metadata = records.decode_metadata(readable(stored, db.log_key(entry.id)))
        _, client_id, headers = split_headers(metadata)
        entry.learn(metadata, client_id, headers)


def set_aside(db: State, queue: Queue, entry: Entry, why: str) -> None:
    """Never hand out an entry whose payload or metadata can't be read.

    Its claim goes on: at the next start it may be readable, and then nobody else may have it.
    """
    past = entry.remember()
    if past.damaged:
        return
    logger.error("message %s of %s is set aside: %s", entry.id, queue.ref, why)
    if entry.delayed:
        entry.delayed = False
        queue.delayed_count -= 1
    elif entry.claim is None and not past.parked_until:
        queue.ready_count -= 1
    past.damaged = True
    queue.change(entry.page)
    db.touched.add(queue)


def readable(stored: Mapping[bytes, Stored], key: bytes) -> bytes:
    """The value of a key among what was read.

    Raises CodecError: it is missing or damaged; names the record.
    """
    value = stored.get(key)
    if value is None:
        raise CodecError(f"{keys.describe(key)} is missing")
    if isinstance(value, Damage):
        raise CodecError(str(value))
    return value


def split_headers(metadata: records.Metadata) -> tuple[str | None, str | None, dict[str, str]]:
    """Split a metadata record's headers: the queue, the client, and the message's own."""
    headers = list(metadata.headers)
    queue, client_id = _taken(headers, records.QUEUE_HEADER), _taken(headers, records.CLIENT_HEADER)
    return queue, client_id, dict(headers)


def _taken(headers: list[tuple[str, str]], name: str) -> str | None:
    """Take the first header of a name; ours stand in front, others' anywhere."""
    for place, (known, value) in enumerate(headers):
        if known == name:
            del headers[place]
            return value
    return None


async def read_attempts(db: State, entries: Sequence[Entry]) -> Mapping[int, Sequence[Attempt]]:
    """Read the attempts of entries as they are now, by position; one that is damaged is left out.

    An attempt that goes meanwhile, with its message, is left out too.
    """
    wanted = {
        entry.position: [keys.attempt_key(past.history, one.number) for one in past.kept]
        for entry in entries
        if (past := entry.past) is not None and past.kept
    }
    stored = await db.read(key for of_entry in wanted.values() for key in of_entry)
    found: dict[int, list[Attempt]] = {}
    for position, of_entry in wanted.items():
        found[position] = []
        for key in of_entry:
            try:
                if key in stored:
                    found[position].append(records.decode_attempt(readable(stored, key)))
            except CodecError as exc:
                logger.error("damaged: %s", exc)
    return found

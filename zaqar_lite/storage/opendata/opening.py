"""The records that open a store: read, made where it is new, told from others where they are lost.

The counters can be told from the log's entries, which carry their ids and instants. The secret of
the message ids can not: where it is lost, messages get other ids, and who holds an old one finds
nothing by it.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.storage.opendata.engine import Batch, Damage, Stored
from zaqar_lite.storage.opendata.format import bookkeeping, keys
from zaqar_lite.storage.opendata.format.bookkeeping import (
    FORMAT_MARKER,
    decode_block,
    decode_segment,
    decode_state,
    encode_block,
    encode_segment,
    encode_state,
)
from zaqar_lite.storage.opendata.format.encoding import CodecError, after_prefix, utf8
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.format.records import decode_metadata
from zaqar_lite.storage.opendata.ids import Ids, Names
from zaqar_lite.storage.opendata.state import State

logger = logging.getLogger(__name__)
_FIRST_SEGMENT = 1
T = TypeVar("T")


async def open_store(db: State) -> None:
    """Read the records that open a store; those told from others go into the next batch.

    Raises:
        ConfigurationError: the store is of another format.
    """
    wanted = [keys.FORMAT, keys.STATE, keys.ID_BLOCK, keys.LOG_BLOCK]
    found = await db.engine.get(wanted)
    if keys.FORMAT not in found and not db.engine.was_rebuilt:
        await _create(db)
        found = await db.engine.get(wanted)
    marker = _read(db, found, keys.FORMAT, bytes)
    if marker is None:
        db.puts[keys.FORMAT] = utf8(FORMAT_MARKER)
    elif marker != utf8(FORMAT_MARKER):
        raise ConfigurationError(
            f"The store can't be opened: its format is {marker!r}, this server reads "
            f"{FORMAT_MARKER!r}. Use the version that wrote it, and `zaqar-lite store export`."
        )
    state = _read(db, found, keys.STATE, decode_state)
    block = _read(db, found, keys.ID_BLOCK, decode_block)
    block = block or _read(db, found, keys.LOG_BLOCK, decode_block)
    segments = await _segments(db)
    if state is None or block is None or not segments or db.engine.was_rebuilt or db.damages:
        log = await _survey(db)
        if block is None or db.engine.was_rebuilt:  # it may be an older one that came to light
            block = max(sum(block or ()), db.clock.now_us(), log.last_id + 1), 0
            db.puts[keys.ID_BLOCK] = db.puts[keys.LOG_BLOCK] = encode_block(*block)
        state = state or _new_state(sum(block), log.last_instant)
        if db.engine.was_rebuilt:  # as above; what no queue holds is put back, not replayed
            instant = max(state.last_instant, log.last_instant)
            state = bookkeeping.State(sum(block), instant, state.secret)
        segments = _complete(db, segments, log, sum(block))
    db.ids = Ids(sum(block))
    db.secret, db.names = state.secret, Names(state.secret)
    db.clock.not_before(state.last_instant)
    db.routed = state.routed
    db.segments = sorted((start, number) for number, start in segments.items())
    db.log_start, number = db.segments[-1]
    db.log_prefix = keys.log_prefix(number)
    await _load_garbage(db)


async def _create(db: State) -> None:
    """Write the records of a new store.

    Ids begin at the time in microseconds: a reader's marker from a store that was lost lies
    before them, not behind.
    """
    async for chunk in db.engine.scan(b"", b"\xff"):
        if chunk:
            raise ConfigurationError(
                "The store can't be opened: it holds records and no format marker, so it is "
                "not one of this server's. Give the server a directory of its own."
            )
    start, now = db.clock.now_us(), db.clock.now_ms()
    block = encode_block(start, 0)
    puts = {
        keys.FORMAT: utf8(FORMAT_MARKER),
        keys.STATE: encode_state(start, now, os.urandom(16)),
        keys.ID_BLOCK: block,
        keys.LOG_BLOCK: block,
        keys.log_segment_key(_FIRST_SEGMENT): encode_segment(start, now),
        keys.log_listing_key(_FIRST_SEGMENT): b"",
    }
    await db.engine.commit(Batch(puts, ()))


def _read(
    db: State, found: Mapping[bytes, Stored], key: bytes, decode: Callable[[bytes], T]
) -> T | None:
    """Decode a record that every store has; None, and named, where it is lost."""
    value = found.get(key)
    if isinstance(value, bytes):
        try:
            return decode(value)
        except CodecError as exc:
            value = Damage(key, str(exc))
    db.damaged(value or Damage(key, "it is missing"))
    return None


async def _segments(db: State) -> dict[int, int]:
    """The first sequence of the log's segments, by number."""
    starts: dict[int, int] = {}
    async for chunk in db.engine.scan(keys.LOG_SEGMENTS, after_prefix(keys.LOG_SEGMENTS)):
        for key, value in chunk:
            start = _read(db, {key: value}, key, decode_segment)
            if start is not None:
                starts[int.from_bytes(key[-4:], "big")] = start[0]
    return starts


class _Log(NamedTuple):
    """What the entries of the log tell: the first sequence of each segment, and the last ones."""

    starts: dict[int, int]
    last_id: int
    last_instant: int


async def _survey(db: State) -> _Log:
    starts: dict[int, int] = {}
    last_id = last_instant = 0
    first = keys.log_prefix(_FIRST_SEGMENT)
    async for chunk in db.engine.scan(first, after_prefix(first[:2])):
        for key, value in chunk:
            try:
                number, log, sequence = keys.read_log_entry_key(key)
                if log != keys.LOG_KEY or isinstance(value, Damage):
                    continue
                metadata = decode_metadata(value)
            except CodecError:
                continue  # a listing, or named by who looks for the message
            starts.setdefault(number, metadata.message_id - sequence)
            last_id = max(last_id, metadata.message_id)
            last_instant = max(last_instant, metadata.received_at)
    return _Log(starts, last_id, last_instant)


def _new_state(next_id: int, last_instant: int) -> bookkeeping.State:
    logger.error("the secret of the message ids is lost: messages have other ids from now on")
    return bookkeeping.State(next_id, last_instant, os.urandom(16))


def _complete(db: State, segments: dict[int, int], log: _Log, next_id: int) -> dict[int, int]:
    """Add the segments whose record is lost; a log needs one."""
    lost = {number: log.starts[number] for number in log.starts.keys() - segments.keys()}
    if not lost and not segments:
        lost = {_FIRST_SEGMENT: next_id}
    for number, start in lost.items():
        db.puts[keys.log_segment_key(number)] = encode_segment(start, db.clock.now_ms())
        db.puts[keys.log_listing_key(number)] = b""
    return segments | lost


async def _load_garbage(db: State) -> None:
    garbage = keys.prefix(RecordType.GARBAGE)
    async for chunk in db.engine.scan(garbage, after_prefix(garbage)):
        for key, value in chunk:
            if isinstance(value, Damage):
                db.damaged(value)
            else:
                db.garbage.append(key)
            if len(key) > len(garbage):
                db.next_garbage = max(db.next_garbage, 1 + keys.read_message_id(key))

"""The records of the store itself, of which a new store gets its first ones."""

import os
from typing import TYPE_CHECKING, NamedTuple

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.storage.opendata.engine import Batch, Damage, Unreadable
from zaqar_lite.storage.opendata.format import CodecError, bookkeeping, keys, utf8
from zaqar_lite.storage.opendata.ids import Ids

if TYPE_CHECKING:
    from zaqar_lite.storage.opendata.slatedb import SlateDbEngine

_FIRST_SEGMENT = 1
_MARKER = utf8(bookkeeping.FORMAT_MARKER)


class Own(NamedTuple):
    """What a store says of itself.

    All entries of the log below `routed` are in their queues; ids from `block_end` on are free.
    """

    ids: Ids
    routed: int
    block_end: int
    log: keys.Log


async def read_own(engine: "SlateDbEngine", clock: Clock) -> Own:
    """Read the records of the store itself; the clock goes on from the last instant in them.

    Raises ConfigurationError: the store is of another format; Unreadable: one of them is damaged.
    """
    if await engine.get(keys.FORMAT) is None:
        await _create(engine, clock)
    marker = await _get(engine, keys.FORMAT)
    if marker != _MARKER:
        raise ConfigurationError(
            f"The store can't be opened: its format is {marker!r}, this server reads "
            f"{bookkeeping.FORMAT_MARKER!r}. Use the version that wrote it, and `zaqar-lite "
            "store export`."
        )
    segments = []
    key = keys.STATE
    try:
        routed, instant, secret = bookkeeping.STATE.decode(await _get(engine, key))
        key = keys.ID_BLOCK
        block = bookkeeping.BLOCK.decode(await _get(engine, key))
        async for rows in engine.scan(keys.LOG_SEGMENTS):
            for key, value in rows:
                start, _ = bookkeeping.SEGMENT.decode(value)
                segments.append((start, int.from_bytes(key[-4:], "big")))
    except CodecError as exc:
        raise Unreadable(Damage(key, str(exc))) from exc
    if not segments:
        raise Unreadable(Damage(keys.log_segment_key(_FIRST_SEGMENT), "it is missing"))
    clock.not_before(instant)
    return Own(Ids(secret), routed, sum(block), keys.Log(sorted(segments)))


async def _get(engine: "SlateDbEngine", key: bytes) -> bytes:
    value = await engine.get(key)
    if not isinstance(value, bytes):
        raise Unreadable(value or Damage(key, "it is missing"))
    return value


async def _create(engine: "SlateDbEngine", clock: Clock) -> None:
    """Make the records of a new store.

    Ids begin at the time in microseconds, so that a marker from an earlier store that was lost
    is before all messages of this one.
    """
    async for _ in engine.scan(b""):
        raise ConfigurationError(
            "The store can't be opened: it holds records and no format marker, so it is "
            "not one of this server's. Give the server a directory of its own."
        )
    start, now = clock.now_us(), clock.now_ms()
    block = bookkeeping.BLOCK.encode(start, 0)
    first = {
        keys.FORMAT: _MARKER,
        keys.STATE: bookkeeping.STATE.encode(start, now, os.urandom(16)),
        keys.ID_BLOCK: block,
        keys.LOG_BLOCK: block,
        keys.log_segment_key(_FIRST_SEGMENT): bookkeeping.SEGMENT.encode(start, now),
        keys.log_listing_key(_FIRST_SEGMENT): b"",
    }
    await engine.commit(Batch(first, ()))

"""Reading records that may be damaged, and those of the store itself.

A new store gets its first records. Where the block of ids is lost, ids continue from the time in
microseconds, since they never run ahead of it. Where the secret of the message ids is lost, all
messages get new ids, and the old ones find nothing. A record that can't be read is named in the log
and left as it is.
"""

import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import apsw

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.yielding import Slices, Turns
from zaqar_lite.storage.opendata.engine import Damage, Row, Stored, Unreadable
from zaqar_lite.storage.opendata.format import (
    CodecError,
    after_prefix,
    bookkeeping,
    keys,
    records,
    utf8,
)
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.ids import Ids
from zaqar_lite.storage.opendata.recorder import EMPTY

if TYPE_CHECKING:
    from zaqar_lite.storage.opendata.slatedb import SlateDbEngine

logger = logging.getLogger(__name__)
_FIRST_SEGMENT = 1
_DISPENSABLE = (
    keys.LOG, keys.prefix(RecordType.UNROUTED), keys.prefix(RecordType.ADOPTED),
)  # fmt: skip
T = TypeVar("T")


class Reading:
    """The records of a store as they are read, for tables that are being filled.

    `puts` are records of the store itself that are missing. `lost` has the numbers of messages
    whose payload can't be handed out, and why.
    """

    def __init__(self, engine: "SlateDbEngine", connection: apsw.Connection, clock: Clock) -> None:
        self.engine = engine
        self.connection = connection
        self.clock = clock
        self.now = clock.now_ms()
        self.puts: dict[bytes, bytes] = {}
        self.damages: list[Damage] = []
        self.lost: dict[int, str] = {}
        self.ids = Ids(b"")
        self.routed = self.block_end = 0
        self.segments: list[tuple[int, int]] = []
        self.slices = Slices(Turns())

    async def rows(self, start: bytes, end: bytes | None = None) -> AsyncIterator[Row]:
        """Read the stored records of a range, or of a prefix, one by one.

        Where the metadata log, the list of what no queue received, or the ids of other stores can't
        be read on, that is named: what is in queues is served without. Raises Unreadable: other
        records can't be.
        """
        try:
            async for chunk in self.engine.scan(start, after_prefix(start) if end is None else end):
                for row in chunk:
                    yield row
        except Unreadable as exc:
            if not start.startswith(_DISPENSABLE):
                raise
            logger.error("damaged: %s", exc)
            self.damages.append(Damage(exc.last, str(exc)))

    async def each(self, kind: RecordType, read: Callable[[bytes, bytes], None]) -> None:
        """Let every intact record of a type be read; those that can't be are named."""
        async for key, value in self.rows(keys.prefix(kind)):
            await self.slices.take_turns()
            try:
                if isinstance(value, Damage):
                    self._damaged(value)
                else:
                    read(key, value)
            except (CodecError, OverflowError) as exc:
                self._damaged(Damage(key, str(exc)))

    def decoded(self, key: bytes, value: Stored, decode: Callable[[bytes], T]) -> T | None:
        """Decode a record; None, and logged, where it can't be read."""
        if isinstance(value, bytes):
            try:
                return decode(value)
            except CodecError as exc:
                value = Damage(key, str(exc))
        self._damaged(value)
        return None

    def _damaged(self, damage: Damage) -> None:
        """Log a record that can't be read; a damaged page is never written over."""
        logger.error("damaged: %s; the record is left as it is", damage)
        self.damages.append(damage)
        with suppress(CodecError, ValueError):
            kind = RecordType(keys.read_prefix(damage.key)[0])
            if kind is RecordType.PAYLOAD:
                self.lost[keys.read_message_id(damage.key)] = damage.why
            if kind in EMPTY:
                where = keys.read_queue_key(damage.key)
                values = (kind.value, where.queue, keys.read_page(where.rest) or 0)
                self.connection.execute("INSERT OR IGNORE INTO lost_page VALUES (?, ?, ?)", values)

    # -- the store itself --

    async def load_own(self) -> None:
        """Read the records of the store itself; those that are missing are to be written.

        Raises ConfigurationError: the store is of another format.
        """
        wanted = [keys.FORMAT, keys.STATE, keys.ID_BLOCK, keys.LOG_BLOCK]
        found = await self.engine.get(wanted)
        if keys.FORMAT not in found:
            await self._create()
            found = {**self.puts, **found}
        marker = self._own(found, keys.FORMAT, bytes)
        if marker is None:
            self.puts[keys.FORMAT] = utf8(bookkeeping.FORMAT_MARKER)
        elif marker != utf8(bookkeeping.FORMAT_MARKER):
            raise ConfigurationError(
                f"The store can't be opened: its format is {marker!r}, this server reads "
                f"{bookkeeping.FORMAT_MARKER!r}. Use the version that wrote it, and `zaqar-lite "
                "store export`."
            )
        state = self._own(found, keys.STATE, bookkeeping.decode_state)
        if state is not None:
            self.clock.not_before(state.last_instant)
        block = self._own(found, keys.ID_BLOCK, bookkeeping.decode_block)
        block = block or self._own(found, keys.LOG_BLOCK, bookkeeping.decode_block)
        if block is None:
            block = self.clock.now_us(), 0
            self.puts[keys.ID_BLOCK] = self.puts[keys.LOG_BLOCK] = bookkeeping.encode_block(*block)
        self.block_end = sum(block)
        if state is None:
            logger.error(
                "the secret of the message ids is lost: messages have other ids from now on"
            )
            state = bookkeeping.State(self.block_end, 0, os.urandom(16))
        self.ids, self.routed = Ids(state.secret), state.routed
        self.now = self.clock.now_ms()
        self.segments = await self._segments()

    def _own(
        self, found: Mapping[bytes, Stored], key: bytes, decode: Callable[[bytes], T]
    ) -> T | None:
        """Decode a record that every store has; None where it is lost, which is logged."""
        return self.decoded(key, found.get(key) or Damage(key, "it is missing"), decode)

    async def _create(self) -> None:
        """Make the records of a new store.

        Ids begin at the time in microseconds, so that a marker from an earlier store that was lost
        is before all messages of this one.
        """
        async for _ in self.rows(b"", b"\xff"):
            raise ConfigurationError(
                "The store can't be opened: it holds records and no format marker, so it is "
                "not one of this server's. Give the server a directory of its own."
            )
        start, now = self.clock.now_us(), self.clock.now_ms()
        block = bookkeeping.encode_block(start, 0)
        self.puts |= {
            keys.FORMAT: utf8(bookkeeping.FORMAT_MARKER),
            keys.STATE: bookkeeping.encode_state(start, now, os.urandom(16)),
            keys.ID_BLOCK: block,
            keys.LOG_BLOCK: block,
            keys.log_segment_key(_FIRST_SEGMENT): bookkeeping.encode_segment(start, now),
            keys.log_listing_key(_FIRST_SEGMENT): b"",
        }

    async def _segments(self) -> list[tuple[int, int]]:
        """The first sequence and the number of the log's segments, in order.

        Where the record of a segment is lost, its first sequence follows from its first entry,
        which has its id.
        """
        starts: dict[int, int] = {}
        lost: list[int] = []
        stored = {key: value async for key, value in self.rows(keys.LOG_SEGMENTS)}
        new = {key: value for key, value in self.puts.items() if key.startswith(keys.LOG_SEGMENTS)}
        for key, value in {**new, **stored}.items():
            number = int.from_bytes(key[-4:], "big")
            start = self.decoded(key, value, bookkeeping.decode_segment)
            if start is None:
                lost.append(number)
            else:
                starts[number] = start[0]
        if not starts and not lost:
            lost.append(_FIRST_SEGMENT)
        for number in lost:
            starts[number] = first = await self._first_sequence(number)
            self.puts[keys.log_segment_key(number)] = bookkeeping.encode_segment(first, self.now)
            self.puts[keys.log_listing_key(number)] = b""
        return sorted((start, number) for number, start in starts.items())

    async def _first_sequence(self, number: int) -> int:
        async for key, value in self.rows(keys.log_prefix(number)):
            with suppress(CodecError):  # damage is logged when the log is read
                if isinstance(value, bytes):
                    message_id = records.decode_metadata(value).message_id
                    return message_id - keys.read_log_entry_key(key)[2]
        return self.block_end

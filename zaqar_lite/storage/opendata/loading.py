"""Filling the tables from the records, at each start and after a batch that failed.

The records of the store itself come first; a new store gets them here.

Damage in payloads and in the metadata log costs the messages in it: they are set aside in their
pages, and stay there as they are until the sweep removes their queue (one without a record that
holds nothing else). Any other record that can't be read refuses the store.
"""

import asyncio
import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import apsw
from msgspec.json import decode

from zaqar_lite.domain.attempts import Attempt
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.groups import group_of
from zaqar_lite.domain.ids import MAX_POSITION, new_claim_id
from zaqar_lite.domain.metadata import FILTER, dead_letter_target
from zaqar_lite.domain.yielding import Slices
from zaqar_lite.storage.opendata.engine import Batch, Unreadable
from zaqar_lite.storage.opendata.format import (
    CodecError,
    bookkeeping,
    keys,
    records,
    utf8,
)
from zaqar_lite.storage.opendata.format.active import (
    NO_EXTRA,
    Element,
    encode_extra,
    read_active,
)
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.ids import Ids, number_in
from zaqar_lite.storage.opendata.pages import PAGE_SIZE
from zaqar_lite.storage.opendata.recorder import EMPTY, KINDS, STATES, Encoding
from zaqar_lite.storage.sql.entries import (
    DELAYED,
    END_NUMBERS,
    LEASED,
    PARKED,
    READY,
    encode,
    in_lists,
)
from zaqar_lite.storage.sql.queues import NEVER, SET_RECORD

if TYPE_CHECKING:
    from zaqar_lite.storage.opendata.slatedb import SlateDbEngine

logger = logging.getLogger(__name__)
_FIRST_SEGMENT = 1
_MARKER = utf8(bookkeeping.FORMAT_MARKER)
_WRONG = ValueError, OverflowError, apsw.ConstraintError
"""What reading a record raises that says something impossible, or what another says already."""
_RFC_ATTEMPTS = 10
"""The length of the RFC's own key of attempts; ours has the queue behind it."""
_Known: TypeAlias = tuple[int, str | None, str | None]
"""When a message came, from which client, and its headers."""
_TOGETHER = b"t"
"""What the name of a record of several idempotency keys begins with; earlier versions wrote it."""
_UNKNOWN = b"", bytes(16)
"""What earlier versions wrote where they knew no digest of what was posted."""
_PLACES = ", ".join("?" * 23)
INSERT_ENTRY = f"""INSERT OR IGNORE INTO entry
    VALUES ({_PLACES}, (SELECT length(body) FROM body WHERE number = ?16))"""
_SCRATCH = """
CREATE TABLE logged (
  id INTEGER PRIMARY KEY,
  received INTEGER NOT NULL,
  visible INTEGER NOT NULL,
  retention INTEGER NOT NULL,
  queue TEXT,
  client TEXT,
  headers TEXT
) STRICT;
CREATE TABLE ended (
  history INTEGER NOT NULL,
  number INTEGER NOT NULL,
  value BLOB NOT NULL,
  PRIMARY KEY (history, number)
) WITHOUT ROWID, STRICT;
CREATE INDEX by_id ON history (queue, id);
"""
"""The metadata log, single attempts, and where a message is in a history, while loading."""
_COUNTS = """
UPDATE body SET holders = c.holders
  FROM (SELECT body, count(*) AS holders FROM entry GROUP BY body) c WHERE number = c.body;
UPDATE queue SET ready = c.ready, delayed = c.delayed, leased = c.leased, parked = c.parked,
  bytes = c.bytes
  FROM (SELECT queue, sum(state = 0) AS ready, sum(state = 1) AS delayed,
               sum(state = 2) AS leased, sum(state = 3) AS parked, sum(size) AS bytes
        FROM entry GROUP BY queue) c
  WHERE content = c.queue;
UPDATE queue SET keys = c.keys
  FROM (SELECT queue, count(*) AS keys FROM idempotency GROUP BY queue) c WHERE number = c.queue;
UPDATE queue SET ended = c.ended
  FROM (SELECT queue, count(*) AS ended FROM history GROUP BY queue) c WHERE number = c.queue;
UPDATE queue SET sweep_at = 0 WHERE ready + delayed + leased + parked + keys + ended > 0;
DELETE FROM queue WHERE version = 0 AND ready + delayed + leased + parked + keys + ended = 0
  AND content NOT IN (SELECT queue FROM aside);
INSERT INTO project SELECT project, count(*) FROM queue WHERE version > 0 GROUP BY project;
UPDATE counter SET number = ?, position = ?, version = ?, instant = ?;
DELETE FROM body WHERE holders = 0;
DROP TABLE logged; DROP TABLE ended; DROP INDEX by_id; COMMIT;
"""


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
        block_end = sum(bookkeeping.BLOCK.decode(await _get(engine, key)))
        if block_end > MAX_POSITION:
            raise CodecError(f"a block up to {block_end}")
        async for rows in engine.scan(keys.LOG_SEGMENTS):
            for key, value in rows:
                start, _ = bookkeeping.SEGMENT.decode(value)
                segments.append((start, int.from_bytes(key[-4:], "big")))
    except CodecError as exc:
        raise Unreadable(key, str(exc)) from exc
    if not segments:
        raise Unreadable(keys.log_segment_key(_FIRST_SEGMENT), "it is missing")
    clock.not_before(instant)
    return Own(Ids(secret), routed, block_end, keys.Log(sorted(segments)))


async def _get(engine: "SlateDbEngine", key: bytes) -> bytes:
    value = await engine.get(key)
    if value is None:
        raise Unreadable(key, "it is missing")
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


class Numbers(NamedTuple):
    """A queue by its id, and its numbers in the tables: its own, and that of what it holds."""

    raw: bytes
    own: int
    content: int


class Loading:
    """One reading of a store into empty tables: `read`, routing, `finish`.

    `position` is the last id that is taken. `unreadable` has what can't be read of payloads and of
    the metadata log, by its key. `lacking` is what is to be written at once, with the pages of the
    rows in `again`, by kind and number, although these rows have not changed; after it `deletes`
    go, which earlier versions left.
    """

    def __init__(
        self, engine: "SlateDbEngine", connection: apsw.Connection, clock: Clock, own: Own
    ) -> None:
        self.engine = engine
        self.connection = connection
        self.own = own
        self.now = clock.now_ms()
        self.position = own.block_end - 1
        self.unreadable: dict[bytes, Unreadable] = {}
        self.lacking = Encoding(connection, own.ids, own.log)
        self.again: dict[tuple[RecordType, int], set[int]] = defaultdict(set)
        self.deletes: list[bytes] = []
        self.slices = Slices()
        self._kept_ids: dict[int, bytes] = {}
        self._ended_ids: dict[bytes, bytes] = {}
        self._queues: dict[bytes, Numbers] = {}
        self._claims: dict[tuple[bytes, bytes], records.ClaimRecord] = {}
        self._holders: dict[tuple[bytes, int], bytes] = {}
        self._held: dict[tuple[bytes, bytes], list[tuple[int, int]]] = defaultdict(list)
        self._bounds: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._number = 0

    @property
    def is_behind(self) -> bool:
        """Whether a batch should write what these records lack."""
        is_lacking = self.lacking.puts or self.lacking.deletes or self.again
        return bool(is_lacking) or self.position >= self.own.block_end

    async def read(self) -> None:
        """Read all records. Raises Unreadable: one that nothing replaces can't be read."""
        self.connection.execute(f"BEGIN; {_SCRATCH}")
        await self._each(RecordType.ADOPTED, self._read_kept_id)
        await self._read_messages()
        await self._each(RecordType.ATTEMPT, self._read_attempt)
        await self._each(RecordType.UNROUTED, self._read_unrouted)
        await self._each(RecordType.CONFIG, self._read_config)
        await self._each(RecordType.CLAIM, self._read_claim)
        await self._each(RecordType.ACTIVE, self._read_page)
        self._insert_claims()
        for state, kind in STATES.items():
            await self._each(kind, partial(self._read_ended, state))
        await self._each(RecordType.ATTEMPTS, self._read_attempts)
        await self._each(RecordType.IDEMPOTENCY, self._read_key)
        await self._each(RecordType.RECORD, self._read_record)
        await self._each(RecordType.GARBAGE, self._read_garbage)
        self._find_overlaps()
        last: int | None = self.connection.execute("SELECT max(id) FROM logged").get
        self.position = max(self.position, last or 0)  # it may be another writer's

    async def finish(self) -> None:
        """Count what was read, and drop what only reading needed."""
        counter = (self._number, self.position, self.position, self.now)
        await asyncio.to_thread(self.connection.execute, _COUNTS, counter)

    async def _each(self, kind: RecordType, read: Callable[[bytes, bytes], None]) -> None:
        """Let every record of a type be read, but for empty pages and another writer's queues.

        Raises Unreadable: one can't be.
        """
        empty = EMPTY.get(kind)
        async for rows in self.engine.scan(keys.prefix(kind)):
            for key, value in rows:
                await self.slices.next_turn()
                try:
                    if value != empty:
                        read(key, value)
                except keys.ForeignQueue as exc:
                    self._damaged(Unreadable(key, str(exc)))
                except _WRONG as exc:
                    raise Unreadable(key, str(exc)) from exc

    def _damaged(self, damage: Unreadable) -> None:
        logger.error("damaged: %s It is left as it is.", damage)
        self.unreadable[damage.key] = damage

    def numbers_of(self, raw: bytes) -> Numbers:
        """The numbers of a queue, which gets a row if it has none."""
        known = self._queues.get(raw)
        if known is None:
            ref = keys.read_queue_id(raw)
            known = self._queues[raw] = Numbers(raw, self._number + 1, self._number + 2)
            self._number += 2
            self.connection.execute(
                "INSERT INTO queue (number, project, name, content) VALUES (?, ?, ?, ?)",
                (known.own, *ref, known.content),
            )
        return known

    def _ended_id(self, raw: bytes, number: int) -> bytes:
        """The id of a message that has ended in a queue, by the number that its lists have."""
        return self._ended_ids.get(
            keys.message_key(RecordType.ADOPTED, number, raw)
        ) or self.own.ids.of(number)

    def _read_garbage(self, key: bytes, value: bytes) -> None:
        """Delete what earlier versions left of purged messages to their sweep."""
        for number in bookkeeping.GARBAGE.decode(value)[0]:
            self.deletes += keys.message_key(RecordType.PAYLOAD, number), self.own.log.key(number)
        self.deletes.append(key)

    def _read_kept_id(self, key: bytes, value: bytes) -> None:
        number = keys.read_message_id(key)
        if key == keys.message_key(RecordType.ADOPTED, number):
            self._kept_ids[number] = value
        else:
            self._ended_ids[key] = value

    async def _read_messages(self) -> None:
        """Read the log and the payloads; a scan ends at a damaged block."""
        for prefix in (*self.own.log.prefixes, keys.PAYLOAD_PREFIX):
            try:
                async for rows in self.engine.scan(prefix):
                    for key, value in rows:
                        await self.slices.next_turn()
                        self._read_one(key, value)
            except Unreadable as exc:
                self._damaged(exc)
        if self.unreadable:
            await self._read_what_is_behind()

    async def _read_what_is_behind(self) -> None:
        """Read one by one what no scan has come to, by the numbers that other records name."""
        bodies, logged = self._numbers("number FROM body"), self._numbers("id FROM logged")
        named = bodies | logged

        def name(_: bytes, value: bytes) -> None:
            named.update(element.fields[0] for element in read_active(value))

        await self._each(RecordType.ACTIVE, name)
        for number in sorted(one for one in named if one >= self.own.log.starts[0]):
            if number not in logged:
                await self._read_alone(self.own.log.key(number))
            if number not in bodies:
                await self._read_alone(keys.message_key(RecordType.PAYLOAD, number))

    def _numbers(self, column: str) -> set[int]:
        return {number for (number,) in self.connection.execute(f"SELECT {column}")}

    async def _read_alone(self, key: bytes) -> None:
        try:
            value = None if key in self.unreadable else await self.engine.get(key)
        except Unreadable as exc:
            self._damaged(exc)
        else:
            if value is not None:
                self._read_one(key, value)

    def _read_one(self, key: bytes, value: bytes) -> None:
        is_payload = key.startswith(keys.PAYLOAD_PREFIX)
        try:
            (self._read_payload if is_payload else self._read_logged)(key, value)
        except _WRONG as exc:
            self._damaged(Unreadable(key, str(exc)))

    def _read_logged(self, key: bytes, value: bytes) -> None:
        found = records.decode_metadata(value)
        number = found.message_id
        if number > MAX_POSITION or self.own.log.key(number) != key:
            raise CodecError(f"message {number} has its metadata at another's place")
        queue, client = found.take(records.QUEUE_HEADER), found.take(records.CLIENT_HEADER)
        headers = json.dumps(dict(found.headers)) if found.headers else None
        self.connection.execute(
            "INSERT OR IGNORE INTO logged VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                number, found.received_at, found.visible_at, found.retention_s,
                queue, client, headers,
            ),
        )  # fmt: skip

    def _read_payload(self, key: bytes, value: bytes) -> None:
        body = records.decode_payload(value)
        number = keys.read_message_id(key)
        self.connection.execute("INSERT INTO body VALUES (?, 0, ?)", (number, body))

    def _read_attempt(self, key: bytes, value: bytes) -> None:
        history, number = keys.read_message_id(key), int.from_bytes(key[10:], "big")
        ended = encode(records.decode_attempt(value))
        self.connection.execute("INSERT INTO ended VALUES (?, ?, ?)", (history, number, ended))

    def _read_unrouted(self, key: bytes, _: bytes) -> None:
        values = keys.read_message_id(key), keys.read_message_id(key, 10)
        self.connection.execute("INSERT INTO unrouted VALUES (?, ?)", values)

    def _read_config(self, key: bytes, value: bytes) -> None:
        raw = keys.read_queue_key(key).queue
        record = bookkeeping.decode_queue_record(keys.read_queue_id(raw), value)
        metadata, number = record.metadata, self.numbers_of(raw).own
        has_filter, letters = metadata.get(FILTER) is not None, dead_letter_target(metadata)
        text = json.dumps(metadata)
        values = (record.version, text, record.exposing, has_filter, letters, number)
        self.connection.execute(SET_RECORD, values)

    def _read_record(self, key: bytes, value: bytes) -> None:
        version, ends, text = bookkeeping.RECORD.decode(value)
        self.connection.execute(
            "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)",
            (*keys.read_record_key(key), text, version, None if ends < 0 else ends),
        )

    # -- pages --

    def _read_page(self, key: bytes, value: bytes) -> None:
        raw, rest = keys.read_queue_key(key)
        number, queue, elements = keys.read_page(rest), self.numbers_of(raw), read_active(value)
        known = self._known(list({element.fields[0] for element in elements}))
        rows: list[Sequence[Any]] = []
        positions: list[int] = []
        for element in elements:
            message = element.fields[0]
            position = message if element.extra.position is None else element.extra.position
            positions.append(position)
            if message in known:
                rows.append(self.row(queue, element, known[message]))
            else:
                self._set_aside(queue, position, element)
        if not positions:
            return
        first, last = min(positions), max(positions)
        if last > MAX_POSITION:
            raise CodecError(f"a position of {last}")
        self.connection.executemany(INSERT_ENTRY, rows)
        if len(positions) > PAGE_SIZE:  # of an earlier version, or of another writer
            self.again[RecordType.ACTIVE, queue.content].add(first)
        values = (RecordType.ACTIVE.value, queue.content, first, number or 0)
        self.connection.execute("INSERT OR IGNORE INTO page VALUES (?, ?, ?, ?)", values)
        self._bounds[queue.content].append((first, last))
        if not self.connection.changes():  # of another writer, which has messages twice
            self.lacking.delete(key)

    def _known(self, numbers: Sequence[int]) -> dict[int, _Known]:
        """What the log says of those messages that are whole."""
        found: dict[int, _Known] = {}
        for values, text in in_lists([one for one in numbers if one <= MAX_POSITION]):
            rows = self.connection.execute(
                "SELECT id, received, client, headers FROM logged CROSS JOIN body ON number = id"
                f" WHERE id IN ({text})",
                values,
            )
            found |= {number: (created, client, own) for number, created, client, own in rows}
        return found

    def _set_aside(self, queue: Numbers, position: int, element: Element) -> None:
        is_held, fields, extra = element
        logger.error("message %d is set aside: its payload or metadata can't be read", fields[0])
        encoded = b"" if extra == NO_EXTRA else encode_extra(fields[0], extra)
        values = (queue.content, position, is_held, json.dumps(fields), encoded)
        self.connection.execute("INSERT OR IGNORE INTO aside VALUES (?, ?, ?, ?, ?)", values)

    def row(self, queue: Numbers, element: Element, known: _Known) -> Sequence[Any]:
        """The row of an element of a page, without its size, by what the log says of its message.

        A record of another writer has no deadline in flight: its message outlives the lease.
        """
        is_held, (number, priority, due, expires, attempts), extra = element
        created, client, headers = known
        position = number if extra.position is None else extra.position
        shown = position if extra.renamed else number
        claim, claimed_at, until, state = extra.last_claim, 0, 0, READY
        if is_held:
            held_at, ends = due, expires
            due, expires = extra.held or (0, ends + 1)
            if not extra.parked:
                state, claimed_at, until = LEASED, held_at, ends
                claim = self._hold(queue.raw, shown, position, held_at, ends)
            elif ends > self.now:
                state, until = PARKED, ends
        elif due > self.now:
            state = DELAYED
        kept = self._kept_ids.get(shown)
        group = None if headers is None else group_of(json.loads(headers))
        return (
            queue.content, position, kept or self.own.ids.of(shown), state, priority, due, until,
            expires, extra.ttl_ms or expires - created, created, attempts, 0, claim, claimed_at,
            None, number, int(extra.shared or 0), int(kept is not None or shown != position), 0,
            client or "", headers,
            None if group is None else group.encode(errors="surrogatepass"),
            None if extra.origin is None else encode(extra.origin).decode(),
        )  # fmt: skip

    # -- claims and attempts --

    def _read_claim(self, key: bytes, value: bytes) -> None:
        raw, claim = keys.read_queue_key(key)
        record = self._claims[raw, claim] = records.decode_claim(value)
        self._holders.update(((raw, number), claim) for number in record.message_ids)

    def _hold(self, raw: bytes, shown: int, position: int, claimed_at: int, until: int) -> bytes:
        """Let a claim hold an entry; answer its id. A claim whose record is lost is made anew."""
        claim = self._holders.get((raw, shown))
        if claim is None:  # the record is lost, or another writer keeps none
            claim = bytes.fromhex(new_claim_id())
            ttl_ms = max(1, until - claimed_at)
            self._claims[raw, claim] = records.ClaimRecord(claimed_at, ttl_ms, "unknown", ())
        self._held[raw, claim].append((position, until))
        return claim

    def _insert_claims(self) -> None:
        for (raw, claim), (started, ttl_ms, client, _) in self._claims.items():
            held = sorted(self._held.get((raw, claim), ()))
            if not held:
                if started + ttl_ms <= self.now:
                    self.deletes.append(keys.queue_key(RecordType.CLAIM, raw) + claim)
                continue
            ends = [until for _, until in held]
            places = b"".join(position.to_bytes(8, "little") for position, _ in held)
            self.connection.execute(
                "INSERT INTO claim VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    claim, self.numbers_of(raw).content, client, started, ttl_ms, min(ends),
                    int(min(ends) == max(ends)), len(held), places,
                ),
            )  # fmt: skip

    def _read_attempts(self, key: bytes, value: bytes) -> None:
        number = keys.read_message_id(key)
        if len(key) == _RFC_ATTEMPTS:
            return  # they are of no queue: another writer's
        raw, _ = keys.read_queue_key(key, _RFC_ATTEMPTS)
        found = records.decode_attempts(value)
        own_id = self._kept_ids.get(number) or self.own.ids.of(number)
        queue = self.numbers_of(raw)
        row = self._find(queue.content, own_id)
        if row is None:
            self.connection.execute(
                "UPDATE history SET consumers = ? WHERE queue = ? AND id = ?",
                (json.dumps(found.consumers), queue.own, self._ended_id(raw, number)),
            )
            return
        content, position, state, body = row
        ended: list[Any] = self.connection.execute(
            "SELECT number, value FROM ended WHERE history = ? ORDER BY number", (found.history,)
        ).fetchall()
        history = self.own.ids.history(own_id, body)
        if found.history not in {0, history}:  # an earlier version gave numbers of its own
            for attempt, one in ended:
                value = records.encode_attempt(decode(one, type=Attempt))
                self.lacking.put(keys.attempt_key(history, attempt), value)
                self.deletes.append(keys.attempt_key(found.history, attempt))
            self.lacking.put(key, records.encode_attempts(found._replace(history=history)))
        if not (found.consumers or found.last_ended or found.failures or ended):
            return
        last_end = None if found.last_ended is None or state == LEASED else found.last_ended
        has_attempts = bool(found.consumers or ended)
        self.connection.execute(
            "UPDATE entry SET failures = ?, last_end = ?, has_attempts = ?"
            " WHERE queue = ? AND position = ?",
            (
                found.failures, None if last_end is None else END_NUMBERS[last_end], has_attempts,
                content, position,
            ),
        )  # fmt: skip
        if not has_attempts:
            return
        attempts = b"[" + b",".join(one for _, one in ended) + b"]"
        kept = (own_id, attempts, json.dumps(found.consumers))
        self.connection.execute("INSERT OR IGNORE INTO attempts VALUES (?, ?, ?)", kept)

    def _find(self, content: int, own_id: bytes) -> tuple[int, int, int, int] | None:
        """Where the entry with an id is, its state, and its message's number."""
        found: tuple[int, int, int, int] | None = self.connection.execute(
            "SELECT queue, position, state, body FROM entry"
            " WHERE queue = ?1 AND position = ?2 AND id = ?3"
            " UNION ALL SELECT queue, position, state, body FROM entry INDEXED BY moved"
            " WHERE moved = 1 AND queue = ?1 AND id = ?3 LIMIT 1",
            (content, min(number_in(own_id), MAX_POSITION), own_id),
        ).fetchone()
        return found

    # -- histories and keys --

    def _read_ended(self, state: str, key: bytes, value: bytes) -> None:
        raw, rest = keys.read_queue_key(key)
        page, queue = keys.read_page(rest), self.numbers_of(raw).own
        (listed,) = records.ENDED.decode(value)
        last = self.connection.execute(
            "SELECT ifnull(max(number), 0) FROM history WHERE queue = ? AND state = ?",
            (queue, state),
        ).get
        rows = []
        for number, ended_at, attempts in listed:
            last = max(last + 1, min(ended_at * 1000, NEVER))  # as `history.append` counts
            rows.append((
                queue, state, last, self._ended_id(raw, number), ended_at, attempts, "[]",
            ))  # fmt: skip
        self.connection.executemany("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        kind, first = STATES[state], rows[0][2]
        if len(rows) > PAGE_SIZE or (kind, queue) in self.again:  # what is behind it stays there
            self.lacking.delete(key)
            self.again[kind, queue].add(first)
        else:
            values = (kind.value, queue, first, page or 0)
            self.connection.execute("INSERT INTO page VALUES (?, ?, ?, ?)", values)

    def _read_key(self, key: bytes, value: bytes) -> None:
        raw, name = keys.read_queue_key(key)
        queue = self.numbers_of(raw).own
        ends, numbers, digests = bookkeeping.IDEMPOTENCY.decode(value)
        if name[:1] != _TOGETHER:
            self._insert_key(queue, name, ends, numbers, digests)
            return
        if len(digests) not in {16 * len(numbers), 32 * len(numbers)}:
            raise CodecError(f"{len(digests)} bytes of digests for {len(numbers)} ids")
        self.deletes.append(key)  # each key gets a record of its own
        each = [digests[at : at + 16] for at in range(0, len(digests), 16)]
        for own, digest, number in zip(each, each[len(numbers) :] or repeat(b""), numbers):  # noqa: B905 - one of them is endless
            if self._insert_key(queue, KINDS[0] + own, ends, (number,), digest):
                alone = bookkeeping.IDEMPOTENCY.encode(ends, (number,), digest)
                key = keys.queue_key(RecordType.IDEMPOTENCY, raw) + KINDS[0] + own
                self.lacking.put(key, alone)

    def _insert_key(
        self, queue: int, name: bytes, ends: int, numbers: Sequence[int], digest: bytes
    ) -> bool:
        """Insert a key; answer whether it is there no longer than this record says."""
        self.connection.execute(
            "INSERT INTO idempotency VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " ends = excluded.ends, digest = excluded.digest, ids = excluded.ids"
            " WHERE excluded.ends > ends",
            (
                queue, KINDS.index(name[:1]), name[1:].hex(), ends,
                None if digest in _UNKNOWN else digest, b"".join(map(self.own.ids.of, numbers)),
            ),
        )  # fmt: skip
        return self.connection.changes() > 0

    # -- the end --

    def _find_overlaps(self) -> None:
        """Let pages be written anew that lie within others: other writers know no ranges."""
        for content, bounds in self._bounds.items():
            before, end = -1, -1
            for first, last in sorted(bounds):
                if first <= end:
                    self.again[RecordType.ACTIVE, content].update((before, first))
                before, end = first, max(end, last)

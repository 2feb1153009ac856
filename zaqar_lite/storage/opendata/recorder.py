"""What a batch changed in the tables, as records of RFC 0001.

SQLite's session extension tells the net change of each row, so what an undone step did is not in
it. A record that consists of several rows (a page, a claim, a message's attempts) is made anew from
the tables.

    body                      payload, and the message's entry of the metadata log
    entry                     active pages, ids that are kept, attempts (consumers, holder)
    attempts                  single attempts
    claim, idempotency        one record a row
    history                   done and failed pages, and the consumers of what they list
    queue                     configuration, and the empty roots of a new queue
    record, unrouted          one record a row
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from time import monotonic
from typing import Any, TypeVar

import apsw
import msgspec

from zaqar_lite.domain.attempts import Attempt
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.opendata.engine import Batch
from zaqar_lite.storage.opendata.format import MAX_U16, bookkeeping, keys, records
from zaqar_lite.storage.opendata.format.active import encode_active
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.ids import Ids, number_in
from zaqar_lite.storage.opendata.pages import Changed, changed_pages, encode_page
from zaqar_lite.storage.sql.entries import ENDED, LEASED, in_lists

EMPTY = {
    RecordType.ACTIVE: encode_active(()),
    RecordType.DONE: records.ENDED.encode(()),
    RecordType.FAILED: records.ENDED.encode(()),
}
"""The values of pages without entries."""
STATES = {"done": RecordType.DONE, "failed": RecordType.FAILED}
"""The types of the pages of histories, by the state in the table `history`."""
KINDS = (b"m", b"b")
"""What the names of idempotency keys begin with, by their kind in the table."""
_TABLES = (
    "body", "entry", "attempts", "claim", "idempotency", "history", "queue", "record", "unrouted",
)  # fmt: skip
_TURN = 0.004
"""Seconds after which encoding lets the event loop run."""
_WHO = """SELECT e.position, e.body, e.id, e.state, e.failures, e.last_end, e.is_shared, e.moved,
    c.client, a.attempts, a.clients FROM entry e
    LEFT JOIN claim c ON e.state = 2 AND c.id = e.claim
    LEFT JOIN attempts a ON e.has_attempts = 1 AND a.id = e.id
    WHERE (e.state = 2 OR e.has_attempts = 1 OR e.last_end IS NOT NULL)
    AND e.queue = ? AND e.position"""
_HELD = """SELECT position, id, body, is_shared, moved FROM entry
    WHERE queue = ? AND state = 2 AND claim = ? AND position"""
_decode_attempts = msgspec.json.Decoder(tuple[Attempt, ...]).decode

_ID, _KEY, _NAME = ("id",), ("queue", "kind", "key"), ("kind", "project", "name")

Row = Sequence[Any]
T = TypeVar("T")


class Recorder:
    """Follows the changes of a connection, and makes a batch of records of them."""

    def __init__(self, connection: apsw.Connection, ids: Ids, log: keys.Log) -> None:
        self.connection = connection
        self._ids = ids
        self._log = log
        self._session: apsw.Session | None = None
        self.follow()

    def follow(self) -> None:
        """Begin with no changes: those so far are recorded, or were undone."""
        self._session = apsw.Session(self.connection, "main")
        for table in _TABLES:
            self._session.attach(table)

    def close(self) -> None:
        """Follow no more."""
        if self._session is not None:
            self._session.close()
            self._session = None

    async def encode(self) -> "Encoding":
        """Encode what has changed, as far as the tables are read for it.

        No statement of an operation may run meanwhile.
        """
        if self._session is None:
            raise Unavailable("The store is closed.")
        encoding = Encoding(self.connection, self._ids, self._log)
        changeset = self._session.changeset()
        self.close()  # the rows of queues are still to be written, and need no record
        try:
            await encoding.read(changeset)
            await encoding.encode()
        except BaseException:  # the batch is undone, and the next one must not go unrecorded
            self.follow()
            raise
        return encoding


class Encoding:
    """The changes of one batch, or what a start has to write."""

    def __init__(self, connection: apsw.Connection, ids: Ids, log: keys.Log) -> None:
        self._connection = connection
        self._ids = ids
        self._log = log
        self.puts: dict[bytes, bytes] = {}
        self.deletes: dict[bytes, None] = {}
        self._new: dict[str, list[Row]] = {table: [] for table in _TABLES}
        self._gone: dict[str, list[Row]] = {table: [] for table in _TABLES}
        self._changed: dict[str, list[tuple[Row, Row]]] = {table: [] for table in _TABLES}
        self._before: dict[bytes, bytes] = {}
        self._raws: dict[int, bytes] = {}
        self._posted: dict[int, tuple[Row, bytes]] = {}
        self._until = 0.0

    def put(self, key: bytes, value: bytes) -> None:
        """Write a record."""
        self.puts[key] = value
        self.deletes.pop(key, None)

    def delete(self, key: bytes) -> None:
        """Delete a record."""
        self.puts.pop(key, None)
        self.deletes[key] = None

    async def read(self, changeset: bytes) -> None:
        """Sort the changes by table and kind."""
        async for change in self._each(apsw.Changeset.iter(changeset)):
            old, new = change.old, change.new
            if old is None:
                self._new[change.name].append(new or ())
            elif new is None:
                self._gone[change.name].append(old)
            else:
                self._changed[change.name].append((old, new))
        self._before = {row[0]: b"[]" for row in self._new["attempts"]}
        for row, _ in self._changed["attempts"]:
            if row[1] is not apsw.no_change:
                self._before[row[0]] = row[1]

    async def encode(self) -> None:
        """Make the records that the tables are read for.

        What goes is deleted before the rest: a queue may go and come back in one batch.
        """
        for row in self._gone["queue"]:
            self._delete_queue(row)
        await self._delete_attempts()
        await self._encode_entries()
        await self._encode_rows("claim", _ID, self._claim_key, self._claim)
        await self._encode_rows("idempotency", _KEY, self._idempotency_key, _idempotency)
        await self._encode_rows("record", _NAME, lambda row: keys.record_key(*row[:3]), _record)
        await self._encode_rows("unrouted", (), lambda row: keys.unrouted_key(*row), lambda _: b"")
        for _, number in self._gone["unrouted"]:
            self._delete_message(number)
        await self._encode_history()
        await self._encode_queues()

    async def finish(self) -> Batch:
        """Make the payloads and the entries of the log; answer all changes.

        An entry that a message was posted as says when it came.
        """
        async for number, *_ in self._each(self._gone["body"]):
            self._delete_message(number)
        async for number, _, body in self._each(self._new["body"]):
            self.put(keys.message_key(RecordType.PAYLOAD, number), records.encode_payload(body))
            if number in self._posted:
                row, headers = self._posted[number]
                self.put(self._log.key(number), _metadata(row, headers))
        for (number, *_), new in self._changed["body"]:
            if new[2] is not apsw.no_change:
                payload = records.encode_payload(new[2])
                self.put(keys.message_key(RecordType.PAYLOAD, number), payload)
        return Batch(self.puts, list(self.deletes))

    async def _each(self, rows: Iterable[T]) -> AsyncIterator[T]:
        """Take rows one by one, and let the event loop run when it has waited for long."""
        for row in rows:
            if monotonic() > self._until:
                if self._until:
                    await asyncio.sleep(0)
                self._until = monotonic() + _TURN
            yield row

    async def _encode_rows(
        self,
        table: str,
        names: Sequence[str],
        key_of: Callable[[Row], bytes],
        encode: Callable[[Row], bytes],
    ) -> None:
        """Encode a table of which each row is a record; its key has the columns `names`."""
        async for row in self._each(self._gone[table]):
            self.delete(key_of(row))
        rows = list(self._new[table])
        where = " AND ".join(f"{name} = ?" for name in names)
        for old, _ in self._changed[table]:
            statement = f"SELECT * FROM {table} WHERE {where}"
            rows += self._connection.execute(statement, old[: len(names)])
        async for row in self._each(rows):
            self.put(key_of(row), encode(row))

    # -- messages --

    def _delete_message(self, number: int) -> None:
        """Delete what is stored of a message that no queue holds any more."""
        self.delete(keys.message_key(RecordType.PAYLOAD, number))
        self.delete(self._log.key(number))

    async def _encode_entries(self) -> None:
        touched: dict[int, set[int]] = defaultdict(set)
        ended: dict[int, set[int]] = defaultdict(set)
        async for row in self._each(self._gone["entry"]):
            touched[row[0]].add(row[1])
            self._forget_entry(row)
        async for row in self._each(self._new["entry"]):
            touched[row[0]].add(row[1])
            if row[10] or row[18] or row[14] is not None:
                ended[row[0]].add(row[1])
            if row[17]:
                self._keep_id(row)
            if row[1] == row[15] or row[15] not in self._posted:
                self._posted[row[15]] = row, _headers(self._raw(row[0]).decode(), row[19], row[20])
        for old, new in self._changed["entry"]:
            touched[old[0]].add(old[1])
            if new[3] is not apsw.no_change or new[12] is not apsw.no_change:
                ended[old[0]].add(old[1])
        async for queue, positions in self._each(ended.items()):
            self._encode_attempts(queue, sorted(positions))
        for queue, positions in touched.items():
            await self.encode_pages(RecordType.ACTIVE, queue, positions)

    def _forget_entry(self, row: Row) -> None:
        """Delete what a queue has of an entry that left it, or moved within it."""
        raw, number = self._raw(row[0]), row[15]
        shown = self._ids.shown(row[2], row[1], number, row[16], row[17])
        if shown.is_kept:
            self.delete(keys.message_key(RecordType.ADOPTED, shown.number))
        if row[10] or row[17] or row[18]:
            self.delete(keys.message_key(RecordType.ATTEMPTS, shown.number, raw))

    def _keep_id(self, row: Row) -> None:
        shown = self._ids.shown(row[2], row[1], row[15], row[16], row[17])
        if shown.is_kept:
            self.put(keys.message_key(RecordType.ADOPTED, shown.number), row[2])

    def _encode_attempts(self, queue: int, positions: Sequence[int]) -> None:
        """Put who held messages, and who holds them; and the attempts that ended, one by one."""
        raw = self._raw(queue)
        for values, text in in_lists(positions):
            for row in self._connection.execute(f"{_WHO} IN ({text})", (queue, *values)):
                (
                    position, number, own_id, state, failures, last, is_shared, moved, client,
                    ended, by,
                ) = row  # fmt: skip
                shown = self._ids.shown(own_id, position, number, is_shared, moved)
                attempts = {} if ended is None else read_attempts(ended)
                history = self._ids.history(own_id, number)
                outcome = [one.outcome for one in attempts.values()][-1] if attempts else None
                known = records.Attempts(
                    () if by is None else tuple(json.loads(by)),
                    0 if outcome is None and last is None else history,
                    failures,
                    outcome if last is None or state == LEASED else ENDED[last],
                    [(number, one.size) for number, one in attempts.items()],
                    client,
                )
                key = keys.message_key(RecordType.ATTEMPTS, shown.number, raw)
                self.put(key, records.encode_attempts(known))
                if own_id in self._before:
                    self._put_attempts(history, self._before[own_id], attempts)

    def _put_attempts(self, history: int, before: bytes, attempts: Mapping[int, Attempt]) -> None:
        known = read_attempts(before)
        for number in known.keys() - attempts.keys():
            self.delete(keys.attempt_key(history, number))
        for number, one in attempts.items():
            if one != known.get(number):
                self.put(keys.attempt_key(history, number), records.encode_attempt(one))

    async def _delete_attempts(self) -> None:
        numbers = {row[2]: row[15] for row in self._gone["entry"]}
        async for message_id, ended, _ in self._each(self._gone["attempts"]):
            number = numbers.get(message_id, number_in(message_id))
            history = self._ids.history(message_id, number)
            for attempt in read_attempts(ended):
                self.delete(keys.attempt_key(history, attempt))

    # -- pages --

    def _raw(self, number: int) -> bytes:
        """The id of a queue, by its number or its content's."""
        raw = self._raws.get(number)
        if raw is None:
            (project, name), *_ = self._connection.execute(
                "SELECT project, name FROM queue WHERE content = ?1 OR number = ?1", (number,)
            )
            raw = self._raws[number] = keys.queue_id(QueueRef(project, name))
        return raw

    async def encode_pages(self, kind: RecordType, queue: int, rows: Iterable[int]) -> None:
        """Put the pages of which rows changed."""
        changed = changed_pages(self._connection, kind, queue, sorted(rows))
        async for page in self._each(changed):
            self._put_page(kind, queue, page)

    def _put_page(self, kind: RecordType, queue: int, page: Changed) -> None:
        key = keys.queue_key(kind, self._raw(queue), page.number)
        if kind is not RecordType.ACTIVE:
            listed = [
                (number_in(own_id), ended, min(attempts, MAX_U16))
                for _, own_id, ended, attempts in page.rows
            ]
            value = records.ENDED.encode(listed)
        else:
            value = encode_page(self._connection, self._ids, queue, page)
        if value != EMPTY[kind] or (page.number is None and self._has_record(queue)):
            self.put(key, value)
        else:
            self.delete(key)

    # -- claims, keys, histories --

    def _claim_key(self, row: Row) -> bytes:
        claim: bytes = row[0]
        return keys.queue_key(RecordType.CLAIM, self._raw(row[1])) + claim

    def _claim(self, row: Row) -> bytes:
        claim, queue, client, started, ttl, *_, positions = row
        held: list[Any] = []
        for values, text in in_lists(memoryview(positions).cast("q").tolist()):
            held += self._connection.execute(f"{_HELD} IN ({text})", (queue, claim, *values))
        numbers = [
            self._ids.shown(own_id, position, number, is_shared, moved).number
            for position, own_id, number, is_shared, moved in sorted(held)
        ]
        return records.encode_claim(records.ClaimRecord(started, ttl, client, numbers))

    def _idempotency_key(self, row: Row) -> bytes:
        name = KINDS[row[1]] + bytes.fromhex(row[2])
        return keys.queue_key(RecordType.IDEMPOTENCY, self._raw(row[0])) + name

    def _ended_key(self, kind: RecordType, row: Row) -> bytes:
        return keys.message_key(kind, number_in(row[3]), self._raw(row[0]))

    async def _encode_history(self) -> None:
        changed: dict[tuple[str, int], set[int]] = defaultdict(set)
        async for row in self._each(self._gone["history"]):
            changed[row[1], row[0]].add(row[2])
            self.delete(self._ended_key(RecordType.ATTEMPTS, row))
            if not self._ids.is_ours(row[3]):
                self.delete(self._ended_key(RecordType.ADOPTED, row))
        async for row in self._each(self._new["history"]):
            changed[row[1], row[0]].add(row[2])
            if not self._ids.is_ours(row[3]):
                self.put(self._ended_key(RecordType.ADOPTED, row), row[3])
            consumers = tuple(json.loads(row[6]))
            if consumers:
                value = records.encode_attempts(records.Attempts(consumers))
                self.put(self._ended_key(RecordType.ATTEMPTS, row), value)
        for (state, queue), numbers in changed.items():
            await self.encode_pages(STATES[state], queue, numbers)

    # -- queues and other records --

    async def _encode_queues(self) -> None:
        changed = [old[0] for old, new in self._changed["queue"] if new[3] is not apsw.no_change]
        changed += [row[0] for row in self._new["queue"] if row[3]]
        async for number in self._each(changed):
            ((project, name, version, metadata, exposing, content),) = self._connection.execute(
                "SELECT project, name, version, metadata, exposing, content FROM queue"
                " WHERE number = ?",
                (number,),
            )
            ref = QueueRef(project, name)
            raw = keys.queue_id(ref)
            key = keys.queue_key(RecordType.CONFIG, raw)
            if version:
                record = QueueRecord(ref, json.loads(metadata), version, bool(exposing))
                self.put(key, bookkeeping.encode_queue_record(record))
            else:
                self.delete(key)
            for kind, queue in _lists_of(number, content):
                root = keys.queue_key(kind, raw)
                if root in self.puts or self._has_pages(kind, queue):
                    continue
                if version:
                    self.put(root, EMPTY[kind])
                else:
                    self.delete(root)

    def _has_record(self, number: int) -> bool:
        statement = "SELECT version FROM queue WHERE content = ?1 OR number = ?1"
        return bool(self._connection.execute(statement, (number,)).get)

    def _has_pages(self, kind: RecordType, queue: int) -> bool:
        statement = "SELECT EXISTS (SELECT 1 FROM page WHERE kind = ? AND queue = ?)"
        return bool(self._connection.execute(statement, (kind.value, queue)).get)

    def _delete_queue(self, row: Row) -> None:
        number, project, name, content = *row[:3], row[8]
        raw = self._raws[content] = self._raws[number] = keys.queue_id(QueueRef(project, name))
        if row[3]:
            self.delete(keys.queue_key(RecordType.CONFIG, raw))
        for kind, queue in _lists_of(number, content):
            of_queue = (kind.value, queue)
            pages: list[Any] = self._connection.execute(
                "SELECT number FROM page WHERE kind = ? AND queue = ?", of_queue
            ).fetchall()
            for page in {0, *(one for (one,) in pages)}:
                self.delete(keys.queue_key(kind, raw, page or None))
            self._connection.execute("DELETE FROM page WHERE kind = ? AND queue = ?", of_queue)


def read_attempts(data: bytes) -> dict[int, Attempt]:
    """Read the column `attempts`: by the numbers in their keys, which keep their order.

    The records count hand-outs up to 65,535. A message that was redriven may count them anew.
    """
    attempts = [
        one if one.number <= MAX_U16 else one._replace(number=MAX_U16)
        for one in _decode_attempts(data)
    ]
    numbers = [one.number for one in attempts]
    if numbers != sorted(set(numbers)):
        numbers = list(range(len(attempts)))
    return dict(zip(numbers, attempts, strict=True))


@lru_cache(1_024)
def _headers(queue: str, client: str, own: str | None) -> bytes:
    """The headers that a message has in the log; most of a post have the same."""
    pairs = [(records.QUEUE_HEADER, queue)]
    headers = {} if own is None else json.loads(own)
    if client or records.CLIENT_HEADER in headers:  # the first one of that name is ours
        pairs.append((records.CLIENT_HEADER, client))
    pairs += headers.items()
    return records.HEADERS.encode(pairs)


def _metadata(row: Row, headers: bytes) -> bytes:
    due, expires, created = row[5], row[7], row[9]
    # 0 would mean for ever
    retention_s = min(max(1, -(-(expires - created) // 1000)), records.LONGEST_S)
    return records.POSTED.encode((row[15], created, created, due or created, retention_s), headers)


def _idempotency(row: Row) -> bytes:
    ends, digest, ids = row[3:]
    numbers = [number_in(ids[at : at + 16]) for at in range(0, len(ids), 16)]
    return bookkeeping.IDEMPOTENCY.encode(ends, numbers, digest or b"")


def _record(row: Row) -> bytes:
    value, version, ends = row[3:]
    return bookkeeping.RECORD.encode(version, -1 if ends is None else ends, value)


def _lists_of(number: int, content: int) -> tuple[tuple[RecordType, int], ...]:
    """The lists of a queue, and the numbers that their pages are under."""
    return (RecordType.ACTIVE, content), (RecordType.DONE, number), (RecordType.FAILED, number)

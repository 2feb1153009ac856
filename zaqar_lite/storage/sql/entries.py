"""Rows of messages: what readers see of them, and the statements that several operations share."""

import json
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from zaqar_lite.domain.attempts import Attempt, Ended, with_attempt
from zaqar_lite.domain.ids import MAX_POSITION, are_message_ids, is_message_id
from zaqar_lite.domain.models import Message, Origin
from zaqar_lite.storage.sql.queues import NEVER, Queue

if TYPE_CHECKING:
    from zaqar_lite.storage.sql.database import Database

READY, DELAYED, LEASED, PARKED = range(4)
"""The states of an entry, as `schema.sql` writes them."""
ENDED: tuple[Ended, ...] = (Ended.RELEASED, Ended.FAILED, Ended.LAPSED, Ended.DEAD)
"""How a hand-out ended, by its number in the column `last_end`."""
END_NUMBERS: Mapping[Ended, int] = {ended: number for number, ended in enumerate(ENDED)}

_MOST_CLIENTS = 64
"""Client-IDs of ended hand-outs that are kept of a message."""
_MOST_MARKS = 512
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, _MOST_MARKS)

MESSAGE = """e.position, e.id, b.body, e.ttl, e.created, e.expires, e.state, e.until, e.claim,
    e.claims, e.client, e.due, e.headers, e.origin, e.failures"""
"""The columns that `message_of` takes, of an entry `e` and its body `b`."""
MESSAGES = f"SELECT {MESSAGE} FROM entry e CROSS JOIN body b ON b.number = e.body"
INSERT_ENTRY = f"INSERT INTO entry VALUES ({', '.join('?' * 24)})"
"""Of all columns, as `schema.sql` has them."""
_ENTRY = """position, id, state, due, until, expires, ttl, claims, failures, claim, claimed_at,
    last_end, body, size, is_shared, has_attempts, origin"""

decode_origin = msgspec.json.Decoder(Origin).decode
_decode_attempts = msgspec.json.Decoder(tuple[Attempt, ...]).decode
encode = msgspec.json.encode


class Entry(NamedTuple):
    """What operations need of the row of a message in a queue; see `schema.sql`."""

    position: int
    id: bytes
    state: int
    due: int
    until: int
    expires: int
    ttl: int
    claims: int
    failures: int
    claim: bytes | None
    claimed_at: int
    last_end: int | None
    body: int
    size: int
    is_shared: int
    has_attempts: int
    origin: str | None

    def holder(self, now: int) -> bytes | None:
        """The live claim that holds it."""
        return self.claim if self.state == LEASED and self.until > now else None


def message_of(row: Sequence[Any], now: int) -> Message:
    """What a reader sees of a row of the columns MESSAGE at `now`."""
    (
        position, number, body, ttl, created, expires, state, until, claim, claims, client, due,
        headers, origin, failures,
    ) = row  # fmt: skip
    lasts = state >= LEASED and until > now
    return Message(
        number.hex(),
        position,
        body,
        ttl,
        created,
        expires,
        now,
        claim.hex() if lasts and state == LEASED else None,
        claims,
        client,
        due or None,
        None if headers is None else json.loads(headers),
        None if origin is None else decode_origin(origin),
        failures,
        until if lasts and state == PARKED else None,
    )


_MARKS = {size: ",".join("?" * size) for size in _SIZES}


def in_lists(values: Sequence[Any]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Cut values into lists for `IN (...)`: the values, filled up with the last, and their marks.

    Lists have few different lengths, so that few statements are prepared.
    """
    for first in range(0, len(values), _MOST_MARKS):
        part = values[first : first + _MOST_MARKS]
        size = next(size for size in _SIZES if size >= len(part))
        yield (*part, *[part[-1]] * (size - len(part))), _MARKS[size]


def places_of(ids: Collection[str]) -> dict[bytes, int]:
    """The ids that have the form of one, as bytes, and the position that each begins with."""
    if not are_message_ids(ids):
        ids = [text for text in ids if is_message_id(text)]
    numbers = bytes.fromhex("".join(ids))
    firsts = struct.unpack(">" + "Q8x" * len(ids), numbers)
    cuts = range(0, len(numbers), 16)
    return {
        numbers[at : at + 16]: min(first, MAX_POSITION)
        for at, first in zip(cuts, firsts, strict=True)
    }


def find(db: "Database", queue: Queue, ids: Collection[str], now: int) -> dict[str, Entry]:
    """The live entries with these ids, by id."""
    entries = map(Entry._make, _rows_of(db, queue, ids, f"SELECT {_ENTRY} FROM entry e"))
    return {entry.id.hex(): entry for entry in entries if entry.expires > now}


def find_messages(
    db: "Database", queue: Queue, ids: Collection[str], now: int
) -> dict[str, Message]:
    """The live messages with these ids, by id."""
    rows = _rows_of(db, queue, ids, MESSAGES)
    found = (message_of(row, now) for row in rows)
    return {message.id: message for message in found if message.expires_at > now}


def _rows_of(
    db: "Database", queue: Queue, ids: Collection[str], select: str
) -> list[tuple[Any, ...]]:
    """Rows of entries by id: where the id says, else by the index of what was moved."""
    places = places_of(ids)
    rows: list[tuple[Any, ...]] = []
    for values, text in in_lists(list(places.values())):
        found = db.execute(
            f"{select} WHERE e.queue = ? AND e.position IN ({text})", (queue.content, *values)
        )
        rows += [row for row in found if row[1] in places]
    if len(rows) < len(places):
        here = {row[1] for row in rows}
        by_id = select.replace("entry e", "entry e INDEXED BY moved")
        for number in places.keys() - here:
            values = (queue.content, number)
            rows += db.execute(f"{by_id} WHERE e.moved = 1 AND e.queue = ? AND e.id = ?", values)
    return rows


def entries_at(db: "Database", queue: Queue, positions: Sequence[int]) -> list[Entry]:
    """The entries at these positions, expired ones too, in order of position."""
    entries: list[Entry] = []
    for values, text in in_lists(positions):
        entries += map(
            Entry._make,
            db.execute(
                f"SELECT {_ENTRY} FROM entry WHERE queue = ? AND position IN ({text})",
                (queue.content, *values),
            ),
        )
    return sorted(entries)


def entries_where(db: "Database", clause: str, values: Sequence[Any]) -> list[Entry]:
    """Entries by an index: `clause` begins with INDEXED BY."""
    found = db.execute(f"SELECT {_ENTRY} FROM entry {clause}", values)
    return list(map(Entry._make, found))


def remove(db: "Database", queue: Queue, entries: Collection[Entry]) -> None:
    """Delete entries with their bodies and attempts; their claims hold them no more."""
    if not entries:
        return
    leave_state(db, queue, entries)
    delete(db, queue, entries)


def delete(db: "Database", queue: Queue, entries: Collection[Entry]) -> None:
    """Delete entries that have left their states."""
    for values, text in in_lists([entry.position for entry in entries]):
        db.execute(
            f"DELETE FROM entry WHERE queue = ? AND position IN ({text})",
            (queue.content, *values),
        )
    queue.bytes -= sum(entry.size for entry in entries)
    delete_bodies(db, entries)


def delete_bodies(db: "Database", entries: Collection[Entry]) -> None:
    """Delete what entries that are gone had beside their rows: bodies and attempts."""
    for values, text in in_lists([entry.body for entry in entries if not entry.is_shared]):
        db.execute(f"DELETE FROM body WHERE number IN ({text})", values)
    leave_bodies(db, [entry.body for entry in entries if entry.is_shared])
    kept = [(entry.id,) for entry in entries if entry.has_attempts]
    if kept:
        db.executemany("DELETE FROM attempts WHERE id = ?", kept)


def leave_bodies(db: "Database", numbers: Sequence[int]) -> None:
    """Count one holder less of shared bodies, and delete those that nothing holds any more."""
    if numbers:
        shared = [(number,) for number in numbers]
        db.executemany("UPDATE body SET holders = holders - 1 WHERE number = ?", shared)
        db.executemany("DELETE FROM body WHERE number = ? AND holders <= 0", shared)


def leave_state(db: "Database", queue: Queue, entries: Collection[Entry]) -> None:
    """Take entries out of the counts of their states, and out of the claims that hold them."""
    db.touch(queue)
    claims: dict[bytes | None, int] = {}
    for entry in entries:
        state = entry.state
        if state == READY:
            queue.ready -= 1
        elif state == LEASED:
            queue.leased -= 1
            claims[entry.claim] = claims.get(entry.claim, 0) + 1
        elif state == DELAYED:
            queue.delayed -= 1
        else:
            queue.parked -= 1
    for claim, count in claims.items():
        db.execute("DELETE FROM claim WHERE id = ? AND held <= ?", (claim, count))
        if not db.connection.changes():
            db.execute("UPDATE claim SET held = held - ? WHERE id = ?", (count, claim))


class Kept(NamedTuple):
    """The ended hand-outs that are kept of a message, and the Client-IDs of the last of them."""

    attempts: Sequence[Attempt]
    clients: list[str]


def kept_of(db: "Database", number: bytes) -> Kept:
    """What is kept of a message's ended hand-outs, oldest first."""
    row = db.execute("SELECT attempts, clients FROM attempts WHERE id = ?", (number,)).fetchone()
    return Kept((), []) if row is None else Kept(_decode_attempts(row[0]), json.loads(row[1]))


def add_attempt(db: "Database", entry: Entry, attempt: Attempt) -> None:
    """Keep one more ended hand-out of a message."""
    attempts, clients = kept_of(db, entry.id) if entry.has_attempts else Kept((), [])
    if attempt.client_id is not None:
        clients.append(attempt.client_id)
    keep_attempts(db, entry.id, with_attempt(attempts, attempt), clients)


def keep_attempts(
    db: "Database", number: bytes, attempts: Sequence[Attempt], clients: Sequence[str]
) -> None:
    """Keep these ended hand-outs of a message, and no others."""
    last = json.dumps(clients[-_MOST_CLIENTS:])
    db.execute("INSERT OR REPLACE INTO attempts VALUES (?, ?, ?)", (number, encode(attempts), last))


def with_attempts(db: "Database", messages: Iterable[Message]) -> None:
    """Fill in the attempts of messages."""
    for message in messages:
        message.attempts = kept_of(db, bytes.fromhex(message.id)).attempts


def raise_ttl(
    db: "Database", queue: Queue, positions: Sequence[int], ttl_ms: int, expires: int
) -> None:
    """Give entries a longer life."""
    queue.over_at = min(queue.over_at, expires)
    db.executemany(
        "UPDATE entry SET ttl = ?, expires = ? WHERE queue = ? AND position = ?",
        [(ttl_ms, expires, queue.content, position) for position in positions],
    )


def first_of(db: "Database", statement: str, values: Sequence[Any]) -> int:
    """The first value of a statement; NEVER where there is none."""
    row = db.execute(statement, values).fetchone()
    return NEVER if row is None or row[0] is None else int(row[0])

"""The pages of a queue: which of its rows are one record of the store.

A page is a range of positions: from its first position up to the first one of the next page. The
table `page` has their numbers in the records' keys; 0 is the root. The same holds for the lists of
done and of failed messages, by the numbers of their rows. A page that grows over PAGE_SIZE is cut,
and what comes behind it gets numbers of its own, so a message stays in its page for life.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import apsw

from zaqar_lite.storage.opendata.format import MAX_U16
from zaqar_lite.storage.opendata.format.active import (
    NO_EXTRA,
    Extra,
    encode_active,
    encode_extra,
)
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.ids import Ids
from zaqar_lite.storage.sql.entries import LEASED, PARKED, decode_origin
from zaqar_lite.storage.sql.queues import NEVER

PAGE_SIZE = 32
"""Rows of a page."""

SCHEMA = """
-- Which rows are which page. `kind` is the type of the record. `queue` and `first` are the queue's
-- content and a position, or for done and failed messages its number and a row's number.
CREATE TABLE page (
  kind INTEGER NOT NULL,
  queue INTEGER NOT NULL,
  first INTEGER NOT NULL,
  number INTEGER NOT NULL,
  PRIMARY KEY (kind, queue, first)
) WITHOUT ROWID, STRICT;
CREATE INDEX numbered ON page (kind, queue, number);
-- Elements of active pages whose payload or metadata can't be read: never handed out or listed,
-- and written back as they were. `fields` are the RFC's five, and `extra` is encoded.
CREATE TABLE aside (
  queue INTEGER NOT NULL,
  position INTEGER NOT NULL,
  is_held INTEGER NOT NULL,
  fields TEXT NOT NULL,
  extra BLOB NOT NULL,
  PRIMARY KEY (queue, position)
) WITHOUT ROWID, STRICT;
-- Messages of the log that no queue received, until their retention ends.
CREATE TABLE unrouted (
  deadline INTEGER NOT NULL,
  id INTEGER NOT NULL,
  PRIMARY KEY (deadline, id)
) WITHOUT ROWID, STRICT;
CREATE INDEX by_content ON queue (content);
"""

_ROWS = {
    RecordType.ACTIVE: """SELECT position, body, priority, due, expires, claims, id, state, until,
        ttl, created, claim, claimed_at, is_shared, moved, origin FROM entry
        WHERE queue = ? AND position >= ? AND position < ? ORDER BY position""",
    RecordType.DONE: """SELECT number, id, ended, attempts FROM history
        WHERE queue = ? AND state = 'done' AND number >= ? AND number < ? ORDER BY number""",
    RecordType.FAILED: """SELECT number, id, ended, attempts FROM history
        WHERE queue = ? AND state = 'failed' AND number >= ? AND number < ? ORDER BY number""",
}
_OF = "WHERE kind = ? AND queue = ?"


class Changed(NamedTuple):
    """A page to write: its number (None is the root), its bounds and its rows."""

    number: int | None
    first: int
    end: int
    rows: Sequence[Sequence[Any]]


def changed_pages(
    connection: apsw.Connection, kind: RecordType, queue: int, changed: Sequence[int]
) -> Iterator[Changed]:
    """The pages of which rows changed, by their ascending positions; those without rows go.

    `queue` is its number in the table `page`.
    """
    at = 0
    while at < len(changed):
        first, number, end = _range_of(connection, kind, queue, changed[at])
        after = bisect_left(changed, end, at)
        inside, at = changed[at:after], after
        rows = connection.execute(_ROWS[kind], (queue, first, end)).fetchall()
        cuts = [*range(0, max(1, len(rows)), PAGE_SIZE), len(rows)]
        for start, stop in pairwise(cuts):
            begins = first if start == 0 else rows[start][0]
            ends = end if stop == len(rows) else rows[stop][0]
            is_new = start > 0 or number is None
            if is_new and rows:
                number = _new_number(connection, kind, queue)
                values = (kind.value, queue, begins, number)
                connection.execute("INSERT INTO page VALUES (?, ?, ?, ?)", values)
            if number is None:
                continue
            if is_new or bisect_left(inside, begins) < bisect_left(inside, ends):
                is_active = kind is RecordType.ACTIVE
                if not rows[start:stop] and not (
                    is_active and _aside(connection, queue, begins, ends)
                ):
                    remove = f"DELETE FROM page {_OF} AND first = ?"
                    connection.execute(remove, (kind.value, queue, begins))
                yield Changed(number or None, begins, ends, rows[start:stop])


def _range_of(
    connection: apsw.Connection, kind: RecordType, queue: int, position: int
) -> tuple[int, int | None, int]:
    """The bounds of the page that a position is in, and its number; None where it is new."""
    values = (kind.value, queue, position)
    before = connection.execute(
        f"SELECT first, number FROM page {_OF} AND first <= ? ORDER BY first DESC LIMIT 1", values
    ).fetchone()
    after = connection.execute(
        f"SELECT first FROM page {_OF} AND first > ? ORDER BY first LIMIT 1", values
    ).fetchone()
    first, number = before or (position, None)
    return first, number, NEVER if after is None else after[0]


def _new_number(connection: apsw.Connection, kind: RecordType, queue: int) -> int:
    """A number that no page has; the root's where there is no page."""
    last = connection.execute(
        f"SELECT number FROM page INDEXED BY numbered {_OF} ORDER BY number DESC LIMIT 1",
        (kind.value, queue),
    ).get
    return 0 if last is None else int(last) + 1


def _aside(
    connection: apsw.Connection, queue: int, first: int, end: int
) -> list[tuple[int, int, str, bytes]]:
    """The elements of a page that are set aside: position, whether held, fields and extra."""
    found: list[Any] = connection.execute(
        "SELECT position, is_held, fields, extra FROM aside"
        " WHERE queue = ? AND position >= ? AND position < ? ORDER BY position",
        (queue, first, end),
    ).fetchall()
    return found


def encode_page(connection: apsw.Connection, ids: Ids, queue: int, page: Changed) -> bytes:
    """Encode an active page: its rows, and the elements that are set aside."""
    elements: list[tuple[int, bool, Sequence[int], bytes]] = []
    for row in page.rows:
        (
            position, number, priority, due, expires, claims, own_id, state, until, ttl, created,
            claim, claimed_at, is_shared, moved, origin,
        ) = row  # fmt: skip
        attempts, is_held = min(claims, MAX_U16), state >= LEASED
        is_plain = position == number and ttl == expires - created and not (moved or is_shared)
        if is_plain and claim is None and not is_held:  # as most are
            elements.append((position, False, (number, priority, due, expires, attempts), b""))
            continue
        times = (claimed_at if state == LEASED else until, until) if is_held else (due, expires)
        shown = ids.shown(own_id, position, number, is_shared, moved)
        extra = Extra(
            (due, expires) if is_held else None,
            None if ttl == expires - created else ttl,
            None if position == number else position,
            shown.is_renamed or None,
            None if state == LEASED else claim,
            bool(is_shared) or None,
            parked=state == PARKED or None,
        )
        if origin is not None:
            extra = extra.with_origin(decode_origin(origin))
        elements.append((
            position, is_held, (number, priority, *times, attempts),
            b"" if extra == NO_EXTRA else encode_extra(number, extra),
        ))  # fmt: skip
    if others := _aside(connection, queue, page.first, page.end):
        elements += [(at, bool(held), json.loads(text), extra) for at, held, text, extra in others]
        elements.sort(key=lambda one: one[0])
    return encode_active([(held, fields, extra) for _, held, fields, extra in elements])

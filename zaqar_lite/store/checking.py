"""What holds between the rows of a store's tables: how a breach is found, and how it is mended.

`check` finds breaches; `salvage` mends them in a new store, into which it has copied what can be
read of a damaged one.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import apsw
from msgspec import DecodeError
from msgspec.json import decode


class Lost(NamedTuple):
    """Rows that lack what they need, the end of the sentence, and what mends them."""

    table: str
    where: str
    says: str
    mends: str


class Kept(NamedTuple):
    """A column that counts other rows, or adds up something of them, where `must` holds.

    They are those that have this row's `key` in their column `of`.
    """

    table: str
    column: str
    key: str
    rows: str
    of: str
    shown: str
    adds: str = "count(*)"
    must: str = "TRUE"

    @property
    def counted(self) -> str:
        """The right numbers, by key."""
        return f"SELECT {self.of} AS of, {self.adds} AS found FROM {self.rows} GROUP BY {self.of}"


_NO_QUEUE = "queue NOT IN (SELECT number FROM queue UNION ALL SELECT number FROM garbage)"
_NO_CONTENT = "queue NOT IN (SELECT content FROM queue UNION ALL SELECT number FROM garbage)"
_NUMBER = "(SELECT ifnull(max(max(number, content)), 0) FROM queue)"
_GARBAGE = "(SELECT ifnull(max(number), 0) FROM garbage)"
_POSITION = "(SELECT ifnull(max(position), 0) FROM entry)"
_VERSION = "(SELECT ifnull(max(version), 0) FROM queue)"
LOST = (
    Lost("entry", "body NOT IN (SELECT number FROM body)", "have no body", "DELETE FROM entry"),
    Lost("entry", "body IN (SELECT number FROM body WHERE NOT is_json(body))",
         "have a body that is no JSON", "DELETE FROM entry"),
    Lost("entry", "size != (SELECT length(body) FROM body WHERE number = entry.body)",
         "are of another size than their bodies",
         "UPDATE entry SET size = (SELECT length(body) FROM body WHERE number = entry.body)"),
    Lost("entry", "has_attempts AND id NOT IN (SELECT id FROM attempts)",
         "miss their attempts", "UPDATE entry SET has_attempts = 0"),
    Lost("entry", "state = 2 AND ifnull(claim, x'') NOT IN (SELECT id FROM claim)",
         "are held by a claim that is not there", "UPDATE entry SET state = 0"),
    Lost("entry", _NO_CONTENT, "are in no queue",
         "INSERT INTO queue (number, project, name, content) SELECT DISTINCT"
         f" queue + {_NUMBER} + (SELECT max(queue) FROM entry), '', 'salvaged-' || queue, queue"
         " FROM entry"),
    Lost("attempts", "id NOT IN (SELECT id FROM entry WHERE has_attempts)",
         "are of no message", "DELETE FROM attempts"),
    Lost("claim", _NO_CONTENT, "are of no queue", "DELETE FROM claim"),
    Lost("idempotency", _NO_QUEUE, "are of no queue", "DELETE FROM idempotency"),
    Lost("history", _NO_QUEUE, "are of no queue", "DELETE FROM history"),
    Lost("queue", "version > 0 AND project NOT IN (SELECT name FROM project)",
         "are of a project without a count",
         "INSERT INTO project SELECT DISTINCT project, 0 FROM queue"),
    Lost("counter", f"number < {_NUMBER} OR position < {_POSITION} OR version < {_VERSION}",
         "would give again what was given already",
         f"UPDATE counter SET number = max(number, {_NUMBER}, {_GARBAGE}),"
         f" position = max(position, {_POSITION}), version = max(version, {_VERSION})"),
)  # fmt: skip
_NAME = "project || '/' || name"
KEPT = (
    Kept("queue", "ready", "content", "entry WHERE state = 0", "queue", _NAME),
    Kept("queue", "delayed", "content", "entry WHERE state = 1", "queue", _NAME),
    Kept("queue", "leased", "content", "entry WHERE state = 2", "queue", _NAME),
    Kept("queue", "parked", "content", "entry WHERE state = 3", "queue", _NAME),
    Kept("queue", "bytes", "content", "entry", "queue", _NAME, "sum(size)"),
    Kept("queue", "keys", "number", "idempotency", "queue", _NAME),
    Kept("queue", "ended", "number", "history", "queue", _NAME),
    # The sweep deletes the claims of a purged queue after its entries.
    Kept("claim", "held", "id", "entry WHERE state = 2", "claim", "hex(id)",
         must="queue NOT IN (SELECT number FROM garbage)"),
    # A large post counts all its copies with its messages, before they enter their queues.
    Kept("body", "holders", "number", "entry", "body", "number",
         must="holders < found OR NOT EXISTS (SELECT * FROM post)"),
    Kept("project", "queues", "name", "queue WHERE version > 0", "project", "name"),
)  # fmt: skip


_TABLES = {
    "counter": ("one", ""),
    "queue": ("number", ""),
    "garbage": ("number", ""),
    "claim": ("id", ""),
    "idempotency": ("queue, kind, key", ""),
    "history": ("queue, state, number", ""),
    "record": ("kind, project, name", ""),
    "entry": ("queue, position", "SELECT content FROM queue"),
    "body": ("number", "SELECT body FROM entry"),
    "attempts": ("id", "SELECT id FROM entry WHERE has_attempts"),
}
"""The key of each table, and the values of its first column that must be there."""


def _is_json(*values: Any) -> bool:  # noqa: ANN401 - any value of SQLite
    """The function `is_json` of the rules: SQLite's own takes bytes that are no UTF-8."""
    try:
        decode(*values)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def check(store: apsw.Connection) -> Iterator[str]:
    """Say what is wrong with a store, in a sentence each."""
    store.create_scalar_function("is_json", _is_json)
    damages: list[str] = []
    try:
        damages.extend(text for (text,) in store.execute("PRAGMA integrity_check"))
    except apsw.CorruptError as exc:
        damages.append(str(exc))
    if damages != ["ok"]:
        yield from (f"SQLite: {text}." for text in damages)
        yield "The file is damaged: restore a backup, or run zaqar-lite store salvage."
        return
    for rule in LOST:
        if count := store.execute(f"SELECT count(*) FROM {rule.table} WHERE {rule.where}").get:
            yield f"{count} rows of '{rule.table}' {rule.says}."
    for kept in KEPT:
        for shown, count, found in store.execute(
            f"SELECT {kept.shown}, {kept.column}, ifnull(found, 0)"
            f" FROM {kept.table} LEFT JOIN ({kept.counted}) ON of = {kept.key}"
            f" WHERE {kept.column} != ifnull(found, 0) AND ({kept.must}) LIMIT 20"
        ):
            yield f"{kept.table} {shown}: '{kept.column}' is {count}, but there are {found}."


def _mend(store: apsw.Connection) -> None:
    """Make all of this hold, in a store of which rows are missing; the sweep visits every queue."""
    store.create_scalar_function("is_json", _is_json)
    for rule in LOST:
        store.execute(f"{rule.mends} WHERE {rule.where}")
    for kept in KEPT:
        store.execute(f"UPDATE {kept.table} SET {kept.column} = 0")
        store.execute(
            f"UPDATE {kept.table} SET {kept.column} = found FROM ({kept.counted})"
            f" WHERE of = {kept.key}"
        )
    store.execute(
        "DELETE FROM body WHERE holders = 0; DELETE FROM claim WHERE held = 0;"
        " DELETE FROM project WHERE queues = 0; UPDATE queue SET sweep_at = 0"
    )


def salvage(damaged: apsw.Connection, new: apsw.Connection) -> int:
    """Copy what can be read into a new store, and make it fit together; answer the messages.

    Each table is read from both ends up to a page that can't be read, then by what names its rows.
    Raises apsw.Error: nothing can be read, or the new store can't be written.
    """
    new.execute("BEGIN IMMEDIATE; DELETE FROM counter")
    for table, (keys, wanted) in _TABLES.items():
        if not _copy(damaged, new, table, keys) and wanted:
            for value in new.execute(wanted).fetchall():
                _copy(damaged, new, table, keys, f"WHERE {keys.split(',')[0]} = ?", value)
    new.execute("INSERT OR IGNORE INTO counter VALUES (1, 0, 0, 0, 0)")
    _mend(new)
    new.execute("COMMIT")
    return int(new.execute("SELECT count(*) FROM entry").get)


def _copy(  # noqa: PLR0917 - from where, to where, and what
    damaged: apsw.Connection,
    new: apsw.Connection,
    table: str,
    keys: str,
    where: str = "",
    values: tuple[Any, ...] = (),
) -> bool:
    """Copy the rows of a table from both ends; answer whether all could be read."""
    for order in (keys, keys.replace(",", " DESC,") + " DESC"):
        with suppress(apsw.CorruptError, apsw.IOError, UnicodeDecodeError):
            for row in damaged.execute(f"SELECT * FROM {table} {where} ORDER BY {order}", values):
                marks = ", ".join("?" * len(row))
                with suppress(apsw.ConstraintError):  # it is there, or has values of other types
                    new.execute(f"INSERT INTO {table} VALUES ({marks})", row)
            return True
    return False

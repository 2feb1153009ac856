"""What can be read of a damaged store, put into a new one."""

from contextlib import suppress
from typing import Any

import apsw

from zaqar_lite.store.checking import mend

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
    mend(new)
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

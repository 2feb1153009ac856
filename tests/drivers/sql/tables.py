"""What the tables of a store must say, whatever was done to it; see `schema.sql`.

Most of it is what `zaqar-lite store check` looks for, and `tests/store/test_commands.py` tries that
with each breach. What nobody can mend, or is no damage, is only here.
"""

from contextlib import closing

import apsw

from zaqar_lite.store.checking import check

_PAIRS = {
    "a body of several entries belongs to one of them": """
        SELECT b.number, b.holders FROM body b JOIN entry e ON e.body = b.number
        WHERE b.holders > 1 AND e.is_shared = 0""",
    "a claim holds an entry of another queue": """
        SELECT hex(e.id), hex(e.claim) FROM entry e JOIN claim c ON c.id = e.claim
        WHERE e.state = 2 AND c.queue <> e.queue""",
    "a lease ends before its claim says": """
        SELECT hex(c.id), c.ends, c.is_even, min(e.until), max(e.until) FROM claim c
        JOIN entry e ON e.claim = c.id AND e.state = 2 AND e.queue = c.queue
        GROUP BY c.id HAVING c.ends > min(e.until) OR
          c.is_even = 1 AND (min(e.until), max(e.until)) <> (c.ends, c.ends)""",
    "an id begins with another position, and the entry does not say so": """
        SELECT hex(id), position FROM entry
        WHERE moved = 0 AND substr(hex(id), 1, 16) <> printf('%016X', position)""",
    "the sweep comes later than something ends": """
        SELECT project, name, sweep_at, first FROM (
          SELECT q.*, min(
            ifnull((SELECT min(expires) FROM entry WHERE queue = q.content), 1 << 62),
            ifnull((SELECT min(due) FROM entry WHERE queue = q.content AND state = 1), 1 << 62),
            ifnull((SELECT min(until) FROM entry WHERE queue = q.content AND state = 3), 1 << 62),
            ifnull((SELECT min(ends) FROM claim WHERE queue = q.content), 1 << 62),
            ifnull((SELECT min(ends) FROM idempotency WHERE queue = q.number), 1 << 62)
          ) first FROM queue q)
        WHERE ifnull(sweep_at, 1 << 62) > max(first, ?)""",
}
"""What is wrong where a statement finds rows."""

CONTENTS = ("entry", "body", "attempts", "claim", "idempotency", "history", "garbage", "queue")
"""The tables that are empty when all queues are gone and swept."""


def broken(connection: apsw.Connection, now: int) -> list[str]:
    """Tell every rule that the tables break; `now` is the store's clock at its last commit."""
    found = [
        f"{rule}: {row}"
        for rule, statement in _PAIRS.items()
        for row in connection.execute(statement, (now,) if "?" in statement else ())
    ]
    with closing(apsw.Connection(":memory:")) as copy:  # a statement may be open in the store
        copy.pragma("page_size", connection.pragma("page_size"))
        with copy.backup("main", connection, "main") as backup:
            backup.step()
        # A store keeps any bytes; that they are JSON is its callers' affair.
        return found + [problem for problem in check(copy) if "no JSON" not in problem]


def sizes(connection: apsw.Connection) -> dict[str, int]:
    """How many rows each of CONTENTS has; tables without rows are left out."""
    counted = {
        table: int(connection.execute(f"SELECT count(*) FROM {table}").get)  # noqa: S608 - ours
        for table in CONTENTS
    }
    return {table: count for table, count in counted.items() if count}

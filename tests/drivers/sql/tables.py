"""What the tables of a store must say, whatever was done to it; see `schema.sql`."""

from typing import Any

import apsw

_PAIRS = {
    "a queue's count of messages is not that of its entries": """
        SELECT q.project, q.name, q.ready, q.delayed, q.leased, q.parked,
          count(*) FILTER (WHERE e.state = 0), count(*) FILTER (WHERE e.state = 1),
          count(*) FILTER (WHERE e.state = 2), count(*) FILTER (WHERE e.state = 3)
        FROM queue q LEFT JOIN entry e ON e.queue = q.content GROUP BY q.number
        HAVING (q.ready, q.delayed, q.leased, q.parked) <>
          (count(*) FILTER (WHERE e.state = 0), count(*) FILTER (WHERE e.state = 1),
           count(*) FILTER (WHERE e.state = 2), count(*) FILTER (WHERE e.state = 3))""",
    "a queue's count of idempotency keys is wrong": """
        SELECT q.project, q.name, q.keys, count(i.key)
        FROM queue q LEFT JOIN idempotency i ON i.queue = q.number
        GROUP BY q.number HAVING q.keys <> count(i.key)""",
    "a queue's count of what is over is wrong": """
        SELECT q.project, q.name, q.ended, count(h.number)
        FROM queue q LEFT JOIN history h ON h.queue = q.number
        GROUP BY q.number HAVING q.ended <> count(h.number)""",
    "a project's count of queues is wrong": """
        SELECT project, sum(version > 0), (SELECT queues FROM project WHERE name = q.project)
        FROM queue q GROUP BY project HAVING sum(version > 0) <>
          ifnull((SELECT queues FROM project WHERE name = q.project), 0)
        UNION ALL SELECT name, 0, queues FROM project
        WHERE name NOT IN (SELECT project FROM queue WHERE version > 0)""",
    "an entry belongs to no queue": """
        SELECT hex(id), queue FROM entry WHERE queue NOT IN
          (SELECT content FROM queue UNION ALL SELECT number FROM garbage)""",
    "an entry has no body": """
        SELECT hex(id), body FROM entry WHERE body NOT IN (SELECT number FROM body)""",
    "a body's holders are not its entries": """
        SELECT b.number, b.holders, count(e.id) FROM body b LEFT JOIN entry e ON e.body = b.number
        GROUP BY b.number
        HAVING b.holders <> count(e.id) OR b.holders > 1 AND min(e.is_shared) = 0""",
    "an entry has no attempts, or they have no entry": """
        SELECT hex(id) FROM entry WHERE has_attempts = 1
          AND id NOT IN (SELECT id FROM attempts)
        UNION ALL SELECT hex(id) FROM attempts
        WHERE id NOT IN (SELECT id FROM entry WHERE has_attempts = 1)""",
    "a claim's count is not that of the entries that it holds": """
        SELECT hex(c.id), c.held, count(e.id) FROM claim c
        LEFT JOIN entry e ON e.claim = c.id AND e.state = 2 AND e.queue = c.queue
        WHERE c.queue NOT IN (SELECT number FROM garbage)
        GROUP BY c.id HAVING c.held <> count(e.id)""",
    "a lease ends before its claim says": """
        SELECT hex(c.id), c.ends, c.is_even, min(e.until), max(e.until) FROM claim c
        JOIN entry e ON e.claim = c.id AND e.state = 2 AND e.queue = c.queue
        GROUP BY c.id HAVING c.ends > min(e.until) OR
          c.is_even = 1 AND (min(e.until), max(e.until)) <> (c.ends, c.ends)""",
    "a leased entry has no claim": """
        SELECT hex(e.id), hex(e.claim) FROM entry e LEFT JOIN claim c ON c.id = e.claim
        WHERE e.state = 2 AND (c.id IS NULL OR c.queue <> e.queue)""",
    "a row belongs to no queue": """
        SELECT 'claim', queue FROM claim WHERE queue NOT IN
          (SELECT content FROM queue UNION ALL SELECT number FROM garbage)
        UNION ALL SELECT 'idempotency', queue FROM idempotency WHERE queue NOT IN
          (SELECT number FROM queue UNION ALL SELECT number FROM garbage)
        UNION ALL SELECT 'history', queue FROM history WHERE queue NOT IN
          (SELECT number FROM queue UNION ALL SELECT number FROM garbage)""",
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
    "a number is used that the counter may give again": """
        SELECT number, content, (SELECT number FROM counter) FROM queue
        WHERE max(number, content) > (SELECT number FROM counter)
        UNION ALL SELECT position, 0, (SELECT position FROM counter) FROM entry
        WHERE position > (SELECT position FROM counter)""",
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
    found += [f"integrity: {row}" for row in _damages(connection)]
    return found


def _damages(connection: apsw.Connection) -> list[tuple[Any, ...]]:
    return [row for row in connection.execute("PRAGMA integrity_check") if row != ("ok",)]


def sizes(connection: apsw.Connection) -> dict[str, int]:
    """How many rows each of CONTENTS has; tables without rows are left out."""
    counted = {
        table: int(connection.execute(f"SELECT count(*) FROM {table}").get)  # noqa: S608 - ours
        for table in CONTENTS
    }
    return {table: count for table, count in counted.items() if count}

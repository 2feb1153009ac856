"""The lists of done and of failed messages: what enters them, reading, and their retention."""

import json
from collections.abc import Sequence

from zaqar_lite.domain.models import HistoryEntry, HistoryPage, HistoryState
from zaqar_lite.storage.sql import entries
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.entries import Entry
from zaqar_lite.storage.sql.queues import NEVER, Queue

DONE, FAILED = HistoryState.DONE.value, HistoryState.FAILED.value
_TRIM = """DELETE FROM history WHERE queue = ?1 AND state = ?2 AND ended <= ?3 AND number IN
    (SELECT number FROM history WHERE queue = ?1 AND state = ?2 ORDER BY number LIMIT ?4)"""
_FIRST = "SELECT ended FROM history WHERE queue = ? AND state = ? ORDER BY number LIMIT 1"


def append(  # noqa: PLR0917 - which list of which queue gets what
    db: Database,
    queue: Queue,
    state: str,
    ended: Sequence[Entry],
    now: int,
    client_id: str | None = None,
) -> None:
    """Add messages that end now to a list; `client_id` is the consumer that held them last.

    Numbers go on from the time in microseconds, so that a marker stays right where the list was
    empty meanwhile, or was filled anew. The consumers of a message are those of its last
    hand-outs, oldest first.
    """
    db.touch(queue)
    last = db.execute(
        "SELECT ifnull(max(number), 0) FROM history WHERE queue = ? AND state = ?",
        (queue.number, state),
    ).get
    rows = []
    for number, entry in enumerate(ended, max(last + 1, now * 1000)):
        consumers = entries.kept_of(db, entry.id).clients if entry.has_attempts else []
        if client_id is not None:
            consumers.append(client_id)
        rows.append((
            queue.number, state, number, entry.id, now, entry.claims, json.dumps(consumers),
        ))  # fmt: skip
    db.executemany("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    queue.ended += len(rows)
    retention = queue.retention_ms(state)
    queue.over_at = min(queue.over_at, now + retention)


def read(
    db: Database, queue: Queue, state: HistoryState, marker: str | None, limit: int
) -> HistoryPage:
    """List done or failed messages within their retention, oldest first; see the seam."""
    after = 0 if marker is None else _number(marker)
    cutoff = db.clock.now_ms() - queue.retention_ms(state.value)
    rows = db.execute(
        "SELECT number, id, ended, attempts, consumers FROM history"
        " WHERE queue = ? AND state = ? AND number > ? AND ended > ? ORDER BY number LIMIT ?",
        (queue.number, state.value, after, max(cutoff, -1), limit),
    ).fetchall()
    found = [
        HistoryEntry(number.hex(), ended, attempts, json.loads(consumers))
        for _, number, ended, attempts, consumers in rows
    ]
    return HistoryPage(found, str(rows[-1][0]) if rows else None)


def _number(marker: str) -> int:
    """Read a marker; one that is not ours is behind all."""
    is_ours = marker.isascii() and marker.isdigit() and len(marker) <= len(str(NEVER))
    return min(int(marker), NEVER) if is_ours else NEVER


def trim(db: Database, queue: Queue, now: int, limit: int) -> int:
    """Remove up to `limit` messages whose retention is over from both lists; answer how many."""
    if not queue.ended:
        return 0
    db.touch(queue)
    removed = 0
    for state in (DONE, FAILED):
        cutoff = now - queue.retention_ms(state)
        db.execute(_TRIM, (queue.number, state, cutoff, limit))
        removed += int(db.connection.changes())
    queue.ended -= removed
    return removed


def next_end(db: Database, queue: Queue) -> int:
    """When the retention of the next message of a list is over."""
    return min(
        entries.first_of(db, _FIRST, (queue.number, state)) + queue.retention_ms(state)
        for state in (DONE, FAILED)
    )

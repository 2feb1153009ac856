"""Messages that come from elsewhere as they are: of another store, or of an export."""

import json
from collections.abc import Sequence

from msgspec.structs import replace

from zaqar_lite.domain.attempts import Ended
from zaqar_lite.domain.groups import group_of
from zaqar_lite.domain.models import DEFAULT_PRIORITY, Message, QueueRef
from zaqar_lite.storage.sql import entries, records
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.entries import DELAYED, END_NUMBERS, INSERT_ENTRY, PARKED, READY

_ADOPTED = "adopted"
_ADOPTED_FOR_MS = 86_400_000
"""How long the number of a source's last call is kept, in milliseconds."""


def import_messages(
    db: Database, ref: QueueRef, messages: Sequence[Message], source: str, number: int
) -> None:
    """Take in messages of another store, unless this call is a repeat; see the seam."""
    if not is_first(db, ref.project, f"{ref.name}/{source}", number):
        return
    now = db.clock.now_ms()
    live = [replace(one, parked_until=None) for one in messages if one.expires_at > now]
    enter(db, ref, [(one, DEFAULT_PRIORITY) for one in live])


def is_first(db: Database, project: str, source: str, number: int) -> bool:
    """Note the number of what a source sends; False where that, or a later one, came within a day.

    Raises Unavailable: there is no room for what the source sends.
    """
    known = records.find(db, _ADOPTED, project, source)
    if known is not None and int(known.value) >= number:
        return False
    db.check_growth()
    records.put(db, _ADOPTED, project, source, str(number).encode(), ttl_ms=_ADOPTED_FOR_MS)
    return True


def enter(db: Database, ref: QueueRef, arrivals: Sequence[tuple[Message, int]]) -> None:
    """Add messages of these priorities at the end of a queue; their leases stay behind.

    They keep their ids, ages, deadlines, counts and attempts.
    """
    if not arrivals:
        return
    queue, now_us = db.make_queue(ref), db.clock.now_us()
    db.touch(queue)
    now, first = now_us // 1000, db.take_positions(len(arrivals), now_us)
    rows, ready = [], 0
    for position, (message, priority) in enumerate(arrivals, first):
        number = bytes.fromhex(message.id)
        due, until = message.delay_expires_at or 0, message.parked_until or 0
        state = PARKED if until > now else DELAYED if due > now else READY
        if message.attempts:
            clients = [one.client_id for one in message.attempts if one.client_id is not None]
            entries.keep_attempts(db, number, message.attempts, clients)
        if state == READY:
            ready += 1
        elif state == DELAYED:
            queue.delayed += 1
            queue.ready_at = min(queue.ready_at, due)
        else:
            queue.parked += 1
            queue.ready_at = min(queue.ready_at, until)
        queue.over_at = min(queue.over_at, message.expires_at)
        queue.bytes += len(message.body)
        group, origin = group_of(message.headers), message.origin
        ended = message.attempts[-1].outcome if message.attempts else Ended.FAILED
        was_handed_out = message.claim_count or message.failure_count or message.attempts
        rows.append((
            queue.content, position, number, state, priority, due, until, message.expires_at,
            message.ttl_ms, message.created_at, message.claim_count, message.failure_count, None, 0,
            END_NUMBERS[ended] if was_handed_out else None, position, 0, 1,
            int(bool(message.attempts)), message.client_id or "",
            json.dumps(message.headers) if message.headers else None,
            None if group is None else group.encode(errors="surrogatepass"),
            None if origin is None else entries.encode(origin).decode(), len(message.body),
        ))  # fmt: skip
    db.executemany(
        "INSERT INTO body VALUES (?, 1, ?)",
        [(position, one.body) for position, (one, _) in enumerate(arrivals, first)],
    )
    db.executemany(INSERT_ENTRY, rows)
    queue.ready += ready
    db.announce(ref, ready)

"""Claims: their rows, and what is asked of a claim itself: read it, renew it.

Each message that a claim holds has its own lease, in its entry. A claim is over when it holds none.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from zaqar_lite.domain.ids import is_claim_id
from zaqar_lite.domain.models import Claim
from zaqar_lite.storage.sql import entries
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.entries import LEASED, Entry
from zaqar_lite.storage.sql.queues import Queue


class LiveClaim(NamedTuple):
    """A claim's row."""

    number: bytes
    client: str
    started: int
    ttl: int
    ends: int
    is_even: int
    positions: bytes

    def held(self, db: Database, queue: Queue) -> list[Entry]:
        """The entries that it holds, by leases that live or have lapsed, in order of position."""
        all_of_them = array("q", self.positions).tolist()
        found = entries.entries_at(db, queue, all_of_them)
        return [one for one in found if one.state == LEASED and one.claim == self.number]


SELECT = "SELECT id, client, started, ttl, ends, is_even, positions FROM claim"


def number_of(claim_id: str) -> bytes:
    """A claim's id as it is stored; no claim has an empty one."""
    return bytes.fromhex(claim_id) if is_claim_id(claim_id) else b""


def find_claim(db: Database, queue: Queue, claim_id: str) -> LiveClaim | None:
    """A claim of this queue that holds something, by leases that live or have lapsed."""
    row = db.execute(
        f"{SELECT} WHERE id = ? AND queue = ?", (number_of(claim_id), queue.content)
    ).fetchone()
    return None if row is None else LiveClaim._make(row)


def get_claim(db: Database, queue: Queue, claim_id: str, *, details: bool) -> Claim | None:
    """Read a live claim; see the seam."""
    found, now = find_claim(db, queue, claim_id), db.clock.now_ms()
    held = [] if found is None else found.held(db, queue)
    live = [one.id.hex() for one in held if one.until > now]
    by_id = entries.find_messages(db, queue, live, now)
    if found is None or not by_id:
        return None
    messages = sorted(by_id.values(), key=lambda message: message.position)
    if details:
        entries.with_attempts(db, messages)
    return Claim(claim_id, found.ttl, now - found.started, messages)


def renew(  # noqa: PLR0917 - which entries, and until when
    db: Database, queue: Queue, found: LiveClaim, now: int, ttl_ms: int, grace_ms: int
) -> bool:
    """Let a claim begin anew with all that it holds; False where it is over."""
    held = found.held(db, queue)
    live = [one for one in held if one.until > now and one.expires > now]
    if not live:
        return False
    db.touch(queue)
    until = now + ttl_ms
    extend(db, queue, live, now, ttl_ms, grace_ms)
    # A lease that has lapsed, which nothing has met yet, ends when it did.
    others = [one.until for one in held if one.until <= now or one.expires <= now]
    ends = min([until, *others])
    db.execute(
        "UPDATE claim SET started = ?, ttl = ?, ends = ?, is_even = ? WHERE id = ?",
        (now, ttl_ms, ends, int(not others), found.number),
    )
    if until < queue.ready_at or until < found.ends:
        db.announce(queue.ref, 0)
    queue.ready_at = min(queue.ready_at, ends)
    return True


def extend(  # noqa: PLR0917 - which entries, and until when
    db: Database, queue: Queue, held: Sequence[Entry], now: int, ttl_ms: int, grace_ms: int
) -> None:
    """Let leases end `ttl_ms` from now; what would expire earlier expires `grace_ms` after that."""
    until = now + ttl_ms
    db.executemany(
        "UPDATE entry SET until = ? WHERE queue = ? AND position = ?",
        [(until, queue.content, one.position) for one in held],
    )
    short = [one.position for one in held if one.expires < until]
    if short:
        entries.raise_ttl(db, queue, short, ttl_ms + grace_ms, until + grace_ms)

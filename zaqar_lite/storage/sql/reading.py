"""Reading: lists, single messages, statistics, ranges, and what is remembered of keys."""

from collections.abc import Collection, Sequence

from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.limits import MAX_PAGE_BYTES
from zaqar_lite.domain.models import ListQuery, Message, Page, QueueRef, Stats
from zaqar_lite.domain.posts import KnownKeys
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.sql import claiming, entries, expiring, posting
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.entries import MESSAGE
from zaqar_lite.storage.sql.queues import NEVER, Queue

# One step: so many entries of a queue, or of a group of it, in order, whatever they are.
_STEP = """FROM entry WHERE queue = ?1 AND position > ?2 AND position <= ?3
    ORDER BY position LIMIT ?4"""
_GROUP_STEP = _STEP.replace("WHERE", "INDEXED BY grouped WHERE message_group = ?5 AND")
_LIST = f"""SELECT {MESSAGE} FROM (SELECT * {_STEP}) e
    CROSS JOIN body b ON b.number = e.body
    WHERE e.expires > ?6 AND (?7 OR e.state < 2 OR e.until <= ?6)
      AND (?8 OR e.state <> 1 OR e.due <= ?6) AND (?9 IS NULL OR e.client <> ?9)
    ORDER BY e.position LIMIT ?10"""
# The first five values are those of a list.
_EXAMINED = f"SELECT max(position), count(*), ?5 FROM (SELECT position {_STEP})"


async def list_messages(db: Database, ref: QueueRef, wanted: ListQuery) -> Page:
    """List messages in steps of at most MAX_EXAMINED entries; see the seam."""
    nothing: tuple[Page, bool] = Page((), None), True
    after, until = await db.read(ref, _bounds, ref, wanted)
    while True:
        page, is_end = await db.read_queue(ref, nothing, _list_step, wanted, after, until)
        if page.messages or is_end:
            return page
        after = page.marker or after
        await next_turn()


def _bounds(db: Database, ref: QueueRef, wanted: ListQuery) -> tuple[int, int]:
    """The positions after which, and up to which, a list goes."""
    queue = db.queue_at(ref, wanted.version)
    if queue is None:
        return 0, -1
    after = 0 if wanted.marker is None else _resolve(db, queue, wanted.marker)
    return after, NEVER if wanted.until is None else _resolve(db, queue, wanted.until)


def _resolve(db: Database, queue: Queue, marker: Marker) -> int:
    """The position that a marker stands for in this queue."""
    if marker.message_id is not None:
        found = entries.find(db, queue, (marker.message_id,), -1).get(marker.message_id)
        if found is not None:
            return found.position
    return marker.position


def _list_step(
    db: Database, queue: Queue, wanted: ListQuery, after: int, until: int
) -> tuple[Page, bool]:
    """One step of a list, and whether it reached the end of the queue."""
    now = db.clock.now_ms()
    group = None if wanted.group is None else wanted.group.encode(errors="surrogatepass")
    given = (
        queue.content, after, until, MAX_EXAMINED, group, now, wanted.include_claimed,
        wanted.include_delayed, wanted.exclude_client_id, wanted.limit,
    )  # fmt: skip
    listing, examined = _LIST, _EXAMINED
    if group is not None:
        listing, examined = (one.replace(_STEP, _GROUP_STEP) for one in (listing, examined))
    messages: list[Message] = []
    size = 0
    for row in db.execute(listing, given):
        messages.append(message := entries.message_of(row, now))
        size += len(message.body)
        if size >= MAX_PAGE_BYTES:
            break
    if messages:
        if wanted.details:
            entries.with_attempts(db, messages)
        return Page(messages, messages[-1].position), False
    last, count, _ = db.execute(examined, given[:5]).fetchone()
    return Page((), last), count < MAX_EXAMINED


def get_messages(
    db: Database, queue: Queue, ids: Collection[str], *, details: bool
) -> Sequence[Message]:
    """Fetch messages by id; see the seam."""
    found = entries.find_messages(db, queue, ids, db.clock.now_ms())
    messages = [found[one] for one in dict.fromkeys(ids) if one in found]
    if details:
        entries.with_attempts(db, messages)
    return messages


def stats(db: Database, queue: Queue) -> Stats:
    """Count the messages of a tidy queue; see the seam."""
    if not queue.total:
        return Stats()
    now = db.clock.now_ms()
    lapsed = claiming.lapsed_count(db, queue, now)
    ends = [
        entries.message_of(row, now)
        for order in ("ASC", "DESC")
        for row in db.execute(
            f"{entries.MESSAGES} WHERE e.queue = ? ORDER BY e.position {order} LIMIT 1",
            (queue.content,),
        )
    ]
    return Stats(
        queue.ready + lapsed,
        queue.delayed + queue.parked,
        queue.leased - lapsed,
        ends[0],
        ends[1],
        _ready_since(db, queue, now, has_lapsed=lapsed > 0),
        queue.bytes,
    )


def _ready_since(db: Database, queue: Queue, now: int, *, has_lapsed: bool) -> int | None:
    """Since when the first ready message, or else the first lapsed one, has been ready."""
    if queue.ready:
        since = entries.first_of(
            db,
            "SELECT max(created, due) FROM entry INDEXED BY ready WHERE queue = ? AND state = 0"
            " ORDER BY priority, position LIMIT 1",
            (queue.content,),
        )
        return min(now, since)
    return min(now, expiring.next_ready(db, queue)) if has_lapsed else None


async def cut(db: Database, ref: QueueRef, total: int, ranges: int) -> Sequence[int]:
    """Cut so many messages into ranges of about equal size; see `Stats`."""
    ranges = min(ranges, total)
    cuts = [total * (index + 1) // ranges for index in range(ranges)]
    found: list[int] = []
    last = walked = 0
    nothing: Sequence[int] = ()
    while len(found) < ranges:
        positions = await db.read_queue(ref, nothing, _positions_after, last)
        if not positions:  # messages went meanwhile: the last one ends the last range
            return [*found, last] if last not in {0, *found[-1:]} else found
        walked += len(positions)
        found += [positions[cut - walked - 1] for cut in cuts[len(found) :] if cut <= walked]
        last = positions[-1]
        await next_turn()
    return found


def _positions_after(db: Database, queue: Queue, position: int) -> Sequence[int]:
    """The positions of the next messages after one."""
    rows = db.execute(
        "SELECT position FROM entry WHERE queue = ? AND position > ? ORDER BY position LIMIT ?",
        (queue.content, position, MAX_EXAMINED),
    )
    return [found for (found,) in rows]


def find_keys(
    db: Database, queue: Queue, messages: Collection[str], batch: str | None
) -> KnownKeys:
    """Tell what is known of keys; see the seam."""
    if not queue.keys:
        return KnownKeys()
    now = db.clock.now_ms()
    known = posting.find_keys(db, queue, posting.MESSAGE, list(messages), now)
    whole = posting.find_keys(db, queue, posting.BATCH, [] if batch is None else [batch], now)
    are_any = expiring.next_key_end(db, queue, now) < NEVER
    return KnownKeys(whole.get(batch or ""), known, are_any)

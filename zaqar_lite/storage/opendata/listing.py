"""Looking at messages without claiming them: pages, counts, ranges, and finding them by id."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile

from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.models import Message, Page, QueueRef, Selection, Stats
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.opendata import paging, reading
from zaqar_lite.storage.opendata.due import STEP, count_lapsed, promote
from zaqar_lite.storage.opendata.entries import UNKNOWN, Entry, is_damaged
from zaqar_lite.storage.opendata.entries import Page as QueuePage
from zaqar_lite.storage.opendata.paging import (
    cold_after,
    cold_at,
    cold_ends,
    cold_for_names,
    prepared,
    settled,
)
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import fill, warm
from zaqar_lite.storage.opendata.ready import ready_since
from zaqar_lite.storage.opendata.state import State


async def list_messages(db: State, queue: QueueRef, selection: Selection) -> Page:
    """List messages in steps of at most MAX_EXAMINED entries; see the seam."""
    limit, version = selection.limit, selection.version
    exclude_client_id = selection.exclude_client_id
    include_claimed, include_delayed = selection.include_claimed, selection.include_delayed
    there = db.queue(queue, version)
    if there is None:
        return Page((), None)
    after, last = resolve(db, selection.marker, there), resolve(db, selection.until, there)
    page = Page((), None)
    while True:
        start = -1 if after is None else after
        current, now = await prepared(
            db, queue, version, partial(cold_after, position=start, count=MAX_EXAMINED), reads=True
        )
        if current is None:
            return page
        there = current
        found: list[Entry] = []
        examined, reached, unknown = 0, after, False
        for entry in _between(there, start, last):
            damaged = is_damaged(entry)
            if exclude_client_id is not None and entry.created_at == UNKNOWN and not damaged:
                unknown = True
                break
            examined += 1
            reached = entry.position
            if (
                entry.expires_at > now
                and (include_claimed or not (entry.holder(now) or entry.is_parked(now)))
                and (include_delayed or not entry.delayed or entry.visible_at <= now)
                and (exclude_client_id is None or entry.client_id != exclude_client_id)
                and not damaged
            ):
                found.append(entry)
                if len(found) == limit:
                    break
        there.examined += examined
        if unknown:
            await warm(db, there, list(islice(there.after(start), examined + limit)))
            continue  # the queue may have changed: look again
        if examined:
            page.marker = after = reached
        if found:
            page.messages = await read(db, there, found, now, details=selection.details)
            if page.messages:
                return page
        if examined < MAX_EXAMINED and len(found) < limit:
            return page
        await asyncio.sleep(0)


def _between(there: Queue, start: int, last: int | None) -> Iterator[Entry]:
    """The entries after `start` up to `last`, as many as one step examines."""
    entries = islice(there.after(start), MAX_EXAMINED)
    return entries if last is None else takewhile(lambda entry: entry.position <= last, entries)


async def stats(db: State, queue: QueueRef) -> Stats:
    """Count the live messages, once all that is due has come about; see the seam."""
    while True:
        there, now = await settled(db, queue, cold_ends)
        if there is None:
            return Stats()
        if promote(there, now, STEP) < STEP and not there.due:
            break
        await asyncio.sleep(0)  # so many are due that others come in between
    lapsed = count_lapsed(there, now)
    stats = Stats(
        there.ready_count + lapsed,
        there.delayed_count + there.parked_count,
        there.claimed_count - lapsed,
    )
    stats.ready_since = ready_since(there, now)
    ends = paging.ends(there)
    found = await read(db, there, ends, now)
    if found:
        stats.oldest, stats.newest = found[0], found[-1]
    return stats


async def split(db: State, queue: QueueRef, count: int) -> Sequence[int]:
    """Cut the live messages into ranges; see the seam."""
    there, _ = await settled(db, queue, lambda there: cold_at(there, _cuts(there.total, count)))
    if there is None:
        return ()
    ends = paging.at(there, _cuts(there.total, count))
    cuts = [list(page.entries)[within] for page, within in ends]
    await db.committer.visible(there.epoch)
    return cuts


def _cuts(total: int, count: int) -> list[int]:
    """The indexes at which at most `count` ranges of `total` entries end."""
    ranges = min(count, total)
    return [total * (index + 1) // ranges - 1 for index in range(ranges)]


async def read(
    db: State, there: Queue, found: Sequence[Entry], now: int, *, details: bool = False
) -> list[Message]:
    """Show entries to a reader, once everything they were changed by is durable."""
    epoch = there.epoch
    messages = [entry.view(db.names.write(entry.name), now) for entry in found]
    if details:
        told = await reading.read_attempts(db, found)
        for message in messages:
            message.attempts = told.get(message.position, ())
    await fill(db, there, found, messages)
    await db.committer.visible(epoch)
    return messages


def named(db: State, there: Queue, ids: Collection[str], now: int) -> list[Entry]:
    """The live entries of these ids that the queue has, each once."""
    read_name = db.names.read
    found = []
    for text in dict.fromkeys(ids):
        name = read_name(text)
        entry = None if name is None else there.find_named(name)
        if entry is not None and entry.expires_at > now:
            found.append(entry)
    return found


def cold_named(db: State, ids: Collection[str]) -> Callable[[Queue], list[QueuePage]]:
    """Ask for the cold pages in which messages of these ids may be."""

    def needed(there: Queue) -> list[QueuePage]:
        numbers = map(db.names.read, ids)
        return cold_for_names(there, (number for number in numbers if number is not None))

    return needed


def resolve(db: State, marker: Marker | None, there: Queue) -> int | None:
    """The position that a marker means in this queue."""
    if marker is None:
        return None
    now = db.clock.now_ms()
    found = named(db, there, (marker.message_id,), now) if marker.message_id else ()
    return found[0].position if found else marker.position

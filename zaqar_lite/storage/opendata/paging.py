"""Cold pages, which are only on disk: loading those that an operation needs, evicting others.

The pages of all queues share one cache (`queues.py`). A saved page may be evicted whatever state
its messages are in; its bounds and a summary stay in memory. Loading waits for the engine, while
other operations run. So an operation asks repeatedly which cold pages it needs, and acts in the
same step of the event loop in which the answer is none.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata.checkpoint import entries_of
from zaqar_lite.storage.opendata.engine import readable
from zaqar_lite.storage.opendata.entries import PAGE_SIZE, Claim, Entry, Page
from zaqar_lite.storage.opendata.format import CodecError, keys
from zaqar_lite.storage.opendata.format.active import read_active
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.format.records import decode_attempts
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import State

logger = logging.getLogger(__name__)
_FEW_PAGES = 4
_PURGED_PAGES = 8
_MOST_EVICTED = 64
Needed = Callable[[Queue], list[Page]]


async def prepared(
    db: State, ref: QueueRef, version: int | None, needed: Needed, *, reads: bool = False
) -> tuple[Queue | None, int]:
    """The queue and the instant of an operation, to be used before the next await.

    All pages that the operation needs are in memory then. Expired entries and lapsed leases may not
    have been tidied up: compare their deadlines.
    """
    find = db.queue if reads else db.queue_to_change
    kept: set[Page] = set()  # else loading one page could evict another, for ever
    while True:
        queue = find(ref, version)
        now = db.clock.now_ms()
        if queue is None or not queue.cold_pages:
            return queue, now
        pages = needed(queue)
        if not pages:
            return queue, now
        kept.update(pages)
        await load(db, queue, pages, kept)


async def caught_up(db: State, ref: QueueRef, needed: Needed) -> tuple[Queue | None, int]:
    """As `prepared`, for an operation that reads a queue as a whole, after all that is due.

    Where much is due at once, this takes many steps, with other operations in between.
    """
    kept: set[Page] = set()
    while True:
        queue = db.queue(ref, None)
        now = db.clock.now_ms()
        if queue is None:
            return None, now
        is_settled = db.catch_up(queue, now)
        if queue.expired_pages:
            await load_some(db, queue, queue.expired_pages)
        elif not is_settled:
            # Saved at each step: one batch with all that is due would be too large.
            await (asyncio.sleep(0) if db.committer.is_refusing else db.committer.durable())
        elif queue.half_due:
            await load_some(db, queue, queue.half_due)
        elif pages := needed(queue) if queue.cold_pages else []:
            kept.update(pages)
            await load(db, queue, pages, kept)
        else:
            return queue, now


async def load_some(db: State, queue: Queue, pages: Iterable[Page]) -> None:
    """Load the first few of the cold pages in which something is due."""
    await load(db, queue, list(islice(pages, _FEW_PAGES)))


async def load(
    db: State, queue: Queue, pages: Sequence[Page], kept: AbstractSet[Page] = frozenset()
) -> None:
    """Load cold pages; pages other than `kept` may be evicted for them.

    Raises Unavailable: a recovery began meanwhile, so the caller must change nothing.
    """
    wanted = {
        keys.queue_key(RecordType.ACTIVE, queue.raw, page.number): page
        for page in pages
        if page.summary is not None
    }
    epochs = {page: page.epoch for page in wanted.values()}
    stored = await db.engine.get(list(wanted)) if wanted else {}
    found: dict[Page, dict[int, Entry] | CodecError] = {}
    for key, page in wanted.items():
        if page.summary is None or page.epoch != epochs[page]:
            continue  # another operation loaded it meanwhile
        try:
            holders = _holders(page.summary.holders)
            fields = read_active(readable(stored, key))
            found[page], _ = entries_of(page, fields, holders, db.clock.now_ms())
        except CodecError as exc:
            found[page] = exc
    await recall_attempts(db, queue, [
        entry
        for entries in found.values() if not isinstance(entries, CodecError)
        for entry in entries.values()
        if entry.attempts > (entry.claim is not None) or entry.extras is not None
    ])  # fmt: skip
    db.committer.check_readable()
    if not db.is_current(queue):
        return
    for page, entries in found.items():
        if page.summary is None or page.epoch != epochs[page] or not queue.has(page):
            continue  # as above, or the page was dropped
        claims = page.summary.holders
        queue.uncount_summary(page)
        if isinstance(entries, CodecError):
            logger.error("damaged: %s", entries)
            for claim in claims:
                for position in [at for at in claim.held if queue.page_of(at) is page]:
                    del claim.held[position]  # or it would be counted when the lease ends
            queue.drop_page(page)
            queue.damaged_page(page.number)  # never to be written over
            continue
        page.entries = entries
        for entry in entries.values():
            queue.index(entry)
        db.page_cache.use(page, queue)
    evict_pages(db, {*kept, *pages})


def _holders(claims: Iterable[Claim]) -> dict[int, Claim]:
    return {shown_id: claim for claim in claims for shown_id in claim.held.values()}


async def recall_attempts(db: State, queue: Queue, entries: Iterable[Entry]) -> None:
    """Read the records of ended attempts of entries."""
    wanted = {keys.attempts_key(entry.shown_id, queue.raw): entry for entry in entries}
    for key, value in (await db.engine.get(list(wanted)) if wanted else {}).items():
        attempts = db.decoded(key, value, decode_attempts)
        if attempts is not None:
            wanted[key].ensure_extras().attempts = attempts


def evict_pages(db: State, kept: AbstractSet[Page] = frozenset()) -> None:
    """Evict saved pages, least recently used first, while the cache is over its limit."""
    committed, page_cache = db.committer.committed, db.page_cache
    for page, queue in page_cache.oldest(_MOST_EVICTED):
        if (
            page.summary is not None
            or not db.is_current(queue)
            or not queue.has(page)
            or (
                page not in kept
                and page.number not in queue.changed_pages
                and page.epoch <= committed
                and queue.evict(page)
            )
        ):
            page_cache.forget(page)


async def walk(db: State) -> AsyncIterator[tuple[Queue, Entry]]:
    """All entries of all queues, page by page; the queues must not change meanwhile."""
    for queue in db.queues:
        for page in list(queue.pages):
            await load(db, queue, [page], {page})
            for entry in page.entries.values():
                yield queue, entry


async def purge_some(db: State, queue: Queue, until: int) -> None:
    """Remove the first entries of a queue before a position, one step's worth."""
    pages = queue.pages[:_PURGED_PAGES]
    if any(page.summary for page in pages):
        await load(db, queue, pages, set(pages))
    if not db.is_current(queue):
        return
    for page in pages:
        for entry in list(page.entries.values()):
            if entry.position < until and queue.find(entry.position) is entry:
                queue.remove(entry)
    db.changed(queue)


def cold_of_shown_ids(queue: Queue, ids: Iterable[int]) -> list[Page]:
    """The cold pages that may have entries with these shown ids."""
    return cold_at_positions(queue, (queue.moved.get(one, one) for one in ids))


def cold_of_claim(claim_id: str) -> Needed:
    """Make a function that finds the cold pages in which a claim holds entries."""

    def needed(queue: Queue) -> list[Page]:
        claim = queue.claims.get(claim_id)
        return [] if claim is None else cold_at_positions(queue, claim.held)

    return needed


def cold_at_positions(queue: Queue, positions: Iterable[int]) -> list[Page]:
    """The cold pages that may have entries at these positions."""
    return _only_cold(map(queue.page_of, positions))


def _only_cold(pages: Iterable[Page | None]) -> list[Page]:
    return [page for page in dict.fromkeys(pages) if page is not None and page.summary is not None]


def cold_tail(queue: Queue) -> list[Page]:
    """The page to append to, if it is cold and has room."""
    return [page for page in queue.pages[-1:] if page.summary and page.count < PAGE_SIZE]


def cold_after(queue: Queue, position: int, count: int) -> list[Page]:
    """The cold pages among those that hold the next `count` entries after a position."""
    found = []
    index = max(0, bisect_right(queue.firsts, position) - 1)
    for number in range(index, len(queue.pages)):  # a slice of a list would count up to the index
        page = queue.pages[number]
        if page.summary is not None:
            found.append(page)
        if number > index:  # of the first page, all may lie before the position
            count -= page.count
        if count <= 0:
            break
    return found


def pages_at(queue: Queue, indexes: Iterable[int]) -> Iterator[tuple[Page, int]]:
    """The page of each entry with these ascending indexes, and the entry's index in its page."""
    pages = iter(queue.pages)
    page, before, count = None, 0, 0
    for index in indexes:
        while page is None or index >= before + count:
            before += count
            page = next(pages)
            count = page.count
        yield page, index - before


def first_and_last(queue: Queue) -> list[Entry]:
    """The first and the last entry; empty when there is none."""
    filled = [page for page in (*queue.pages[:2], *queue.pages[-2:]) if page.entries]
    if not filled:
        return []
    return [
        next(iter(filled[0].entries.values())),
        next(reversed(filled[-1].entries.values())),
    ]


def cold_at(queue: Queue, indexes: Iterable[int]) -> list[Page]:
    """The cold pages that hold the entries with these ascending indexes."""
    return _only_cold(page for page, _ in pages_at(queue, indexes))


def cold_first_and_last(queue: Queue) -> list[Page]:
    """The cold pages among the first two and the last two."""
    return _only_cold((*queue.pages[:2], *queue.pages[-2:]))

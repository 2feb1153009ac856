"""Which cold pages an operation needs, loading them before it acts, and forgetting others."""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from heapq import heappop, heappush
from itertools import islice

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata.checkpoint import put_garbage
from zaqar_lite.storage.opendata.cold import candidates, entries_of, may_be_cold
from zaqar_lite.storage.opendata.due import STEP
from zaqar_lite.storage.opendata.entries import PAGE_SIZE, Entry, Page
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.active import read_active
from zaqar_lite.storage.opendata.format.encoding import CodecError
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import readable
from zaqar_lite.storage.opendata.state import State

logger = logging.getLogger(__name__)
_HOT_SLACK = 32 * PAGE_SIZE
_DUE_PAGES = 4
_PURGED_PAGES = 8


async def prepared(
    db: State,
    ref: QueueRef,
    version: int | None,
    needed: Callable[[Queue], list[Page]],
    *,
    reads: bool = False,
) -> tuple[Queue | None, int]:
    """The queue of an operation and the instant it acts at, to be used before the next await.

    What the operation needs is in memory then (`cold.py`). What has expired or lapsed by then may
    still be there: an entry is live, and held, by its deadlines alone.
    """
    find = db.queue if reads else db.queue_to_change
    kept: set[Page] = set()  # or one page would be forgotten for the next, and so on for ever
    while True:
        there = find(ref, version)
        now = db.clock.now_ms()
        if there is None or not there.cold.count:
            return there, now
        pages = needed(there)
        if not pages:
            return there, now
        kept.update(pages)
        await load(db, there, pages, kept)


async def settled(
    db: State, ref: QueueRef, needed: Callable[[Queue], list[Page]]
) -> tuple[Queue | None, int]:
    """As `prepared`, for one who reads a queue as a whole, with all that was due done before.

    Where much is due at once, that takes many steps, and others act in between.
    """
    kept: set[Page] = set()
    while True:
        there = db.queue(ref, None)
        now = db.clock.now_ms()
        if there is None:
            return None, now
        is_settled = db.settle(there, now)
        if there.due_pages:
            await load_due(db, there)
        elif not is_settled:
            # Saved at each step, so that no batch becomes as large as all that is due.
            await (asyncio.sleep(0) if db.committer.is_refusing else db.committer.durable())
        elif pages := needed(there) if there.cold.count else []:
            kept.update(pages)
            await load(db, there, pages, kept)
        else:
            return there, now


async def load_due(db: State, queue: Queue) -> None:
    """Let the entries of some cold pages in, because something there has expired."""
    pages = queue.due_pages[:_DUE_PAGES]
    del queue.due_pages[:_DUE_PAGES]
    await load(db, queue, pages, set(pages))


async def load(
    db: State, queue: Queue, pages: Sequence[Page], kept: AbstractSet[Page] = frozenset()
) -> None:
    """Let the entries of cold pages in; others than `kept` may be forgotten for them."""
    root = keys.queue_key(RecordType.ACTIVE, queue.raw)
    wanted = {
        root if page.number is None else root + page.number.to_bytes(8, "big"): page
        for page in pages
    }
    stored = await db.engine.get(list(wanted))
    for key, page in wanted.items():
        if not page.cold or queue.numbered.get(page.number) is not page:
            continue  # somebody else loaded or purged it meanwhile
        try:
            fields, _, _ = read_active(readable(stored, key))
            _install(queue, page, entries_of(page, fields))
        except CodecError as exc:
            logger.error("damaged: %s", exc)
            _install(queue, page, {})
            queue.discard_page(page)
    if queue.total - queue.cold.count > db.hot_limit + _HOT_SLACK:
        cool(db, queue, all_pages=False, kept=kept)


def cool(
    db: State, queue: Queue, *, all_pages: bool, kept: AbstractSet[Page] = frozenset()
) -> None:
    """Keep a queue's part in memory about as large as it may be."""
    if queue.total - queue.cold.count <= db.hot_limit:
        return
    root = keys.queue_key(RecordType.ACTIVE, queue.raw)
    written = db.written.puts if db.committer.is_writing else {}

    def is_saved(page: Page) -> bool:
        number = page.number
        key = root if number is None else root + number.to_bytes(8, "big")
        return page not in kept and number not in queue.changed_pages and key not in written

    _cool(queue, db.hot_limit, is_saved, all_pages=all_pages)


async def cold_ids(db: State, queue: Queue, pages: Iterable[Page]) -> dict[Page, list[int]]:
    """Read the ids in cold pages of a queue; none of a page that can't be read."""
    root = keys.queue_key(RecordType.ACTIVE, queue.raw)
    wanted = {
        root if page.number is None else root + page.number.to_bytes(8, "big"): page
        for page in pages
        if page.cold
    }
    found: dict[Page, list[int]] = {page: [] for page in wanted.values()}
    stored = await db.engine.get(list(wanted)) if wanted else {}
    for key, page in wanted.items():
        with suppress(CodecError):
            found[page] = list(read_active(readable(stored, key))[0][::5])
    return found


async def purge_some(db: State, queue: Queue, until: int) -> None:
    """Remove the first entries of a queue that lie before a position, a step's worth of them.

    What others do meanwhile to a queue with cold pages is not overwritten: when it was replaced,
    or they loaded such a page, this step does less, or nothing.
    """
    pages = queue.pages[:_PURGED_PAGES]
    ids = await cold_ids(db, queue, pages)
    if not db.is_current(queue):
        return
    for page in pages:
        if queue.numbered.get(page.number) is not page:
            continue
        if page.cold and page in ids:
            queue.drop_cold(page)
            put_garbage(db, ids[page], db.puts)
        for entry in list(page.entries.values()):
            if entry.position < until:
                queue.remove(entry)
    db.changed(queue)


def cold_for_names(queue: Queue, names: Iterable[int]) -> list[Page]:
    """The cold pages in which entries of these names may be."""
    if not queue.cold.count:
        return []
    found = {}
    for name in names:
        index = bisect_right(queue.firsts, queue.names.get(name, name)) - 1
        if index >= 0 and queue.pages[index].cold:
            found[index] = queue.pages[index]
    return list(found.values())


def cold_at_head(queue: Queue, limit: int) -> list[Page]:
    """The cold page that holds what is next to be claimed, or will be before `limit`."""
    first = queue.cold.first() if queue.cold.count else None
    if first is None:
        return []
    ready = queue.ready
    before: set[int] = set()
    for _ in range(limit + STEP):  # beyond that the page is loaded, needed or not
        if len(before) == limit or not ready or ready[0] >= first[0]:
            break
        key = heappop(ready)
        if queue.is_ready(key):
            before.add(key)
    for key in before:
        heappush(ready, key)
    return [] if len(before) >= limit else [first[1]]


def cold_after(queue: Queue, position: int, count: int) -> list[Page]:
    """The cold pages among those that hold the next `count` entries after a position."""
    if not queue.cold.count:
        return []
    found = []
    index = max(0, bisect_right(queue.firsts, position) - 1)
    for number, page in enumerate(islice(queue.pages, index, None)):
        if page.cold:
            found.append(page)
        if number:  # of the first page, all may lie before the position
            count -= page.cold or len(page.entries)
        if count <= 0:
            break
    return found


def cold_at(queue: Queue, indexes: Iterable[int]) -> list[Page]:
    """The cold pages that hold the entries with these ascending indexes."""
    found = {page.first: page for page, _ in queue.at(indexes)}
    return [page for page in found.values() if page.cold]


def cold_ends(queue: Queue) -> list[Page]:
    """The cold pages among the first and the last that hold anything."""
    return [page for page in (*queue.pages[:2], *queue.pages[-2:]) if page.cold]


def _install(queue: Queue, page: Page, entries: dict[int, Entry]) -> None:
    """Let the entries of a cold page in."""
    queue.total -= page.cold
    queue.ready_count -= page.cold
    queue.cold.remove(page)
    page.entries = entries
    for entry in entries.values():
        queue.index(entry)
    if entries:
        heappush(queue.expiries, (page.min_expires, page.first, page))
    queue.cold.loaded.append(page)


def _cool(queue: Queue, limit: int, is_saved: Callable[[Page], bool], *, all_pages: bool) -> None:
    """Forget entries of saved pages until at most about `limit` are in memory."""
    head = limit // PAGE_SIZE // 2
    pages = queue.pages[head:-1][::-1] if all_pages else candidates(queue.pages, queue.cold.loaded)
    for page in pages:
        if queue.total - queue.cold.count <= limit:
            break
        if page.cold or page is queue.pages[-1] or queue.numbered.get(page.number) is not page:
            continue
        if is_saved(page) and may_be_cold(page):
            first = next(iter(page.entries.values()))
            queue.cold.add(page, len(page.entries), first.priority)
    while queue.cold.loaded and (
        queue.cold.loaded[0].cold
        or queue.numbered.get(queue.cold.loaded[0].number) is not queue.cold.loaded[0]
    ):
        queue.cold.loaded.popleft()


def nothing(_: Queue) -> list[Page]:
    """No page: what posting and tidying need."""
    return []

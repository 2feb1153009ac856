"""Which cold pages an operation needs, loading them before it acts, and forgetting others."""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from itertools import islice

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata.checkpoint import put_garbage
from zaqar_lite.storage.opendata.cold import candidates, entries_of, may_be_cold
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.due import STEP
from zaqar_lite.storage.opendata.entries import PAGE_SIZE, Entry, Page
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.active import read_active
from zaqar_lite.storage.opendata.format.encoding import CodecError
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import readable

logger = logging.getLogger(__name__)
_HOT_SLACK = 32 * PAGE_SIZE


async def prepared(
    db: Database,
    ref: QueueRef,
    version: int | None,
    needed: Callable[[Queue], list[Page]],
    *,
    reads: bool = False,
) -> tuple[Queue | None, int]:
    """The queue of an operation and the instant it acts at, to be used before the next await.

    What has expired or lapsed by then is gone, and what the operation needs is in memory
    (`cold.py`). Where much is due at once, that takes many steps, and others act in between.
    """
    find = db.queue if reads else db.queue_to_change
    kept: set[Page] = set()  # or one page would be forgotten for the next, and so on for ever
    while True:
        there = find(ref, version)
        now = db.clock.now_ms()
        if there is None:
            return None, now
        is_settled = db.settle(there, now)
        if there.cold.count:
            pages = [*there.due_pages, *(needed(there) if is_settled else ())]
            there.due_pages.clear()
            if pages:
                kept.update(pages)
                await load(db, there, pages, kept)
                continue
        if is_settled:
            return there, now
        if reads:
            await asyncio.sleep(0)
        else:
            await db.committer.durable()  # so that no batch becomes as large as all that is due


async def load(
    db: Database, queue: Queue, pages: Sequence[Page], kept: AbstractSet[Page] = frozenset()
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
    db: Database, queue: Queue, *, all_pages: bool, kept: AbstractSet[Page] = frozenset()
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


async def cold_ids(db: Database, queue: Queue) -> dict[int | None, list[int]]:
    """The ids in the cold pages of a queue, by page, complete at the next step."""
    found: dict[int | None, list[int]] = {}
    root = keys.queue_key(RecordType.ACTIVE, queue.raw)
    while missing := [p for p in queue.pages if p.cold and p.number not in found][:64]:
        wanted = {
            root if page.number is None else root + page.number.to_bytes(8, "big"): page
            for page in missing
        }
        stored = await db.engine.get(list(wanted))
        for key, page in wanted.items():
            try:
                found[page.number] = list(read_active(readable(stored, key))[0][::5])
            except CodecError:
                found[page.number] = []
    return found


async def purge(db: Database, ref: QueueRef) -> Queue | None:
    """Remove all entries and claims of a queue; answer the queue, if there is one."""
    while True:
        there = db.queue_to_change(ref, None)
        if there is None:
            return None
        ids = await cold_ids(db, there)
        if db.queue_to_change(ref, None) is there:
            break  # it was not dropped or recovered meanwhile
    gone = [message_id for page in there.pages if page.cold for message_id in ids[page.number]]
    there.clear()
    db.changed(there)
    if gone:
        put_garbage(db, gone, db.puts)
    return there


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
    """The cold pages that hold the entries with these indexes."""
    found = {page.first: page for index in indexes for page, _ in (queue.at(index),)}
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

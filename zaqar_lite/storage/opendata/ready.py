"""Finding and taking the first ready entry of a queue, by priority and position."""

from heapq import heapify, heappop, heapreplace

from zaqar_lite.storage.opendata.entries import (
    NOTHING,
    POSITION_BITS,
    UNKNOWN,
    Entry,
    Page,
    is_ready,
    ready_key,
)
from zaqar_lite.storage.opendata.queue import Queue

_POSITION_MASK = (1 << POSITION_BITS) - 1


def head(queue: Queue) -> Page | None:
    """The page with the lowest bound of a ready entry."""
    heap = queue.ready
    while heap:
        key, page = heap[0]
        if key == page.best:
            return page
        heappop(heap)
    return None


def ready_since(queue: Queue, now: int) -> int | None:
    """When the first ready entry became ready; None where it is only on disk."""
    while (page := head(queue)) is not None:
        if page.summary is None and not _is_next(queue, page, _first_key(queue, page)):
            continue
        entry = page.entries.get(page.best & _POSITION_MASK)
        if entry is None or entry.created_at == UNKNOWN:
            return None
        return min(now, max(entry.created_at, entry.visible_at))
    return None


def take_first(queue: Queue, page: Page) -> Entry | None:
    """Take the first ready entry of a page; None where another page's comes before.

    The caller holds, removes or returns it in the same step.
    """
    key = _first_key(queue, page)
    if not _is_next(queue, page, key):
        return None
    order = page.order
    while order and order[0] == key:
        heappop(order)
    page.best = order[0] if order else NOTHING
    if order:
        heapreplace(queue.ready, (page.best, page))
    else:
        heappop(queue.ready)
    queue.examined += 1
    queue.ready_count -= 1
    return page.entries[key & _POSITION_MASK]


def _is_next(queue: Queue, page: Page, key: int) -> bool:
    """Whether a page's bound was right; if not, the page goes to its place in the heap."""
    if key == page.best:
        return True
    page.best = key
    if key == NOTHING:
        heappop(queue.ready)
    else:
        heapreplace(queue.ready, (key, page))
    return False


def _first_key(queue: Queue, page: Page) -> int:
    order, entries = page.order, page.entries
    if order is None:
        order = page.order = [ready_key(entry) for entry in entries.values() if is_ready(entry)]
        heapify(order)
    while order:
        entry = entries.get(order[0] & _POSITION_MASK)
        if entry is not None and is_ready(entry):
            return order[0]
        heappop(order)
        queue.examined += 1
    return NOTHING

"""Older pages among those of a damaged store, whose messages newer pages have taken over.

A message moves from page to page when two are joined, or when it is put back from the log because
its page is lost. Where the newer state or the deletion of the page it came from can't be read, an
older state comes to light that still has it, and others that are gone since. Such a page is left
out: messages that no other page has are put back from the log.
"""

from collections.abc import Callable, Iterable, Iterator

from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.active import read_active
from zaqar_lite.storage.opendata.format.encoding import CodecError
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.slatedb.table import Row

_PAGES = keys.prefix(RecordType.ACTIVE)


def without_older_pages(rows: Iterable[Row], name: Callable[[str], None]) -> Iterator[Row]:
    """Leave out the pages that newer ones of their queue replace, and name each; rows in order."""
    queue = b""
    pages: list[Row] = []
    for row in rows:
        where = _queue(row.key)
        if where != queue:
            yield from _newest(pages, name)
            queue, pages = where, []
        if where:
            pages.append(row)
        else:
            yield row
    yield from _newest(pages, name)


def _queue(key: bytes) -> bytes:
    """The queue of a page's key; nothing for other keys."""
    if not key.startswith(_PAGES):
        return b""
    try:
        return keys.read_queue_key(key).queue
    except CodecError:
        return b""


def _newest(pages: list[Row], name: Callable[[str], None]) -> list[Row]:
    taken: set[int] = set()
    older = set()
    for page in sorted(pages, key=lambda page: page.sequence, reverse=True):
        positions = _positions(page.value or b"")
        if taken.isdisjoint(positions):
            taken |= positions
        else:
            older.add(page.key)
            name(f"{keys.describe(page.key)}: left out, newer pages have its messages")
    return [page for page in pages if page.key not in older]


def _positions(page: bytes) -> set[int]:
    """Where a page's messages stand in their queue; none if it can't be read: loading names it."""
    try:
        available, in_flight, extras = read_active(page)
    except CodecError:
        return set()
    found = [*available[::5], *in_flight[::5]]
    for place, extra in extras.items():
        if extra.position is not None:
            found[place] = extra.position
    return set(found)

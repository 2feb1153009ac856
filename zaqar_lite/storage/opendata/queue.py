"""One queue in memory: its entries by position, and what is ready, delayed, claimed or expiring.

    pages, firsts   all entries, by position: a page is found by bisection, an entry by its page
    ready           heap of priority << 64 | position
    delayed         heap of (earliest end of a delay in a page, first position, page)
    due             heap of (lowest priority << 64 | first position, page): delays have ended there
    lapses          heap of (earliest end of a lease in a claim, n, claim)
    parked          heap of (instant, position) of what was given back with a delay
    expiries        heap of (earliest deadline in a page, first position, page)

Keys of entries that have left a state stay in its heap until they come up, and are passed over
then; the sweep builds a heap anew that holds little else. Every key is examined once, so a claim
costs O(limit * log n) whatever else is in the queue. However many delays end at once, a claim
makes ready only the pages that come before what it hands out (`due.py`).

Nothing here writes: `changed` collects the pages and claims that differ from their records.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from heapq import heapify, heappush
from itertools import islice

from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.opendata.cold import ColdPages
from zaqar_lite.storage.opendata.entries import (
    NEVER,
    PAGE_SIZE,
    Claim,
    Entry,
    Page,
    is_damaged,
    is_kept_back,
)
from zaqar_lite.storage.opendata.format.keys import RecordType, queue_id
from zaqar_lite.storage.opendata.history import History
from zaqar_lite.storage.opendata.idempotency import Keys

POSITION_BITS = 64
POSITION_MASK = (1 << POSITION_BITS) - 1
_SLACK = 1_000
_STALE = 8
_SPARE_PAGES = 8
_FOLDED = PAGE_SIZE * 3 // 4
_MOST_JOINED = 64


class Queue:
    """The messages, claims, keys and history of one queue, and the moves between states."""

    def __init__(self, ref: QueueRef) -> None:
        self.ref = ref
        self.raw = queue_id(ref)
        self.record: QueueRecord | None = None
        self.pages: list[Page] = []
        self.firsts: list[int] = []
        self.numbered: dict[int | None, Page] = {}
        self.names: dict[int, int] = {}  # name -> position of the entries that were moved here
        self.ready: list[int] = []
        self.delayed: list[tuple[int, int, Page]] = []
        self.due: list[tuple[int, Page]] = []
        self.claims: dict[str, Claim] = {}
        self.lapses: list[tuple[int, int, Claim]] = []
        self.parked: list[tuple[int, int]] = []
        self.expiries: list[tuple[int, int, Page]] = []
        self.total = self.ready_count = self.delayed_count = self.parked_count = 0
        self.keys = Keys()
        self.done = History(RecordType.DONE)
        self.failed = History(RecordType.FAILED)
        self.cold = ColdPages()
        self.due_pages: list[Page] = []  # cold ones that hold something that has expired
        self.examined = 0
        self.epoch = 0
        self.visit_at = NEVER  # when the sweep comes next (`agenda.py`)
        self.is_noted = False  # whether it comes at once
        self.pushed: list[int] | None = None  # onto `ready`, while that is being built anew
        self.changed_pages: set[int | None] = set()  # by number
        self.changed_claims: dict[str, Claim | None] = {}
        self.ended: list[Entry] = []  # whose attempts record is out of date
        self.removed: list[Entry] = []
        self.damaged_pages: set[int | None] = set()
        self._last_page = 0
        self.lapse_count = 0

    # -- finding --

    @property
    def claimed_count(self) -> int:
        """How many entries are claimed."""
        return self.total - self.ready_count - self.delayed_count - self.parked_count

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is left to remember."""
        return not (
            self.record or self.total or self.claims or self.keys or self.done or self.failed
        )

    def find(self, position: int) -> Entry | None:
        """The entry at a position."""
        index = bisect_right(self.firsts, position) - 1
        return self.pages[index].entries.get(position) if index >= 0 else None

    def find_named(self, name: int) -> Entry | None:
        """The entry whose id shows this number."""
        entry = self.find(self.names.get(name, name))
        return entry if entry is not None and entry.name == name else None

    def after(self, position: int) -> Iterator[Entry]:
        """The entries after a position, in order; the queue must not change meanwhile."""
        index = max(0, bisect_right(self.firsts, position) - 1)
        for page in self.pages[index : index + 1]:
            for entry in page.entries.values():
                if entry.position > position:
                    yield entry
        for page in islice(self.pages, index + 1, None):
            yield from page.entries.values()

    def at(self, indexes: Iterable[int]) -> Iterator[tuple[Page, int]]:
        """The pages of the entries with these ascending indexes, and each entry's index in its."""
        pages = iter(self.pages)
        page, before, count = None, 0, 0
        for index in indexes:
            while page is None or index >= before + count:
                before += count
                page = next(pages)
                count = page.cold or len(page.entries)
            yield page, index - before

    def ends(self) -> list[Entry]:
        """The first and the last entry; empty when there is none."""
        filled = [page for page in (*self.pages[:2], *self.pages[-2:]) if page.entries]
        if not filled:
            return []
        return [
            next(iter(filled[0].entries.values())),
            next(reversed(filled[-1].entries.values())),
        ]

    def first_position(self) -> int | None:
        """The position of the first entry; None when there is none."""
        if not self.total:
            return None
        page = self.pages[0]
        return page.first if page.cold else next(iter(page.entries))

    # -- entering and leaving --

    def tail(self, position: int) -> Page:
        """The page that takes an entry at `position`, above every other position."""
        if self.pages:
            page = self.pages[-1]
            if page.cold:
                return self._new_page(position)
            if page.entries or page.number is None or None in self.damaged_pages:
                if len(page.entries) < PAGE_SIZE:
                    return page
            else:
                self._drop_page(page)  # the queue is empty: begin with the root again
        return self._new_page(position)

    def _new_page(self, position: int) -> Page:
        has_root = self.pages or None in self.damaged_pages
        page = self.number_page(position) if has_root else Page(None, position)
        self.adopt(page)
        return page

    def number_page(self, first: int) -> Page:
        """Make a page with a number that no other has."""
        self._last_page += 1
        return Page(self._last_page, first)

    def insert(self, page: Page) -> None:
        """Put a filled page between two others, or before or behind all."""
        index = bisect_right(self.firsts, page.first)
        self.pages.insert(index, page)
        self.firsts.insert(index, page.first)
        self.numbered[page.number] = page
        self.changed_pages.add(page.number)

    def adopt(self, page: Page) -> None:
        """Append a page; its positions are above all others."""
        self.pages.append(page)
        self.firsts.append(page.first)
        self.numbered[page.number] = page
        if page.number is not None:
            self._last_page = max(self._last_page, page.number)

    def adopt_cold(self, page: Page, count: int, priority: int) -> None:
        """Append a page whose entries stay in its record."""
        self.adopt(page)
        self.cold.add(page, count, priority)
        self.total += count
        self.ready_count += count
        heappush(self.expiries, (page.min_expires, page.first, page))

    def damaged_page(self, number: int | None) -> None:
        """Never write over a page that can't be read."""
        self.damaged_pages.add(number)
        self._last_page = max(self._last_page, number or 0)

    def add(self, entry: Entry) -> None:
        """Let an entry in at its position: delayed while it has a `visible_at` and `delayed`.

        What the page holds already has not changed, so what is encoded of it still holds.
        """
        page = entry.page
        page.entries[entry.position] = entry
        self.changed_pages.add(page.number)
        if entry.position != entry.id:
            self.names[entry.name] = entry.position
        self.index(entry)

    def change(self, page: Page) -> None:
        """Note that an entry of a page changed or left."""
        page.encoded, page.encoded_count = b"", 0
        self.changed_pages.add(page.number)

    def index(self, entry: Entry) -> None:
        """Enter an entry that is in its page into the heaps and counts."""
        self.total += 1
        page = entry.page
        if entry.expires_at < page.min_expires:
            page.min_expires = entry.expires_at
            heappush(self.expiries, (entry.expires_at, page.first, page))
        if entry.delayed:
            self.delayed_count += 1
            self.index_delay(entry)
        elif entry.claim is None:
            past = entry.past
            if past is not None and past.parked_until:
                self.index_parking(entry, past.parked_until)
            else:
                self.ready_count += 1
                key = entry.priority << POSITION_BITS | entry.position
                heappush(self.ready, key)
                if self.pushed is not None:
                    self.pushed.append(key)

    def index_parking(self, entry: Entry, until: int) -> None:
        """Enter an entry into the heap and the count of what was given back with a delay."""
        self.parked_count += 1
        heappush(self.parked, (until, entry.position))

    def index_delay(self, entry: Entry) -> None:
        """Enter the end of an entry's delay into its page and, if it is the first, the heap."""
        page = entry.page
        page.best_delayed = min(page.best_delayed, entry.priority)
        if entry.visible_at < page.next_visible:
            page.next_visible = entry.visible_at
            heappush(self.delayed, (entry.visible_at, page.first, page))

    def remove(self, entry: Entry) -> None:
        """Take an entry out of the queue, whatever its state."""
        past = entry.past
        if entry.claim is not None:
            self.drop_lease(entry.claim, entry)
        elif entry.delayed:
            self.delayed_count -= 1
        elif past is not None and past.parked_until:
            self.parked_count -= 1
        elif past is None or not past.damaged:
            self.ready_count -= 1
        self.leave(entry)

    def remove_all(self) -> None:
        """Remove the entries of a queue that is short, and wholly in memory."""
        for page in list(self.pages):
            for entry in list(page.entries.values()):
                self.remove(entry)

    def leave(self, entry: Entry) -> None:
        """Let an entry that is in no state's index leave the queue."""
        self.total -= 1
        page = entry.page
        del page.entries[entry.position]
        self.names.pop(entry.name, None)
        self.change(page)
        self.removed.append(entry)
        if not page.entries and page is not self.pages[-1]:
            self._drop_page(page)

    @property
    def is_stale(self) -> bool:
        """Whether nearly all keys of the ready index are of entries that are not ready."""
        return len(self.ready) > _STALE * (self.ready_count - self.cold.count) + _SLACK

    def forget_last_keys(self, count: int) -> None:
        """Take keys off the end of the ready index, where no entry is ready.

        A heap without its end is one.
        """
        del self.ready[-count:]

    def push_ready(self, key: int) -> None:
        """Put a key into the ready index."""
        heappush(self.ready, key)
        if self.pushed is not None:
            self.pushed.append(key)

    def replace_ready(self, keys: list[int]) -> None:
        """Let the ready index be these keys, and what came in since they were looked at."""
        keys += self.pushed or ()
        heapify(keys)
        self.ready, self.pushed = keys, None

    def discard_page(self, page: Page) -> None:
        """Forget a page whose record can't be read, and never write over it."""
        self._drop_page(page)
        self.damaged_page(page.number)

    def _drop_page(self, page: Page) -> None:
        index = bisect_right(self.firsts, page.first) - 1
        del self.pages[index]
        del self.firsts[index]
        del self.numbered[page.number]

    def drop_cold(self, page: Page) -> None:
        """Remove a page whose entries are only in its record."""
        self.total -= page.cold
        self.ready_count -= page.cold
        self.cold.remove(page)
        self._drop_page(page)
        self.change(page)

    def fold(self) -> bool:
        """Join neighbouring pages that are nearly empty, once there are many; tell if more are.

        Stragglers would otherwise keep a page each, in memory and on disk.
        """
        if len(self.pages) <= 2 * (self.total // PAGE_SIZE) + _SPARE_PAGES:
            return False
        left, joined = self.pages[0], 0
        for right in self.pages[1:]:
            if left.cold or right.cold or len(left.entries) + len(right.entries) > _FOLDED:
                left = right
                continue
            self._join(left, right)
            joined += 1
            if joined == _MOST_JOINED:
                return True
        return False

    def _join(self, left: Page, right: Page) -> None:
        for entry in right.entries.values():
            entry.page = left
            if entry.delayed:
                self.index_delay(entry)
        left.entries.update(right.entries)
        right.entries = {}
        if right.min_expires < left.min_expires:
            left.min_expires = right.min_expires
            heappush(self.expiries, (left.min_expires, left.first, left))
        self.change(left)
        self.change(right)
        self._drop_page(right)

    # -- states --

    def is_ready(self, key: int) -> bool:
        """Whether a key of the ready index is of an entry that is ready."""
        entry = self.find(key & POSITION_MASK)
        return (
            entry is not None
            and entry.claim is None
            and not entry.delayed
            and not is_kept_back(entry)
        )

    def hold(self, entry: Entry, claim: Claim) -> None:
        """Let `claim` hold an entry that was taken out of the ready index."""
        entry.claim = claim
        if entry.attempts < 0xFFFF:
            entry.attempts += 1
        claim.held[entry.position] = entry
        self.change(entry.page)

    def make_ready(self, entry: Entry) -> None:
        """Enter an entry into the ready index at its own place, unless it is set aside."""
        if is_damaged(entry):
            return
        self.ready_count += 1
        self.push_ready(entry.priority << POSITION_BITS | entry.position)

    def drop_lease(self, claim: Claim, entry: Entry) -> None:
        """Let a claim hold an entry no more; it ends with its last one."""
        del claim.held[entry.position]
        claim.leases.pop(entry.position, None)
        if not claim.held:
            self._forget_claim(claim)

    def _forget_claim(self, claim: Claim) -> None:
        """Let a claim be over; one that is still being made was never there."""
        if self.claims.pop(claim.id, None) is not None:
            self.changed_claims[claim.id] = None

    def forget_empty_claims(self) -> None:
        """Let claims be over that hold nothing; earlier versions kept them."""
        for claim in [claim for claim in self.claims.values() if not claim.held]:
            self._forget_claim(claim)

    def set_ttl(self, entry: Entry, ttl_ms: int, now: int) -> None:
        """Let an entry live `ttl_ms` from now."""
        entry.ttl_ms = ttl_ms
        entry.expires_at = now + ttl_ms
        page = entry.page
        self.change(page)
        if entry.expires_at < page.min_expires:
            page.min_expires = entry.expires_at
            heappush(self.expiries, (entry.expires_at, page.first, page))

    def set_delay(self, entry: Entry, visible_at: int) -> None:
        """Let a delayed entry wait until another instant."""
        entry.visible_at = visible_at
        self.index_delay(entry)
        self.change(entry.page)

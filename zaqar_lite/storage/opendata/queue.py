"""One queue in memory: its pages, and what is ready, waiting, claimed or expiring in them.

    pages, firsts   all entries, by position: a page is found by bisection, an entry by its page
    ready           heap of (lowest key of a ready entry in a page, page)
    waiting         heap of (earliest end of a delay or parking in a page, first position, page)
    due             pages in which a wait has ended: their entries are made ready when the page is
                    first in `ready`, or by the sweep; `half_due` has the cold ones
    lapses          heap of (earliest end of a lease in a claim, n, claim)
    expiries        heap of (earliest deadline in a page, first position, page)

Heaps order pages, and a page has its bounds even while its entries are only on disk (`paging.py`).
A bound may be too low, and is corrected when its page comes first. Items with an outdated bound are
skipped. So a claim costs O(limit * log n), whatever else is in the queue.

Nothing here writes: the `changed_...` fields tell the next batch what differs from the records.
"""

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heappush

from zaqar_lite.domain.groups import group_of
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.opendata.entries import (
    NEVER,
    NOTHING,
    PAGE_SIZE,
    POSITION_BITS,
    Claim,
    Entry,
    History,
    Page,
    Summary,
)
from zaqar_lite.storage.opendata.format.keys import RecordType, queue_id
from zaqar_lite.storage.opendata.idempotency import Keys


class Queue:
    """The messages, claims, keys and history of one queue, and the moves between states."""

    __slots__ = (
        "arrivals", "changed_attempts", "changed_claims", "changed_groups", "changed_pages",
        "claims", "cold_pages", "damaged_pages", "delayed_count", "done", "due", "epoch",
        "examined", "expired_pages", "expiries", "failed", "firsts", "half_due", "is_scheduled",
        "keys", "lapse_count", "lapses", "last_page", "moved", "numbered", "pages", "parked_count",
        "raw", "ready", "ready_count", "record", "ref", "removed", "total", "unrecorded_holds",
        "visit_at", "waiting",
    )  # fmt: skip

    def __init__(self, ref: QueueRef) -> None:
        self.ref = ref
        self.raw = queue_id(ref)
        self.record: QueueRecord | None = None
        self.pages: list[Page] = []
        self.firsts: list[int] = []
        self.numbered: dict[int | None, Page] = {}
        self.moved: dict[int, int] = {}  # shown id -> position, of entries that were moved here
        self.ready: list[tuple[int, Page]] = []
        self.waiting: list[tuple[int, int, Page]] = []
        self.due: dict[Page, None] = {}
        self.half_due: dict[Page, None] = {}
        self.claims: dict[str, Claim] = {}
        self.lapses: list[tuple[int, int, Claim]] = []
        self.expiries: list[tuple[int, int, Page]] = []
        self.total = self.ready_count = self.delayed_count = self.parked_count = 0
        self.keys = Keys()
        self.done = History(RecordType.DONE)
        self.failed = History(RecordType.FAILED)
        self.cold_pages = 0  # how many pages are not in memory
        self.expired_pages: dict[Page, None] = {}  # cold ones that hold what has expired
        self.examined = 0
        self.arrivals = 0  # how many entries have entered
        self.epoch = 0
        self.visit_at = NEVER  # when the sweep comes next (`queues.py`)
        self.is_scheduled = False  # whether the next sweep comes anyway
        self.changed_pages: set[int | None] = set()  # by number
        self.changed_claims: dict[str, Claim | None] = {}
        self.changed_groups: dict[tuple[str, int], bool] = {}  # (group, position) -> is in it
        self.unrecorded_holds: set[int] = set()  # positions whose claimant no record has yet
        self.changed_attempts: list[Entry] = []  # for the next batch
        self.removed: list[Entry] = []
        self.damaged_pages: set[int | None] = set()
        self.last_page = 0
        self.lapse_count = 0

    # -- finding --

    @property
    def claimed_count(self) -> int:
        """How many entries are claimed."""
        return self.total - self.ready_count - self.delayed_count - self.parked_count

    @property
    def is_bare(self) -> bool:
        """Whether the queue has nothing but its record."""
        return not (
            self.total or self.claims or self.keys or self.done or self.failed or self.damaged_pages
        )

    @property
    def is_changed(self) -> bool:
        """Whether entries, claims or keys differ from their records."""
        return bool(self.removed or self.changed_pages or self.changed_claims or self.keys.changed)

    def has(self, page: Page) -> bool:
        """Whether a page is still one of the queue's."""
        return self.numbered.get(page.number) is page

    def page_of(self, position: int) -> Page | None:
        """The page that has the entry at a position, if one has."""
        index = bisect_right(self.firsts, position) - 1
        return self.pages[index] if index >= 0 else None

    def find(self, position: int) -> Entry | None:
        """The entry at a position, if its page is in memory."""
        index = bisect_right(self.firsts, position) - 1
        return self.pages[index].entries.get(position) if index >= 0 else None

    def find_shown(self, shown_id: int) -> Entry | None:
        """The entry whose id in this queue has this number, if its page is in memory."""
        entry = self.find(self.moved.get(shown_id, shown_id))
        return entry if entry is not None and entry.shown_id == shown_id else None

    def after(self, position: int) -> Iterator[Entry]:
        """The entries after a position, in order; the queue must not change meanwhile."""
        index = max(0, bisect_right(self.firsts, position) - 1)
        for number in range(index, len(self.pages)):
            entries = self.pages[number].entries.values()
            if number == index:
                yield from (entry for entry in entries if entry.position > position)
            else:
                yield from entries

    def first_position(self) -> int | None:
        """No entry's position is lower; None when there is none."""
        if not self.total:
            return None
        page = self.pages[0]
        return next(iter(page.entries), page.first)

    # -- entering and leaving --

    def tail(self, position: int) -> Page:
        """The page that takes an entry at `position`, above every other position."""
        if self.pages:
            page = self.pages[-1]
            if page.summary is not None:
                return self._new_page(position)
            if page.entries or page.number is None or None in self.damaged_pages:
                if len(page.entries) < PAGE_SIZE:
                    return page
            else:
                self.drop_page(page)  # the queue is empty: begin with the root again
        return self._new_page(position)

    def _new_page(self, position: int) -> Page:
        has_root = self.pages or None in self.damaged_pages
        page = self.number_page(position) if has_root else Page(None, position)
        self.adopt(page)
        return page

    def number_page(self, first: int) -> Page:
        """Make a page with a number that no other has."""
        self.last_page += 1
        return Page(self.last_page, first)

    def adopt(self, page: Page) -> None:
        """Put a page behind those of lower positions."""
        index = bisect_right(self.firsts, page.first)
        self.pages.insert(index, page)
        self.firsts.insert(index, page.first)
        self.numbered[page.number] = page
        if page.number is not None:
            self.last_page = max(self.last_page, page.number)

    def adopt_cold(self, page: Page, cold: Summary) -> None:
        """Add a page whose entries stay in its record, and whose bounds are known."""
        self.adopt(page)
        page.summary = cold
        self._count(cold, 1)
        heappush(self.expiries, (page.min_expires, page.first, page))
        if page.next_visible != NEVER:
            heappush(self.waiting, (page.next_visible, page.first, page))
        if page.best != NOTHING:
            heappush(self.ready, (page.best, page))

    def damaged_page(self, number: int | None) -> None:
        """Reserve the number of a page that can't be read, so that it is never overwritten."""
        self.damaged_pages.add(number)
        self.last_page = max(self.last_page, number or 0)

    def add(self, entry: Entry) -> None:
        """Add an entry to its page, in the state that its fields say.

        The other entries of the page have not changed, so their encoded form stays.
        """
        page = entry.page
        page.entries[entry.position] = entry
        self.arrivals += 1
        self.changed_pages.add(page.number)
        if entry.position != entry.id:
            self.moved[entry.shown_id] = entry.position
        if entry.headers is not None or entry.extras is not None:
            self.join_group(entry)
        self.index(entry)

    def join_group(self, entry: Entry) -> None:
        """Note the group that an entry's headers name, if they do, for the next batch."""
        group = None if entry.extras is None else entry.extras.group
        if group is None:
            group = group_of(entry.headers)
            if group is None:
                return
            entry.ensure_extras().group = group
        self.changed_groups[group, entry.position] = True

    def change(self, page: Page) -> None:
        """Note that an entry of a page changed or left."""
        if page.encoded_count:
            page.forget_encoded()
        self.changed_pages.add(page.number)

    def index(self, entry: Entry) -> None:
        """Count an entry that is in its page, and widen the bounds of the page to it."""
        self.total += 1
        if entry.expires_at < entry.page.min_expires:
            self.note_expiry(entry)
        if entry.delayed:
            self.delayed_count += 1
            self._index_wait(entry, entry.visible_at)
        elif entry.claim is None:
            if entry.extras is not None and entry.extras.parked_until:
                self.park(entry)
            else:
                self.make_ready(entry)

    def note_expiry(self, entry: Entry) -> None:
        """Let the page of an entry be looked at when it expires, or before."""
        page = entry.page
        if entry.expires_at < page.min_expires:
            page.min_expires = entry.expires_at
            heappush(self.expiries, (entry.expires_at, page.first, page))

    def park(self, entry: Entry) -> None:
        """Count an entry that was given back with a delay."""
        self.parked_count += 1
        self._index_wait(entry, entry.ensure_extras().parked_until)

    def _index_wait(self, entry: Entry, until: int) -> None:
        entry.page.best_waiting = min(entry.page.best_waiting, entry.priority)
        self.note_wait(entry.page, until)

    def note_wait(self, page: Page, until: int) -> None:
        """Let a page be looked at when one of its entries is ready, or before."""
        if until < page.next_visible:
            page.next_visible = until
            heappush(self.waiting, (until, page.first, page))

    def remove(self, entry: Entry) -> None:
        """Take an entry out of the queue, whatever its state."""
        self.uncount(entry)
        self.leave(entry)

    def uncount(self, entry: Entry) -> None:
        """Count an entry in no state any more; the caller removes it in the same step."""
        extras = entry.extras
        if entry.claim is not None:
            self.drop_lease(entry.claim, entry.position)
        elif entry.delayed:
            self.delayed_count -= 1
        elif extras is not None and extras.parked_until:
            self.parked_count -= 1
        elif extras is None or not extras.damaged:
            self.ready_count -= 1

    def leave(self, entry: Entry) -> None:
        """Remove an entry that is counted in no state."""
        self.total -= 1
        page = entry.page
        del page.entries[entry.position]
        self.moved.pop(entry.shown_id, None)
        self.change(page)
        self.removed.append(entry)
        if entry.extras is not None and entry.extras.group is not None:
            self.changed_groups[entry.extras.group, entry.position] = False
        if not page.entries and page is not self.pages[-1]:
            self.drop_page(page)

    def drop_page(self, page: Page) -> None:
        """Drop a page; its new bounds make the heaps skip it."""
        index = bisect_right(self.firsts, page.first) - 1
        del self.pages[index]
        del self.firsts[index]
        del self.numbered[page.number]
        self.due.pop(page, None)
        page.best, page.next_visible, page.min_expires = NOTHING, NEVER, NEVER

    # -- pages in memory, and not --

    def evict(self, page: Page) -> bool:
        """Drop the entries of a saved page from memory; answer False where they must stay."""
        cold = None if page in self.due or not page.entries else page.summarise()
        if cold is None:
            return False
        page.forget_entries()
        page.summary = cold  # the counts stay the same
        self.cold_pages += 1
        return True

    def forget_entries(self) -> None:
        """Drop all entries from memory, because the queue is used no more."""
        for page in self.pages:
            page.forget_entries()

    def _count(self, cold: Summary, sign: int) -> None:
        self.cold_pages += sign
        self.total += sign * cold.total
        self.ready_count += sign * cold.ready
        self.delayed_count += sign * cold.delayed
        self.parked_count += sign * cold.parked

    def uncount_summary(self, page: Page) -> None:
        """Subtract what a cold page counts: its entries are loaded, or it goes."""
        self.half_due.pop(page, None)
        self.expired_pages.pop(page, None)
        if page.summary is not None:
            self._count(page.summary, -1)
            page.summary = None

    # -- states --

    def offer(self, page: Page, key: int) -> None:
        """Enter a page into the heap of ready pages, unless it is there with a lower key."""
        if key < page.best:
            page.best = key
            heappush(self.ready, (key, page))

    def hold(self, entry: Entry, claim: Claim) -> None:
        """Let `claim` hold an entry that was taken."""
        entry.claim = claim
        if entry.attempts < 0xFFFF:
            entry.attempts += 1
        claim.held[entry.position] = entry.shown_id
        self.unrecorded_holds.add(entry.position)
        self.change(entry.page)

    def write_holders(self, limit: int) -> None:
        """Let the next batch record the current claimants of up to `limit` entries.

        Only other readers of the RFC's format need them, so a claim does not wait for this: most
        messages are deleted before the sweep comes.
        """
        for _ in range(min(limit, len(self.unrecorded_holds))):
            entry = self.find(self.unrecorded_holds.pop())
            if entry is not None and entry.claim is not None:
                self.changed_attempts.append(entry)

    def make_ready(self, entry: Entry) -> None:
        """Count and index an entry as ready, unless it is set aside as damaged."""
        if entry.extras is not None and entry.extras.damaged:
            return
        self.ready_count += 1
        key = entry.priority << POSITION_BITS | entry.position
        page = entry.page
        if page.order is not None:
            heappush(page.order, key)
        if key < page.best:
            self.offer(page, key)

    def drop_lease(self, claim: Claim, position: int) -> None:
        """Take the entry at a position out of a claim, which ends with its last entry."""
        del claim.held[position]
        claim.leases.pop(position, None)
        if not claim.held:
            self.forget_claim(claim)

    def forget_claim(self, claim: Claim) -> None:
        """End a claim; a draft was never listed, and leaves no change."""
        if self.claims.pop(claim.id, None) is not None:
            self.changed_claims[claim.id] = None

    def set_ttl(self, entry: Entry, ttl_ms: int, now: int) -> None:
        """Let an entry live `ttl_ms` from now."""
        entry.ttl_ms = ttl_ms
        entry.expires_at = now + ttl_ms
        self.change(entry.page)
        self.note_expiry(entry)

    def set_delay(self, entry: Entry, visible_at: int) -> None:
        """Let a delayed entry wait until another instant."""
        entry.visible_at = visible_at
        self._index_wait(entry, visible_at)
        self.change(entry.page)

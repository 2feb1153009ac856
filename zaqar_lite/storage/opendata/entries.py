"""What a queue is made of in memory: entries, the pages that checkpoint them, and claims."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from zaqar_lite.domain.attempts import Ended
from zaqar_lite.domain.models import Message, Origin
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.format.records import Attempts, EndedMessage, Kept

PAGE_SIZE = 128
"""Entries of a page: so few that its record fits into one page of SQLite while all are claimed. A
larger record lies on several, and each claim and deletion would write them all anew."""
MAX_ATTEMPTS = 0xFFFF
MAX_PRIORITY = 0xFF
MAX_CONSUMERS = 64
NEVER = 1 << 63
POSITION_BITS = 64
NOTHING = 1 << 80
"""Above every `ready_key`."""
UNKNOWN = -1
"""`Entry.created_at` of an entry whose metadata has not been read from the log yet."""


class Claim:
    """A claim and what it holds.

    held        position -> shown id of each message it holds; empty once the claim is over
    claimed_at  when it handed out its messages
    created_at  when it was made or last renewed; the claim's age counts from here
    leases      position -> end, of leases that do not end at `deadline`
    deadline    the end of the other leases
    due_at      no lease of the claim ends before

    One without a ttl is a draft: it reserves entries while their bodies are read.
    """

    __slots__ = (
        "claimed_at", "client_id", "created_at", "deadline", "due_at", "grace_ms", "held", "id",
        "leases", "raw", "ttl_ms",
    )  # fmt: skip

    def __init__(self, claim_id: str, client_id: str) -> None:
        self.id = claim_id
        self.raw = bytes.fromhex(claim_id)
        self.client_id = client_id
        self.claimed_at = self.created_at = self.deadline = self.due_at = 0
        self.ttl_ms = self.grace_ms = 0
        self.held: dict[int, int] = {}
        self.leases: dict[int, int] = {}

    def lease(self, position: int) -> int:
        """When the claim's lease of the entry at a position ends."""
        return self.leases.get(position, self.deadline) if self.leases else self.deadline

    def live(self, now: int) -> list[int]:
        """The positions of entries with a live lease, in order."""
        return [at for at in sorted(self.held) if self.lease(at) > now]

    def lapsed(self, now: int) -> list[int]:
        """The positions of entries whose lease has ended."""
        if not self.leases:
            return list(self.held) if self.deadline <= now else []
        return [at for at in self.held if self.lease(at) <= now]


class EntryExtras(Struct, eq=False, gc=False):
    """What few entries have: ended attempts, an origin, a group, and rare states.

    consumers     the clients of the attempts that have ended, oldest first
    last_claim    the claim of the last ended attempt
    last_ended    how the last attempt ended
    failures      how many attempts were failures
    history       the number in the keys of the attempts' records; 0: there are none
    kept          the attempts that have a record
    parked_until  when the delay ends with which it was released; 0: it is not parked
    origin        where a dead letter came from
    shared        more than one queue was given the message
    renamed       its id in this queue is its position, because the queue already had its id
    damaged       its payload or metadata can't be read, so it is never handed out
    group         the group that its headers name; the headers may not be in memory
    """

    consumers: tuple[str, ...] = ()
    last_claim: bytes | None = None
    last_ended: Ended | None = None
    failures: int = 0
    history: int = 0
    kept: tuple[Kept, ...] = ()
    parked_until: int = 0
    origin: Origin | None = None
    shared: bool = False
    renamed: bool = False
    damaged: bool = False
    group: str | None = None

    @property
    def is_only_shared(self) -> bool:
        """Whether its page's record needs nothing but that it is shared."""
        return self.shared and not (
            self.last_claim or self.parked_until or self.renamed or self.origin or self.group
        )

    @property
    def attempts(self) -> Attempts:
        """What the record of ended attempts holds."""
        return Attempts(self.consumers, self.history, self.failures, self.last_ended, self.kept)

    @attempts.setter
    def attempts(self, known: Attempts) -> None:
        self.consumers, self.history, self.failures, self.last_ended, self.kept = known


class Summary(NamedTuple):
    """What is known of a cold page: its entries by state.

    last_visible  when the last of the delayed and parked entries becomes ready
    holders       the claims that hold entries of the page
    shared        the ids of messages that more than one queue was given
    """

    total: int
    ready: int = 0
    delayed: int = 0
    parked: int = 0
    last_visible: int = 0
    holders: "Sequence[Claim]" = ()
    shared: Sequence[int] = ()


class Page:
    """Up to 128 entries of a queue, one record of the store; `number` None is the root.

    first         no entry has a lower position
    best          no ready entry has a lower key (`ready_key`); NOTHING: none is ready
    next_visible  no delayed or parked entry becomes ready before
    best_waiting  the lowest priority of the delayed and parked entries
    min_expires   no entry expires before
    order         heap of the keys of the ready entries, made when the first of them is taken
    summary       of a cold page, whose entries are only in its record (`paging.py`); else None
    epoch         the last batch that wrote the page

    A post only appends. So the encoded elements of the first `encoded_count` entries are kept in
    `encoded`, and their extras in `encoded_extras`, until one of them changes or is claimed:
    encoding them anew was most of what a commit of few messages cost.
    """

    __slots__ = (
        "best", "best_waiting", "encoded", "encoded_count", "encoded_extras", "entries", "epoch",
        "first", "min_expires", "next_visible", "number", "order", "summary",
    )  # fmt: skip

    def __init__(self, number: int | None, first: int) -> None:
        self.number = number
        self.first = first
        self.entries: dict[int, Entry] = {}
        self.best = NOTHING
        self.min_expires = self.next_visible = NEVER
        self.best_waiting = MAX_PRIORITY
        self.order: list[int] | None = None
        self.summary: Summary | None = None
        self.epoch = 0
        self.forget_encoded()

    def __lt__(self, other: "Page") -> bool:
        """Order pages with equal bounds in a heap: a page that was joined to another leaves one."""
        return self.first < other.first

    def forget_encoded(self) -> None:
        """Encode all entries anew when the page is written next."""
        self.encoded = b""
        self.encoded_count = 0
        self.encoded_extras: list[bytes] = []

    @property
    def count(self) -> int:
        """How many entries it has."""
        return len(self.entries) if self.summary is None else self.summary.total

    def summarise(self) -> Summary | None:
        """Summarise the page; None while its record lacks a draft claim or a damaged entry."""
        ready = delayed = parked = last_visible = 0
        holders: dict[Claim, None] = {}
        shared = []
        for entry in self.entries.values():
            extras, claim = entry.extras, entry.claim
            if claim is not None:
                if not claim.ttl_ms:
                    return None
                holders[claim] = None
            elif entry.delayed:
                delayed += 1
                last_visible = max(last_visible, entry.visible_at)
            elif extras is not None and extras.parked_until:
                parked += 1
                last_visible = max(last_visible, extras.parked_until)
            else:
                ready += 1
            if extras is not None:
                if extras.damaged:
                    return None
                if extras.shared:
                    shared.append(entry.id)
        total = len(self.entries)
        return Summary(total, ready, delayed, parked, last_visible, tuple(holders), tuple(shared))

    def set_bounds(self) -> None:
        """Set the bounds by the entries, for a page that is in no heap yet."""
        for entry in self.entries.values():
            extras = entry.extras
            self.min_expires = min(self.min_expires, entry.expires_at)
            if is_ready(entry):
                self.best = min(self.best, ready_key(entry))
            elif entry.claim is None:
                until = (
                    entry.visible_at if extras is None else extras.parked_until or entry.visible_at
                )
                self.next_visible = min(self.next_visible, until)
                self.best_waiting = min(self.best_waiting, entry.priority)

    def forget_entries(self) -> None:
        """Drop the entries from memory."""
        self.entries, self.order = {}, None
        self.forget_encoded()


class Entry(Struct, eq=False, gc=False):
    """One message in one queue.

    The garbage collector does not visit entries: visiting some ten thousand held up every request
    by 10 ms. It can't see that a page and its entries refer to each other, so a page that goes with
    entries in it must forget them (`Page.forget_entries`).

    id          the message id of RFC 0001, which keys payload and metadata
    position    its place in this queue: the id, unless the message was moved here
    visible_at  when its delay ends; 0 where it had none
    ttl_ms      0 stands for `expires_at - created_at`
    """

    id: int
    position: int
    page: Page
    priority: int
    visible_at: int
    expires_at: int
    ttl_ms: int
    created_at: int
    client_id: str | None
    headers: Mapping[str, str] | None
    attempts: int = 0
    delayed: bool = False
    claim: Claim | None = None
    extras: EntryExtras | None = None

    @property
    def shown_id(self) -> int:
        """The number of which its id in this queue is the text."""
        extras = self.extras
        return self.position if extras is not None and extras.renamed else self.id

    @property
    def is_plain(self) -> bool:
        """Whether the RFC's fields are enough for an entry that is not held and has no extras."""
        ttl = self.ttl_ms
        return self.position == self.id and (
            not ttl or (self.created_at >= 0 and ttl == self.expires_at - self.created_at)
        )

    def holder(self, now: int) -> Claim | None:
        """The claim that holds the entry, unless its lease has ended."""
        claim = self.claim
        return None if claim is None or claim.lease(self.position) <= now else claim

    def is_parked(self, now: int) -> bool:
        """Whether it was released with a delay that has not ended."""
        extras = self.extras
        return extras is not None and extras.parked_until > now

    def ensure_extras(self) -> EntryExtras:
        """The entry's extras, made if there are none, to write to."""
        extras = self.extras
        if extras is None:
            extras = self.extras = EntryExtras()
        return extras

    def view(self, name: str, now: int, *, with_delay: bool = True) -> Message:
        """Make the message of the entry, without its body and attempts."""
        extras = self.extras
        claim = self.claim
        if (
            claim is not None
            and (claim.leases or claim.deadline <= now)
            and claim.lease(self.position) <= now
        ):
            claim = None
        message = Message(
            name,
            self.position,
            b"",
            self.ttl_ms or self.expires_at - self.created_at,
            self.created_at,
            self.expires_at,
            now,
            None if claim is None else claim.id,
            self.attempts,
            self.client_id,
            (self.visible_at or None) if with_delay else None,
            self.headers,
        )
        if extras is not None:
            message.origin, message.failure_count = extras.origin, extras.failures
            if extras.parked_until > now:
                message.parked_until = extras.parked_until
        return message


NOWHERE = Page(None, NEVER)
"""The page of entries that are not in a queue yet."""


def ready_key(entry: Entry) -> int:
    """The order in which entries are handed out: by priority, then by position."""
    return entry.priority << POSITION_BITS | entry.position


def is_damaged(entry: Entry) -> bool:
    """Whether an entry is set aside because it can't be read."""
    return entry.extras is not None and entry.extras.damaged


def is_ready(entry: Entry) -> bool:
    """Whether an entry can be handed out: not held, delayed, parked or damaged."""
    extras = entry.extras
    return (
        entry.claim is None
        and not entry.delayed
        and (extras is None or not (extras.damaged or extras.parked_until))
    )


class Extent(NamedTuple):
    """A page: its number (None is the root) and when its last message ended."""

    number: int | None
    last_ended_at: int


class History:
    """Done or failed messages in pages, the oldest first; a page goes once all of it is over."""

    def __init__(self, kind: RecordType) -> None:
        self.kind = kind
        self.full: list[Extent] = []
        self.number: int | None = None
        self.tail: list[EndedMessage] = []
        self.changed: dict[int | None, list[EndedMessage]] = {}
        """The pages that differ on disk, for the next batch; the empty ones go."""

    def __bool__(self) -> bool:
        return bool(self.full or self.tail)

    def append(self, ended: EndedMessage) -> None:
        """Add a message at the end."""
        if len(self.tail) >= PAGE_SIZE:
            self.full.append(Extent(self.number, self.tail[-1].ended_at))
            self.tail = []
            self.number = (self.number or 0) + 1
        self.tail.append(ended)
        self.changed[self.number] = self.tail

    def restore_page(self, number: int | None, items: list[EndedMessage]) -> None:
        """Take over a page of the store; they come in order of their number, the root first."""
        if self.tail:
            self.full.append(Extent(self.number, self.tail[-1].ended_at))
        if items:
            self.number, self.tail = number, items

    @property
    def first(self) -> Extent:
        """The first page; there must be one."""
        return self.full[0] if self.full else Extent(self.number, self.tail[-1].ended_at)

    def drop_first(self) -> None:
        """Forget the first page."""
        self.changed[self.first.number] = []
        if self.full:
            del self.full[0]
        else:
            self.tail = []

    def numbers(self, after: int | None) -> list[int | None]:
        """The numbers of the pages from `after` on; 0 is the root, None means all pages."""
        known = [extent.number for extent in self.full]
        known.append(self.number)
        return [number for number in known if after is None or (number or 0) >= after]

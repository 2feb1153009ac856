"""The data layout of the memory driver: entries, and one set of indexes for each queue.

A queue has a table of its entries and five sorted indexes of keys. Every live entry is in `order`
and `expiry`, and in exactly one of ready, delayed and a claim's `held`:

    entries    position -> entry              ids      message id -> entry
    order      position                       expiry   (expires_at, position)
    ready      (priority, position)           delayed  (delay_expires_at, position)
    claims     claim id -> claim              lapses   (expires_at, claim id)

An index never holds a key of an entry that has left its state, so a claim looks at nothing but
what it hands out, whatever else is in the queue.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from sortedcontainers import SortedList

from zaqar_lite.domain.errors import QueueChanged
from zaqar_lite.domain.metadata import FILTER, dead_letter_target
from zaqar_lite.domain.models import Message, Origin, QueueRecord, QueueRef

UNBOUNDED = 1 << 62


class Claim:
    """A claim and what it holds, by position; empty once it is released or has lapsed."""

    __slots__ = ("client_id", "expires_at", "held", "id", "started_at", "ttl_ms")

    def __init__(self, claim_id: str, client_id: str) -> None:
        self.id = claim_id
        self.client_id = client_id
        self.held: dict[int, Entry] = {}
        self.ttl_ms = 0
        self.started_at = 0
        self.expires_at = 0


class Shared:
    """How many queues hold one posted message (fan-out)."""

    __slots__ = ("holders",)

    def __init__(self) -> None:
        self.holders = 0


class Entry:
    """One message in one queue. `claim` is the live claim, `last_claim` the latest there was."""

    __slots__ = (
        "body",
        "claim",
        "claim_count",
        "client_id",
        "created_at",
        "delay_expires_at",
        "expires_at",
        "headers",
        "id",
        "is_delayed",
        "last_claim",
        "origin",
        "position",
        "priority",
        "shared",
        "ttl_ms",
    )

    def __init__(  # noqa: PLR0917 - one call per message: positional costs least
        self,
        message_id: str,
        position: int,
        body: bytes,
        ttl_ms: int,
        now: int,
        priority: int,
        client_id: str,
        headers: Mapping[str, str] | None,
        shared: Shared | None,
    ) -> None:
        self.id = message_id
        self.position = position
        self.body = body
        self.ttl_ms = ttl_ms
        self.created_at = now
        self.expires_at = now + ttl_ms
        self.priority = priority
        self.client_id = client_id
        self.headers = headers
        self.shared = shared
        self.claim: Claim | None = None
        self.last_claim: Claim | None = None
        self.claim_count = 0
        self.is_delayed = False
        self.delay_expires_at = 0  # 0: there was no delay
        self.origin: Origin | None = None

    def view(self, now: int) -> Message:
        """Show the entry to a reader at `now`, but for its delay."""
        return Message(
            self.id,
            self.position,
            self.body,
            self.ttl_ms,
            self.created_at,
            self.expires_at,
            now,
            None if self.claim is None else self.claim.id,
            self.claim_count,
            self.client_id,
            None,
            self.headers,
            self.origin,
        )

    def full_view(self, now: int) -> Message:
        """Show the entry to a reader at `now`, with its delay."""
        message = self.view(now)
        message.delay_expires_at = self.delay_expires_at or None
        return message


class Known(NamedTuple):
    """A known idempotency key: the ids it answers, what it stands for, when it is forgotten."""

    ids: tuple[str, ...]
    digest: bytes
    until: int


class Queue:
    """The messages, claims and idempotency keys of one queue, and the moves between states."""

    __slots__ = (
        "batch_keys",
        "claims",
        "delayed",
        "entries",
        "examined",
        "expiry",
        "ids",
        "lapses",
        "message_keys",
        "order",
        "ready",
    )

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.ids: dict[str, Entry] = {}
        self.order: SortedList[int] = SortedList()
        self.expiry: SortedList[tuple[int, int]] = SortedList()
        self.ready: SortedList[tuple[int, int]] = SortedList()
        self.delayed: SortedList[tuple[int, int]] = SortedList()
        self.claims: dict[str, Claim] = {}
        self.lapses: SortedList[tuple[int, str]] = SortedList()
        # The window is one constant and time does not go back, so the order of insertion is the
        # order of expiry.
        self.message_keys: dict[str, Known] = {}
        self.batch_keys: dict[str, Known] = {}
        self.examined = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is left to remember."""
        return not (self.entries or self.claims or self.message_keys or self.batch_keys)

    def add(self, entry: Entry, delay_expires_at: int = 0) -> None:
        """Let an entry in at its position: delayed until `delay_expires_at`, or ready if 0."""
        position = entry.position
        if entry.shared is not None:
            entry.shared.holders += 1
        self.entries[position] = entry
        self.ids[entry.id] = entry
        self.order.add(position)
        self.expiry.add((entry.expires_at, position))
        if delay_expires_at:
            entry.is_delayed = True
            entry.delay_expires_at = delay_expires_at
            self.delayed.add((delay_expires_at, position))
        else:
            self.ready.add((entry.priority, position))

    def remove(self, entry: Entry) -> None:
        """Take an entry out of the queue, whatever its state."""
        position = entry.position
        if entry.claim is not None:
            self._let_go(entry.claim, position)
            entry.claim = None
        elif entry.is_delayed:
            self.delayed.remove((entry.delay_expires_at, position))
            entry.is_delayed = False
        else:
            self.ready.remove((entry.priority, position))
        self.leave(entry)

    def take_first(self) -> Entry:
        """Take the first entry out of the ready index; `hold` it or let it `leave` at once."""
        self.examined += 1
        return self.entries[self.ready.pop(0)[1]]

    def leave(self, entry: Entry) -> None:
        """Let an entry that is in no state's index leave the queue."""
        position = entry.position
        if entry.shared is not None:
            entry.shared.holders -= 1
        del self.entries[position]
        del self.ids[entry.id]
        self.order.remove(position)
        self.expiry.remove((entry.expires_at, position))

    def clear(self) -> None:
        """Remove all entries and all claims; keep the idempotency keys."""
        for entry in self.entries.values():
            if entry.shared is not None:
                entry.shared.holders -= 1
        for collection in (
            self.entries,
            self.ids,
            self.order,
            self.expiry,
            self.ready,
            self.delayed,
            self.claims,
            self.lapses,
        ):
            collection.clear()

    def hold(self, entry: Entry, claim: Claim) -> None:
        """Let `claim` hold an entry that `take_first` took."""
        entry.claim = entry.last_claim = claim
        entry.claim_count += 1
        claim.held[entry.position] = entry

    def extend(self, claim: Claim, now: int, ttl_ms: int, grace_ms: int) -> None:
        """Let a claim live `ttl_ms` from now, and what it holds at least as long.

        A message that would expire before its claim gets the claim's ttl and the grace.
        """
        if claim.id in self.claims:
            self.lapses.remove((claim.expires_at, claim.id))
        claim.started_at, claim.ttl_ms, claim.expires_at = now, ttl_ms, now + ttl_ms
        self.claims[claim.id] = claim
        self.lapses.add((claim.expires_at, claim.id))
        for entry in claim.held.values():
            if entry.expires_at < claim.expires_at:
                self.set_ttl(entry, ttl_ms + grace_ms, now)

    def end(self, claim: Claim) -> None:
        """End a claim: what it still holds is ready again, each at its own position."""
        del self.claims[claim.id]
        self.lapses.remove((claim.expires_at, claim.id))
        for entry in claim.held.values():
            entry.claim = None
            self.ready.add((entry.priority, entry.position))
        claim.held.clear()

    def set_ttl(self, entry: Entry, ttl_ms: int, now: int) -> None:
        """Let an entry live `ttl_ms` from now."""
        self.expiry.remove((entry.expires_at, entry.position))
        entry.ttl_ms, entry.expires_at = ttl_ms, now + ttl_ms
        self.expiry.add((entry.expires_at, entry.position))

    def set_delay(self, entry: Entry, delay_expires_at: int) -> None:
        """Let a delayed entry wait until another instant."""
        self.delayed.remove((entry.delay_expires_at, entry.position))
        entry.delay_expires_at = delay_expires_at
        self.delayed.add((delay_expires_at, entry.position))

    def settle(self, now: int) -> None:
        """Bring expiry and lapses up to `now`."""
        self.expire(now)
        self.lapse(now)

    def expire(self, now: int, limit: int = UNBOUNDED) -> int:
        """Remove up to `limit` entries whose deadline has come; answer how many."""
        count = 0
        while count < limit and self.expiry and self.expiry[0][0] <= now:
            self.remove(self.entries[self.expiry[0][1]])
            count += 1
        self.examined += count
        return count

    def lapse(self, now: int, limit: int = UNBOUNDED) -> int:
        """End up to `limit` claims whose deadline has come; answer how many."""
        count = 0
        while count < limit and self.lapses and self.lapses[0][0] <= now:
            claim = self.claims[self.lapses[0][1]]
            self.examined += len(claim.held)
            self.end(claim)
            count += 1
        return count

    def promote(self, now: int, limit: int = UNBOUNDED) -> int:
        """Make up to `limit` entries ready whose delay is over; answer how many."""
        count = 0
        while count < limit and self.delayed and self.delayed[0][0] <= now:
            self._make_ready(self.entries[self.delayed.pop(0)[1]])
            count += 1
        self.examined += count
        return count

    def expose(self, now: int, limit: int) -> int:
        """Make up to `limit` delayed entries ready, whatever their delay; answer how many."""
        count = 0
        while count < limit and self.delayed:
            until, position = self.delayed.pop(0)
            entry = self.entries[position]
            entry.delay_expires_at = min(until, now)
            self._make_ready(entry)
            count += 1
        self.examined += count
        return count

    def forget_keys(self, now: int) -> None:
        """Forget the idempotency keys whose window is over."""
        for keys in (self.message_keys, self.batch_keys):
            while keys:
                key = next(iter(keys))
                if keys[key].until > now:
                    break
                del keys[key]

    def seconds_to_a_free_key(self, now: int) -> int:
        """How long it takes until the oldest key is forgotten; 1 when there is none."""
        oldest = [
            next(iter(keys.values())).until for keys in (self.message_keys, self.batch_keys) if keys
        ]
        return max(1, -(-(min(oldest, default=now) - now) // 1000))

    def _let_go(self, claim: Claim, position: int) -> None:
        """Take an entry out of its claim, which ends with its last one."""
        del claim.held[position]
        if not claim.held:
            self.end(claim)

    def _make_ready(self, entry: Entry) -> None:
        entry.is_delayed = False
        self.ready.add((entry.priority, entry.position))


class State:
    """All that the two stores of one `create` share.

    Positions and versions are never used twice in one state, so that a queue that was dropped and
    made again begins where the old one ended.
    """

    def __init__(self) -> None:
        self.queues: dict[QueueRef, Queue] = {}
        self.records: dict[QueueRef, QueueRecord] = {}
        self.sources: dict[QueueRef, set[str]] = {}
        self.filtered: dict[str, set[str]] = {}
        self.exposing: dict[QueueRef, None] = {}
        self._names: dict[str, SortedList[str]] = {}
        self._last_position = 0
        self._last_version = 0

    def take_positions(self, count: int, now_us: int) -> int:
        """Take `count` positions in a row; answer the first."""
        first = max(self._last_position + 1, now_us)
        self._last_position = first + count - 1
        return first

    def next_version(self, now_us: int) -> int:
        """Take the next version of a queue's record."""
        self._last_version = max(self._last_version + 1, now_us)
        return self._last_version

    def queue(self, ref: QueueRef) -> Queue:
        """The queue to write to; made when there is none."""
        queue = self.queues.get(ref)
        if queue is None:
            queue = self.queues[ref] = Queue()
        return queue

    def check_version(self, ref: QueueRef, version: int | None) -> None:
        """Compare the version that a caller decided by; 0 stands for no record.

        Raises:
            QueueChanged: the record is at another version.
        """
        if version is None:
            return
        record = self.records.get(ref)
        if version != (0 if record is None else record.version):
            raise QueueChanged(f"The queue {ref.name!r} is not at version {version} any more.")

    def names(self, project: str) -> "SortedList[str]":
        """The names of a project's queues, in order."""
        return self._names.get(project, _NO_NAMES)

    def put_record(self, record: QueueRecord) -> None:
        """Store a record in place of the one there is, and index it."""
        ref = record.ref
        self.remove_record(ref)
        self.records[ref] = record
        self._names.setdefault(ref.project, SortedList()).add(ref.name)
        target = dead_letter_target(record.metadata)
        if target is not None:
            self.sources.setdefault(QueueRef(ref.project, target), set()).add(ref.name)
        if record.metadata.get(FILTER) is not None:
            self.filtered.setdefault(ref.project, set()).add(ref.name)
        if record.exposing:
            self.exposing[ref] = None

    def remove_record(self, ref: QueueRef) -> None:
        """Remove a record from the table and from every index; no error when there is none."""
        record = self.records.pop(ref, None)
        if record is None:
            return
        self._names[ref.project].remove(ref.name)
        if not self._names[ref.project]:
            del self._names[ref.project]
        target = dead_letter_target(record.metadata)
        if target is not None:
            _discard(self.sources, QueueRef(ref.project, target), ref.name)
        _discard(self.filtered, ref.project, ref.name)
        self.exposing.pop(ref, None)


_NO_NAMES: SortedList[str] = SortedList()
_K = TypeVar("_K")


def _discard(index: dict[_K, set[str]], key: _K, name: str) -> None:
    """Take a name out of an index, and the key with its last name."""
    names = index.get(key, set())
    names.discard(name)
    if not names:
        index.pop(key, None)

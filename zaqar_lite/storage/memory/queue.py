"""The data layout of the memory driver: entries, and one set of indexes for each queue.

A queue has a table of its entries and six sorted indexes. Every entry is in `order` and
`expiry`, and in exactly one of ready, delayed, parked and a claim's `held`. A pair with a position
is one number (`pairs.py`), which takes half of a tuple's memory and time:

    entries    position -> entry              ids      message id -> entry
    order      position                       expiry   (expires_at, position)
    groups     group -> positions
    ready      (priority, position)           delayed  (delay_expires_at, position)
    claims     claim id -> claim, while it    parked   (lease_until, position)
               holds an entry
    lapses     (ends_at, claim id): no lease of the claim ends before `ends_at`

The messages of a large post are not in `ids`, which would take long in one step. An id begins with
the position at which its message was posted, so they are found in `entries`.

An index never holds a key of an entry that has left its state, so a claim examines only what it
hands out, whatever else is in the queue. An entry, delay or lease that time has ended stays in its
index until an operation or the sweep removes it in a bounded step; readers compare instants.
"""

from collections.abc import Sequence
from itertools import groupby, islice
from operator import attrgetter

from sortedcontainers import SortedList

from zaqar_lite.domain.groups import group_of
from zaqar_lite.domain.ids import position_of
from zaqar_lite.domain.models import Take
from zaqar_lite.storage.memory.deadlines import Deadlines
from zaqar_lite.storage.memory.entries import Entry, Known, LiveClaim
from zaqar_lite.storage.memory.pairs import BITS, POSITION, pair
from zaqar_lite.storage.memory.runs import LONG_RUN, Run

LAST_ID = "g"
"""An id above all claims' ids, which are hex digits."""
MANY = 8
"""From so many entries on, it is faster to add all of them to one index after the other."""

_id_of, _position_of, _expiry_of = map(attrgetter, ("id", "position", "expires_at"))


class Queue:
    """The messages, claims and idempotency keys of one queue, and the moves between states."""

    __slots__ = (
        "batch_keys",
        "claims",
        "delayed",
        "entries",
        "examined",
        "expiry",
        "groups",
        "ids",
        "lapses",
        "message_keys",
        "order",
        "parked",
        "ready",
        "sweep_at",
    )

    def __init__(self) -> None:
        # The window is one constant and time does not go back, so the order of insertion is the
        # order of expiry.
        self.message_keys: dict[str, Known] = {}
        self.batch_keys: dict[str, Known] = {}
        self.examined = 0
        self.sweep_at: int | None = None  # when the sweep will visit this queue
        self.clear()

    def clear(self) -> dict[int, Entry]:
        """Remove all entries and claims but keep the keys; return the entries, to be freed."""
        entries = getattr(self, "entries", {})
        self.entries: dict[int, Entry] = {}
        self.ids: dict[str, Entry] = {}
        self.groups: dict[str, SortedList[int]] = {}
        self.order: Run[int] = Run()
        self.expiry = Deadlines()
        self.ready: Run[int] = Run()
        self.delayed: SortedList[int] = SortedList()
        self.lapses: SortedList[tuple[int, str]] = SortedList()
        self.parked: SortedList[int] = SortedList()
        self.claims: dict[str, LiveClaim] = {}
        return entries

    @property
    def is_empty(self) -> bool:
        """Whether the queue holds neither messages nor keys."""
        return not (self.entries or self.message_keys or self.batch_keys)

    def add(self, entry: Entry, delay_expires_at: int) -> None:
        """Add an entry at its position: delayed until `delay_expires_at`, or ready if that is 0."""
        position = entry.position
        if entry.shared is not None:
            entry.shared.holders += 1
        self.entries[position] = entry
        self.ids[entry.id] = entry
        if entry.headers is not None:
            self._join_group(entry)
        self.order.add(position)
        self.expiry.add(entry.expires_at, position)
        if delay_expires_at:
            entry.is_delayed = True
            entry.delay_expires_at = delay_expires_at
            self.delayed.add(pair(delay_expires_at, position))
        else:
            self.ready.add(pair(entry.priority, position))

    def add_all(self, entries: Sequence[Entry]) -> None:
        """Add the entries of one post, in the order of their positions."""
        if len(entries) < MANY:
            for entry in entries:
                self.add(entry, entry.delay_expires_at)
            return
        positions = list(map(_position_of, entries))
        self.entries.update(zip(positions, entries, strict=True))
        self.order.add_run(positions)
        self.ids.update(zip(map(_id_of, entries), entries, strict=True))
        for entry in entries:
            if entry.shared is not None:
                entry.shared.holders += 1
            if entry.headers is not None:
                self._join_group(entry)
            if entry.delay_expires_at:
                entry.is_delayed = True
                self.delayed.add(pair(entry.delay_expires_at, entry.position))
        self.ready.add_run(
            sorted([e.priority << BITS | e.position for e in entries if not e.delay_expires_at])
        )
        expiries = list(map(_expiry_of, entries))
        if expiries.count(expiries[0]) == len(expiries):
            self.expiry.add_all(expiries[0], positions)
            return
        for instant, group in groupby(entries, _expiry_of):
            self.expiry.add_all(instant, list(map(_position_of, group)))

    def add_uniform(self, entries: Sequence[Entry]) -> None:
        """Add many ready entries at positions in a row, of one priority and one expiry.

        They have no headers and are no copies. All of it is in C: the other requests wait while
        5,000 messages are added.
        """
        first, count = entries[0].position, len(entries)
        positions = list(range(first, first + count))
        self.entries.update(zip(positions, entries, strict=True))
        if count < LONG_RUN:
            self.ids.update(zip(map(_id_of, entries), entries, strict=True))
        self.order.add_run(positions)
        self.expiry.add_all(entries[0].expires_at, positions)
        lowest = pair(entries[0].priority, first)
        self.ready.add_run(list(range(lowest, lowest + count)))

    def _join_group(self, entry: Entry) -> None:
        group = group_of(entry.headers)
        if group is not None:
            self.groups.setdefault(group, SortedList()).add(entry.position)

    def remove(self, entry: Entry) -> None:
        """Remove an entry from the queue, whatever its state."""
        position = entry.position
        if entry.claim is not None:
            self.end_lease(entry)
        elif entry.is_parked:
            self.parked.remove(pair(entry.lease_until, position))
            entry.is_parked = False
        elif entry.is_delayed:
            self.delayed.remove(pair(entry.delay_expires_at, position))
            entry.is_delayed = False
        else:
            self.ready.remove(pair(entry.priority, position))
        self.forget(entry)

    def pop_ready(self) -> Entry:
        """Take the first entry out of the ready index; the caller must `hold` or `forget` it."""
        self.examined += 1
        return self.entries[self.ready.pop(0) & POSITION]

    def forget(self, entry: Entry) -> None:
        """Remove an entry that is in no state's index from the queue."""
        position = entry.position
        if entry.shared is not None:
            entry.shared.holders -= 1
        del self.entries[position]
        self.ids.pop(entry.id, None)
        group = None if entry.headers is None else group_of(entry.headers)
        if group is not None:
            self.groups[group].remove(position)
            if not self.groups[group]:
                del self.groups[group]
        self.order.remove(position)
        self.expiry.remove(entry.expires_at, position)

    def find(self, message_id: str) -> Entry | None:
        """The entry with this id."""
        entry = self.ids.get(message_id)
        if entry is not None:
            return entry
        try:
            entry = self.entries.get(position_of(message_id))
        except ValueError:
            return None
        return entry if entry is not None and entry.id == message_id else None

    def live(self, message_id: str, now: int) -> Entry | None:
        """The entry with this id, unless it has expired."""
        entry = self.find(message_id)
        return None if entry is None or entry.expires_at <= now else entry

    def hold(self, claim: LiveClaim, taken: Sequence[Entry], now: int, take: Take) -> None:
        """Let a new claim hold entries that were taken out of the ready index."""
        until = claim.ends_at
        self.claims[claim.id] = claim
        self.lapses.add((until, claim.id))
        held = claim.held
        for entry in taken:
            held[entry.position] = None
            entry.claim = entry.last_claim = claim
            entry.last_ended = None
            entry.claim_count += 1
            entry.claimed_at = now
            entry.lease_until = until
            if entry.expires_at < until:
                self.set_ttl(entry, take.ttl_ms + take.grace_ms, now)

    def renew(self, claim: LiveClaim, now: int, ttl_ms: int, grace_ms: int) -> None:
        """Let a claim and those of its leases that have not lapsed end `ttl_ms` from now."""
        claim.started_at, claim.ttl_ms, claim.is_even = now, ttl_ms, True
        held = [self.entries[position] for position in claim.held]
        for entry in held:
            if entry.lease_until > now:
                self._set_lease(entry, now, ttl_ms, grace_ms)
            else:
                claim.is_even = False
        self._set_claim_end(claim, min(entry.lease_until for entry in held))

    def extend(self, entry: Entry, claim: LiveClaim, now: int, ttl_ms: int, grace_ms: int) -> None:
        """Let the lease of an entry that the claim holds end `ttl_ms` from now."""
        self._set_lease(entry, now, ttl_ms, grace_ms)
        claim.is_even = False
        self._set_claim_end(claim, min(claim.ends_at, entry.lease_until))

    def end_lease(self, entry: Entry) -> None:
        """Take an entry out of the claim that holds it; the claim ends with its last entry.

        The entry is in no state's index afterwards.
        """
        claim = entry.claim
        if claim is not None:
            entry.claim = None
            del claim.held[entry.position]
            if not claim.held:
                self.lapses.remove((claim.ends_at, claim.id))
                del self.claims[claim.id]

    def _set_lease(self, entry: Entry, now: int, ttl_ms: int, grace_ms: int) -> None:
        """Set a lease's end; an entry that would expire before that expires `grace_ms` after it."""
        entry.lease_until = now + ttl_ms
        if entry.expires_at < entry.lease_until:
            self.set_ttl(entry, ttl_ms + grace_ms, now)

    def _set_claim_end(self, claim: LiveClaim, instant: int) -> None:
        if instant != claim.ends_at:
            self.lapses.remove((claim.ends_at, claim.id))
            claim.ends_at = instant
            self.lapses.add((instant, claim.id))

    def make_ready(self, entry: Entry) -> None:
        """Make ready an entry that is in no state's index."""
        self.ready.add(pair(entry.priority, entry.position))

    def park(self, entry: Entry, until: int, now: int, margin_ms: int) -> None:
        """Park an entry that is in no state's index; it lives at least `margin_ms` beyond that."""
        entry.is_parked = True
        entry.lease_until = until
        self.parked.add(pair(until, entry.position))
        if entry.expires_at < until + margin_ms:
            self.set_ttl(entry, until + margin_ms - now, now)

    def set_ttl(self, entry: Entry, ttl_ms: int, now: int) -> None:
        """Let an entry live `ttl_ms` from now."""
        self.expiry.remove(entry.expires_at, entry.position)
        entry.ttl_ms, entry.expires_at = ttl_ms, now + ttl_ms
        self.expiry.add(entry.expires_at, entry.position)

    def set_delay(self, entry: Entry, delay_expires_at: int) -> None:
        """Delay an entry that is delayed until another instant."""
        self.delayed.remove(pair(entry.delay_expires_at, entry.position))
        entry.delay_expires_at = delay_expires_at
        self.delayed.add(pair(delay_expires_at, entry.position))

    def expire(self, now: int, limit: int) -> int:
        """Remove up to `limit` expired entries; return how many."""
        count = 0
        while count < limit and (position := self.expiry.due(now)) is not None:
            self.remove(self.entries[position])
            count += 1
        self.examined += count
        return count

    def lapsed(self, now: int, limit: int) -> list[Entry]:
        """Up to `limit` held entries with a lapsed lease, those of the oldest claims first."""
        found: list[Entry] = []
        if not self.lapses or self.lapses[0][0] > now:
            return found
        for _, claim_id in list(islice(self.lapses.irange(None, (now, LAST_ID)), limit)):
            claim = self.claims[claim_id]
            held = [self.entries[position] for position in claim.held]
            ended = [entry for entry in held if entry.lease_until <= now]
            self.examined += len(claim.held)
            found += ended[: limit - len(found)]
            if len(found) == limit:
                break
            if len(ended) < len(claim.held):
                live = (entry.lease_until for entry in held if entry.lease_until > now)
                self._set_claim_end(claim, min(live))
        return found

    def promote(self, now: int, limit: int) -> int:
        """Make up to `limit` entries ready whose delay is over; return how many."""
        count = 0
        while count < limit and self.delayed and self.delayed[0] >> BITS <= now:
            entry = self.entries[self.delayed.pop(0) & POSITION]
            entry.is_delayed = False
            self.make_ready(entry)
            count += 1
        self.examined += count
        return count

    def unpark(self, now: int, limit: int) -> int:
        """Make up to `limit` entries ready whose parking is over; return how many."""
        count = 0
        while count < limit and self.parked and self.parked[0] >> BITS <= now:
            entry = self.entries[self.parked.pop(0) & POSITION]
            entry.is_parked = False
            self.make_ready(entry)
            count += 1
        self.examined += count
        return count

    def expose(self, now: int, limit: int) -> int:
        """Make up to `limit` delayed entries ready, whatever their delay; return how many."""
        count = 0
        while count < limit and self.delayed:
            entry = self.entries[self.delayed.pop(0) & POSITION]
            entry.delay_expires_at = min(entry.delay_expires_at, now)
            entry.is_delayed = False
            self.make_ready(entry)
            count += 1
        self.examined += count
        return count

    def forget_keys(self, now: int, limit: int) -> int:
        """Forget up to `limit` idempotency keys whose window is over; return how many."""
        count = 0
        for keys in (self.message_keys, self.batch_keys):
            while keys and count < limit:
                key = next(iter(keys))
                if keys[key].until > now:
                    break
                del keys[key]
                count += 1
        return count

    def key_ends(self) -> list[int]:
        """When the oldest key of each kind will be forgotten."""
        kinds = (self.message_keys, self.batch_keys)
        return [next(iter(keys.values())).until for keys in kinds if keys]

    def next_lease_end(self) -> int | None:
        """The next instant at which a lease or a parking ends."""
        instants = [self.lapses[0][0]] if self.lapses else []
        if self.parked:
            instants.append(self.parked[0] >> BITS)
        return min(instants, default=None)

    def next_ready_at(self) -> int | None:
        """The next instant at which something becomes ready by time."""
        instants = [self.delayed[0] >> BITS] if self.delayed else []
        back = self.next_lease_end()
        return min(instants if back is None else [*instants, back], default=None)

    def next_due_at(self) -> int | None:
        """The next instant at which the sweep has work in this queue; None if it never has."""
        instants = self.key_ends()
        if self.expiry.first is not None:
            instants.append(self.expiry.first)
        ripe = self.next_ready_at()
        if ripe is not None:
            instants.append(ripe)
        return min(instants, default=None)

"""The model that `test_model.py` holds every driver against: the seam's promises on plain lists.

No index, no cache, no budget: every operation looks at every message of its queue, so that what it
answers can be compared with `zaqar_lite/storage/base.py` line by line. What has expired is removed
before anything else is done; whatever else time brings (a delay, a lease or a parking that is over)
waits in its state until a claim, a pop or the sweep meets it, and readers compare instants.

It has the operations that the comparison uses, and of the records only their versions: limits,
announcements, budgets, durability, outbox messages and the list of failed messages are left out.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, cast

import msgspec

from zaqar_lite.domain.attempts import MAX_CLAIMS, MOVED, Ended, with_attempt
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Conflict, KeyReused
from zaqar_lite.domain.groups import group_of
from zaqar_lite.domain.ids import Marker, new_claim_id, new_message_id
from zaqar_lite.domain.models import (
    DEFAULT_PRIORITY,
    NO_RETRIES,
    Capability,
    Claim,
    Claimed,
    ClaimRequest,
    DeadLetter,
    DelayMode,
    Edit,
    ListQuery,
    Message,
    Move,
    Origin,
    Page,
    QueueRecord,
    QueueRef,
    Refusal,
    RetryPolicy,
    RetryPolicyOf,
    Stats,
    StoreOptions,
    SweepResult,
    no_retries,
)
from zaqar_lite.domain.posts import IdempotencyKey, KnownKey, NewMessage, Posted
from zaqar_lite.domain.refusals import (
    Deadlines,
    delete_refusal,
    edited,
    no_claim,
    no_message,
    queue_changed,
)
from zaqar_lite.domain.settlements import (
    PARKED_MARGIN_MS,
    Act,
    Ending,
    HandOut,
    Outcome,
    Settled,
    Settlement,
)
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore


class State(Enum):
    """Where a message stands; each but READY lasts until the entry's `until`."""

    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"
    PARKED = "parked"


@dataclass(eq=False)
class Holder:
    """A claim; it lives while a lease of it does."""

    id: str
    client_id: str
    started_at: int
    ttl_ms: int


@dataclass(eq=False)
class Entry:
    """A message in a queue. `claim` holds it or held it last; `ended` is how that hand-out ended.

    `copies` are the entries of all queues that got the message by one post.
    """

    message: Message
    priority: int = DEFAULT_PRIORITY
    state: State = State.READY
    until: int = 0
    claim: Holder | None = None
    claimed_at: int = 0
    ended: Ended | None = None
    copies: list["Entry"] = field(default_factory=list)

    def is_in(self, state: State, now: int) -> bool:
        """Whether it is in a state that is not over."""
        return self.state is state and self.until > now

    def is_over(self, state: State, now: int) -> bool:
        """Whether it was in a state that has ended by time, and that nothing has met yet."""
        return self.state is state and self.until <= now

    def holder(self, now: int) -> str | None:
        """The id of the live claim that holds it."""
        is_held = self.claim is not None and self.is_in(State.LEASED, now)
        return self.claim.id if self.claim is not None and is_held else None

    def live_until(self, instant: int, ttl_ms: int, now: int) -> None:
        """Give it a ttl where it would expire before an instant."""
        if self.message.expires_at < instant:
            self.message.ttl_ms, self.message.expires_at = ttl_ms, now + ttl_ms

    def lease(self, now: int, ttl_ms: int, grace_ms: int) -> None:
        """Hold it for `ttl_ms` from now."""
        self.state, self.until = State.LEASED, now + ttl_ms
        self.live_until(self.until, ttl_ms + grace_ms, now)

    def expose(self, now: int) -> None:
        """Make it ready whatever its delay says."""
        self.state = State.READY
        self.message.delay_expires_at = min(self.message.delay_expires_at or 0, now)

    def show(self, now: int, *, details: bool = False) -> Message:
        """The message as a reader sees it."""
        return msgspec.structs.replace(
            self.message,
            now=now,
            claim_id=self.holder(now),
            parked_until=self.until if self.is_in(State.PARKED, now) else None,
            attempts=self.message.attempts if details else (),
        )


@dataclass
class Key:
    """A remembered idempotency key, of a message or (`is_batch`) of a whole post."""

    is_batch: bool
    text: str
    answer: KnownKey
    ends: int


@dataclass
class Queue:
    """What a queue holds: entries in order of position, and keys in order of their end."""

    entries: list[Entry] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)

    def find(self, message_id: str | None) -> Entry | None:
        """The entry with this id."""
        return next((one for one in self.entries if one.message.id == message_id), None)

    def remove(self, entry: Entry) -> None:
        """Remove an entry; the others are the only copies then."""
        self.entries.remove(entry)
        if entry in entry.copies:
            entry.copies.remove(entry)

    def known(self, text: str, *, is_batch: bool) -> KnownKey | None:
        """What is remembered of a key."""
        found = (one.answer for one in self.keys if (one.is_batch, one.text) == (is_batch, text))
        return next(found, None)


class ReferenceRecords:
    """The queue records; all of a management store that the comparison asks for."""

    def __init__(self) -> None:
        self.queues: dict[QueueRef, QueueRecord] = {}
        self._version = 0

    def check_version(self, queue: QueueRef, version: int | None) -> None:
        """Refuse what was decided by another record of the queue."""
        record = self.queues.get(queue)
        if version is not None and version != (0 if record is None else record.version):
            raise queue_changed(queue)

    def _put(self, record: QueueRecord) -> QueueRecord:
        self._version += 1
        self.queues[record.queue] = replace(record, version=self._version)
        return self.queues[record.queue]

    async def create_queue(
        self, queue: QueueRef, metadata: Mapping[str, Any], *, max_queues: int
    ) -> tuple[QueueRecord, bool]:
        """Create a queue unless it exists; `max_queues` is never reached here."""
        assert len(self.queues) < max_queues
        if queue in self.queues:
            return self.queues[queue], False
        return self._put(QueueRecord(queue, metadata, 0)), True

    async def update_queue(self, record: QueueRecord) -> QueueRecord:
        """Replace the record at `record.version`."""
        self.check_version(record.queue, record.version)
        return self._put(record)


class ReferenceMessages:
    """Messages in one list for each queue."""

    capabilities = frozenset(
        {Capability.ATOMIC_BATCH, Capability.EXCLUSIVE, Capability.FAN_OUT},
    )

    def __init__(self, records: ReferenceRecords, clock: Clock, options: StoreOptions) -> None:
        self._records = records
        self._clock = clock
        self._options = options
        self._queues: dict[QueueRef, Queue] = {}
        self._position = 0

    def _at(self, ref: QueueRef, version: int | None = None) -> tuple[Queue, int]:
        """A queue without what has expired, and the time."""
        self._records.check_version(ref, version)
        queue, now = self._queues.setdefault(ref, Queue()), self._clock.now_ms()
        for entry in list(queue.entries):
            if entry.message.expires_at <= now:
                queue.remove(entry)
        queue.keys = [one for one in queue.keys if one.ends > now]
        return queue, now

    def _add(self, ref: QueueRef, entry: Entry, due: int = 0) -> Entry:
        """Let an entry enter a queue: at a new position, delayed until `due` or ready."""
        self._position += 1
        message = entry.message
        message.position = self._position
        message.id = message.id or new_message_id(self._position)
        message.delay_expires_at = due or None
        entry.state, entry.until = (State.DELAYED, due) if due else (State.READY, 0)
        self._queues.setdefault(ref, Queue()).entries.append(entry)
        return entry

    # -- posting --

    async def post(
        self,
        ref: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        queue, now = self._at(ref, version)
        known = None if batch_key is None else queue.known(batch_key.text, is_batch=True)
        if batch_key is not None and known is not None:
            if not known.matches(batch_key):
                raise KeyReused(None)
            return [Posted(message_id, duplicate=True) for message_id in known.ids]
        firsts = list(_firsts(queue, messages))
        posted: list[Posted] = []
        ends = now + self._options.idempotency_window_ms
        for one, first in zip(messages, firsts, strict=True):
            if first is not None:
                # An id that was there before, or the place in this post of the same key.
                posted.append(Posted(posted[first].id if isinstance(first, int) else first, True))
                continue
            message_id = self._store(ref, one, client_id, now)
            posted.append(Posted(message_id))
            if one.idempotency_key is not None:
                text, digest = one.idempotency_key
                queue.keys.append(Key(False, text, KnownKey((message_id,), digest), ends))
        if batch_key is not None:
            answer = KnownKey([one.id for one in posted], batch_key.digest)
            queue.keys.append(Key(True, batch_key.text, answer, ends))
        return posted

    def _store(self, ref: QueueRef, new: NewMessage, client_id: str, now: int) -> str:
        """Store a message, with its copies; answer its id."""

        def enter(ref: QueueRef, body: bytes, ttl_ms: int, delay_ms: int, priority: int) -> Entry:
            entry = Entry(Message("", 0, body, ttl_ms, now, now + ttl_ms, now), priority)
            entry.message.client_id = client_id
            return self._add(ref, entry, now + delay_ms if delay_ms else 0)

        first = enter(ref, new.body, new.ttl_ms, new.delay_ms, new.priority)
        copies = [
            enter(copy.queue, new.body, copy.ttl_ms, copy.delay_ms, copy.priority)
            for copy in new.copies
        ]
        all_of = [first, *copies]
        for entry in all_of:
            entry.message.headers, entry.copies = new.headers, all_of
        return first.message.id

    # -- reading --

    async def list_messages(self, ref: QueueRef, selection: ListQuery) -> Page:
        queue, now = self._at(ref, selection.version)
        after = _resolve(queue, selection.marker, 0)
        until = _resolve(queue, selection.until, self._position)
        page: list[Message] = []
        examined = None
        for entry in queue.entries:
            position = entry.message.position
            is_asked_for = selection.group in {None, group_of(entry.message.headers)}
            if not (after < position <= until and is_asked_for) or len(page) == selection.limit:
                continue
            examined = position
            is_held = entry.is_in(State.LEASED, now) or entry.is_in(State.PARKED, now)
            if (
                (selection.include_claimed or not is_held)
                and (selection.include_delayed or not entry.is_in(State.DELAYED, now))
                and entry.message.client_id != selection.exclude_client_id
            ):
                page.append(entry.show(now, details=selection.details))
        return Page(page, page[-1].position if page else examined)

    async def get_messages(
        self, ref: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        queue, now = self._at(ref)
        return [one.show(now, details=details) for one in queue.entries if one.message.id in ids]

    async def stats(self, ref: QueueRef) -> Stats:
        queue, now = self._at(ref)
        waiting = (State.DELAYED, State.PARKED)
        delayed = sum(entry.state in waiting and entry.until > now for entry in queue.entries)
        claimed = sum(entry.is_in(State.LEASED, now) for entry in queue.entries)
        shown = [entry.show(now) for entry in queue.entries]
        oldest, newest = (shown[0], shown[-1]) if shown else (None, None)
        size = sum(len(one.body) for one in shown)
        return Stats(len(shown) - delayed - claimed, delayed, claimed, oldest, newest, bytes=size)

    # -- changing, and handing out --

    async def edit(self, ref: QueueRef, edit: Edit) -> Message:
        queue, now = self._at(ref, edit.version)
        entry = queue.find(edit.message_id)
        if entry is None:
            raise no_message(edit.message_id)
        message = entry.message
        due = entry.until if entry.state is State.DELAYED else 0
        due, expires_at = edited(edit, Deadlines(due, message.expires_at), now)
        if edit.body is not None:
            if sum(one.message.expires_at > now for one in entry.copies) > 1:
                raise Conflict("Other queues hold the message too.")
            message.body = edit.body
        if edit.ttl_ms is not None:
            message.ttl_ms, message.expires_at = edit.ttl_ms, expires_at
        entry.until = message.delay_expires_at = due
        return entry.show(now)

    async def delete(
        self, ref: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        queue, now = self._at(ref)
        chosen = [entry for entry in queue.entries if entry.message.id in ids]
        refused = []
        for entry in chosen if claim_ids is not None else ():
            reason = delete_refusal(entry.holder(now), claim_ids or ())
            if reason is not None:
                refused.append(Refusal(entry.message.id, reason))
        for entry in chosen if not refused else ():
            queue.remove(entry)
        return refused

    def _take(self, ref: QueueRef, request: ClaimRequest) -> tuple[list[Entry], int]:
        """What a claim hands out, and how many dead letters it met."""
        queue, now = self._at(ref, request.version)
        _, moved = self._end_lapsed(ref, request.retries, now)
        for entry in queue.entries:
            if entry.is_over(State.PARKED, now) or (
                request.delay_mode is DelayMode.HONOUR and entry.is_over(State.DELAYED, now)
            ):
                entry.state = State.READY
        taken: list[Entry] = []
        letter = request.retries.dead_letter
        order = sorted(queue.entries, key=lambda one: (one.priority, one.message.position))
        for entry in order:
            if entry.state is not State.READY or len(taken) == request.limit:
                continue
            if letter is not None and entry.message.claim_count >= letter.max_claims:
                self._bury(ref, entry, letter, MAX_CLAIMS, now)
                moved += 1
            else:
                taken.append(entry)
        return taken, moved

    async def claim(self, ref: QueueRef, request: ClaimRequest) -> Claimed:
        taken, moved = self._take(ref, request)
        queue, now = self._queues[ref], self._clock.now_ms()
        if request.removes:
            for entry in taken:
                queue.remove(entry)
            return Claimed(None, [one.show(now, details=request.details) for one in taken], moved)
        claim = Holder(new_claim_id(), request.client_id, now, request.ttl_ms)
        for entry in taken:
            entry.claim, entry.claimed_at, entry.ended = claim, now, None
            entry.message.claim_count += 1
            entry.lease(now, request.ttl_ms, request.grace_ms)
        shown = [entry.show(now, details=request.details) for entry in taken]
        return Claimed(claim.id if taken else None, shown, moved)

    # -- leases and how they end --

    def _held(self, ref: QueueRef, claim_id: str) -> tuple[list[Entry], int]:
        queue, now = self._at(ref)
        return [entry for entry in queue.entries if entry.holder(now) == claim_id], now

    def _claim_of(self, held: Sequence[Entry], claim_id: str) -> Holder:
        claim = held[0].claim if held else None
        if claim is None:
            raise no_claim(claim_id)
        return claim

    async def get_claim(self, ref: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        held, now = self._held(ref, claim_id)
        claim = self._claim_of(held, claim_id)
        shown = [entry.show(now, details=details) for entry in held]
        return Claim(claim_id, claim.ttl_ms, now - claim.started_at, shown)

    def _settle_all(self, ref: QueueRef, claim_id: str, settlement: Settlement) -> Settled:
        held, now = self._held(ref, claim_id)
        for entry in held:
            if settlement.act is Act.EXTEND:
                claim = self._claim_of(held, claim_id)
                claim.started_at, claim.ttl_ms = now, settlement.ttl_ms
                entry.lease(now, settlement.ttl_ms, settlement.grace_ms)
            else:
                self._end(ref, entry, Ending.by(settlement, now, NO_RETRIES), now)
        return Settled([Outcome.DONE if held else Outcome.NOT_FOUND], 0)

    async def settle(
        self,
        ref: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement] | Settlement,
        *,
        retries: RetryPolicy = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        if isinstance(settlements, Settlement):
            return self._settle_all(ref, claim_id, settlements)
        queue, now = self._at(ref, version)
        before = len(queue.entries)
        acked, outcomes = 0, []
        for one in settlements:
            entry, outcome = queue.find(one.message_id), Outcome.DONE
            if entry is None:
                outcome = Outcome.NOT_FOUND
            elif entry.holder(now) != claim_id:
                outcome = one.without_lease(
                    is_held=entry.holder(now) is not None,
                    is_last_claim=entry.claim is not None and entry.claim.id == claim_id,
                    ended=entry.ended,
                )
            elif one.act is Act.ACK:
                queue.remove(entry)
                acked += 1
            elif one.act is Act.EXTEND:
                entry.lease(now, one.ttl_ms, one.grace_ms)
            elif one.act is Act.DEAD and retries.dead_letter is None:
                outcome = Outcome.NO_TARGET
            else:
                self._end(ref, entry, Ending.by(one, now, retries), now)
            outcomes.append(outcome)
        return Settled(outcomes, before - len(queue.entries) - acked)

    def _end(self, ref: QueueRef, entry: Entry, ending: Ending, now: int) -> bool:
        """End a hand-out; answer whether the message is a dead letter now."""
        message, client = entry.message, None if entry.claim is None else entry.claim.client_id
        hand_out = HandOut(message.claim_count, entry.claimed_at, client, message.failure_count)
        result = ending.apply(hand_out)
        message.attempts = with_attempt(message.attempts, result.attempt)
        message.failure_count, entry.ended = result.failures, ending.outcome
        entry.state = State.READY
        letter = ending.retries.dead_letter
        if letter is not None and result.letter_reason is not None:
            self._bury(ref, entry, letter, result.letter_reason, now)
            return True
        if result.ready_at > now:
            entry.state, entry.until = State.PARKED, result.ready_at
            lives_until = result.ready_at + PARKED_MARGIN_MS
            entry.live_until(lives_until, lives_until - now, now)
        return False

    def _end_lapsed(self, ref: QueueRef, retries: RetryPolicy, now: int) -> tuple[int, int]:
        """End the leases that have lapsed; answer how many, and how many are dead letters now."""
        lapsed = [one for one in self._queues[ref].entries if one.is_over(State.LEASED, now)]
        ends = [(entry, Ending.by_lapse(entry.until, retries)) for entry in lapsed]
        return len(lapsed), sum([self._end(ref, entry, ending, now) for entry, ending in ends])

    def _origin(self, ref: QueueRef, entry: Entry, reason: str, now: int) -> Origin:
        message, claim = entry.message, entry.claim
        return Origin(
            ref.name,
            now,
            message.claim_count,
            None if claim is None else claim.id,
            None if claim is None else claim.client_id,
            reason,
            0 if message.origin is None else message.origin.redriven,
        )

    def _bury(self, ref: QueueRef, entry: Entry, letter: DeadLetter, reason: str, now: int) -> None:
        """Move a message that nobody holds to the dead letters."""
        assert letter.target is not None, "a list of failed messages is no part of the model"
        message = entry.message
        message.origin = self._origin(ref, entry, reason, now)
        if letter.ttl_ms is not None:
            message.ttl_ms, message.expires_at = letter.ttl_ms, now + letter.ttl_ms
        due = message.delay_expires_at
        self._queues[ref].entries.remove(entry)
        self._add(letter.target, entry)
        message.delay_expires_at = due

    async def move(self, ref: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        queue, now = self._at(ref)
        outcomes = []
        for message_id in ids:
            entry = queue.find(message_id)
            if entry is None:
                outcomes.append(Outcome.NOT_FOUND)
                continue
            if entry.state is State.LEASED or entry.is_in(State.PARKED, now):
                outcomes.append(Outcome.HELD)
                continue
            message = entry.message
            message.origin = (message.origin or self._origin(ref, entry, MOVED, now)).put_back()
            if move.reset:
                message.claim_count = message.failure_count = 0
            message.ttl_ms, message.expires_at = move.ttl_ms, now + move.ttl_ms
            queue.entries.remove(entry)
            self._add(move.target, entry, now + move.delay_ms if move.delay_ms else 0)
            outcomes.append(Outcome.DONE)
        return outcomes

    # -- whole queues --

    async def purge(self, ref: QueueRef, *, forget: bool = False) -> None:
        queue, _ = self._at(ref)
        for entry in list(queue.entries):
            queue.remove(entry)
        if forget:
            del self._queues[ref]
            self._records.queues.pop(ref, None)

    async def release_delayed(
        self, ref: QueueRef, limit: int, *, version: int | None = None
    ) -> int:
        queue, now = self._at(ref, version)
        delayed = [entry for entry in queue.entries if entry.state is State.DELAYED][:limit]
        for entry in delayed:
            entry.expose(now)
        return len(delayed)

    async def sweep(self, limit: int, retries_of: RetryPolicyOf = no_retries) -> SweepResult:
        swept = SweepResult()
        for ref in list(self._queues):
            retries = await retries_of(ref)
            queue, now = self._at(ref)
            lapsed, moved = self._end_lapsed(ref, retries, now)
            promoted = 0
            for entry in queue.entries:
                if entry.is_over(State.DELAYED, now) or entry.is_over(State.PARKED, now):
                    entry.state = State.READY
                    promoted += 1
            letter = retries.dead_letter
            letters_in = {letter.target} if moved and letter and letter.target else set()
            swept = swept.plus(
                SweepResult(0, promoted, lapsed - moved, moved, 0, frozenset(letters_in))
            )
        return swept


def create(clock: Clock, options: StoreOptions) -> tuple[MessageStore, ManagementStore]:
    """Make the two stores of the model."""
    records = ReferenceRecords()
    messages = ReferenceMessages(records, clock, options)
    # They need not have all operations.
    return cast(MessageStore, messages), cast(ManagementStore, records)


def _firsts(queue: Queue, messages: Sequence[NewMessage]) -> Iterator[str | int | None]:
    """For each message of a post the id, or the place in the post, that its key stands for."""
    for index, message in enumerate(messages):
        key = message.idempotency_key
        if key is None:
            yield None
            continue
        known = queue.known(key.text, is_batch=False)
        earlier = [
            place
            for place, one in enumerate(messages[:index])
            if one.idempotency_key is not None and one.idempotency_key.text == key.text
        ]
        first = messages[earlier[0]].idempotency_key if earlier else None
        if (known is not None and not known.matches(key)) or (
            known is None and first is not None and first.digest != key.digest
        ):
            raise KeyReused(index)
        yield known.ids[0] if known is not None else earlier[0] if earlier else None


def _resolve(queue: Queue, marker: Marker | None, otherwise: int) -> int:
    """The position that a marker stands for in a queue."""
    if marker is None:
        return otherwise
    entry = queue.find(marker.message_id)
    return marker.position if entry is None else entry.message.position

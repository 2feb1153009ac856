"""Messages and claims in memory: every operation is one step without an await inside."""

import asyncio
from collections.abc import Collection, Iterable, Sequence

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    Conflict,
    DueChanged,
    Invalid,
    LimitReached,
    NotFound,
    Unsupported,
)
from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.models import (
    NO_RETRIES,
    Capability,
    Claim,
    Claimed,
    DelayMode,
    Edit,
    Message,
    Move,
    QueueRef,
    Refusal,
    RefusalReason,
    Retries,
    RetriesOf,
    StoreOptions,
    Swept,
    Take,
    no_retries,
)
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted
from zaqar_lite.domain.settlements import Outcome, Settled, Settlement
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.memory import entries
from zaqar_lite.storage.memory.adopting import adopt
from zaqar_lite.storage.memory.claiming import Claiming, Step
from zaqar_lite.storage.memory.entries import Entry
from zaqar_lite.storage.memory.posting import Posting
from zaqar_lite.storage.memory.queue import Queue
from zaqar_lite.storage.memory.reading import Reading
from zaqar_lite.storage.memory.state import State

_STEP = 500
"""Messages of a post that are prepared, or entries that are looked at, in one step."""


class MemoryMessageStore(Reading):
    """The reference message store.

    Readers compare instants, so that what time alone has ended costs them nothing; claims and the
    sweep bring it up to now, each in a bounded step.
    """

    poll_interval_ms = 60_000  # one process: no announcement is lost
    sweep_step = MAX_EXAMINED // 4
    capabilities = frozenset(
        {
            Capability.ATOMIC_BATCH,
            Capability.EXCLUSIVE,
            Capability.FAN_OUT,
        }
    )

    def __init__(self, shared: State, clock: Clock, options: StoreOptions) -> None:
        super().__init__(shared, clock)
        self._options = options
        self._claiming = Claiming(shared, clock, self._announce)
        self._posting = Posting(shared, clock, options, self._announce)

    async def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages; see the seam."""
        if len(messages) <= _STEP:
            entries, are_plain = self._posting.entries(messages, client_id)
        else:
            entries, are_plain = await self._entries(messages, client_id)
        self._state.check_version(queue, version)
        try:
            return self._posting.post(queue, messages, entries, batch_key, are_plain=are_plain)
        except LimitReached:  # what has expired may still be in the way
            await self._posting.make_room(queue, messages)
        self._state.check_version(queue, version)
        return self._posting.post(queue, messages, entries, batch_key, are_plain=are_plain)

    async def _entries(
        self, messages: Sequence[NewMessage], client_id: str
    ) -> tuple[list[entries.Entry], bool]:
        """Make the entries of many messages in steps, and tell whether all are plain."""
        made: list[Entry] = []
        are_plain = True
        for first in range(0, len(messages), _STEP):
            some, is_plain = self._posting.entries(messages[first : first + _STEP], client_id)
            made += some
            are_plain = are_plain and is_plain
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # in between new requests are read, and answered
        return made, are_plain

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Change a delayed message; see the seam."""
        message_id, body, version = edit.message_id, edit.body, edit.version
        ttl_ms, delay_ms = edit.ttl_ms, edit.delay_ms
        self._state.check_version(queue, version)
        now = self._clock.now_ms()
        there = self._state.queues.get(queue, Queue())
        entry = there.live(message_id, now)
        if entry is None:
            raise NotFound(f"Message {message_id} does not exist.")
        if not entry.waits(now):
            raise Conflict(f"Message {message_id} is not delayed (any more).")
        if edit.is_stale(entry.delay_expires_at):
            raise DueChanged(message_id)
        if body is not None and entry.shared is not None and entry.shared.holders > 1:
            raise Conflict(
                f"The body of message {message_id} can't be changed: other queues hold it too."
            )
        delay_expires_at = entry.delay_expires_at if delay_ms is None else now + delay_ms
        expires_at = entry.expires_at if ttl_ms is None else now + ttl_ms
        if expires_at < delay_expires_at:
            raise Invalid(
                f"Message {message_id} would expire {delay_expires_at - expires_at} ms before its "
                "delay is over: give a longer ttl or a shorter delay."
            )
        if body is not None:
            entry.body = body
        if ttl_ms is not None:
            there.set_ttl(entry, ttl_ms, now)
        if delay_ms is not None:
            there.set_delay(entry, delay_expires_at)
            if delay_expires_at <= now:
                self._announce(queue, 1)
            else:
                self._announce(queue, 0)
        self._state.note(queue, there, min(entry.expires_at, delay_expires_at))
        return entry.full_view(now)

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages, all or none; see the seam."""
        there = self._state.queues.get(queue)
        if there is None:
            return ()
        now = self._clock.now_ms()
        known = map(there.ids.get, dict.fromkeys(ids))
        chosen = [entry for entry in known if entry is not None and entry.expires_at > now]
        if claim_ids is not None and not all(
            entry.claim is not None and entry.lease_until > now and entry.claim.id in claim_ids
            for entry in chosen
        ):
            refused = [
                Refusal(entry.id, reason)
                for entry in chosen
                if (reason := _refusal(entry, claim_ids, now)) is not None
            ]
            if refused:
                return refused
        for entry in chosen:
            there.remove(entry)
        self._state.close(queue, there)
        return ()

    async def pop(self, queue: QueueRef, take: Take) -> Claimed:
        """Remove and hand out ready messages; see the seam."""
        there = self._for(queue, take)
        if there is None:
            return Claimed(None)
        step = Step(queue, there, self._clock.now_ms(), take.retries)
        taken, moved, more = self._claiming.take(step, take)
        for entry in taken:
            there.leave(entry)
        self._state.close(queue, there)
        return Claimed(None, _views(taken, step.now, take), moved, more)

    async def claim(self, queue: QueueRef, take: Take) -> Claimed:
        """Hand out ready messages under a new claim; see the seam."""
        there = self._for(queue, take)
        if there is None:
            return Claimed(None)
        now = self._clock.now_ms()
        taken, moved, more = self._claiming.take(Step(queue, there, now, take.retries), take)
        if not taken:
            self._state.close(queue, there)
            return Claimed(None, (), moved, more)
        claim = entries.Claim(new_claim_id(), take.client_id, now, take.ttl_ms)
        there.begin(claim, taken, now, take)
        self._state.note(queue, there, now + take.ttl_ms)
        self._announce(queue, 0)
        return Claimed(claim.id, _views(taken, now, take), moved, more)

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim; see the seam."""
        now = self._clock.now_ms()
        claim, held = self._live_claim(queue, claim_id, now)
        shown = [entry.full_view(now, details=details) for entry in held]
        return Claim(claim.id, claim.ttl_ms, now - claim.started_at, shown)

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Let a live claim live on; see the seam."""
        now = self._clock.now_ms()
        claim, _ = self._live_claim(queue, claim_id, now)
        there = self._state.queue(queue)
        before = claim.ends_at
        there.renew(claim, now, ttl_ms, grace_ms)
        if claim.ends_at < before:
            self._announce(queue, 0)
        self._state.note(queue, there, now + ttl_ms)

    async def release(self, queue: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        """End a claim; see the seam."""
        now = self._clock.now_ms()
        there = self._state.queues.get(queue)
        if there is not None and claim_id in there.claims:
            for position in list(there.claims[claim_id].held):
                entry = there.entries[position]
                if entry.holder(now) is not None:
                    self._claiming.release(Step(queue, there, now, NO_RETRIES), entry, delay_ms)

    async def settle(
        self,
        queue: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement],
        *,
        retries: Retries = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        """Settle messages of a claim; see the seam."""
        self._state.check_version(queue, version)
        there = self._state.queues.get(queue)
        if there is None:
            return Settled([Outcome.NOT_FOUND] * len(settlements))
        step = Step(queue, there, self._clock.now_ms(), retries)
        settled = [self._claiming.settle(step, claim_id, one) for one in settlements]
        ripe = there.ripens_at()
        if ripe is not None:
            self._state.note(queue, there, ripe)
        self._state.close(queue, there)
        return Settled([outcome for outcome, _ in settled], sum(moved for _, moved in settled))

    async def move(self, queue: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        """Move messages to another queue; see the seam."""
        there = self._state.queues.get(queue)
        if there is None:
            return [Outcome.NOT_FOUND] * len(ids)
        step = Step(queue, there, self._clock.now_ms(), NO_RETRIES)
        outcomes = [self._claiming.move(step, one, move) for one in ids]
        self._state.close(queue, there)
        return outcomes

    async def adopt(
        self, queue: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        """Take in messages of another store; see the seam."""
        adopt(self._state, self._clock, queue, messages, source=source, number=number)
        self._announce(queue, len(messages))

    async def purge(self, queue: QueueRef) -> None:
        """Remove all messages and claims; see the seam."""
        there = self._state.queues.get(queue)
        if there is not None:
            self._state.discard(there.clear())
            self._state.close(queue, there)

    async def drop(self, queue: QueueRef) -> None:
        """Remove the queue, and its record with it; see the seam."""
        there = self._state.queues.pop(queue, None)
        if there is not None:
            self._state.discard(there.clear())
        self._state.remove_record(queue)

    async def expose(self, queue: QueueRef, limit: int) -> int:
        """Make delayed messages ready; see the seam."""
        there = self._state.queues.get(queue)
        if there is None:
            return 0
        now = self._clock.now_ms()
        there.expire(now, MAX_EXAMINED)
        exposed = there.expose(now, limit)
        self._announce(queue, exposed)
        return exposed

    async def sweep(self, limit: int, retries_of: RetriesOf = no_retries) -> Swept:
        """Bring the queues that have something due up to now; see the seam."""
        now = self._clock.now_ms()
        swept = Swept(deleted=self._state.give_back(limit))
        visited = 0
        while swept.total < limit and visited < MAX_EXAMINED:
            ref = self._state.next_to_sweep(now)
            if ref is None:
                break
            visited += 1
            try:
                retries = await retries_of(ref)
            except Exception:
                self._state.put_off(ref, now)
                raise
            there = self._state.queues.get(ref)
            if there is not None:
                swept = self._sweep_queue(Step(ref, there, now, retries), limit, swept)
        return swept

    def _for(self, ref: QueueRef, take: Take) -> Queue | None:
        """The queue to take from, when its record is still the one that the caller saw."""
        self._state.check_version(ref, take.version)
        letter = take.retries.dead_letter
        if letter is not None and letter.target is None:
            raise Unsupported("The memory store keeps no failed messages; the embedded one does.")
        return self._state.queues.get(ref)

    def _sweep_queue(self, step: Step, limit: int, swept: Swept) -> Swept:
        """Sweep one queue with what is left of the limit, and note when to come again."""
        ref, there, now, retries = step
        left = limit - swept.total
        expired = there.expire(now, left)
        left -= expired
        lapsed, moved = self._claiming.end_lapsed(step, left)
        left -= lapsed
        promoted = there.promote(now, left)
        promoted += there.unpark(now, left - promoted)
        self._announce(ref, promoted)
        forgotten = there.forget_keys(now, left - promoted)
        due = there.due_at()
        if due is not None:
            self._state.note(ref, there, due)
        elif there.is_empty:
            del self._state.queues[ref]
        letter = retries.dead_letter
        target = {letter.target} if moved and letter and letter.target else set()
        return Swept(
            expired=swept.expired + expired,
            promoted=swept.promoted + promoted,
            lapsed=swept.lapsed + lapsed - moved,
            moved=swept.moved + moved,
            deleted=swept.deleted + forgotten,
            letters_in=swept.letters_in | target,
        )

    def _live_claim(
        self, ref: QueueRef, claim_id: str, now: int
    ) -> tuple[entries.Claim, list[Entry]]:
        """A claim and the live entries it holds, in order of position."""
        there = self._state.queues.get(ref)
        claim = None if there is None else there.claims.get(claim_id)
        if there is not None and claim is not None:
            held = [there.entries[position] for position in sorted(claim.held)]
            live = [one for one in held if one.holder(now) is not None and one.expires_at > now]
            if live:
                return claim, live
        raise NotFound(f"Claim {claim_id} does not exist or has expired.")


def _refusal(entry: Entry, claim_ids: Collection[str], now: int) -> RefusalReason | None:
    """Why an entry may not be deleted by these claims; None when it may."""
    holder = entry.holder(now)
    if holder is not None:
        return None if holder.id in claim_ids else RefusalReason.CLAIMED
    return RefusalReason.NOT_CLAIMED if claim_ids else None


def _views(taken: Iterable[Entry], now: int, take: Take) -> list[Message]:
    """Show what was handed out; on a normal queue no line reads a delay."""
    if take.delay_mode is DelayMode.IGNORE and not take.details:
        return [entry.view(now) for entry in taken]
    return [entry.full_view(now, details=take.details) for entry in taken]

"""Messages and claims in memory: every operation is one step without an await inside."""

from collections.abc import Collection, Iterable, Sequence

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.edits import Deadlines, edited
from zaqar_lite.domain.errors import Conflict, LimitReached
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
from zaqar_lite.domain.refusals import delete_refusal, no_claim, no_failed_list, no_message
from zaqar_lite.domain.settlements import Outcome, Settled, Settlement
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.memory.adopting import adopt
from zaqar_lite.storage.memory.claiming import Claiming, Step
from zaqar_lite.storage.memory.entries import Entry, LiveClaim
from zaqar_lite.storage.memory.posting import Posting, Prepared
from zaqar_lite.storage.memory.queue import Queue
from zaqar_lite.storage.memory.reading import Reading
from zaqar_lite.storage.memory.state import State

_STEP = 500
"""The most messages of a post that are prepared in one step."""


class MemoryMessageStore(Reading):
    """The reference message store.

    Readers compare instants instead of removing what time has ended. Claims and the sweep do that,
    each in a bounded step.
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
        self._claiming = Claiming(shared, self._announce)
        self._posting = Posting(shared, clock, options, self._announce)

    async def post(
        self,
        ref: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages; see the seam."""
        prepared = Prepared(client_id, self._clock.now_ms())
        if len(messages) <= _STEP:
            prepared.add(messages)
        else:
            for first in range(0, len(messages), _STEP):
                prepared.add(messages[first : first + _STEP])
                await self._state.turns.wait()
        if not prepared.are_plain:
            await self._posting.make_queues(messages)
        self._state.check_version(ref, version)
        try:
            stored = self._posting.post(ref, messages, prepared, batch_key)
        except LimitReached:  # expired messages may still be counted
            await self._posting.make_room(ref, messages)
            self._state.check_version(ref, version)
            stored = self._posting.post(ref, messages, prepared, batch_key)
        if len(messages) <= _STEP:
            return stored.answers(0, len(messages))
        posted: list[Posted] = []
        for first in range(0, len(messages), _STEP):
            await self._state.turns.wait()
            posted += stored.answers(first, min(first + _STEP, len(messages)))
        return posted

    async def edit(self, ref: QueueRef, edit: Edit) -> Message:
        """Change a delayed message; see the seam."""
        message_id, body, version = edit.message_id, edit.body, edit.version
        ttl_ms, delay_ms = edit.ttl_ms, edit.delay_ms
        self._state.check_version(ref, version)
        now = self._clock.now_ms()
        queue = self._state.queues.get(ref, Queue())
        entry = queue.live(message_id, now)
        if entry is None:
            raise no_message(message_id)
        due = entry.delay_expires_at if entry.is_delayed else 0
        due, expires_at = edited(edit, Deadlines(due, entry.expires_at), now)
        if body is not None and entry.shared is not None and entry.shared.holders > 1:
            raise Conflict(
                f"The body of message {message_id} can't be changed: other queues hold it too."
            )
        if body is not None:
            entry.body = body
        if ttl_ms is not None:
            queue.set_ttl(entry, ttl_ms, now)
        if delay_ms is not None:
            queue.set_delay(entry, due)
            self._announce(ref, int(due <= now))
        self._state.schedule_sweep(ref, queue, min(expires_at, due))
        return entry.full_view(now)

    async def delete(
        self, ref: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages, all or none; see the seam."""
        queue = self._state.queues.get(ref)
        if queue is None:
            return ()
        now = self._clock.now_ms()
        known = map(queue.find, dict.fromkeys(ids))
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
            queue.remove(entry)
        self._state.sweep_if_empty(ref, queue)
        return ()

    async def pop(self, ref: QueueRef, take: Take) -> Claimed:
        """Remove and hand out ready messages; see the seam."""
        queue = self._queue_for(ref, take)
        if queue is None:
            return Claimed(None)
        step = Step(ref, queue, self._clock.now_ms(), take.retries)
        taken, moved, more = self._claiming.take(step, take)
        for entry in taken:
            queue.forget(entry)
        self._state.sweep_if_empty(ref, queue)
        return Claimed(None, _views(taken, step.now, take), moved, more)

    async def claim(self, ref: QueueRef, take: Take) -> Claimed:
        """Hand out ready messages under a new claim; see the seam."""
        queue = self._queue_for(ref, take)
        if queue is None:
            return Claimed(None)
        now = self._clock.now_ms()
        taken, moved, more = self._claiming.take(Step(ref, queue, now, take.retries), take)
        if not taken:
            self._state.sweep_if_empty(ref, queue)
            return Claimed(None, (), moved, more)
        claim = LiveClaim(new_claim_id(), take.client_id, now, take.ttl_ms)
        queue.hold(claim, taken, now, take)
        self._state.schedule_sweep(ref, queue, now + take.ttl_ms)
        self._announce(ref, 0)
        return Claimed(claim.id, _views(taken, now, take), moved, more)

    async def get_claim(self, ref: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim; see the seam."""
        now = self._clock.now_ms()
        claim, held = self._live_claim(ref, claim_id, now)
        shown = [entry.full_view(now, details=details) for entry in held]
        return Claim(claim.id, claim.ttl_ms, now - claim.started_at, shown)

    async def renew(self, ref: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Renew a live claim; see the seam."""
        now = self._clock.now_ms()
        claim, _ = self._live_claim(ref, claim_id, now)
        queue = self._state.queue(ref)
        before = claim.ends_at
        queue.renew(claim, now, ttl_ms, grace_ms)
        if claim.ends_at < before:
            self._announce(ref, 0)
        self._state.schedule_sweep(ref, queue, now + ttl_ms)

    async def release(self, ref: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        """End a claim; see the seam."""
        now = self._clock.now_ms()
        queue = self._state.queues.get(ref)
        if queue is not None and claim_id in queue.claims:
            for position in list(queue.claims[claim_id].held):
                entry = queue.entries[position]
                if entry.holder(now) is not None:
                    self._claiming.release(Step(ref, queue, now, NO_RETRIES), entry, delay_ms)

    async def settle(
        self,
        ref: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement],
        *,
        retries: Retries = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        """Settle messages of a claim; see the seam."""
        self._state.check_version(ref, version)
        queue = self._state.queues.get(ref)
        if queue is None:
            return Settled([Outcome.NOT_FOUND] * len(settlements))
        step = Step(ref, queue, self._clock.now_ms(), retries)
        settled = [self._claiming.settle(step, claim_id, one) for one in settlements]
        ripe = queue.next_ready_at()
        if ripe is not None:
            self._state.schedule_sweep(ref, queue, ripe)
        self._state.sweep_if_empty(ref, queue)
        return Settled([outcome for outcome, _ in settled], sum(moved for _, moved in settled))

    async def move(self, ref: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        """Move messages to another queue; see the seam."""
        queue = self._state.queues.get(ref)
        if queue is None:
            return [Outcome.NOT_FOUND] * len(ids)
        step = Step(ref, queue, self._clock.now_ms(), NO_RETRIES)
        outcomes = [self._claiming.move(step, one, move) for one in ids]
        self._state.sweep_if_empty(ref, queue)
        return outcomes

    async def adopt(
        self, ref: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        """Take in messages of another store; see the seam."""
        adopt(self._state, self._clock, ref, messages, source=source, number=number)
        self._announce(ref, len(messages))

    async def purge(self, ref: QueueRef) -> None:
        """Remove all messages and claims; see the seam."""
        queue = self._state.queues.get(ref)
        if queue is not None:
            self._state.discard(queue.clear())
            self._state.sweep_if_empty(ref, queue)

    async def drop(self, ref: QueueRef) -> None:
        """Remove the queue, and its record with it; see the seam."""
        queue = self._state.queues.pop(ref, None)
        if queue is not None:
            self._state.discard(queue.clear())
        self._state.records.remove(ref)

    async def expose(self, ref: QueueRef, limit: int) -> int:
        """Make delayed messages ready; see the seam."""
        queue = self._state.queues.get(ref)
        if queue is None:
            return 0
        now = self._clock.now_ms()
        queue.expire(now, MAX_EXAMINED)
        exposed = queue.expose(now, limit)
        self._announce(ref, exposed)
        return exposed

    async def sweep(self, limit: int, retries_of: RetriesOf = no_retries) -> Swept:
        """Sweep the queues that are due; see the seam."""
        now = self._clock.now_ms()
        freed = self._state.free_discarded(limit)
        swept = Swept(deleted=freed + self._state.forget_sources(now, limit - freed))
        visited = 0
        while swept.total < limit and visited < MAX_EXAMINED:
            ref = self._state.take_due_queue(now)
            if ref is None:
                break
            visited += 1
            try:
                retries = await retries_of(ref)
            except Exception:
                self._state.sweep_again(ref, now)
                raise
            queue = self._state.queues.get(ref)
            if queue is not None:
                swept = self._sweep_queue(Step(ref, queue, now, retries), limit, swept)
        return swept

    def _queue_for(self, ref: QueueRef, take: Take) -> Queue | None:
        """The queue to take messages from, after comparing its record's version."""
        self._state.check_version(ref, take.version)
        letter = take.retries.dead_letter
        if letter is not None and letter.target is None:
            raise no_failed_list("memory")
        return self._state.queues.get(ref)

    def _sweep_queue(self, step: Step, limit: int, swept: Swept) -> Swept:
        """Sweep one queue with what is left of the limit, and schedule its next sweep."""
        ref, queue, now, retries = step
        left = limit - swept.total
        expired = queue.expire(now, left)
        left -= expired
        lapsed, moved = self._claiming.end_lapsed(step, left)
        left -= lapsed
        promoted = queue.promote(now, left)
        promoted += queue.unpark(now, left - promoted)
        self._announce(ref, promoted)
        forgotten = queue.forget_keys(now, left - promoted)
        due = queue.next_due_at()
        if due is not None:
            self._state.schedule_sweep(ref, queue, due)
        elif queue.is_empty:
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

    def _live_claim(self, ref: QueueRef, claim_id: str, now: int) -> tuple[LiveClaim, list[Entry]]:
        """A claim and the live entries it holds, in order of position."""
        queue = self._state.queues.get(ref)
        claim = None if queue is None else queue.claims.get(claim_id)
        if queue is not None and claim is not None:
            held = [queue.entries[position] for position in sorted(claim.held)]
            live = [one for one in held if one.holder(now) is not None and one.expires_at > now]
            if live:
                return claim, live
        raise no_claim(claim_id)


def _refusal(entry: Entry, claim_ids: Collection[str], now: int) -> RefusalReason | None:
    """Why these claims may not delete an entry; None when they may."""
    holder = entry.holder(now)
    return delete_refusal(None if holder is None else holder.id, claim_ids)


def _views(taken: Iterable[Entry], now: int, take: Take) -> list[Message]:
    """The messages handed out; on a normal queue this executes no line that reads a delay."""
    if take.delay_mode is DelayMode.IGNORE and not take.details:
        return [entry.view(now) for entry in taken]
    return [entry.full_view(now, details=take.details) for entry in taken]

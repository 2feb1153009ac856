"""Messages and claims in memory: every operation is one step without an await inside."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    Conflict,
    Invalid,
    KeyReused,
    LimitReached,
    NotFound,
    Unsupported,
)
from zaqar_lite.domain.ids import Marker, new_claim_id, new_message_ids
from zaqar_lite.domain.models import (
    Capability,
    Claim,
    Claimed,
    Copy,
    DeadLetter,
    DelayMode,
    IdempotencyKey,
    Message,
    NewMessage,
    Origin,
    Page,
    Posted,
    QueueRef,
    Refusal,
    RefusalReason,
    Stats,
    StoreOptions,
    Swept,
)
from zaqar_lite.storage.base import MAX_EXAMINED, MessageStore
from zaqar_lite.storage.memory import state
from zaqar_lite.storage.memory.state import Entry, Known, Queue, Shared, State


class MemoryMessageStore(MessageStore):
    """The reference message store.

    Operations first bring the queue up to now - what has expired goes, what has lapsed or become
    due is ready again - and then read exact indexes. That costs O(log n) for each such message,
    once, whoever comes first: an operation or the sweep.
    """

    capabilities = frozenset({Capability.ATOMIC_BATCH, Capability.EXCLUSIVE, Capability.FAN_OUT})

    def __init__(self, shared: State, clock: Clock, options: StoreOptions) -> None:
        self._state = shared
        self._clock = clock
        self._options = options

    @property
    def examined(self) -> int:
        """How many entries the operations on the queues there are have looked at (for tests)."""
        return sum(queue.examined for queue in self._state.queues.values())

    async def open(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def close(self) -> None:
        """Do nothing: the state goes with the stores."""

    async def ping(self) -> None:
        """Do nothing: the store always answers."""

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
        self._state.check_version(queue, version)
        now_us = self._clock.now_us()
        now = now_us // 1000
        there = self._state.queue(queue)
        there.settle(now)
        there.forget_keys(now)
        if batch_key is not None and batch_key.text in there.batch_keys:
            known = there.batch_keys[batch_key.text]
            if known.digest != batch_key.digest:
                raise KeyReused(None)
            return [Posted(message_id, duplicate=True) for message_id in known.ids]
        new = _new_ones(messages, there)
        copies = [copy for message in new if message.copies for copy in message.copies]
        self._check_limits(queue, there, new, copies=copies, batch_key=batch_key, now=now)

        window_ends = now + self._options.idempotency_window_ms
        count = len(new) + len(copies)
        first = self._state.take_positions(count, now_us)
        places = zip(range(first, first + count), new_message_ids(first, count), strict=True)
        posted: list[Posted] = []
        for message in messages:
            body, ttl_ms, delay_ms, key, headers, priority, targets = message
            if key is not None and key.text in there.message_keys:
                posted.append(Posted(there.message_keys[key.text].ids[0], duplicate=True))
                continue
            shared = Shared() if targets else None
            position, message_id = next(places)
            posted.append(Posted(message_id))
            if key is not None:
                there.message_keys[key.text] = Known((message_id,), key.digest, window_ends)
            there.add(
                Entry(
                    message_id, position, body, ttl_ms, now, priority, client_id, headers, shared
                ),
                now + delay_ms if delay_ms else 0,
            )
            for target, ttl_ms, delay_ms, priority in targets:
                position, copy_id = next(places)
                self._state.queue(target).add(
                    Entry(
                        copy_id, position, body, ttl_ms, now, priority, client_id, headers, shared
                    ),
                    now + delay_ms if delay_ms else 0,
                )
        if batch_key is not None:
            ids = tuple(answer.id for answer in posted)
            there.batch_keys[batch_key.text] = Known(ids, batch_key.digest, window_ends)
        return posted

    async def list_messages(
        self,
        queue: QueueRef,
        *,
        marker: Marker | None = None,
        until: Marker | None = None,
        limit: int,
        exclude_client_id: str | None = None,
        include_claimed: bool = False,
        include_delayed: bool = False,
        version: int | None = None,
    ) -> Page:
        """List messages in steps of at most MAX_EXAMINED entries; see the seam."""
        self._state.check_version(queue, version)
        there = self._state.queues.get(queue)
        if there is None:
            return Page((), None)
        after, last = _resolve(marker, there), _resolve(until, there)
        page = Page((), None)
        while True:
            now = self._clock.now_ms()
            there.settle(now)
            there.promote(now)
            found: list[Message] = []
            examined = 0
            positions = there.order.irange(after, last, inclusive=(False, True))
            for position in islice(positions, MAX_EXAMINED):
                examined += 1
                entry = there.entries[position]
                page.marker = after = position
                if (
                    (entry.claim is None or include_claimed)
                    and (include_delayed or not entry.is_delayed)
                    and (exclude_client_id is None or entry.client_id != exclude_client_id)
                ):
                    found.append(entry.full_view(now))
                    if len(found) == limit:
                        break
            there.examined += examined
            if found or examined < MAX_EXAMINED:
                page.messages = found
                return page
            await asyncio.sleep(0)  # others may act between two steps: the marker holds its place

    async def get_messages(self, queue: QueueRef, ids: Collection[str]) -> Sequence[Message]:
        """Fetch messages by id; see the seam."""
        there = self._state.queues.get(queue)
        if there is None:
            return ()
        now = self._clock.now_ms()
        there.settle(now)
        return [there.ids[key].full_view(now) for key in dict.fromkeys(ids) if key in there.ids]

    async def edit(
        self,
        queue: QueueRef,
        message_id: str,
        *,
        body: bytes | None = None,
        ttl_ms: int | None = None,
        delay_ms: int | None = None,
        version: int | None = None,
    ) -> Message:
        """Change a delayed message; see the seam."""
        self._state.check_version(queue, version)
        now = self._clock.now_ms()
        there = self._state.queues.get(queue, Queue())
        there.settle(now)
        there.promote(now)
        entry = there.ids.get(message_id)
        if entry is None:
            raise NotFound(f"Message {message_id} does not exist.")
        if not entry.is_delayed:
            raise Conflict(f"Message {message_id} is not delayed (any more).")
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
            there.promote(now)
        return entry.full_view(now)

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages, all or none; see the seam."""
        there = self._state.queues.get(queue)
        if there is None:
            return ()
        there.settle(self._clock.now_ms())
        entries = [there.ids[key] for key in dict.fromkeys(ids) if key in there.ids]
        if claim_ids is not None:
            refused = [
                Refusal(entry.id, reason)
                for entry in entries
                if (reason := _refusal(entry, claim_ids)) is not None
            ]
            if refused:
                return refused
        for entry in entries:
            there.remove(entry)
        return ()

    async def pop(
        self,
        queue: QueueRef,
        *,
        limit: int,
        delay_mode: DelayMode,
        dead_letter: DeadLetter | None = None,
        version: int | None,
    ) -> Claimed:
        """Remove and hand out ready messages; see the seam."""
        self._state.check_version(queue, version)
        there = self._state.queues.get(queue)
        if there is None:
            return Claimed(None)
        now = self._clock.now_ms()
        taken, moved = self._take(
            queue, there, now, limit=limit, delay_mode=delay_mode, dead_letter=dead_letter
        )
        for entry in taken:
            there.leave(entry)
        return Claimed(None, _views(taken, now, delay_mode), moved)

    async def claim(
        self,
        queue: QueueRef,
        *,
        limit: int,
        ttl_ms: int,
        grace_ms: int,
        client_id: str,
        delay_mode: DelayMode,
        dead_letter: DeadLetter | None = None,
        version: int | None,
    ) -> Claimed:
        """Hand out ready messages under a new claim; see the seam."""
        self._state.check_version(queue, version)
        there = self._state.queues.get(queue)
        if there is None:
            return Claimed(None)
        now = self._clock.now_ms()
        taken, moved = self._take(
            queue, there, now, limit=limit, delay_mode=delay_mode, dead_letter=dead_letter
        )
        if not taken:
            return Claimed(None, (), moved)
        claim = state.Claim(new_claim_id(), client_id)
        for entry in taken:
            there.hold(entry, claim)
        there.extend(claim, now, ttl_ms, grace_ms)
        return Claimed(claim.id, _views(taken, now, delay_mode), moved)

    async def get_claim(self, queue: QueueRef, claim_id: str) -> Claim:
        """Read a live claim; see the seam."""
        now = self._clock.now_ms()
        claim = self._live_claim(queue, claim_id, now)
        held = [claim.held[position].full_view(now) for position in sorted(claim.held)]
        return Claim(claim.id, claim.ttl_ms, now - claim.started_at, held)

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Let a live claim live on; see the seam."""
        now = self._clock.now_ms()
        claim = self._live_claim(queue, claim_id, now)
        self._state.queue(queue).extend(claim, now, ttl_ms, grace_ms)

    async def release(self, queue: QueueRef, claim_id: str) -> None:
        """End a claim; see the seam."""
        there = self._state.queues.get(queue)
        if there is not None:
            there.settle(self._clock.now_ms())
            if claim_id in there.claims:
                there.end(there.claims[claim_id])

    async def purge(self, queue: QueueRef) -> None:
        """Remove all messages and claims; see the seam."""
        there = self._state.queues.get(queue)
        if there is not None:
            there.clear()

    async def drop(self, queue: QueueRef) -> None:
        """Remove the queue, and its record with it; see the seam."""
        there = self._state.queues.pop(queue, None)
        if there is not None:
            there.clear()
        self._state.remove_record(queue)

    async def stats(self, queue: QueueRef) -> Stats:
        """Count the live messages; see the seam."""
        there = self._state.queues.get(queue)
        if there is None:
            return Stats()
        now = self._clock.now_ms()
        there.settle(now)
        there.promote(now)
        total, ready, delayed = len(there.entries), len(there.ready), len(there.delayed)
        if not total:
            return Stats()
        oldest, newest = (there.entries[there.order[index]].full_view(now) for index in (0, -1))
        return Stats(ready, delayed, total - ready - delayed, oldest, newest)

    async def split(self, queue: QueueRef, count: int) -> Sequence[int]:
        """Cut the live messages into ranges; see the seam."""
        there = self._state.queues.get(queue)
        if there is None:
            return ()
        there.settle(self._clock.now_ms())
        total = len(there.order)
        ranges = min(count, total)
        return [there.order[total * (index + 1) // ranges - 1] for index in range(ranges)]

    async def expose(self, queue: QueueRef, limit: int) -> int:
        """Make delayed messages ready; see the seam."""
        there = self._state.queues.get(queue)
        if there is None:
            return 0
        now = self._clock.now_ms()
        there.settle(now)
        return there.expose(now, limit)

    async def sweep(self, limit: int) -> Swept:
        """Bring queues up to now and forget the empty ones; see the seam."""
        now = self._clock.now_ms()
        expired = promoted = lapsed = 0
        for ref, there in list(self._state.queues.items()):
            left = limit - expired - promoted - lapsed
            if left <= 0:
                break
            gone = there.expire(now, left)
            free = there.lapse(now, left - gone)
            due = there.promote(now, left - gone - free)
            expired, lapsed, promoted = expired + gone, lapsed + free, promoted + due
            there.forget_keys(now)
            if there.is_empty:
                del self._state.queues[ref]
        return Swept(expired=expired, promoted=promoted, lapsed=lapsed)

    def _check_limits(
        self,
        ref: QueueRef,
        there: Queue,
        new: Sequence[NewMessage],
        *,
        copies: Sequence[Copy],
        batch_key: IdempotencyKey | None,
        now: int,
    ) -> None:
        """Refuse a post that would go over a limit of its queue, or of one that gets copies."""
        most, most_keys = self._options.max_messages, self._options.max_idempotency_keys
        if len(there.entries) + len(new) > most:
            raise LimitReached(f"The queue {ref.name!r} may hold {most} messages.")
        for target, count in Counter(copy.queue for copy in copies).items() if copies else ():
            full = self._state.queue(target)
            full.settle(now)
            if len(full.entries) + count > most:
                raise LimitReached(f"The queue {target.name!r} may hold {most} messages.")
        keys = sum(m.idempotency_key is not None for m in new) + (batch_key is not None)
        if keys and len(there.message_keys) + len(there.batch_keys) + keys > most_keys:
            raise LimitReached(
                f"The queue {ref.name!r} may remember {most_keys} idempotency keys.",
                retry_after=there.seconds_to_a_free_key(now),
            )

    def _take(
        self,
        ref: QueueRef,
        there: Queue,
        now: int,
        *,
        limit: int,
        delay_mode: DelayMode,
        dead_letter: DeadLetter | None,
    ) -> tuple[list[Entry], int]:
        """Take up to `limit` ready entries; move the exhausted ones, and count them."""
        target = None if dead_letter is None else dead_letter.target
        if dead_letter is not None and target is None:
            raise Unsupported("The memory store keeps no failed messages; the embedded one does.")
        there.settle(now)
        if delay_mode is DelayMode.HONOUR:
            there.promote(now)
        elif delay_mode is DelayMode.EXPOSE:
            there.expose(now, limit)
        taken: list[Entry] = []
        moved = 0
        while len(taken) < limit:
            if not there.ready and not (
                delay_mode is DelayMode.EXPOSE and there.expose(now, limit)
            ):
                break
            entry = there.take_first()
            if dead_letter and target and entry.claim_count >= dead_letter.max_claims:
                there.leave(entry)
                self._move(entry, ref, target, dead_letter.ttl_ms, now)
                moved += 1
            else:
                taken.append(entry)
        return taken, moved

    def _move(
        self, entry: Entry, source: QueueRef, target: QueueRef, ttl_ms: int | None, now: int
    ) -> None:
        """Let an exhausted entry, which left `source`, into the dead-letter queue `target`."""
        last = entry.last_claim
        entry.origin = Origin(
            source.name,
            now,
            entry.claim_count,
            None if last is None else last.id,
            None if last is None else last.client_id,
        )
        if ttl_ms is not None:
            entry.ttl_ms, entry.expires_at = ttl_ms, now + ttl_ms
        entry.position = self._state.take_positions(1, self._clock.now_us())
        self._state.queue(target).add(entry)

    def _live_claim(self, ref: QueueRef, claim_id: str, now: int) -> state.Claim:
        there = self._state.queues.get(ref)
        if there is not None:
            there.settle(now)
            if claim_id in there.claims:
                return there.claims[claim_id]
        raise NotFound(f"Claim {claim_id} does not exist or has expired.")


def _new_ones(messages: Sequence[NewMessage], there: Queue) -> list[NewMessage]:
    """The messages that a post will store: those without a key, and of each new key the first.

    Raises:
        KeyReused: a key stands for another message, in the queue or earlier in the post.
    """
    new = []
    digests: dict[str, bytes] = {}
    for index, message in enumerate(messages):
        key = message.idempotency_key
        if key is not None:
            known = there.message_keys.get(key.text)
            digest = digests.get(key.text) if known is None else known.digest
            if digest is not None:
                if digest != key.digest:
                    raise KeyReused(index)
                continue
            digests[key.text] = key.digest
        new.append(message)
    return new


def _resolve(marker: Marker | None, there: Queue) -> int | None:
    """The position that a marker means in this queue."""
    if marker is None:
        return None
    entry = there.ids.get(marker.message_id) if marker.message_id is not None else None
    return marker.position if entry is None else entry.position


def _refusal(entry: Entry, claim_ids: Collection[str]) -> RefusalReason | None:
    """Why an entry may not be deleted by these claims; None when it may."""
    if entry.claim is not None:
        return None if entry.claim.id in claim_ids else RefusalReason.CLAIMED
    return RefusalReason.NOT_CLAIMED if claim_ids else None


def _views(entries: Iterable[Entry], now: int, delay_mode: DelayMode) -> list[Message]:
    """Show what was handed out; on a normal queue no line reads a delay."""
    if delay_mode is DelayMode.IGNORE:
        return [entry.view(now) for entry in entries]
    return [entry.full_view(now) for entry in entries]

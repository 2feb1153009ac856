"""Posting in memory: idempotency keys, limits, and letting messages in."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import KeyReused, LimitReached
from zaqar_lite.domain.ids import new_message_ids
from zaqar_lite.domain.models import (
    DEFAULT_PRIORITY,
    Companion,
    Copy,
    IdempotencyKey,
    NewMessage,
    Posted,
    QueueRef,
    StoreOptions,
)
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.memory.entries import Entry, Known, Shared
from zaqar_lite.storage.memory.queue import Queue
from zaqar_lite.storage.memory.state import State

_FOR_EVER = 1 << 60
"""Milliseconds."""


class Posting:
    """The steps of a post; `announce(queue, count)` is told what became ready."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        options: StoreOptions,
        announce: Callable[[QueueRef, int], None],
    ) -> None:
        self._state = state
        self._clock = clock
        self._options = options
        self._announce = announce

    async def make_room(self, queue: QueueRef, messages: Sequence[NewMessage]) -> None:
        """Let go of what has expired in the full queues of a post, in bounded steps."""
        await self._make_room_for(queue, len(messages))
        copies = [copy.queue for message in messages if message.copies for copy in message.copies]
        if copies:
            for target, count in Counter(copies).items():
                await self._make_room_for(target, count)

    async def _make_room_for(self, ref: QueueRef, count: int) -> None:
        while True:
            there = self._state.queues.get(ref)
            if there is None or len(there.entries) + count <= self._options.max_messages:
                return
            if not there.expire(self._clock.now_ms(), MAX_EXAMINED):
                return
            await asyncio.sleep(0)

    def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        client_id: str,
        batch_key: IdempotencyKey | None,
    ) -> Sequence[Posted]:
        """Store messages in one step; see the seam."""
        now_us = self._clock.now_us()
        now = now_us // 1000
        there = self._state.queue(queue)
        if there.message_keys or there.batch_keys:
            there.forget_keys(now, MAX_EXAMINED)
        if batch_key is not None:
            known = there.batch_keys.get(batch_key.text)
            if known is not None and known.until > now:
                if known.digest != batch_key.digest:
                    raise KeyReused(None)
                return [Posted(message_id, duplicate=True) for message_id in known.ids]
        new = _new_ones(messages, there, now)
        copies = [copy for message in new if message.copies for copy in message.copies]
        self._check_limits(queue, there, new, copies=copies, batch_key=batch_key, now=now)

        window_ends = now + self._options.idempotency_window_ms
        count = len(new) + len(copies)
        first = self._state.take_positions(count, now_us)
        places = zip(range(first, first + count), new_message_ids(first, count), strict=True)
        posted: list[Posted] = []
        ready = 0
        due = window_ends if batch_key is not None else now + _FOR_EVER
        for message in messages:
            body, ttl_ms, delay_ms, key, headers, priority, targets, companions = message
            if key is not None:
                known = there.message_keys.get(key.text)
                if known is not None and known.until > now:
                    posted.append(Posted(known.ids[0], duplicate=True))
                    continue
            shared = Shared() if targets else None
            position, message_id = next(places)
            posted.append(Posted(message_id))
            if key is not None:
                there.message_keys.pop(key.text, None)  # the order is that of the windows
                there.message_keys[key.text] = Known((message_id,), key.digest, window_ends)
                due = min(due, window_ends)
            entry = Entry(
                message_id, position, body, ttl_ms, now, priority, client_id, headers, shared
            )
            until = now + delay_ms if delay_ms else 0
            there.add(entry, until)
            ready += not delay_ms
            due = min(due, until or entry.expires_at, entry.expires_at)
            if targets:
                self._copy(entry, targets, places)
            for companion in companions:
                self._accompany(message_id, companion, client_id)
        if batch_key is not None:
            ids = tuple(answer.id for answer in posted)
            there.batch_keys.pop(batch_key.text, None)
            there.batch_keys[batch_key.text] = Known(ids, batch_key.digest, window_ends)
        if new:
            self._state.note(queue, there, due)
            self._announce(queue, ready)
        return posted

    def _copy(
        self, entry: Entry, targets: Sequence[Copy], places: Iterator[tuple[int, str]]
    ) -> None:
        """Let copies of an entry, which share its body, into other queues."""
        now = entry.created_at
        for target, ttl_ms, delay_ms, priority in targets:
            position, copy_id = next(places)
            copy = Entry(
                copy_id,
                position,
                entry.body,
                ttl_ms,
                now,
                priority,
                entry.client_id,
                entry.headers,
                entry.shared,
            )
            until = now + delay_ms if delay_ms else 0
            queue = self._state.queue(target)
            queue.add(copy, until)
            self._state.note(target, queue, min(until or copy.expires_at, copy.expires_at))
            self._announce(target, int(not delay_ms))

    def _accompany(self, message_id: str, companion: Companion, client_id: str) -> None:
        """Let what a message brings along into its queue."""
        now_us = self._clock.now_us()
        now = now_us // 1000
        position = self._state.take_positions(1, now_us)
        (own_id,) = new_message_ids(position, 1)
        entry = Entry(
            own_id,
            position,
            companion.body_with(message_id),
            companion.ttl_ms,
            now,
            DEFAULT_PRIORITY,
            client_id,
            None,
            None,
        )
        until = now + companion.delay_ms if companion.delay_ms else 0
        queue = self._state.queue(companion.queue)
        queue.add(entry, until)
        self._state.note(companion.queue, queue, min(until or entry.expires_at, entry.expires_at))
        self._announce(companion.queue, int(not until))

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
            full = self._state.queues.get(target)
            if count + (0 if full is None else len(full.entries)) > most:
                raise LimitReached(f"The queue {target.name!r} may hold {most} messages.")
        keys = sum(m.idempotency_key is not None for m in new) + (batch_key is not None)
        if keys and len(there.message_keys) + len(there.batch_keys) + keys > most_keys:
            raise LimitReached(
                f"The queue {ref.name!r} may remember {most_keys} idempotency keys.",
                retry_after=max(1, -(-(min(there.key_ends(), default=now) - now) // 1000)),
            )


def _new_ones(messages: Sequence[NewMessage], there: Queue, now: int) -> list[NewMessage]:
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
            is_known = known is not None and known.until > now
            digest = known.digest if known and is_known else digests.get(key.text)
            if digest is not None:
                if digest != key.digest:
                    raise KeyReused(index)
                continue
            digests[key.text] = key.digest
        new.append(message)
    return new

"""Posting in memory: idempotency keys, limits, and adding messages to queues."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import NamedTuple

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import KeyReused
from zaqar_lite.domain.ids import new_message_ids
from zaqar_lite.domain.models import DEFAULT_PRIORITY, QueueRef, StoreOptions
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted
from zaqar_lite.domain.refusals import too_many_keys, too_many_messages
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.memory.entries import Entry, Known, Shared
from zaqar_lite.storage.memory.queue import MANY, Queue
from zaqar_lite.storage.memory.state import State

_FOR_EVER = 1 << 60
"""Milliseconds."""
_EMPTY_MS = 60_000
"""How long a queue may be empty that was made for a copy."""
_QUEUES_AT_ONCE = 250
"""Queues that are made in one step: 3 ms."""
_expiry_of, _delay_of = attrgetter("expires_at"), attrgetter("delay_expires_at")


class Prepared:
    """The entries of a post, without ids and positions; those of a large post are made in steps.

    `are_plain`: none has a key, copies or companions. `are_uniform`: all are ready at once, expire
    at one instant, and have no headers, no copies and the default priority.
    """

    __slots__ = ("_client_id", "_now", "are_plain", "are_uniform", "entries")

    def __init__(self, client_id: str, now: int) -> None:
        self._client_id = client_id
        self._now = now
        self.entries: list[Entry] = []
        self.are_plain = self.are_uniform = True

    def add(self, messages: Sequence[NewMessage]) -> None:
        """Make the entries of further messages."""
        now, client_id, made = self._now, self._client_id, self.entries
        expiry = made[0].expires_at if made else now + messages[0].ttl_ms
        for one in messages:
            if one.idempotency_key or one.copies or one.companions:
                self.are_plain = False
            ttl_ms, delay_ms, headers, priority = (
                one.ttl_ms, one.delay_ms, one.headers, one.priority,
            )  # fmt: skip
            entry = Entry("", 0, one.body, ttl_ms, now, now + ttl_ms, priority, client_id, headers)
            if delay_ms:
                entry.delay_expires_at = now + delay_ms
            if (
                delay_ms
                or one.copies
                or headers is not None
                or priority != DEFAULT_PRIORITY
                or entry.expires_at != expiry
            ):
                self.are_uniform = False
            made.append(entry)


class Stored(NamedTuple):
    """The ids that a post is answered with, and which of them were there before, by index."""

    ids: Sequence[str]
    repeats: Collection[int] = ()

    def answers(self, first: int, end: int) -> list[Posted]:
        """The answers for the messages from `first` to before `end`."""
        if not self.repeats:
            return list(map(Posted, self.ids[first:end]))
        return [Posted(self.ids[at], at in self.repeats) for at in range(first, end)]


class Posting:
    """The steps of a post; `announce(ref, count)` is called when messages became ready."""

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

    async def make_queues(self, messages: Sequence[NewMessage]) -> None:
        """Make the queues of many copies in steps: to make one takes longer than to add a copy.

        One that is still empty after a while, as the post was refused, is removed by the sweep.
        """
        made = 0
        for message in messages:
            for copy in message.copies:
                if copy.queue in self._state.queues:
                    continue
                queue = self._state.queue(copy.queue)
                self._state.schedule_sweep(copy.queue, queue, self._clock.now_ms() + _EMPTY_MS)
                made += 1
                if made % _QUEUES_AT_ONCE == 0:
                    await self._state.turns.wait()

    async def make_room(self, ref: QueueRef, messages: Sequence[NewMessage]) -> None:
        """Remove expired messages from the full queues of a post, in bounded steps."""
        await self._make_room_for(ref, len(messages))
        copies = [copy.queue for message in messages if message.copies for copy in message.copies]
        if copies:
            for target, count in Counter(copies).items():
                await self._make_room_for(target, count)

    async def _make_room_for(self, ref: QueueRef, count: int) -> None:
        while True:
            queue = self._state.queues.get(ref)
            if queue is None or len(queue.entries) + count <= self._options.max_messages:
                return
            if not queue.expire(self._clock.now_ms(), MAX_EXAMINED):
                return
            await self._state.turns.wait()

    def post(
        self,
        ref: QueueRef,
        messages: Sequence[NewMessage],
        prepared: Prepared,
        batch_key: IdempotencyKey | None,
    ) -> Stored:
        """Store messages, whose entries are made, in one step; see the seam."""
        now_us = self._clock.now_us()
        now = now_us // 1000
        queue = self._state.queue(ref)
        if queue.message_keys or queue.batch_keys:
            queue.forget_keys(now, MAX_EXAMINED)
        if batch_key is not None:
            known = queue.batch_keys.get(batch_key.text)
            if known is not None and known.until > now:
                if known.digest != batch_key.digest:
                    raise KeyReused(None)
                return Stored(known.ids, range(len(known.ids)))
        entries, are_plain = prepared.entries, prepared.are_plain
        new, fresh, keys, copies = messages, entries, None, 0
        if not are_plain:
            new, fresh, keys = _without_duplicates(messages, entries, queue, now)
            copies = sum([len(message.copies) for message in new])
        self._check_limits(ref, queue, new, are_plain=are_plain, batch_key=batch_key, now=now)

        window_ends = now + self._options.idempotency_window_ms
        count = len(new) + copies
        first = self._state.take_positions(count, now_us)
        ids = new_message_ids(first, count)
        for entry, position, message_id in zip(
            fresh, range(first, first + count), ids, strict=False
        ):
            entry.position, entry.id = position, message_id
        due = now + _FOR_EVER if keys is None and batch_key is None else window_ends
        if not are_plain:
            self._add_copies_and_companions(new, fresh, first + len(new), ids[len(new) :])
        stored = Stored(ids[: len(new)]) if keys is None else keys.keep(window_ends)
        if batch_key is not None:
            known = Known(tuple(stored.ids), batch_key.digest, window_ends)
            queue.batch_keys.pop(batch_key.text, None)
            queue.batch_keys[batch_key.text] = known
        if prepared.are_uniform and len(fresh) >= MANY:
            queue.add_uniform(fresh)
            self._state.schedule_sweep(ref, queue, min(due, fresh[0].expires_at))
            self._announce(ref, len(fresh))
        elif fresh:
            self._add_entries(ref, queue, fresh, due)
        return stored

    def _add_entries(self, ref: QueueRef, queue: Queue, entries: Sequence[Entry], due: int) -> None:
        """Add entries, have the queue swept at `due` or earlier, and announce what is ready."""
        waits = [instant for instant in map(_delay_of, entries) if instant]
        queue.add_all(entries)
        self._state.schedule_sweep(ref, queue, min([due, *waits, min(map(_expiry_of, entries))]))
        self._announce(ref, len(entries) - len(waits))

    def _add_copies_and_companions(
        self,
        messages: Sequence[NewMessage],
        entries: Sequence[Entry],
        position: int,
        ids: Sequence[str],
    ) -> None:
        """Add the entries' copies, which share their bodies, and companions to other queues."""
        targets: dict[QueueRef, list[Entry]] = {}
        places = enumerate(ids, position)
        are_few = len(messages) < MANY  # in any of the queues, however many queues there are
        add, announce = self._state.add, self._announce
        for message, entry in zip(messages, entries, strict=True):
            if not message.copies:
                continue
            entry.shared = Shared()
            now = entry.created_at
            for one in message.copies:
                target, delay_ms = one.queue, one.delay_ms
                position, copy_id = next(places)
                copy = Entry(
                    copy_id,
                    position,
                    entry.body,
                    one.ttl_ms,
                    now,
                    now + one.ttl_ms,
                    one.priority,
                    entry.client_id,
                    entry.headers,
                    entry.shared,
                )
                until = now + delay_ms if delay_ms else 0
                if are_few:
                    add(target, copy, until)
                    announce(target, int(not until))
                else:
                    copy.delay_expires_at = until
                    targets.setdefault(target, []).append(copy)
        for target, made in targets.items():
            self._add_entries(target, self._state.queue(target), made, made[0].expires_at)
        self._add_companions(messages, entries)

    def _add_companions(self, messages: Sequence[NewMessage], entries: Sequence[Entry]) -> None:
        """Add the companions of messages to the companions' queues."""
        count = sum([len(message.companions) for message in messages])
        if not count:
            return
        now_us = self._clock.now_us()
        now = now_us // 1000
        first = self._state.take_positions(count, now_us)
        places = zip(range(first, first + count), new_message_ids(first, count), strict=True)
        targets: dict[QueueRef, list[Entry]] = {}
        for message, entry in zip(messages, entries, strict=True):
            for companion in message.companions:
                position, own_id = next(places)
                made = Entry(
                    own_id,
                    position,
                    companion.body_with(entry.id),
                    companion.ttl_ms,
                    now,
                    now + companion.ttl_ms,
                    DEFAULT_PRIORITY,
                    entry.client_id,
                    None,
                )
                if companion.delay_ms:
                    made.delay_expires_at = now + companion.delay_ms
                targets.setdefault(companion.queue, []).append(made)
        for target, all_made in targets.items():
            self._add_entries(target, self._state.queue(target), all_made, all_made[0].expires_at)

    def _check_limits(
        self,
        ref: QueueRef,
        queue: Queue,
        new: Sequence[NewMessage],
        *,
        are_plain: bool,
        batch_key: IdempotencyKey | None,
        now: int,
    ) -> None:
        """Refuse a post that would exceed a limit of its queue or of one that gets copies."""
        most, most_keys = self._options.max_messages, self._options.max_idempotency_keys
        if len(queue.entries) + len(new) > most:
            raise too_many_messages(ref, most)
        if are_plain and batch_key is None:
            return
        for target, count in Counter(copy.queue for m in new for copy in m.copies).items():
            full = self._state.queues.get(target)
            if count + (0 if full is None else len(full.entries)) > most:
                raise too_many_messages(target, most)
        keys = sum(m.idempotency_key is not None for m in new) + (batch_key is not None)
        if keys and len(queue.message_keys) + len(queue.batch_keys) + keys > most_keys:
            ends = min(queue.key_ends(), default=now)
            raise too_many_keys(ref, most_keys, wait_ms=ends - now)


def _without_duplicates(
    messages: Sequence[NewMessage], entries: list[Entry], queue: Queue, now: int
) -> tuple[Sequence[NewMessage], list[Entry], "_Keys | None"]:
    """What a post will store, and its keys; None when it has no keys."""
    if not any(message.idempotency_key for message in messages):
        return messages, entries, None
    keys = _Keys(queue, now)
    return *keys.without_duplicates(messages, entries), keys


class _Keys:
    """The message keys of one post, compared with those that its queue remembers."""

    def __init__(self, queue: Queue, now: int) -> None:
        self._known = queue.message_keys
        self._now = now
        self._first: dict[str, tuple[bytes, Entry]] = {}
        self._answers: list[Entry | str] = []
        self._repeats: set[int] = set()

    def without_duplicates(
        self, messages: Sequence[NewMessage], entries: Sequence[Entry]
    ) -> tuple[list[NewMessage], list[Entry]]:
        """What the post will store: messages without a key, and the first message of each new key.

        Raises:
            KeyReused: a key stands for another message, in the queue or earlier in the post.
        """
        new, fresh = [], []
        for index, (message, entry) in enumerate(zip(messages, entries, strict=True)):
            key = message.idempotency_key
            if key is not None:
                digest, answer = self._earliest(key, entry)
                if answer is not entry:
                    if digest != key.digest:
                        raise KeyReused(index)
                    self._answers.append(answer)
                    self._repeats.add(index)
                    continue
            self._answers.append(entry)
            new.append(message)
            fresh.append(entry)
        return new, fresh

    def _earliest(self, key: IdempotencyKey, entry: Entry) -> tuple[bytes, Entry | str]:
        """The first message with this key: its digest, and its id or its entry in this post."""
        known = self._known.get(key.text)
        if known is not None and known.until > self._now:
            return known.digest, known.ids[0]
        return self._first.setdefault(key.text, (key.digest, entry))

    def keep(self, until: int) -> Stored:
        """Remember the new keys, now that their entries have ids; answer for all messages."""
        for text, (digest, entry) in self._first.items():
            self._known.pop(text, None)  # keys stay in the order in which they are forgotten
            self._known[text] = Known((entry.id,), digest, until)
        ids = [one if isinstance(one, str) else one.id for one in self._answers]
        return Stored(ids, self._repeats)

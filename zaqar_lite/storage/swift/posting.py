"""Posting: messages get their positions and are written under the queue's lock."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from zaqar_lite.domain.errors import KeyReused, ZaqarLiteError
from zaqar_lite.domain.groups import group_of
from zaqar_lite.domain.ids import new_message_ids
from zaqar_lite.domain.models import Message, QueueRef
from zaqar_lite.domain.posts import IdempotencyKey, KnownKey, KnownKeys, NewMessage, Posted
from zaqar_lite.domain.refusals import too_many_keys, too_many_messages
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.layout import Content, Fetched, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.messages import dump_attempts
from zaqar_lite.storage.swift.objects import together
from zaqar_lite.storage.swift.reading import Reading
from zaqar_lite.storage.swift.tail import Intent, Key, Tail

_MOST_PAGES = 100
"""Listing pages that are counted for a limit; beyond them the container's own count holds."""
_FULL_MS = 1_000
"""How long a full queue is known to be full, unless this process deletes of it."""
_END = 1 << 62
_ADOPTED_FOR_MS = 86_400_000


class Plan(NamedTuple):
    """What a call of `post` stores and answers.

    `new` are the messages to store, and `keys` the new keys, each with the index in `new` of its
    message. `places` tells for each message of the call that index, or the id that is known, and
    whether the message is a duplicate.
    """

    new: Sequence[NewMessage]
    keys: Sequence[tuple[int, IdempotencyKey]]
    places: Sequence[tuple[int | str, bool]]

    def answers(self, ids: Sequence[str]) -> list[Posted]:
        """What became of each message of the call, where `ids` are those of the new ones."""
        return [
            Posted(ids[place] if isinstance(place, int) else place, duplicate)
            for place, duplicate in self.places
        ]


class Posting(Reading):
    """Store batches of messages."""

    async def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages, in order; see the seam."""
        container = self._container(queue)

        async def work(lease: Lease) -> Sequence[Posted]:
            tail = await self._tails.load(container, lease)
            tail = await self._connection.check(queue, version, tail)
            texts = [m.idempotency_key.text for m in messages if m.idempotency_key is not None]
            batch_text = None if batch_key is None else batch_key.text
            batch, known = await self._remembered(container, texts, batch_text, tail)
            if batch_key is not None and batch is not None:
                if not batch.matches(batch_key):
                    raise KeyReused(None)
                return [Posted(message_id, duplicate=True) for message_id in batch.ids]
            plan = _plan(messages, known)
            if not plan.new and batch_key is None:
                return plan.answers(())
            new_keys = len(plan.keys) + (batch_key is not None)
            bound = await self._bound(queue, tail, len(plan.new), new_keys)
            tail, positions = self._tails.advance(tail, len(plan.new), project=queue.project)
            tail = replace(tail, bound=bound)
            ids = new_message_ids(positions.start, len(positions))
            await self._store_outbox(plan.new, ids, client_id)
            answers = plan.answers(ids)
            keys = [_stored_key("m", key, [ids[index]]) for index, key in plan.keys]
            if batch_key is not None:
                keys.append(_stored_key("b", batch_key, [answer.id for answer in answers]))
            made = self._made(plan.new, positions, ids, client_id)
            forgotten_at = self._now() + self._connection.limits.idempotency_window_ms
            await self._store(container, tail, lease, made, keys, forgotten_at)
            return answers

        return await self._connection.locked(queue, work)

    async def find_idempotency_keys(
        self, queue: QueueRef, messages: Collection[str] = (), batch: str | None = None
    ) -> KnownKeys:
        """Tell what is known of keys; under the lock, so that no post is half written."""
        container = self._container(queue)

        async def work(lease: Lease) -> KnownKeys:
            tail = await self._tails.load(container, lease)
            whole, known = await self._remembered(container, messages, batch, tail)
            are_any = bool(known or whole) or await self._knows_any(container)
            return KnownKeys(whole, known, are_any)

        return await self._connection.locked(queue, work)

    async def _knows_any(self, container: str) -> bool:
        async for page in self._objects.pages(container, prefix=layout.KEYS):
            ours = (entry for entry in page if not entry.name.startswith(layout.KEYS + "a/"))
            if any(layout.key_expires_at(entry.content_type) > self._now() for entry in ours):
                return True
        return False

    async def _remembered(
        self, container: str, messages: Collection[str], batch_key: str | None, tail: Tail
    ) -> tuple[KnownKey | None, Mapping[str, KnownKey]]:
        """The batch key of a call and its message keys by text, as far as they are known."""
        texts = list(dict.fromkeys(messages))
        names = [layout.key_name("m", text) for text in texts]
        if batch_key is not None:
            names.append(layout.key_name("b", batch_key))
        found = await together(*(self._key(container, name, tail) for name in names))
        batch = found.pop() if batch_key is not None else None
        return batch, {text: key for text, key in zip(texts, found, strict=True) if key is not None}

    async def _key(self, container: str, name: str, tail: Tail) -> KnownKey | None:
        """Read a key; None where it is forgotten, or of a queue that was dropped."""
        reply = await self._objects.get(container, name)
        if not reply.found:
            return None
        about, ids = reply.headers["Content-Type"], reply.body.decode().split()
        if layout.key_expires_at(about) <= self._now() or int(ids[0][:16], 16) < tail.born:
            return None
        return KnownKey(ids, bytes.fromhex(layout.parameters(about).get("h", "")) or None)

    async def _store_outbox(
        self, new: Sequence[NewMessage], ids: Sequence[str], client_id: str
    ) -> None:
        """Store outbox messages before the messages that bring them, so that none lacks its own.

        A crash may leave those of messages that were not stored and not answered.
        """
        brought: dict[QueueRef, list[NewMessage]] = {}
        for message, message_id in zip(new, ids, strict=True):
            for one in message.outbox:
                entry = NewMessage(one.body_with(message_id), one.ttl_ms, one.delay_ms)
                brought.setdefault(one.queue, []).append(entry)
        for queue, entries in brought.items():
            work = partial(self._store_outbox_of, queue, entries, client_id)
            await self._connection.locked(queue, work)

    async def _store_outbox_of(
        self, queue: QueueRef, entries: Sequence[NewMessage], client_id: str, lease: Lease
    ) -> None:
        """Store outbox messages under their queue's lock, whatever its limits say."""
        container, count = self._container(queue), len(entries)
        tail = await self._tails.load(container, lease)
        tail, positions = self._tails.advance(tail, count, project=queue.project)
        ids = new_message_ids(positions.start, count)
        await self._store(container, tail, lease, self._made(entries, positions, ids, client_id))

    def _made(
        self, messages: Sequence[NewMessage], positions: range, ids: Sequence[str], client_id: str
    ) -> list[Fetched]:
        """The objects of messages that are posted now."""
        now = self._now()
        return [
            _fetched(message.stored(message_id, position, client_id, now), position)
            for message, position, message_id in zip(messages, positions, ids, strict=True)
        ]

    async def _store(  # noqa: PLR0917 - what a call has come to
        self,
        container: str,
        tail: Tail,
        lease: Lease,
        made: Sequence[Fetched],
        keys: Sequence[Key] = (),
        forgotten_at: int = 0,
    ) -> None:
        """Write messages where the tail was opened, and keys, at once; with keys all or none."""
        names = tuple(message.name for message in made)
        intent = Intent(names, tuple(keys), forgotten_at)
        async with self._tails.appending(container, tail, lease, intent if keys else None):
            try:
                await together(
                    *(self._messages.put(container, message, lease) for message in made),
                    self._tails.put_keys(container, intent, lease),
                )
            except ZaqarLiteError:
                await self._tails.undo(container, intent, lease)
                raise
        self._hints.announce(container, (message.state for message in made))

    async def import_messages(
        self, queue: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        """Take in messages of another store, all or none as a post with keys; see the seam."""
        container, name = self._container(queue), layout.key_name("a", source)

        async def work(lease: Lease) -> None:
            tail, now = await self._tails.load(container, lease), self._now()
            known = await self._objects.get(container, name)
            is_known = known.found and layout.key_expires_at(known.headers["Content-Type"]) > now
            if is_known and int(known.body) >= number:
                return
            live = [message for message in messages if message.expires_at > now]
            tail, positions = self._tails.advance(tail, len(live), project=queue.project, keys=1)
            made = [_fetched(*each) for each in zip(live, positions, strict=True)]
            calls = [Key(name, (str(number),))]
            await self._store(container, tail, lease, made, calls, now + _ADOPTED_FOR_MS)

        await self._connection.locked(queue, work)

    async def _bound(self, queue: QueueRef, tail: Tail, messages: int, keys: int) -> int:
        """The most messages and keys there can be after a post; counts where none is known.

        Raises:
            LimitReached: the queue is full of messages, or of keys.
        """
        if queue.name.startswith("~"):  # the server's own
            return 0
        limits, container = self._connection.limits, self._container(queue)
        known, now = self._tails.known(container), self._now()
        full = too_many_messages(queue, limits.max_messages)
        if known.room is not None and known.room[0] > now and known.room[1] < messages:
            raise full
        most = min(limits.max_messages, limits.max_idempotency_keys if keys else _END)
        if tail.bound and tail.bound + messages + keys <= most:
            return tail.bound + messages + keys
        objects = await self._objects.count(container)
        if objects + messages > limits.max_messages:
            pages = self._objects.messages(container, start=tail.birth)
            ends = ([one.state.expires_at for one in page] async for page in pages)
            live, _ = await _count(ends, objects, now)
            if live + messages > limits.max_messages:
                known.room = (now + _FULL_MS, limits.max_messages - live)
                raise full
        if keys and objects + keys > limits.max_idempotency_keys:
            listed = self._objects.pages(container, prefix=layout.KEYS)
            expires_at = layout.key_expires_at
            ends = ([expires_at(one.content_type) for one in page] async for page in listed)
            live, oldest = await _count(ends, objects, now)
            if live + keys > limits.max_idempotency_keys:
                wait = oldest - now if live else 0
                raise too_many_keys(queue, limits.max_idempotency_keys, wait_ms=wait)
        return objects + messages + keys


async def _count(pages: AsyncIterator[Sequence[int]], most: int, now: int) -> tuple[int, int]:
    """How many of the objects, by their ends, have not ended, and when the first of them does.

    Where there are too many to count, `most` of them: they free themselves in time.
    """
    count, number, first = 0, 0, _END
    async for page in pages:
        left = [end for end in page if end > now]
        count, number, first = count + len(left), number + 1, min([first, *left])
        if number == _MOST_PAGES:
            return most, first
    return count, first


def _fetched(message: Message, position: int) -> Fetched:
    """The object of a message that nobody holds, with its delay and counts."""
    client_id, headers = message.client_id or "", dict(message.headers or {})
    group = group_of(headers)
    state = State(
        expires_at=message.expires_at,
        ttl_ms=message.ttl_ms,
        poster=layout.client_digest(client_id),
        delay_expires_at=message.delay_expires_at or 0,
        claim_count=message.claim_count,
        failure_count=message.failure_count,
        group="" if group is None else layout.digest(group),
        size=len(message.body),
    )
    content = Content(
        message.created_at,
        client_id,
        headers or None,
        message.origin,
        message.body,
        dump_attempts(message.attempts),
    )
    return Fetched(layout.message_name(position, message.id), state, content)


def _plan(messages: Sequence[NewMessage], known: Mapping[str, KnownKey]) -> Plan:
    """Decide what is stored: of each new key the first message, of a known one none.

    Raises:
        KeyReused: a key stands for another message.
    """
    new: list[NewMessage] = []
    keys: list[tuple[int, IdempotencyKey]] = []
    places: list[tuple[int | str, bool]] = []
    seen: dict[str, tuple[KnownKey, int | str]] = {t: (k, k.ids[0]) for t, k in known.items()}
    for index, message in enumerate(messages):
        key = message.idempotency_key
        if key is not None and key.text in seen:
            first, place = seen[key.text]
            if not first.matches(key):
                raise KeyReused(index)
            places.append((place, True))
            continue
        places.append((len(new), False))
        if key is not None:
            seen[key.text] = KnownKey((), key.digest), len(new)
            keys.append((len(new), key))
        new.append(message)
    return Plan(new, keys, places)


def _stored_key(kind: str, key: IdempotencyKey, ids: Sequence[str]) -> Key:
    return Key(layout.key_name(kind, key.text), ids, key.digest.hex())

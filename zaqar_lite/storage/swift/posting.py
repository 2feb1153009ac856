"""Posting: names are given out and written under the queue's lock."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zaqar_lite.domain.errors import LimitReached, ZaqarLiteError
from zaqar_lite.domain.ids import new_message_id
from zaqar_lite.domain.models import NewMessage, Posted, QueueRef
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.layout import Content, Fetched, Intent, Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import together

_BATCH = ""


class Post(NamedTuple):
    """One call of `post`."""

    queue: QueueRef
    messages: Sequence[NewMessage]
    client_id: str
    batch_key: str | None
    version: int | None


class Plan(NamedTuple):
    """What a call comes to.

    `places` are the messages to store, `seen` of each new key the place among them, `known` the
    keys that are remembered with the ids that they stand for.
    """

    places: Sequence[NewMessage]
    seen: Mapping[str, int]
    known: Mapping[str, Sequence[str]]


class Posting:
    """Store batches of messages."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._objects = backend.objects
        self._tails = backend.tails

    async def post(self, call: Post) -> Sequence[Posted]:
        """Store the messages of a call, in order; see the seam."""
        return await self._backend.locked(call.queue, lambda lease: self._post(call, lease))

    async def _post(self, call: Post, lease: Lease) -> Sequence[Posted]:
        container = self._backend.containers.queue(call.queue)
        await together(
            self._backend.records.check(call.queue, call.version),
            self._tails.load(container, lease),
        )
        known = await self._known(container, call)
        if call.batch_key is not None and (ids := known.get(_BATCH)):
            return [Posted(message_id, duplicate=True) for message_id in ids]
        places: list[NewMessage] = []  # what is stored, of each new key the first
        seen: dict[str, int] = {}
        for message in call.messages:
            key = message.idempotency_key
            if key is None or (f"m{key}" not in known and key not in seen):
                if key is not None:
                    seen[key] = len(places)
                places.append(message)
        plan = Plan(places, seen, known)
        if not places and call.batch_key is None:
            return _answers(call, plan, [])
        await self._check_limits(call, len(places), len(seen), lease)
        ids = await self._store(call, plan, lease)
        return _answers(call, plan, ids)

    async def _known(self, container: str, call: Post) -> Mapping[str, Sequence[str]]:
        """The remembered keys among those of a call, each with the ids that it stands for."""
        names = {
            f"m{m.idempotency_key}": layout.key_name("m", m.idempotency_key)
            for m in call.messages
            if m.idempotency_key is not None
        }
        if call.batch_key is not None:
            names[_BATCH] = layout.key_name("b", call.batch_key)
        if not names:
            return {}
        replies = await together(*(self._objects.get(container, name) for name in names.values()))
        now = self._backend.clock.now_ms()
        return {
            key: reply.body.decode().split()
            for key, reply in zip(names, replies, strict=True)
            if reply.found and _key_expires_at(reply.headers["Content-Type"]) > now
        }

    async def _store(self, call: Post, plan: Plan, lease: Lease) -> Sequence[str]:
        """Write messages and keys at new positions, at once; answer the ids."""
        container = self._backend.containers.queue(call.queue)
        now = self._backend.clock.now_ms()
        made: list[Fetched] = []

        def intent(first: int) -> Intent:
            """What is to be written from position `first` on."""
            made[:] = [_new(m, call.client_id, at, now) for at, m in enumerate(plan.places, first)]
            ids = [message.listed.id for message in made]
            keys: list[tuple[str, tuple[str, ...]]] = [
                (layout.key_name("m", key), (ids[at],)) for key, at in plan.seen.items()
            ]
            if call.batch_key is not None:
                answers = [answer.id for answer in _answers(call, plan, ids)]
                keys.append((layout.key_name("b", call.batch_key), tuple(answers)))
            names = tuple(message.listed.name for message in made)
            return Intent(names, (*keys,), now + self._backend.limits.idempotency_window_ms)

        keyed = bool(plan.seen) or call.batch_key is not None
        async with self._tails.opened(
            container,
            len(plan.places),
            lease,
            intent=intent,
            recorded=keyed,
            loaded=self._tails.queue(container).tail,  # under this very lock
        ) as (_, written):
            try:
                await together(
                    *(self._objects.put_message(container, message, lease) for message in made),
                    *self._tails.key_writes(container, written, lease),
                    self._tails.note(container, lease),
                )
            except ZaqarLiteError:
                await self._tails.undo(container, written, lease)
                raise
        return [message.listed.id for message in made]

    async def _check_limits(self, call: Post, messages: int, keys: int, lease: Lease) -> None:
        """Refuse what would go over a limit; count only where the bound that is known is too low.

        Raises:
            LimitReached: the queue is full of messages, or of keys.
        """
        limits = self._backend.limits
        container = self._backend.containers.queue(call.queue)
        queue = self._tails.queue(container)
        keys += call.batch_key is not None
        if not keys and not self._backend.shared and queue.bound is not None:
            queue.bound += messages
            if queue.bound <= limits.max_messages:
                return
        objects = await self._objects.count(container)
        queue.bound = objects + messages
        if queue.bound > limits.max_messages:
            queue.bound = messages + await self._count_live(container)
            if queue.bound > limits.max_messages:
                queue.bound = None
                raise LimitReached(
                    f"The queue {call.queue.name!r} may hold {limits.max_messages} messages."
                )
        if keys and objects + keys > limits.max_idempotency_keys:
            remembered = await self._count_keys(container)
            if remembered + keys > limits.max_idempotency_keys:
                queue.bound = None
                raise LimitReached(
                    f"The queue {call.queue.name!r} may remember "
                    f"{limits.max_idempotency_keys} idempotency keys."
                )

    async def _count_live(self, container: str) -> int:
        now = self._backend.clock.now_ms()
        count = 0
        pages = self._objects.pages(container, prefix=layout.MESSAGES, first=self._objects.page)
        async for page in pages:
            count += sum(State.parse(entry.content_type).expires_at > now for entry in page)
        return count

    async def _count_keys(self, container: str) -> int:
        now = self._backend.clock.now_ms()
        count = 0
        async for page in self._objects.pages(
            container, prefix=layout.KEYS, first=self._objects.page
        ):
            count += sum(_key_expires_at(entry.content_type) > now for entry in page)
        return count


def _new(message: NewMessage, client_id: str, position: int, now: int) -> Fetched:
    message_id = new_message_id(position)
    state = State(
        expires_at=now + message.ttl_ms,
        ttl_ms=message.ttl_ms,
        poster=layout.client_digest(client_id),
        delay_expires_at=now + message.delay_ms if message.delay_ms else 0,
    )
    name = layout.message_name(position, message_id)
    return Fetched(Listed(name, state), Content.of(message, client_id, now))


def _answers(call: Post, plan: Plan, ids: Sequence[str]) -> Sequence[Posted]:
    """What became of each message: stored under a new id, or one that is known."""
    fresh = iter(ids)
    told: set[str] = set()
    answers: list[Posted] = []
    for message in call.messages:
        key = message.idempotency_key
        if key is None:
            answers.append(Posted(next(fresh)))
        elif key in plan.seen and key not in told:
            told.add(key)
            answers.append(Posted(next(fresh)))
        elif key in plan.seen:
            answers.append(Posted(ids[plan.seen[key]], duplicate=True))
        else:
            answers.append(Posted(plan.known[f"m{key}"][0], duplicate=True))
    return answers


def _key_expires_at(content_type: str) -> int:
    return int(layout.parameters(content_type).get("x", 0))

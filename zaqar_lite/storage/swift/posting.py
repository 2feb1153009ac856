"""Posting: names are given out and written under the queue's lock."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from zaqar_lite.domain.errors import KeyReused, LimitReached, ZaqarLiteError
from zaqar_lite.domain.ids import new_message_ids
from zaqar_lite.domain.models import IdempotencyKey, NewMessage, Posted, QueueRef
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.layout import Content, Fetched, Intent, Key, Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import Entry, together

_MOST_PAGES = 50
"""Listing pages that are counted for a limit; beyond them the container's own count holds."""


class Post(NamedTuple):
    """One call of `post`."""

    queue: QueueRef
    messages: Sequence[NewMessage]
    client_id: str
    batch_key: IdempotencyKey | None
    version: int | None


class Plan(NamedTuple):
    """What a call comes to.

    `places` are the messages to store, `fresh` of each new key the place among them, `known` the
    message keys that are remembered with the id that each stands for.
    """

    places: Sequence[NewMessage]
    fresh: Mapping[str, int]
    known: Mapping[str, str]


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
        batch, keys = await self._remembered(container, call)
        if call.batch_key is not None and batch is not None:
            if _differs(batch, call.batch_key):
                raise KeyReused(None)
            return [Posted(message_id, duplicate=True) for message_id in batch.ids]
        plan = _plan(call.messages, keys)
        if not plan.places and call.batch_key is None:
            return _answers(call, plan, [])
        await self._check_limits(call, len(plan.places), len(plan.fresh), lease)
        ids = await self._store(call, plan, lease)
        return _answers(call, plan, ids)

    async def _remembered(self, container: str, call: Post) -> tuple[Key | None, Mapping[str, Key]]:
        """The batch key of a call and its message keys by text, as far as they are known."""
        texts = list(
            dict.fromkeys(m.idempotency_key.text for m in call.messages if m.idempotency_key)
        )
        names = [layout.key_name("m", text) for text in texts]
        if call.batch_key is not None:
            names.append(layout.key_name("b", call.batch_key.text))
        found = await together(*(self._key(container, name) for name in names))
        batch = found.pop() if call.batch_key is not None else None
        return batch, {text: key for text, key in zip(texts, found, strict=True) if key is not None}

    async def _key(self, container: str, name: str) -> Key | None:
        reply = await self._objects.get(container, name)
        if not reply.found:
            return None
        about = reply.headers["Content-Type"]
        if layout.key_expires_at(about) <= self._backend.clock.now_ms():
            return None
        return Key(name, reply.body.decode().split(), layout.parameters(about).get("h", ""))

    async def _store(self, call: Post, plan: Plan, lease: Lease) -> Sequence[str]:
        """Write messages and keys at new positions, at once; answer the ids."""
        container = self._backend.containers.queue(call.queue)
        now = self._backend.clock.now_ms()
        made: list[Fetched] = []

        def intent(first: int) -> Intent:
            """What is to be written from position `first` on."""
            ids = new_message_ids(first, len(plan.places))
            made[:] = [
                _new(*each, call.client_id, now) for each in zip(plan.places, ids, strict=True)
            ]
            keys = _new_keys(call, plan, ids)
            names = tuple(message.listed.name for message in made)
            return Intent(names, keys, now + self._backend.limits.idempotency_window_ms)

        keyed = bool(plan.fresh) or call.batch_key is not None
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
        most = min(
            limits.max_messages, limits.max_idempotency_keys if keys else limits.max_messages
        )
        if not self._backend.shared and queue.bound is not None:
            queue.bound += messages + keys
            if queue.bound <= most:
                return
        objects = await self._objects.count(container)
        queue.bound = objects + messages + keys
        now = self._backend.clock.now_ms()
        if objects + messages > limits.max_messages:
            live, _ = await self._count(container, layout.MESSAGES, objects, _message_ends, now)
            if live + messages > limits.max_messages:
                queue.bound = None
                raise LimitReached(
                    f"The queue {call.queue.name!r} may hold {limits.max_messages} messages."
                )
        if keys and objects + keys > limits.max_idempotency_keys:
            known, oldest = await self._count(container, layout.KEYS, objects, _key_ends, now)
            if known + keys > limits.max_idempotency_keys:
                queue.bound = None
                raise LimitReached(
                    f"The queue {call.queue.name!r} may remember "
                    f"{limits.max_idempotency_keys} idempotency keys.",
                    retry_after=max(1, -(-(oldest - now) // 1000)),
                )

    async def _count(
        self, container: str, prefix: str, most: int, ends: Callable[[Entry], int], now: int
    ) -> tuple[int, int]:
        """How many objects of a kind have not ended, and when the first of them does.

        Where there are too many to count, `most` of them: they free themselves in time.
        """
        count, pages, first = 0, 0, now + self._backend.limits.idempotency_window_ms
        async for page in self._objects.pages(container, prefix=prefix, first=self._objects.page):
            left = [end for end in map(ends, page) if end > now]
            count, pages, first = count + len(left), pages + 1, min([first, *left])
            if pages == _MOST_PAGES:
                return most, first
        return count, first


def _message_ends(entry: Entry) -> int:
    return State.parse(entry.content_type).expires_at


def _key_ends(entry: Entry) -> int:
    return layout.key_expires_at(entry.content_type)


def _new(message: NewMessage, message_id: str, client_id: str, now: int) -> Fetched:
    state = State(
        expires_at=now + message.ttl_ms,
        ttl_ms=message.ttl_ms,
        poster=layout.client_digest(client_id),
        delay_expires_at=now + message.delay_ms if message.delay_ms else 0,
    )
    return Fetched(
        Listed(layout.name_at_home(message_id), state), Content.of(message, client_id, now)
    )


def _plan(messages: Sequence[NewMessage], known: Mapping[str, Key]) -> Plan:
    """Decide what is stored: of each new key the first message, of a known one none.

    Raises:
        KeyReused: a key stands for another message.
    """
    places: list[NewMessage] = []
    fresh: dict[str, int] = {}
    seen = dict(known)
    for index, message in enumerate(messages):
        key = message.idempotency_key
        if key is not None and key.text in seen:
            if _differs(seen[key.text], key):
                raise KeyReused(index)
            continue
        if key is not None:
            seen[key.text] = Key("", (), key.digest.hex())
            fresh[key.text] = len(places)
        places.append(message)
    return Plan(places, fresh, {text: key.ids[0] for text, key in known.items()})


def _differs(known: Key, key: IdempotencyKey) -> bool:
    """Whether a key comes with another message; one that was stored without digest matches any."""
    return known.digest not in {"", key.digest.hex()}


def _new_keys(call: Post, plan: Plan, ids: Sequence[str]) -> tuple[Key, ...]:
    digests = {
        m.idempotency_key.text: m.idempotency_key.digest for m in plan.places if m.idempotency_key
    }
    keys = [
        Key(layout.key_name("m", text), (ids[at],), digests[text].hex())
        for text, at in plan.fresh.items()
    ]
    if call.batch_key is not None:
        answers = tuple(answer.id for answer in _answers(call, plan, ids))
        name = layout.key_name("b", call.batch_key.text)
        keys.append(Key(name, answers, call.batch_key.digest.hex()))
    return tuple(keys)


def _answers(call: Post, plan: Plan, ids: Sequence[str]) -> Sequence[Posted]:
    """What became of each message: stored under a new id, or one that is known."""
    fresh = iter(ids)
    told: set[str] = set()
    answers: list[Posted] = []
    for message in call.messages:
        text = message.idempotency_key.text if message.idempotency_key else None
        if text is None or (text in plan.fresh and text not in told):
            answers.append(Posted(next(fresh)))
        else:
            known = ids[plan.fresh[text]] if text in plan.fresh else plan.known[text]
            answers.append(Posted(known, duplicate=True))
        if text is not None:
            told.add(text)
    return answers

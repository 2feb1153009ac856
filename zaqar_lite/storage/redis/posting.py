"""Posting to Redis: decided in one step; a long post is stored in parts.

A step holds up everybody, so none stores more than 100 messages (`posting.lua`). A longer post is
sent in parts. One step takes the positions and puts the parts aside. From then on the post is
committed, and every operation that reads or stores messages of that queue answers 'busy' until
`publish` has stored the last part: whoever meets that, the poster, another call, another process or
the sweep, goes on with it, a part at a time. So the post becomes visible all at once, a crash at
any moment leaves all of it or nothing, and other queues wait for one part at most.

Where a key is known nothing is done, and the poster asks which: it answers those messages with the
ids that they have, and posts the others. It asks before it sends a long post, in steps too: the
step that commits looks keys up only where the queue has got others since.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, repeat
from struct import Struct
from typing import cast

from zaqar_lite.domain.errors import KeyReused
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.domain.posts import IdempotencyKey, KnownKey, KnownKeys, NewMessage, Posted
from zaqar_lite.domain.refusals import too_many_keys, too_many_messages
from zaqar_lite.domain.yielding import STEP, next_turn
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.redis.codec import (
    new_randomness,
    pack_client,
    pack_key,
    pack_message_key,
    pack_new,
    pack_outbox_entry,
    read_key,
)
from zaqar_lite.storage.redis.limiter import is_long
from zaqar_lite.storage.redis.outbox import Outbox
from zaqar_lite.storage.redis.router import Word
from zaqar_lite.storage.redis.runner import Runner

PART_SIZE = 100
"""Messages of a long post that one step stores, in under 1 ms; many such steps follow."""
KEYS_PER_STEP = 400
"""Keys that one step looks up, in 0.2 ms."""
_PART_BYTES = 65_536
_SIZE = Struct(">I")


class _Batch:
    """The messages of a post that are to be stored, and what is answered for all of them.

    Of several messages with one key the first is stored, and none whose key is known.

    Raises:
        KeyReused: a key stands for something else.
    """

    def __init__(self, messages: Sequence[NewMessage], known: Mapping[str, KnownKey]) -> None:
        self.messages = messages
        self._answers: Sequence[int | bytes] = ()
        """For each message the place of the one that is stored for it, or the id that is known.

        Empty where each is stored itself.
        """
        if _have_keys(messages):
            self._choose(messages, known)
        self.randomness: Sequence[bytes] = new_randomness(len(self.messages))

    def _choose(self, messages: Sequence[NewMessage], known: Mapping[str, KnownKey]) -> None:
        firsts: dict[str, tuple[bytes | None, int | bytes]] = {
            text: (one.digest, bytes.fromhex(one.ids[0])) for text, one in known.items()
        }
        stored: list[NewMessage] = []
        answers: list[int | bytes] = []
        for index, message in enumerate(messages):
            key, answer = message.idempotency_key, cast(int | bytes, len(stored))
            if key is not None:
                digest, answer = firsts.setdefault(key.text, (key.digest, answer))
                if digest != key.digest:
                    raise KeyReused(index)
            if answer == len(stored):
                stored.append(message)
            answers.append(answer)
        if len(stored) < len(messages):
            self.messages, self._answers = stored, answers

    async def words(
        self, client: bytes, batch_key: IdempotencyKey | None
    ) -> tuple[tuple[bytes, int, int, int, Word], list[bytes]]:
        """The batch as arguments of `post`: what is told of it, and its data, if long in parts."""
        blobs: list[bytes] = []
        outbox: list[bytes] = []
        keys: list[bytes] = []
        longest = 0
        for start in range(0, len(self.messages), STEP):
            if start:
                await next_turn()
            some = self.messages[start : start + STEP]
            halves = self.randomness[start : start + STEP]
            blobs += map(pack_new, some, repeat(client), halves)
            keys += map(pack_message_key, some, halves)
            longest = max(longest, *[message.ttl_ms for message in some])
            for number, message in enumerate(some, start):
                for one in message.outbox:
                    outbox.append(pack_outbox_entry(number, one, client, halves[number - start]))
                    longest = max(longest, one.ttl_ms)
        if not any(keys):
            keys.clear()
        own_key = b""
        if batch_key is not None:
            answers = self._answers or range(len(blobs))
            own_key = pack_key(batch_key, answers, self.randomness)
        counts = len(blobs), len(outbox), len(keys) - keys.count(b"")
        if len(blobs) + len(outbox) <= PART_SIZE:
            return (own_key, *counts, ""), [*blobs, *outbox, *keys]
        kinds = (b"k", keys), (b"m", blobs), (b"c", outbox), (b"b", [own_key] if own_key else [])
        parts = [part for kind, some in kinds for part in _parts(kind, some)]
        return (own_key, *counts, longest), parts

    async def posted(self, first: int) -> Sequence[Posted]:
        """What is answered, where the stored messages are at consecutive positions from `first`."""
        stored: list[Posted] = []
        for start in range(0, len(self.randomness), STEP):
            if start:
                await next_turn()
            halves = self.randomness[start : start + STEP]
            stored += [
                Posted(f"{at:016x}{half.hex()}") for at, half in enumerate(halves, first + start)
            ]
        named = set[int | bytes]()
        posted: list[Posted] = []
        for one in self._answers:
            if isinstance(one, bytes):
                posted.append(Posted(one.hex(), duplicate=True))
            elif one in named:
                posted.append(Posted(stored[one].id, duplicate=True))
            else:
                posted.append(stored[one])
                named.add(one)
        return posted or stored


def _have_keys(messages: Sequence[NewMessage]) -> bool:
    return any(message.idempotency_key is not None for message in messages)


def _parts(kind: bytes, words: Sequence[bytes]) -> Iterator[bytes]:
    """Write words in parts, as `words_in` reads them (`posting.lua`)."""
    start = 0
    while start < len(words):
        some = words[start : start + PART_SIZE]
        while len(some) > 1 and sum(map(len, some)) > _PART_BYTES:
            some = some[: len(some) // 2]
        sizes = map(_SIZE.pack, map(len, some))
        yield b"".join(
            (kind, _SIZE.pack(start), *chain.from_iterable(zip(sizes, some, strict=True)))
        )
        start += len(some)


class Posting(MessageStore):
    """Store messages, and look up their idempotency keys."""

    _runner: Runner
    _outbox: Outbox
    _options: StoreOptions

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
        options, known, known_at = self._options, KnownKeys(), b""
        is_own = queue.name.startswith("~")  # the server's
        bounds = (1 << 53,) * 2 if is_own else (options.max_idempotency_keys, options.max_messages)
        looks = len(messages) > PART_SIZE and _have_keys(messages)
        while True:
            if looks:
                known, known_at = await self._known_of(queue, messages, batch_key)
                if known.batch is not None:
                    return [Posted(one, duplicate=True) for one in known.batch.ids]
            try:
                batch = _Batch(messages, known.messages)
            except KeyReused:
                if looks:
                    raise
                looks = True  # another key may be named first, which is known
                continue
            if not batch.messages and batch_key is None:
                return await batch.posted(0)
            head, data = await batch.words(pack_client(client_id), batch_key)
            _, _, outbox, new_keys, longest = head
            status, *rest = await self._runner.run(
                queue,
                "post",
                "" if version is None else version,
                options.idempotency_window_ms,
                *bounds,
                *head,
                known_at,
                *data,
                is_long=is_long(len(batch.messages), data),
            )
            if status == b"ok":
                if longest != "":
                    complete = self._runner.complete_post(queue)
                    await self._runner.follow_ups.run(complete, patience=None)
                if outbox:
                    self._outbox.begin_to_drain(queue)
                return await batch.posted(int.from_bytes(rest[0], "big"))
            if status == b"repeated":
                return [Posted(one, duplicate=True) for one in read_key(rest[0]).ids]
            if status != b"known" and (looks or not new_keys):  # known keys take no room
                if status == b"full":
                    raise too_many_messages(queue, options.max_messages)
                raise too_many_keys(queue, options.max_idempotency_keys, wait_ms=rest[0])
            looks = True

    async def _known_of(
        self, queue: QueueRef, messages: Sequence[NewMessage], batch_key: IdempotencyKey | None
    ) -> tuple[KnownKeys, bytes]:
        """Look up the keys of a post.

        Raises:
            KeyReused: that of the whole post stands for another one.
        """
        texts = {one.idempotency_key.text for one in messages if one.idempotency_key}
        known, known_at = await self._find_keys(queue, texts, batch_key and batch_key.text)
        if known.batch is not None and batch_key and not known.batch.matches(batch_key):
            raise KeyReused(None)
        return known, known_at

    async def find_idempotency_keys(
        self, queue: QueueRef, messages: Collection[str] = (), batch: str | None = None
    ) -> KnownKeys:
        """Tell what is known of keys, in steps; see the seam."""
        known, _ = await self._find_keys(queue, messages, batch)
        return known

    async def _find_keys(
        self, queue: QueueRef, messages: Collection[str], batch: str | None
    ) -> tuple[KnownKeys, bytes]:
        """Tell what is known of keys, and what the queue told of all its keys at the first step."""
        fields = [f"m{text}" for text in messages]
        if batch is not None:
            fields.append(f"b{batch}")
        found: dict[str, KnownKey] = {}
        live, known_at = 0, b""
        starts = range(0, len(fields), KEYS_PER_STEP)
        for some in [fields[at : at + KEYS_PER_STEP] for at in starts] or [[]]:
            _, live, now_at, *entries = await self._runner.run(
                queue, "known", *some, repeatable=True
            )
            known_at = known_at or now_at
            pairs = zip(some, entries, strict=True)
            found |= {name: read_key(entry) for name, entry in pairs if entry}
        whole = None if batch is None else found.pop(f"b{batch}", None)
        known = KnownKeys(whole, {name[1:]: one for name, one in found.items()}, bool(live))
        return known, known_at

"""Posting to Redis: decided in one step; a long post is stored in parts.

A step holds up everybody, so none stores more than 250 messages (`posting.lua`). A longer post is
put aside in parts by the step that decides all there is to decide and takes the positions. From
then on it is committed, and every operation that reads or stores messages of that queue answers
'busy' until `publish` has stored the last part: whoever meets that, the poster, another call,
another process or the sweep, goes on with it, a part at a time. So the post becomes visible all at
once, a crash at any moment leaves all of it or nothing, and other queues wait for one part at most.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NoReturn

from zaqar_lite.domain.errors import KeyReused
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.domain.posts import IdempotencyKey, KnownKey, KnownKeys, NewMessage, Posted
from zaqar_lite.domain.refusals import too_many_keys, too_many_messages
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.redis.codec import (
    new_randomness,
    pack_client,
    pack_key,
    pack_new,
    pack_outbox_entry,
    read_ids,
    read_key,
)
from zaqar_lite.storage.redis.limiter import CAPACITY, PART_SIZE, SHORT_POST
from zaqar_lite.storage.redis.outbox import Outbox
from zaqar_lite.storage.redis.runner import Runner

_STEP = 500
"""Messages that are written or answered in one step of the event loop."""


@dataclass(slots=True)
class _Batch:
    """The messages of a post that are sent: of several with one key, only the first."""

    messages: Sequence[NewMessage]
    numbers: Sequence[int]
    """The index in the post of each message that is sent."""
    places: Sequence[int] = ()
    """For each message, the index of the sent one with its key; empty if all are sent."""
    conflict: int | None = None
    """The first message whose key another message of the post has; it is not sent."""
    randomness: Sequence[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.randomness = new_randomness(len(self.messages))

    async def words(self, client: bytes) -> list[str | bytes | int]:
        """The batch as arguments of `post`."""
        blobs: list[bytes] = []
        outbox: list[bytes] = []
        keys: list[bytes] = []
        for start in range(0, len(self.messages), _STEP):
            if start:
                await asyncio.sleep(0)  # a large post must not hold up the others of this process
            some = self.messages[start : start + _STEP]
            halves = self.randomness[start : start + _STEP]
            blobs += map(pack_new, some, repeat(client), halves)
            outbox += [
                pack_outbox_entry(number, one, client, half)
                for number, (message, half) in enumerate(zip(some, halves, strict=True), start)
                for one in message.outbox
            ]
            keys += [pack_key(message.idempotency_key) for message in some]
        places = b"".join([(place + 1).to_bytes(4, "big") for place in self.places])
        conflict = "" if self.conflict is None else "1"
        if not any(keys):
            keys.clear()
        return [len(blobs), len(outbox), places, conflict, *blobs, *outbox, *keys]


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
        options = self._options
        batch = _arrange(messages)
        words = [
            "" if version is None else version,
            options.idempotency_window_ms,
            options.max_idempotency_keys,
            options.max_messages,
            pack_key(batch_key),
            *await batch.words(pack_client(client_id)),
        ]
        size = len(words) - 9
        cost = min(size, CAPACITY) if size > SHORT_POST else 0
        while True:
            status, *rest = await self._runner.run(queue, "post", *words, cost=cost)
            if status != b"arm":
                break
            await self._runner.register_now(queue, *rest)
        if status == b"known":
            return [Posted(one, duplicate=True) for one in read_ids(*rest)]
        if status not in (b"ok", b"staged"):
            self._refuse(queue, batch, status, *rest)
        instant, first, *known = rest
        await self._runner.register(queue, instant)
        if status == b"staged":
            await self._runner.complete_post(queue)
        if words[6]:
            self._outbox.begin_to_drain(queue)
        return await _posted(batch, known, int.from_bytes(first, "big"))

    async def find_idempotency_keys(
        self, queue: QueueRef, messages: Collection[str] = (), batch: str | None = None
    ) -> KnownKeys:
        """Tell what is known of keys, in steps; see the seam."""
        fields = [f"m{text}" for text in messages]
        if batch is not None:
            fields.append(f"b{batch}")
        found: dict[str, KnownKey] = {}
        live = 0
        for start in range(0, len(fields) or 1, PART_SIZE):
            some = fields[start : start + PART_SIZE]
            _, live, *entries = await self._runner.run(queue, "known", *some, repeatable=True)
            pairs = zip(some, entries, strict=True)
            found |= {name: read_key(entry) for name, entry in pairs if entry}
        whole = None if batch is None else found.pop(f"b{batch}", None)
        return KnownKeys(whole, {name[1:]: one for name, one in found.items()}, bool(live))

    def _refuse(self, queue: QueueRef, batch: _Batch, status: bytes, number: int = 0) -> NoReturn:
        options = self._options
        if status == b"reused":
            if number < 0:
                raise KeyReused(None)
            raise KeyReused([*batch.numbers, batch.conflict][number])
        if status == b"full":
            raise too_many_messages(queue, options.max_messages)
        raise too_many_keys(queue, options.max_idempotency_keys, wait_ms=number)


def _arrange(messages: Sequence[NewMessage]) -> _Batch:
    """Leave out messages whose key an earlier one has, and all after a key with two contents."""
    everything = range(len(messages))
    if all(message.idempotency_key is None for message in messages):
        return _Batch(messages, everything)
    firsts: dict[str, int] = {}
    numbers: list[int] = []
    places: list[int] = []
    conflict = None
    for number, message in enumerate(messages):
        key, place = message.idempotency_key, len(numbers)
        if key is not None:
            place = firsts.setdefault(key.text, place)
        if place == len(numbers):
            numbers.append(number)
        elif key != messages[numbers[place]].idempotency_key:
            conflict = number
            break
        places.append(place)
    if len(numbers) == len(messages):
        return _Batch(messages, everything)
    return _Batch([messages[number] for number in numbers], numbers, places, conflict)


async def _posted(batch: _Batch, known: Sequence[bytes], first: int) -> Sequence[Posted]:
    """Return the results of a post: stored messages have consecutive positions.

    `known` are the ids of messages that were stored before, empty for the others.
    """
    sent: list[Posted] = []
    for number, half in enumerate(batch.randomness):
        if number % _STEP == _STEP - 1:
            await asyncio.sleep(0)  # as above
        if known and known[number]:
            sent.append(Posted(known[number].hex(), duplicate=True))
        else:
            sent.append(Posted(f"{first:016x}{half.hex()}"))
            first += 1
    stands_for = set[int]()
    posted: list[Posted] = []
    for place in batch.places:
        again = place in stands_for
        posted.append(Posted(sent[place].id, duplicate=True) if again else sent[place])
        stands_for.add(place)
    return posted or sent

"""Posting to Redis: one script for a short post; a long one is committed whole and stored in parts.

A script holds up everybody, so none may store more than `MAX_PER_SCRIPT` messages. The parts of a
longer post are put aside in one step, which decides all there is to decide and takes the positions
(`stage.lua`). From then on it is committed, and every script that reads or stores messages of that
queue answers 'busy' until `publish.lua` has stored the last part: whoever meets that, the poster,
another call, another process or the sweep, goes on with it, a part at a time. So the post
becomes visible all at once, a crash at any moment leaves all of it or nothing, and other queues
wait for one part at most.

Which of its idempotency keys are known is read before (`recall.lua`), in steps too, under a note
that makes other posts with keys to this queue wait; the note ends by itself.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, repeat
from typing import Any, NoReturn

from zaqar_lite.domain.errors import KeyReused
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted, Recalled, Remembered
from zaqar_lite.domain.refusals import too_many_keys, too_many_messages
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.redis.codec import (
    new_randomness,
    pack_client,
    pack_companion,
    pack_key,
    pack_new,
    read_ids,
    read_key,
)
from zaqar_lite.storage.redis.limiter import MAX_PER_SCRIPT, PART_SIZE, SHORT_POST
from zaqar_lite.storage.redis.outbox import Outbox
from zaqar_lite.storage.redis.runner import Runner

_PART_BYTES = 262_144
"""Bytes of words after which a part ends."""
_ANSWERED = 500
"""Messages whose ids are written in one step of the event loop."""
_PAUSE = 0.005
"""Seconds until a post retries while another post is deciding by the keys of the queue."""


@dataclass(slots=True)
class _Batch:
    """The messages of a post that are sent: of several with one key, only the first."""

    messages: Sequence[NewMessage]
    numbers: Sequence[int]
    """The index in the post of each message that is sent."""
    places: Sequence[int]
    """For each message, the index of the sent one with its key; empty if all are sent."""
    client: bytes
    keyed: bool
    conflict: int | None = None
    """The first message whose key another message of the post has; it is not sent."""
    randomness: Sequence[bytes] = field(init=False)
    companions: int = field(init=False)
    known: list[bytes] = field(default_factory=list)
    """For each key that is sent, the id that it stands for, or empty; no entries if all are new."""

    def __post_init__(self) -> None:
        self.randomness = new_randomness(len(self.messages))
        self.companions = sum([len(message.companions) for message in self.messages])

    def blobs(self, some: slice) -> list[bytes]:
        """Messages as arguments of scripts."""
        return list(map(pack_new, self.messages[some], repeat(self.client), self.randomness[some]))

    def keys(self, some: slice) -> list[bytes]:
        """The keys of messages; empty for a message without one."""
        return [pack_key(message.idempotency_key) for message in self.messages[some]]

    def letters(self, some: slice, start: int) -> list[bytes]:
        """The companions of messages, numbered from `start`."""
        return [
            pack_companion(number, one, self.client, own)
            for number, (message, own) in enumerate(
                zip(self.messages[some], self.randomness[some], strict=True), start
            )
            for one in message.companions
        ]

    def packed_places(self) -> bytes:
        """`places` as an argument of scripts, counted from 1."""
        return b"".join([(place + 1).to_bytes(4, "big") for place in self.places])

    def packed_ids(self) -> bytes:
        """The ids of the sent messages as an argument of `stage.lua`."""
        if not self.places and not any(self.known):
            return b"2" + b"".join(self.randomness)
        new = count()
        return b"1" + b"".join(
            [
                known or next(new).to_bytes(8, "big") + own
                for known, own in zip(self.known or repeat(b""), self.randomness, strict=False)
            ]
        )

    def new(self) -> "_Batch":
        """What is left to store once it is known which keys are remembered."""
        if not any(self.known):
            return self
        chosen = [at for at, known in enumerate(self.known) if not known]
        new = _Batch([self.messages[at] for at in chosen], (), (), self.client, self.keyed)
        new.randomness = [self.randomness[at] for at in chosen]
        return new

    async def parts(self) -> AsyncIterator[bytes]:
        """The parts of the post as arguments of `publish.lua`."""
        for start in range(0, len(self.messages), PART_SIZE):
            some = slice(start, start + PART_SIZE)
            words = self.blobs(some)
            if self.keyed:
                words = [word for pair in zip(words, self.keys(some), strict=True) for word in pair]
            for part in _cut(words, b"k" if self.keyed else b"m", start):
                yield part
            await asyncio.sleep(0)  # a large post must not hold up the others of this process
        if self.companions:
            for start in range(0, len(self.messages), PART_SIZE):
                for part in _cut(self.letters(slice(start, start + PART_SIZE), start), b"c", 0):
                    yield part
                await asyncio.sleep(0)


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
        client, options = pack_client(client_id), self._options
        words = (
            "" if version is None else version,
            options.idempotency_window_ms,
            options.max_idempotency_keys,
            options.max_messages,
            pack_key(batch_key),
        )
        if batch_key is None and len(messages) <= SHORT_POST and _are_plain(messages):
            halves = new_randomness(len(messages))
            blobs = map(pack_new, messages, repeat(client), halves)
            reply = await self._runner.run(queue, "post", *words, len(messages), 0, "", *blobs)
            if reply[0] == b"ok":
                if reply[1]:
                    await self._runner.register(queue, reply[1])
                return _ids_from(int.from_bytes(reply[2], "big"), halves)
            # Nothing was stored. What follows makes room and tries again, or tells why not.
        batch = _arrange(messages, client)
        cost = len(batch.messages) + batch.companions
        if is_long := cost > MAX_PER_SCRIPT or batch.conflict is not None:
            reply = await self._commit(queue, batch, words, batch_key is not None)
        else:
            all_of_it = slice(None)
            reply = await self._send(
                queue,
                "post",
                *words,
                len(batch.messages),
                batch.companions,
                batch.packed_places(),
                *batch.blobs(all_of_it),
                *(batch.letters(all_of_it, 1) if batch.companions else ()),
                *(batch.keys(all_of_it) if batch.keyed else ()),
                cost=cost if cost > SHORT_POST else 0,
            )
        status, *rest = reply
        if status == b"known":
            return [Posted(one, duplicate=True) for one in read_ids(*rest)]
        if status != b"ok":
            self._refuse(queue, batch, status, *rest)
        instant, first, *known = rest
        await self._runner.register(queue, instant)
        if is_long:
            await self._runner.complete_post(queue)
        if batch.companions:
            self._outbox.begin_to_drain(queue)
        batch.known += known
        return await _posted(batch, int.from_bytes(first, "big"))

    async def recall(
        self, queue: QueueRef, messages: Collection[str], batch: str | None = None
    ) -> Recalled:
        """Tell what is remembered of keys, in steps; see the seam."""
        fields = [f"m{text}" for text in messages]
        if batch is not None:
            fields.append(f"b{batch}")
        found: dict[str, Remembered] = {}
        for start in range(0, len(fields), PART_SIZE):
            some = fields[start : start + PART_SIZE]
            _, _, *entries = await self._runner.run(queue, "known", *some, repeatable=True)
            pairs = zip(some, entries, strict=True)
            found |= {name: read_key(entry) for name, entry in pairs if entry}
        whole = None if batch is None else found.pop(f"b{batch}", None)
        return Recalled(whole, {name[1:]: one for name, one in found.items()})

    async def remembers(self, queue: QueueRef) -> bool:
        """Whether a key is remembered; see the seam."""
        _, live = await self._runner.run(queue, "known", repeatable=True)
        return bool(live)

    async def _commit(
        self, queue: QueueRef, batch: _Batch, words: Sequence[str | bytes | int], is_keyed: bool
    ) -> Sequence[Any]:
        """Commit or refuse a long post; the reply is that of the script for a short one."""
        while True:
            ticket = os.urandom(8) if batch.keyed and batch.conflict is None else b""
            if batch.keyed and (refused := await self._recall(queue, batch, words, ticket)):
                return refused
            new = batch.new()
            reply = await self._send(
                queue,
                "stage",
                *words,
                len(new.messages),
                sum([message.idempotency_key is not None for message in new.messages]),
                batch.packed_places(),
                max([message.ttl_ms for message in new.messages], default=0),
                "1" if new.companions else "",
                ticket,
                batch.packed_ids() if is_keyed else b"",
                *[part async for part in new.parts()],
                cost=PART_SIZE,
            )
            if reply[0] != b"late":
                return reply

    async def _recall(
        self, queue: QueueRef, batch: _Batch, words: Sequence[str | bytes | int], ticket: bytes
    ) -> Sequence[Any] | None:
        """Read which keys of a batch are known; return the reply if that decides it, else None."""
        batch.known.clear()
        for start in range(0, len(batch.messages), PART_SIZE):
            keys = batch.keys(slice(start, start + PART_SIZE))
            reply = await self._send(queue, "recall", *words, ticket, *keys, cost=PART_SIZE)
            if reply[0] != b"ok":
                return reply
            batch.known += reply[1:]
            if b"!" in reply:
                return b"reused", batch.known.index(b"!")
        return None if batch.conflict is None else (b"reused", len(batch.messages))

    async def _send(
        self, queue: QueueRef, script: str, *words: str | bytes | int, cost: int
    ) -> Sequence[Any]:
        """Run a script of a post, and repeat it while it has to wait for another post."""
        run = self._runner.run
        while True:
            reply: Sequence[Any] = await run(queue, script, *words, cost=cost)
            if reply[0] == b"arm":
                await self._runner.register_now(queue, reply[1])
            elif reply[0] == b"wait":
                await asyncio.sleep(_PAUSE)
            elif reply[0] != b"full" or not (await run(queue, "make_room"))[1]:
                return reply

    def _refuse(self, queue: QueueRef, batch: _Batch, status: bytes, number: int = 0) -> NoReturn:
        options = self._options
        if status == b"reused":
            if number < 0:
                raise KeyReused(None)
            raise KeyReused([*batch.numbers, batch.conflict][number])
        if status == b"full":
            raise too_many_messages(queue, options.max_messages)
        raise too_many_keys(queue, options.max_idempotency_keys, wait_ms=number)


def _are_plain(messages: Sequence[NewMessage]) -> bool:
    """Whether no message has a key or companions."""
    return not any(one.idempotency_key or one.companions for one in messages)


def _ids_from(first: int, halves: Sequence[bytes]) -> list[Posted]:
    """Return the results of new messages that have consecutive positions."""
    return [Posted(f"{position:016x}{half.hex()}") for position, half in enumerate(halves, first)]


def _arrange(messages: Sequence[NewMessage], client: bytes) -> _Batch:
    """Leave out messages whose key an earlier one has, and all after a key with two contents."""
    everything = range(len(messages))
    if all(message.idempotency_key is None for message in messages):
        return _Batch(messages, everything, (), client, keyed=False)
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
        return _Batch(messages, everything, (), client, keyed=True)
    sent = [messages[number] for number in numbers]
    return _Batch(sent, numbers, places, client, True, conflict)


def _cut(words: Sequence[bytes], kind: bytes, before: int) -> Iterator[bytes]:
    """Split arguments into parts of at most so many messages and bytes, or of one message."""
    step = 2 if kind == b"k" else 1
    part: list[bytes] = []
    size = 0
    for at in range(0, len(words), step):
        if part and (len(part) > 2 * step * PART_SIZE or size + len(words[at]) > _PART_BYTES):
            yield b"".join(part)
            part, size = [], 0
        if not part:
            part.append(kind + (0 if kind == b"c" else before + at // step).to_bytes(4, "big"))
        for word in words[at : at + step]:
            part += len(word).to_bytes(4, "big"), word
        size += len(words[at])
    if part:
        yield b"".join(part)


async def _posted(batch: _Batch, first: int) -> Sequence[Posted]:
    """Return the results of a post: stored messages have consecutive positions."""
    sent: list[Posted] = []
    for start in range(0, len(batch.messages), _ANSWERED):
        if start:
            await asyncio.sleep(0)  # as above
        halves = batch.randomness[start : start + _ANSWERED]
        if not batch.known:
            sent += _ids_from(first, halves)
            first += len(halves)
            continue
        for half, other in zip(halves, batch.known[start : start + _ANSWERED], strict=True):
            if other:
                sent.append(Posted(other.hex(), duplicate=True))
            else:
                sent.append(Posted(f"{first:016x}{half.hex()}"))
                first += 1
    if not batch.places:
        return sent
    stands_for = set[int]()
    posted = []
    for place in batch.places:
        posted.append(
            Posted(sent[place].id, duplicate=True) if place in stands_for else sent[place]
        )
        stands_for.add(place)
    return posted

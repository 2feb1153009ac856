"""Posting to Redis: one script a post, long ones in turns."""

import asyncio
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NoReturn

from zaqar_lite.domain.errors import KeyReused, LimitReached
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.redis.codec import (
    new_randomness,
    pack_client,
    pack_companion,
    pack_key,
    pack_new,
)
from zaqar_lite.storage.redis.in_flight import SHORT, InFlight
from zaqar_lite.storage.redis.keys import keys_of
from zaqar_lite.storage.redis.runner import Runner

_ANSWERED = 500
"""Messages whose ids are written in one step of the event loop."""


class Posting:
    """Store messages; those of long posts share the room that is in flight."""

    def __init__(self, runner: Runner, in_flight: InFlight, options: StoreOptions) -> None:
        self._runner = runner
        self._in_flight = in_flight
        self._options = options

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
        client = pack_client(client_id)
        randomness = new_randomness(len(messages))
        keyed = any(message.idempotency_key is not None for message in messages)
        options = self._options
        blobs: list[bytes] = []
        for start in range(0, len(messages), MAX_EXAMINED):
            if start:
                await asyncio.sleep(0)  # a large batch must not hold up the others of this process
            some = slice(start, start + MAX_EXAMINED)
            blobs += map(pack_new, messages[some], repeat(client), randomness[some])
        companions = [
            pack_companion(number, one, client, own)
            for number, (message, own) in enumerate(zip(messages, randomness, strict=True), 1)
            for one in message.companions
        ]
        words: Sequence[str | bytes | int] = (
            "" if version is None else version,
            options.idempotency_window_ms,
            options.max_idempotency_keys,
            options.max_messages,
            pack_key(batch_key),
            len(messages),
            len(companions),
            *blobs,
            *companions,
            *([pack_key(message.idempotency_key) for message in messages] if keyed else ()),
        )
        if len(messages) + len(companions) <= SHORT:
            status, *rest = await self._send(queue, words)
        else:
            async with self._in_flight.work(queue.project, len(messages) + len(companions)):
                status, *rest = await self._send(queue, words)
        if status == b"known":
            known = rest[1]
            return [
                Posted(known[at : at + 16].hex(), duplicate=True) for at in range(0, len(known), 16)
            ]
        if status != b"ok":
            self._refuse(queue, status, *rest)
        instant, first, *known = rest
        await self._runner.register(queue, instant)
        if companions:
            self._runner.send(queue)
        return await _posted(int.from_bytes(first, "big"), randomness, known)

    async def _send(self, queue: QueueRef, words: Sequence[str | bytes | int]) -> Sequence[Any]:
        run = self._runner.run
        reply = await run(queue, "post", *words)
        if reply[0] == b"arm":
            await self._runner.sweeper.register(keys_of(queue), reply[1])
            reply = await run(queue, "post", *words)
        while reply[0] == b"full" and (await run(queue, "make_room"))[1]:
            reply = await run(queue, "post", *words)
        answer: Sequence[Any] = reply
        return answer

    def _refuse(self, queue: QueueRef, status: bytes, number: int = 0) -> NoReturn:
        options = self._options
        if status == b"reused":
            raise KeyReused(None if number < 0 else number)
        if status == b"full":
            raise LimitReached(
                f"The queue {queue.name!r} may hold {options.max_messages} messages."
            )
        raise LimitReached(
            f"The queue {queue.name!r} may remember {options.max_idempotency_keys} "
            "idempotency keys.",
            retry_after=max(1, -(-number // 1_000)),
        )


async def _posted(
    first: int, randomness: Sequence[bytes], known: Sequence[bytes]
) -> Sequence[Posted]:
    """The answers of a post: stored ones have consecutive positions; `known` ids are others'."""
    posted: list[Posted] = []
    for start in range(0, len(randomness), _ANSWERED):
        if start:
            await asyncio.sleep(0)  # as above
        halves = randomness[start : start + _ANSWERED]
        if not known:
            posted += [Posted(f"{n:016x}{half.hex()}") for n, half in enumerate(halves, first)]
            first += len(halves)
            continue
        for half, other in zip(halves, known[start : start + _ANSWERED], strict=True):
            if other:
                posted.append(Posted(other.hex(), duplicate=True))
            else:
                posted.append(Posted(f"{first:016x}{half.hex()}"))
                first += 1
    return posted

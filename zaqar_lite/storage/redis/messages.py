"""The message store: each operation is one script, and one round trip."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, NoReturn

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    Conflict,
    Invalid,
    KeyReused,
    LimitReached,
    NotFound,
    QueueChanged,
    Unavailable,
    Unsupported,
)
from zaqar_lite.domain.ids import Marker, is_claim_id, is_message_id, new_claim_id
from zaqar_lite.domain.models import (
    Capability,
    Claim,
    Claimed,
    DeadLetter,
    DelayMode,
    Edit,
    IdempotencyKey,
    Message,
    NewMessage,
    Page,
    Posted,
    QueueRef,
    Refusal,
    RefusalReason,
    Selection,
    Stats,
    StoreOptions,
    Swept,
    Take,
)
from zaqar_lite.storage.base import MAX_EXAMINED, MessageStore, RetriesOf, no_retries
from zaqar_lite.storage.redis.codec import (
    new_randomness,
    pack_client,
    pack_key,
    pack_new,
    read_message,
    read_messages,
)
from zaqar_lite.storage.redis.connection import Connection
from zaqar_lite.storage.redis.keys import Keys, keys_of, tag_of
from zaqar_lite.storage.redis.letters import Sweeper
from zaqar_lite.storage.redis.records import RecordIndexes
from zaqar_lite.storage.redis.scripts import load

_MODES = {DelayMode.IGNORE: "I", DelayMode.HONOUR: "H", DelayMode.EXPOSE: "E"}
_REASONS = {b"claimed": RefusalReason.CLAIMED, b"free": RefusalReason.NOT_CLAIMED}
_NO_CLAIM = bytes(16)
MAX_CLAIMED = MAX_EXAMINED // 2
"""The most messages that one claim holds, so that one step can end it and do some more."""


class RedisMessageStore(MessageStore):
    """Messages and claims in Redis."""

    capabilities = frozenset(
        {
            Capability.ATOMIC_BATCH,
            Capability.EXCLUSIVE,
            Capability.DURABLE,
            Capability.SHARED,
        }
    )

    def __init__(self, connection: Connection, clock: Clock, options: StoreOptions) -> None:
        self._connection = connection
        self._router = connection.router
        self._clock = clock
        self._options = options
        self._follow_ups = connection.follow_ups
        self._sweeper = Sweeper(connection.router, clock)
        self._indexes = RecordIndexes(connection.router, clock, connection.follow_ups)
        self.examined = 0
        """How many entries this store's claims, pops and lists have looked at (for tests)."""

    async def open(self) -> None:
        """Connect and check the server; see the seam."""
        await self._connection.open(self)

    async def close(self) -> None:
        """Close the connection when the other store has; see the seam."""
        await self._connection.close(self)

    async def ping(self) -> None:
        """Return when every node answers; see the seam."""
        await self._connection.ping()

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
        status, *rest = await self._run_on(
            queue,
            "post",
            "" if version is None else version,
            options.idempotency_window_ms,
            options.max_idempotency_keys,
            options.max_messages,
            pack_key(batch_key),
            len(messages),
            *blobs,
            *([pack_key(message.idempotency_key) for message in messages] if keyed else ()),
        )
        if status == b"known":
            known = rest[1]
            return [
                Posted(known[at : at + 16].hex(), duplicate=True) for at in range(0, len(known), 16)
            ]
        if status != b"ok":
            self._refuse_post(queue, status, *rest)
        instant, first, *known = rest
        await self._register(queue, instant)
        return _posted(int.from_bytes(first, "big"), randomness, known)

    def _refuse_post(self, queue: QueueRef, status: bytes, number: int = 0) -> NoReturn:
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

    async def list_messages(self, queue: QueueRef, selection: Selection) -> Page:
        """List messages in steps of at most MAX_EXAMINED entries; see the seam."""
        marker, until, limit = selection.marker, selection.until, selection.limit
        exclude_client_id, version = selection.exclude_client_id, selection.version
        include_claimed, include_delayed = selection.include_claimed, selection.include_delayed
        after = _marker(marker)
        client = b"" if exclude_client_id is None else pack_client(exclude_client_id)
        last: int | None = None
        while True:
            reply = await self._run_on(
                queue,
                "list",
                "" if version is None else version,
                *after,
                *_marker(until),
                limit,
                client,
                "c" * include_claimed + "d" * include_delayed,
                repeatable=True,
            )
            _, now, examined, position, at_end = reply[:5]
            self.examined += examined
            if position:
                last = int.from_bytes(position, "big")
                after = position, b""
            if at_end or len(reply) > 5:
                return Page(read_messages(reply, 5, now), last)

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        """Fetch messages by id; see the seam."""
        wanted = _ids(ids)
        if not wanted:
            return ()
        reply = await self._run_on(queue, "get", *wanted, repeatable=True)
        return read_messages(reply, 2, reply[1])

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Change a delayed message; see the seam."""
        message_id, body, version = edit.message_id, edit.body, edit.version
        ttl_ms, delay_ms = edit.ttl_ms, edit.delay_ms
        if not is_message_id(message_id):
            raise NotFound(f"Message {message_id} does not exist.")
        status, *rest = await self._run_on(
            queue,
            "edit",
            "" if version is None else version,
            bytes.fromhex(message_id),
            "" if ttl_ms is None else ttl_ms,
            "" if delay_ms is None else delay_ms,
            "" if body is None else "1",
            body or b"",
        )
        if status == b"missing":
            raise NotFound(f"Message {message_id} does not exist.")
        if status == b"ready":
            raise Conflict(f"Message {message_id} is not delayed (any more).")
        if status == b"short":
            raise Invalid(
                f"Message {message_id} would expire {rest[0]} ms before its delay is over: give "
                "a longer ttl or a shorter delay."
            )
        now, instant, position, record, track = rest
        await self._register(queue, instant)
        return read_message(position, record, track, now, held=False)

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages, all or none; see the seam."""
        wanted = _ids(ids)
        if not wanted:
            return ()
        claims = [
            bytes.fromhex(claim) if is_claim_id(claim) else _NO_CLAIM for claim in claim_ids or ()
        ]
        status, *refused = await self._run_on(
            queue,
            "delete",
            "any" if claim_ids is None else "held",
            len(claims),
            *claims,
            *wanted,
        )
        if status == b"ok":
            return ()
        return [
            Refusal(message_id.hex(), _REASONS[reason])
            for message_id, reason in zip(refused[::2], refused[1::2], strict=True)
        ]

    async def pop(self, queue: QueueRef, take: Take) -> Claimed:
        """Remove and hand out ready messages; see the seam."""
        return await self._take(queue, "pop", None, take)

    async def claim(self, queue: QueueRef, take: Take) -> Claimed:
        """Hand out ready messages under a new claim; see the seam."""
        return await self._take(queue, "claim", new_claim_id(), take)

    async def _take(
        self, queue: QueueRef, script: str, claim_id: str | None, take: Take
    ) -> Claimed:
        """Take messages in one step, or in two where the first meets dead letters.

        What the first has taken is answered, whatever becomes of the second.
        """
        first, note = await self._take_once(queue, script, claim_id, take)
        if note is None:
            return first
        # The sweep must know of the queue before a letter leaves it, so that a crash loses none.
        noting = self._sweeper.register(keys_of(queue), note)
        try:
            if not first.messages:
                await noting
            elif not await self._follow_ups.run(noting):
                return replace(first, more=True)
            limit = take.limit - len(first.messages)
            rest, _ = await self._take_once(
                queue, script, claim_id, take._replace(limit=limit), armed="1"
            )
        except (Unavailable, QueueChanged):
            if not first.messages:
                raise
            return replace(first, more=True)
        messages = [*first.messages, *rest.messages]
        return Claimed(first.claim_id or rest.claim_id, messages, rest.moved, rest.more)

    async def _take_once(
        self, queue: QueueRef, script: str, claim_id: str | None, take: Take, *, armed: str = ""
    ) -> tuple[Claimed, int | None]:
        """Take messages; answer also the instant to note where dead letters are met unarmed."""
        reply = await self._run_on(
            queue,
            script,
            "" if take.version is None else take.version,
            _NO_CLAIM if claim_id is None else bytes.fromhex(claim_id),
            min(take.limit, MAX_CLAIMED),
            take.ttl_ms,
            take.grace_ms,
            _MODES[take.delay_mode],
            pack_client(take.client_id),
            *_policy(queue, take.retries.dead_letter),
            armed,
        )
        status, now, examined, moved, instant = reply[:5]
        self.examined += examined
        messages = [
            read_message(
                reply[at],
                reply[at + 1],
                reply[at + 2],
                now,
                held=claim_id is not None,
                show_delay=take.delay_mode is not DelayMode.IGNORE,
            )
            for at in range(5, len(reply), 3)
        ]
        await self._register(queue, instant)
        if moved:
            await self._follow_ups.run(self._sweeper.drain(keys_of(queue)))
        claimed = Claimed(claim_id if messages else None, messages, moved, status == b"more")
        return claimed, now if status == b"arm" else None

    async def _register(self, queue: QueueRef, instant: int) -> None:
        """Let the sweep visit a queue at an instant (ms), unless it is 0."""
        if instant:
            await self._follow_ups.run(self._sweeper.register(keys_of(queue), instant))

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim; see the seam."""
        if not is_claim_id(claim_id):
            raise NotFound(f"Claim {claim_id} does not exist or has expired.")
        reply = await self._run_on(queue, "get_claim", bytes.fromhex(claim_id), repeatable=True)
        if reply[0] == b"missing":
            raise NotFound(f"Claim {claim_id} does not exist or has expired.")
        _, now, ttl, start = reply[:4]
        return Claim(claim_id, ttl, max(0, now - start), read_messages(reply, 4, now))

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Let a live claim live on; see the seam."""
        reply: list[Any] = [b"missing"]
        if is_claim_id(claim_id):
            reply = await self._run_on(queue, "renew", bytes.fromhex(claim_id), ttl_ms, grace_ms)
        if reply[0] == b"missing":
            raise NotFound(f"Claim {claim_id} does not exist or has expired.")
        await self._register(queue, reply[1])

    async def release(self, queue: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        """End a claim; see the seam."""
        if is_claim_id(claim_id):
            await self._run_on(queue, "release", bytes.fromhex(claim_id), repeatable=True)

    async def purge(self, queue: QueueRef) -> None:
        """Remove all messages and claims; see the seam."""
        await self._run_on(queue, "purge")

    async def drop(self, queue: QueueRef) -> None:
        """Remove the queue, and its record with it; see the seam."""
        async with self._indexes.changing(queue):
            await self._run_on(queue, "drop", repeatable=True)

    async def stats(self, queue: QueueRef) -> Stats:
        """Count the live messages; see the seam."""
        _, now, ready, delayed, claimed, *ends = await self._run_on(queue, "stats", repeatable=True)
        oldest, newest = read_messages(ends, 0, now) or (None, None)
        return Stats(ready, delayed, claimed, oldest, newest)

    async def split(self, queue: QueueRef, count: int) -> Sequence[int]:
        """Cut the live messages into ranges; see the seam."""
        reply = await self._run_on(queue, "split", count, repeatable=True)
        return [int.from_bytes(position, "big") for position in reply[3:]]

    async def expose(self, queue: QueueRef, limit: int) -> int:
        """Make delayed messages ready; see the seam."""
        done = 0
        while done < limit:
            step = min(limit - done, MAX_EXAMINED // 2)
            _, exposed = await self._run_on(queue, "expose", step)
            done += exposed
            if exposed < step:
                break
        return done

    async def sweep(self, limit: int, retries_of: RetriesOf = no_retries) -> Swept:
        """Tidy up what is due in any queue; see the seam."""
        await self._indexes.heal(limit)
        return await self._sweeper.sweep(limit)

    async def _run_on(
        self, queue: QueueRef, script: str, *words: str | bytes | int, repeatable: bool = False
    ) -> Any:  # noqa: ANN401 - a reply is what the script made it
        """Run a script on a queue; again as long as it only brought the queue up to now."""
        keys: Keys = keys_of(queue)
        while True:
            reply = await self._router.run(
                load(script), keys, self._clock.offset_ms, *words, repeatable=repeatable
            )
            if reply[0] == b"changed":
                raise QueueChanged(f"The queue {queue.name!r} changed or was deleted meanwhile.")
            if reply[0] == b"again" and len(reply) == 3:
                continue
            return reply


def _marker(marker: Marker | None) -> tuple[bytes, bytes]:
    """A marker as `list.lua` takes it: the position, and the id where one was given."""
    if marker is None:
        return b"", b""
    message_id = marker.message_id
    return (
        marker.position.to_bytes(8, "big"),
        b"" if message_id is None else bytes.fromhex(message_id),
    )


def _ids(ids: Collection[str]) -> list[bytes]:
    """Ids as scripts take them, each once; malformed ones can't exist and are left out."""
    return [bytes.fromhex(item) for item in dict.fromkeys(ids) if is_message_id(item)]


def _policy(queue: QueueRef, dead_letter: DeadLetter | None) -> tuple[str | int, ...]:
    if dead_letter is None:
        return "", "", "", ""
    if dead_letter.target is None:
        raise Unsupported("The Redis store keeps no failed messages; the embedded one does.")
    ttl = "" if dead_letter.ttl_ms is None else dead_letter.ttl_ms
    return dead_letter.max_claims, tag_of(dead_letter.target), ttl, queue.name


def _posted(first: int, randomness: Sequence[bytes], known: Sequence[bytes]) -> list[Posted]:
    """The answers of a post: stored ones have consecutive positions; `known` ids are others'."""
    if not known:
        return [Posted(f"{first + i:016x}{half.hex()}") for i, half in enumerate(randomness)]
    posted: list[Posted] = []
    for half, other in zip(randomness, known, strict=True):
        if other:
            posted.append(Posted(other.hex(), duplicate=True))
        else:
            posted.append(Posted(f"{first:016x}{half.hex()}"))
            first += 1
    return posted

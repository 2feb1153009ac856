"""The message store of a server with pools: each operation goes to the store of its queue.

It is a message store as any other, so no service knows whether there are pools, and a server
without them pays nothing. A queue that moves to another pool is frozen meanwhile: Unavailable, but
for what the holder of a claim does. Idempotency keys stay in the old pool to their end: a post with
a key asks there first.

The queues of outbox messages lie in every store, each beside the messages that it is about.

A pool's store is opened when it is first needed, and anew when the pool changes. One that does not
answer is tried again after a few seconds at the earliest; what needs it meanwhile fails with
Unavailable without waiting.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from zaqar_lite.domain.addresses import without_secrets
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, KeyReused, Unavailable
from zaqar_lite.domain.identity import DELIVERIES_PROJECT
from zaqar_lite.domain.models import (
    Claimed,
    ClaimRequest,
    Move,
    QueueRef,
    Refusal,
    RetryPolicy,
    RetryPolicyOf,
    Stats,
    SweepResult,
    no_retries,
)
from zaqar_lite.domain.posts import IdempotencyKey, KnownKeys, NewMessage, Posted
from zaqar_lite.domain.settlements import Outcome
from zaqar_lite.service.background import LoggedErrors, cancelled
from zaqar_lite.service.delivery.outbox import is_internal
from zaqar_lite.service.pooling.placement import CARRIED_MS, CARRY, Place, Placements
from zaqar_lite.service.pooling.pools import Pool, PoolRegistry
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.store import Condition, Store
from zaqar_lite.storage.watchers import Listener, Watch

logger = logging.getLogger(__name__)
_STAGED = "~moved."
_OF_HOLDERS = frozenset(("get_claim", "settle"))
"""What the holder of a claim does, which goes on while its queue is frozen."""
Make = Callable[[Pool], MessageStore]
"""Makes the store of a pool, not yet opened; raises ConfigurationError."""
_PAUSE = 3.0
"""Seconds between two attempts to open a store."""


@dataclass(eq=False, repr=False)
class OpenConnections:
    """Open and close the stores of pools."""

    make: Make

    def __post_init__(self) -> None:
        self._opening: dict[str, tuple[Pool, asyncio.Task[MessageStore]]] = {}
        self._failed_at: dict[str, float] = {}

    def stores(self) -> Mapping[str, MessageStore]:
        """The stores that are open, by the names of their pools."""
        opening = self._opening.items()
        return {name: task.result() for name, (_, task) in opening if _has_opened(task)}

    async def store(self, pool: Pool) -> MessageStore:
        """The open store of a pool.

        Raises:
            Unavailable: it does not answer, or can't be opened as it is configured.
        """
        known, opening = self._opening.get(pool.name, (None, None))
        if known is pool and opening is not None and _has_opened(opening):
            return opening.result()
        opening = await self.begin(pool)
        await asyncio.wait((opening,))
        if opening.cancelled():
            raise Unavailable(f"The pool {pool.name!r} has just become another one.")
        return opening.result()

    async def begin(self, pool: Pool) -> "asyncio.Task[MessageStore]":
        """Begin to open a pool's store, unless it is open or failed to open a moment ago."""
        known, opening = self._opening.get(pool.name, (pool, None))
        while (known.uri, known.options) != (pool.uri, pool.options):
            await self.forget(pool.name)  # meanwhile others may begin
            known, opening = self._opening.get(pool.name, (pool, None))
        rested = time.monotonic() - self._failed_at.get(pool.name, 0.0) >= _PAUSE
        if opening is None or (opening.done() and not _has_opened(opening) and rested):
            opening = asyncio.create_task(self._open(pool), name="pool")
            opening.add_done_callback(_log)
        self._opening[pool.name] = pool, opening
        return opening

    async def forget(self, name: str) -> None:
        """Close the store of a pool that was deleted or has another store now."""
        _, opening = self._opening.pop(name, (None, None))
        await cancelled(opening)
        if opening is not None and _has_opened(opening):
            await opening.result().close()

    async def close(self) -> None:
        """Close all stores."""
        for name in list(self._opening):
            await self.forget(name)

    async def _open(self, pool: Pool) -> MessageStore:
        try:
            store = self.make(pool)
            await store.open()
        except BaseException as exc:
            self._failed_at[pool.name] = time.monotonic()
            if not isinstance(exc, ConfigurationError | Unavailable):
                raise
            why = without_secrets(str(exc), pool.uri)
            raise Unavailable(f"The pool {pool.name!r} can't be reached.", detail=why) from exc
        return store


def _has_opened(task: "asyncio.Task[MessageStore]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _log(task: "asyncio.Task[MessageStore]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("a pool is not open: %s", error)


def staging_queue(target: QueueRef) -> QueueRef:
    """The queue in which redriven messages wait to be carried to the pool of their target."""
    return QueueRef(target.project, _STAGED + target.name)


@dataclass(eq=False, repr=False)
class PooledMessages(Store):
    """The stores of all pools, and the server's own, as one; `as_store` gives it the seam's type.

    An operation that is not written here is one that the store of its queue does alone.
    """

    home: MessageStore
    registry: PoolRegistry
    placements: Placements
    connections: OpenConnections
    clock: Clock

    @property
    def as_store(self) -> MessageStore:
        """The same, as services see it."""
        return cast(MessageStore, self)

    def __post_init__(self) -> None:
        self._turn = 0
        self.poll_interval_ms = min(self.home.poll_interval_ms, MessageStore.poll_interval_ms)

    async def pool(self, name: str | None) -> MessageStore:
        """The open store of a pool; without a name, the server's own.

        Raises:
            Unavailable: it does not answer, or there is no such pool.
        """
        if not name:
            return self.home
        pool = (await self.registry.known()).get(name) or (await self.registry.pools()).get(name)
        if pool is None:
            raise Unavailable(f"The pool {name!r}, where the queue lies, is not registered.")
        return await self.connections.store(pool)

    def _all_open(self) -> Sequence[MessageStore]:
        """All open stores; each call begins with another one."""
        stores = (self.home, *self.connections.stores().values())
        self._turn = (self._turn + 1) % len(stores)
        return (*stores[self._turn :], *stores[: self._turn])

    async def _place(self, queue: QueueRef, *, holder: bool = False) -> Place:
        """Where a queue lies, unless it is frozen; the `holder` of a claim may go on for a while.

        Raises:
            Unavailable: it is frozen.
        """
        place = await self.placements.place(queue)
        if not place.admits(self.clock.now_ms(), holder=holder):
            raise _frozen(queue)
        return place

    async def _store(self, queue: QueueRef, *, holder: bool = False) -> MessageStore:
        return await self.pool((await self._place(queue, holder=holder)).pool)

    async def _all_of(self, queue: QueueRef) -> Sequence[MessageStore]:
        """The stores that have a queue, frozen or not; those of the server itself lie in all."""
        if queue.project == DELIVERIES_PROJECT:
            return self._all_open()
        return (await self.pool((await self.placements.place(queue)).pool),)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - an operation of the seam
        if not callable(vars(MessageStore).get(name)):
            return getattr(self.home, name)

        async def act(queue: QueueRef, *given: Any, **named: Any) -> Any:  # noqa: ANN401
            store = await self._store(queue, holder=name in _OF_HOLDERS)
            return await getattr(store, name)(queue, *given, **named)

        return act

    async def open(self) -> None:
        """Open the server's own store; a pool's is opened when it is first needed."""
        await self.home.open()

    async def ping(self) -> None:
        """Return when the server's own store answers."""
        await self.home.ping()

    async def close(self) -> None:
        """Close all stores."""
        await self.connections.close()
        await self.home.close()

    def condition(self) -> Condition:
        """Tell how the disk of the server's own store is."""
        return self.home.condition()

    async def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages where their queue lies, and their outbox messages in the same store."""
        place = await self._place(queue)
        store = await self.pool(place.pool)
        for other in {one.queue for message in messages for one in message.outbox}:
            if other.project != DELIVERIES_PROJECT:
                await self._follow(other, queue, place)
        post = partial(store.post, queue, client_id=client_id, version=version)
        texts = [one.idempotency_key.text for one in messages if one.idempotency_key is not None]
        if place.keys_in is None or not (texts or batch_key is not None):
            return await post(messages, batch_key=batch_key)
        old = await self.pool(place.keys_in)
        known = await old.find_idempotency_keys(
            queue, texts, None if batch_key is None else batch_key.text
        )
        return await _post_unknown(messages, batch_key, known, post)

    async def _follow(self, ordered: QueueRef, queue: QueueRef, place: Place) -> None:
        """Let the queue of an ordered subscription lie where its own queue does."""
        found = await self.placements.place(ordered)
        if found.pool == place.pool:
            return
        if (await (await self.pool(found.pool)).stats(ordered)).total:
            raise Unavailable(f"Earlier messages of {queue.name!r} are being delivered first.")
        await self.placements.write(ordered, Place(place.pool))

    async def find_idempotency_keys(
        self, queue: QueueRef, messages: Collection[str] = (), batch: str | None = None
    ) -> KnownKeys:
        """Tell what is known of keys, also in the store that the queue was moved out of."""
        place = await self._place(queue)
        found = await (await self.pool(place.pool)).find_idempotency_keys(queue, messages, batch)
        if place.keys_in is not None:
            older = await (await self.pool(place.keys_in)).find_idempotency_keys(
                queue, messages, batch
            )
            found = KnownKeys(
                older.batch or found.batch,
                {**found.messages, **older.messages},
                older.are_any or found.are_any,
            )
        return found

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages; of queues in every store, in each of them."""
        if queue.project != DELIVERIES_PROJECT:
            # What was delivered from an internal queue shall not be delivered again.
            store = await self._store(queue, holder=bool(claim_ids) or is_internal(queue))
            return await store.delete(queue, ids, claim_ids=claim_ids)
        for store in self._all_open():
            # What is left in a pool is claimed again.
            with nullcontext() if store is self.home else suppress(Unavailable):
                await store.delete(queue, ids, claim_ids=claim_ids)
        return ()

    async def claim(self, queue: QueueRef, request: ClaimRequest) -> Claimed:
        """Claim in the store of a queue; of queues in every store, in one of them."""
        if queue.project != DELIVERIES_PROJECT:
            return await (await self._store(queue)).claim(queue, request)
        claimed = Claimed(None)
        for store in self._all_open():
            with nullcontext() if store is self.home else LoggedErrors("deliveries in a pool"):
                claimed = await store.claim(queue, request)
            if claimed.messages:
                break
        return claimed

    async def move(self, queue: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        """Move messages to another queue.

        If that lies in another pool, they wait in a queue of their own beside this one, and are
        carried from there: so each is in one store at a time, and arrives once, whatever fails.
        """
        place = await self._place(queue)
        await self.placements.join(move.target, Place(place.pool))
        target = (await self.placements.entry(move.target)).place
        if target.group:
            raise _frozen(move.target)
        store, waits = await self.pool(place.pool), target.pool != place.pool
        name, begun = f"{move.target.name}@{place.pool or ''}", 0
        if waits:
            begun = await self._note_carried(queue.project, name)
            move = move._replace(target=staging_queue(move.target))
        moved = await store.move(queue, ids, move)
        if waits and self.clock.now_ms() >= begun + CARRIED_MS // 2:
            await self._note_carried(queue.project, name)  # what nobody found there may be gone
        return moved

    async def _note_carried(self, project: str, name: str) -> int:
        """Have redriven messages carried to their target from now (ms) on; answer that instant."""
        now = self.clock.now_ms()
        put = self.placements.management.put_record
        await put(CARRY, project, name, b"%d" % now, expected=None)
        return now

    async def watch(self, queue: QueueRef, listener: Listener) -> Watch:
        """Begin to announce a queue in all of its stores; `next_due` follows it to another one."""
        watches: dict[MessageStore, Watch] = {}

        async def next_due() -> int | None:
            stores = await self._all_of(queue)
            for store in watches.keys() - set(stores):
                watches.pop(store).end()
            for store in stores:
                if store not in watches:
                    watches[store] = await store.watch(queue, listener)
            found = [await watch.next_due() for watch in watches.values()]
            return min((due for due in found if due is not None), default=None)

        def end() -> None:
            for watch in watches.values():
                watch.end()

        try:
            await next_due()
        except BaseException:
            end()
            raise
        return Watch(next_due, end)

    async def purge(self, queue: QueueRef, *, forget: bool = False) -> None:
        """Empty a queue, or forget it with the keys that another store remembers."""
        place = await self._place(queue)
        for pool in {place.pool, (forget and place.keys_in) or place.pool}:
            await (await self.pool(pool)).purge(queue, forget=forget)

    async def stats(self, queue: QueueRef, *, ranges: int = 0) -> Stats:
        """Count a queue's messages; of those in every store, all together, and nothing else."""
        found = [await one.stats(queue, ranges=ranges) for one in await self._all_of(queue)]
        if len(found) == 1:
            return found[0]
        return Stats(
            sum(one.ready for one in found),
            sum(one.delayed for one in found),
            sum(one.claimed for one in found),
        )

    async def nonempty_queues(self) -> AsyncIterator[QueueRef]:
        """Name the queues of all stores that are open, each where it lies."""
        shared: set[QueueRef] = set()
        stores = [(None, self.home), *self.connections.stores().items()]
        for name, store in stores:
            async for queue in store.nonempty_queues():
                if queue.project == DELIVERIES_PROJECT:
                    if queue not in shared:
                        yield queue
                    shared.add(queue)
                elif (await self.placements.place(queue)).pool == name:
                    yield queue

    async def sweep(self, limit: int, retries_of: RetryPolicyOf = no_retries) -> SweepResult:
        """Tidy up in every store that answers, and open those of pools not needed yet."""

        async def retries(queue: QueueRef) -> RetryPolicy:
            """None becomes a dead letter in a frozen queue: it may just be on its way."""
            policy, place = await retries_of(queue), await self.placements.place(queue)
            return policy._replace(dead_letter=None) if place.group else policy

        swept = await self.home.sweep(limit, retries)
        await self.placements.tidy()
        known = await self.registry.known()
        for pool in known.values():
            await self.connections.begin(pool)
        for name, store in self.connections.stores().items():
            if name not in known:
                await self.connections.forget(name)
                continue
            with LoggedErrors(f"the sweep of the pool {name!r}"):
                swept = swept.plus(await store.sweep(store.sweep_step, retries))
        return swept


def _frozen(queue: QueueRef) -> Unavailable:
    text = f"The queue {queue.name!r} is being moved to another pool."
    return Unavailable(text, retry_after=5)


async def _post_unknown(
    messages: Sequence[NewMessage],
    batch_key: IdempotencyKey | None,
    known: KnownKeys,
    post: Callable[..., Awaitable[Sequence[Posted]]],
) -> Sequence[Posted]:
    """Post what stands behind none of the keys that are `known`; answer for all messages.

    A store remembers a batch's key with all messages of the batch or not at all: a part of it is
    told from a repeat by the keys of its own messages.

    Raises:
        KeyReused: a key stands for something else.
        Unavailable: a part is known, and a message of the rest has no key but the batch's.
    """
    if batch_key is not None and known.batch is not None:
        if not known.batch.matches(batch_key):
            raise KeyReused(None)
        return [Posted(one, duplicate=True) for one in known.batch.ids]
    answers: dict[int, Posted] = {}
    for index, message in enumerate(messages):
        key = message.idempotency_key
        found = None if key is None else known.messages.get(key.text)
        if key is not None and found is not None and not found.matches(key):
            raise KeyReused(index)
        if found is not None:
            answers[index] = Posted(found.ids[0], duplicate=True)
    rest = {index: one for index, one in enumerate(messages) if index not in answers}
    if answers and batch_key is not None:
        if any(one.idempotency_key is None for one in rest.values()):
            raise Unavailable("Messages of this post are known, and their queue has just moved.")
        batch_key = None
    try:
        posted = await post([*rest.values()], batch_key=batch_key) if rest else ()
    except KeyReused as exc:
        raise KeyReused(None if exc.index is None else [*rest][exc.index]) from exc
    answers |= zip(rest, posted, strict=True)
    return [answers[index] for index in range(len(messages))]

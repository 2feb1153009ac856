"""The message store of a server with pools: each operation goes to the store of its queue.

It is a message store as any other, so no service knows whether there are pools, and a server
without them pays nothing. A queue that is being moved out of a pool lies in two stores: what was
posted before is in the old one until it has moved, and a claim that was made there ends there.
Idempotency keys stay in the old one to their end: a post with a key asks there first, and for a few
seconds waits, because other processes may still post there.

The queues of notes lie in every store, each beside the messages that it is about.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from zaqar_lite.domain.errors import Conflict, KeyReused, NotFound, Unavailable
from zaqar_lite.domain.histories import HistoryPage, HistoryState
from zaqar_lite.domain.identity import DELIVERIES_PROJECT
from zaqar_lite.domain.models import (
    NO_RETRIES,
    Claim,
    Claimed,
    Edit,
    Message,
    Move,
    Page,
    QueueRef,
    Refusal,
    Retries,
    RetriesOf,
    Selection,
    Stats,
    Swept,
    Take,
    no_retries,
)
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted, Recalled
from zaqar_lite.domain.settlements import Outcome, Settled, Settlement
from zaqar_lite.service.pooling.store_resolver import StoreResolver
from zaqar_lite.storage.base import Listener, MessageStore
from zaqar_lite.storage.store import Condition


async def post_unknown(
    messages: Sequence[NewMessage],
    batch_key: IdempotencyKey | None,
    known: Recalled,
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


logger = logging.getLogger(__name__)
T = TypeVar("T")


class PooledMessages(MessageStore):
    """The stores of all pools, and the server's own, as one."""

    def __init__(self, places: StoreResolver, *, hold: float) -> None:
        """Wrap the stores; `hold` is in seconds how long others may still post to an old pool."""
        self._places = places
        home = self._home = places.home
        self._open_stores = places.open_stores
        self._catalogue = places.catalogue
        self.pool = places.pool
        """The open store of a pool, by its name."""
        self._watched: dict[QueueRef, list[tuple[MessageStore, ...]]] = {}
        self._hold = hold
        self.capabilities = home.capabilities
        self.poll_interval_ms = min(home.poll_interval_ms, MessageStore.poll_interval_ms)
        self.sweep_step = home.sweep_step

    async def open(self) -> None:
        """Open the server's own store; a pool's is opened when it is first needed."""
        await self._home.open()

    async def close(self) -> None:
        """Close all stores."""
        await self._open_stores.close()
        await self._home.close()

    async def ping(self) -> None:
        """Return when the server's own store answers."""
        await self._home.ping()

    def condition(self) -> Condition:
        """Tell how the disk of the server's own store is."""
        return self._home.condition()

    async def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages where their queue lies, and their notes and lines in the same store."""
        place = await self._catalogue.place(queue)
        store = await self._places.pool(place.pool)
        for line in {one.queue for message in messages for one in message.companions}:
            if line.project != DELIVERIES_PROJECT:
                await self._catalogue.follow(line, queue, place)
        post = partial(store.post, queue, client_id=client_id, version=version)
        texts = [one.idempotency_key.text for one in messages if one.idempotency_key is not None]
        if place.keys_in is None or not (texts or batch_key is not None):
            return await post(messages, batch_key=batch_key)
        left = place.moved_at + self._hold * 1000 - self._places.clock.now_ms()
        await asyncio.sleep(max(0.0, left / 1000))
        old = await self._places.pool(place.keys_in)
        return await post_unknown(
            messages,
            batch_key,
            await old.recall(queue, texts, None if batch_key is None else batch_key.text),
            post,
        )

    async def recall(
        self, queue: QueueRef, messages: Collection[str], batch: str | None = None
    ) -> Recalled:
        """Tell what is remembered of keys, also in the store that the queue was moved out of."""
        found = Recalled()
        for store in await self._places.stores_with_keys(queue):
            known = await store.recall(queue, messages, batch)
            found = Recalled(found.batch or known.batch, {**known.messages, **found.messages})
        return found

    async def remembers(self, queue: QueueRef) -> bool:
        """Whether any store of a queue remembers a key."""
        return any(
            [await store.remembers(queue) for store in await self._places.stores_with_keys(queue)]
        )

    async def list_messages(self, queue: QueueRef, selection: Selection) -> Page:
        """List the messages of the old store, then those of the new one."""
        page = Page((), None)
        for store in await self._places.all_of(queue):
            page = await store.list_messages(queue, selection)
            if page.messages:
                break
        return page

    async def history(
        self, queue: QueueRef, state: HistoryState, *, marker: str | None, limit: int
    ) -> HistoryPage:
        """List the history of a queue in the server's own store; stores of pools keep none."""
        store = (await self._places.stores_of(queue)).new
        return await store.history(queue, state, marker=marker, limit=limit)

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        """Fetch messages, whichever store of their queue they are in."""
        stores = await self._places.all_of(queue)
        if len(stores) == 1:
            return await stores[0].get_messages(queue, ids, details=details)
        found: dict[str, Message] = {}
        for store in stores:
            for message in await store.get_messages(queue, ids, details=details):
                found[message.id] = message
        return [found[one] for one in dict.fromkeys(ids) if one in found]

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Edit a message in the store that has it."""
        stores = await self._places.stores_of(queue)
        if stores.old is None:
            return await stores.new.edit(queue, edit)
        try:
            edited = await stores.old.edit(queue, edit)
        except NotFound:
            return await stores.new.edit(queue, edit)
        with suppress(NotFound, Conflict):  # it may be in both for a moment
            await stores.new.edit(queue, edit)
        return edited

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages; all or none in each store, while a queue is moved."""
        if queue.project == DELIVERIES_PROJECT:
            for store in self._places.all_open():
                try:
                    await store.delete(queue, ids, claim_ids=claim_ids)
                except Unavailable:
                    if store is self._home:
                        raise  # notes that are left in a pool are claimed again
            return ()
        stores = await self._places.stores_of(queue)
        if stores.old is None:
            return await stores.new.delete(queue, ids, claim_ids=claim_ids)
        # A message in the new store may have a copy in the old one, which nobody holds.
        moved = {one.id for one in await stores.new.get_messages(queue, ids)}
        older = [one for one in ids if one not in moved]
        if older and (refused := await stores.old.delete(queue, older, claim_ids=claim_ids)):
            return refused
        # Messages that nobody holds may have moved to the new store meanwhile.
        left = [one for one in ids if one in moved] if claim_ids else ids
        return await stores.new.delete(queue, left, claim_ids=claim_ids) if left else ()

    async def pop(self, queue: QueueRef, take: Take) -> Claimed:
        """Take messages out of the store where the queue lies."""
        return await (await self._places.stores_of(queue)).new.pop(queue, take)

    async def claim(self, queue: QueueRef, take: Take) -> Claimed:
        """Claim in the store where the queue lies; of queues in every store, in one of them."""
        if queue.project != DELIVERIES_PROJECT:
            return await (await self._places.stores_of(queue)).new.claim(queue, take)
        claimed = Claimed(None)
        for store in self._places.all_open():
            try:
                claimed = await store.claim(queue, take)
            except Unavailable as exc:
                if store is self._home:
                    raise
                logger.warning("the notes in a pool are put off: %s", exc)
                continue
            if claimed.messages:
                break
        return claimed

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a claim in the store where it was made."""
        return await self._where_claimed(
            queue, lambda store: store.get_claim(queue, claim_id, details=details)
        )

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Renew a claim in the store where it was made."""
        await self._where_claimed(
            queue, lambda store: store.renew(queue, claim_id, ttl_ms=ttl_ms, grace_ms=grace_ms)
        )

    async def _where_claimed(
        self, queue: QueueRef, act: Callable[[MessageStore], Awaitable[T]]
    ) -> T:
        """Act on a claim in the store where it was made."""
        stores = await self._places.stores_of(queue)
        if stores.old is not None:
            with suppress(NotFound):
                return await act(stores.old)
        return await act(stores.new)

    async def release(self, queue: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        """End a claim in the store where it was made."""
        for store in (await self._places.stores_of(queue)).all:
            await store.release(queue, claim_id, delay_ms=delay_ms)

    async def settle(
        self,
        queue: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement],
        *,
        retries: Retries = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        """Settle in the store where the claim was made; the other store does not know the claim."""
        stores = await self._places.stores_of(queue)
        older: Settled | None = None
        if stores.old is not None:
            older = await stores.old.settle(
                queue, claim_id, settlements, retries=retries, version=version
            )
            if Outcome.DONE in older.outcomes:
                return older
        settled = await stores.new.settle(
            queue, claim_id, settlements, retries=retries, version=version
        )
        if older is None or Outcome.DONE in settled.outcomes:
            return settled
        pairs = zip(older.outcomes, settled.outcomes, strict=True)
        outcomes = [old if new is Outcome.NOT_FOUND else new for old, new in pairs]
        return Settled(outcomes, older.moved + settled.moved)

    async def move(self, queue: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        """Move messages to the target's queue in the same store.

        If the target lies in another pool, a drain carries them there: so each message is in one
        store at a time, and arrives once, whatever fails.

        Raises:
            Unavailable: the target, or one of these messages, is being moved from a third pool.
        """
        stores = await self._places.stores_of_redrive(queue, move.target, ids)
        outcomes = list(await stores.new.move(queue, ids, move))
        if stores.old is not None:
            left = [index for index, one in enumerate(outcomes) if one is Outcome.NOT_FOUND]
            older = await stores.old.move(queue, [ids[index] for index in left], move)
            for index, outcome in zip(left, older, strict=True):
                outcomes[index] = outcome
        return outcomes

    async def adopt(
        self, queue: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        """Take in messages of another store, in the store where their queue lies."""
        store = (await self._places.stores_of(queue)).new
        await store.adopt(queue, messages, source=source, number=number)

    async def next_due(self, queue: QueueRef) -> int | None:
        """When the next message of the queue is due in any of its stores."""
        found = [await store.next_due(queue) for store in await self._places.all_of(queue)]
        return min((due for due in found if due is not None), default=None)

    def listen(self, listener: Listener) -> None:
        """Announce queues with ready messages in any store."""
        self._home.listen(listener)
        self._open_stores.listener = listener

    async def watch(self, queue: QueueRef) -> None:
        """Begin to announce a queue, where it lies now."""
        stores = await self._places.all_of(queue)
        self._watched.setdefault(queue, []).append(stores)
        for store in stores:
            await store.watch(queue)

    async def unwatch(self, queue: QueueRef) -> None:
        """End what `watch` began."""
        watched = self._watched.get(queue)
        if not watched:
            return
        stores = watched.pop()
        if not watched:
            del self._watched[queue]
        for store in stores:
            await store.unwatch(queue)

    async def purge(self, queue: QueueRef) -> None:
        """Remove all messages of a queue, wherever they are."""
        for store in await self._places.all_of(queue):
            await store.purge(queue)

    async def drop(self, queue: QueueRef) -> None:
        """Remove all that any store has of a queue."""
        stores = [
            *await self._places.all_of(queue),
            *await self._places.stores_with_keys(queue),
        ]
        for store in dict.fromkeys(stores):
            await store.drop(queue)

    async def stats(self, queue: QueueRef) -> Stats:
        """Count a queue's messages in all its stores."""
        return _sum_of([await store.stats(queue) for store in await self._places.all_of(queue)])

    async def outline(self, queue: QueueRef) -> Stats:
        """Count them at the least cost; see the seam."""
        return _sum_of([await store.outline(queue) for store in await self._places.all_of(queue)])

    async def census(self) -> AsyncIterator[QueueRef]:
        """Name the queues of all stores that are open; once those that lie in several."""
        several: set[QueueRef] = set()
        for store in self._places.all_open():
            async for queue in store.census():
                if queue in several:
                    continue
                if len(await self._places.all_of(queue)) > 1:
                    several.add(queue)
                yield queue

    async def split(self, queue: QueueRef, count: int) -> Sequence[int]:
        """Cut the messages of all stores of a queue into ranges."""
        stores = await self._places.all_of(queue)
        each = -(-count // len(stores))
        found = sorted({cut for store in stores for cut in await store.split(queue, each)})
        return found if len(found) <= count else [*found[: count - 1], found[-1]]

    async def expose(self, queue: QueueRef, limit: int) -> int:
        """Make delayed messages ready, in all stores of the queue."""
        return max([await store.expose(queue, limit) for store in await self._places.all_of(queue)])

    async def sweep(self, limit: int, retries_of: RetriesOf = no_retries) -> Swept:
        """Tidy up in every store that answers, and open those of pools not needed yet."""
        swept = await self._home.sweep(limit, retries_of)
        await self._catalogue.tidy()
        await self._open_pools()
        for name, store in self._open_stores.stores().items():
            try:
                swept = swept.plus(await store.sweep(store.sweep_step, retries_of))
            except Unavailable as exc:
                logger.warning("sweep of the pool %r put off: %s", name, exc)
        return swept

    async def _open_pools(self) -> None:
        known = await self._places.registry.known()
        for pool in known.values():
            self._open_stores.begin(pool)
        for name in self._open_stores.stores():
            if name not in known:
                await self._open_stores.forget(name)


def _sum_of(found: Sequence[Stats]) -> Stats:
    """The counts of one queue in several stores, together."""
    if len(found) == 1:
        return found[0]
    ends = [end for one in found for end in (one.oldest, one.newest) if end is not None]
    since = [one.ready_since for one in found if one.ready_since is not None]
    return Stats(
        sum(one.ready for one in found),
        sum(one.delayed for one in found),
        sum(one.claimed for one in found),
        min(ends, key=lambda message: message.position, default=None),
        max(ends, key=lambda message: message.position, default=None),
        min(since, default=None),
    )

"""The message store of a server with pools: each operation goes to the store of its queue.

It is a message store as any other, so no service knows whether there are pools, and a server
without them pays nothing. A queue that is being moved out of a pool lies in two stores: what was
posted before is in the old one until it has moved, and a claim that was made there ends there.

The queues of notes lie in every store, each beside the messages that it is about.
"""

import logging
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from zaqar_lite.domain.errors import Conflict, Invalid, NotFound, Unavailable
from zaqar_lite.domain.models import (
    NO_RETRIES,
    Capability,
    Claim,
    Claimed,
    Edit,
    Message,
    Move,
    Page,
    QueueRef,
    Refusal,
    Retries,
    Selection,
    Stats,
    Swept,
    Take,
)
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted
from zaqar_lite.domain.settlements import Outcome, Settled, Settlement
from zaqar_lite.service.notes import NOTES
from zaqar_lite.service.pooling.branches import Branches
from zaqar_lite.service.pooling.catalogue import Catalogue, Place
from zaqar_lite.service.pooling.registry import Registry
from zaqar_lite.storage.base import Listener, MessageStore, RetriesOf, no_retries

logger = logging.getLogger(__name__)
_OWN_QUEUES = NOTES[0].project
_ACROSS = frozenset((Capability.FAN_OUT, Capability.HISTORY))
"""What needs all queues of a project, or their records, in one store."""


class _At(NamedTuple):
    """The stores of a queue: where it lies, and which it is moved out of."""

    store: MessageStore
    before: MessageStore | None

    @property
    def all(self) -> tuple[MessageStore, ...]:
        """Both, the older first: what moves on the way is seen in one of them."""
        return (self.store,) if self.before is None else (self.before, self.store)


class PooledMessages(MessageStore):
    """The stores of all pools, and the server's own, as one."""

    def __init__(
        self, home: MessageStore, registry: Registry, catalogue: Catalogue, branches: Branches
    ) -> None:
        self._home = home
        self._registry = registry
        self._catalogue = catalogue
        self._branches = branches
        self._watched: dict[QueueRef, list[tuple[MessageStore, ...]]] = {}
        self._turn = 0
        self.capabilities = home.capabilities - _ACROSS
        self.poll_interval_ms = min(home.poll_interval_ms, MessageStore.poll_interval_ms)
        self.sweep_step = home.sweep_step

    async def open(self) -> None:
        """Open the server's own store; a pool's is opened when it is first needed."""
        await self._home.open()

    async def close(self) -> None:
        """Close all stores."""
        await self._branches.close()
        await self._home.close()

    async def ping(self) -> None:
        """Return when the server's own store answers."""
        await self._home.ping()

    async def pool(self, name: str | None) -> MessageStore:
        """The open store of a pool; None: the server's own.

        Raises:
            Unavailable: it does not answer, or there is no such pool.
        """
        if name is None:
            return self._home
        pool = (await self._registry.known()).get(name) or (await self._registry.pools()).get(name)
        if pool is None:
            raise Unavailable(f"The pool {name!r}, where the queue lies, is not registered.")
        return await self._branches.store(pool)

    async def _of(self, place: Place) -> _At:
        before = None if place.draining is None else await self.pool(place.draining)
        return _At(await self.pool(place.pool), before)

    async def _at(self, queue: QueueRef) -> _At:
        return await self._of(await self._catalogue.place(queue))

    def _everywhere(self) -> tuple[MessageStore, ...]:
        """All stores that are open, each time another one first."""
        stores = (self._home, *self._branches.stores().values())
        self._turn = (self._turn + 1) % len(stores)
        return (*stores[self._turn :], *stores[: self._turn])

    async def _all_of(self, queue: QueueRef) -> tuple[MessageStore, ...]:
        if queue.project == _OWN_QUEUES:
            return self._everywhere()
        return (await self._at(queue)).all

    async def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages where their queue lies, and what they bring along beside them."""
        place = await self._catalogue.place(queue)
        store = await self.pool(place.pool)
        for line in {one.queue for message in messages for one in message.companions}:
            if line.project != _OWN_QUEUES:
                await self._catalogue.follow(line, queue, place)
        return await store.post(
            queue, messages, client_id=client_id, batch_key=batch_key, version=version
        )

    async def list_messages(self, queue: QueueRef, selection: Selection) -> Page:
        """List the older store's messages, then those of the other one."""
        page = Page((), None)
        for store in await self._all_of(queue):
            page = await store.list_messages(queue, selection)
            if page.messages:
                break
        return page

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        """Fetch messages, whichever store of their queue they are in."""
        stores = await self._all_of(queue)
        if len(stores) == 1:
            return await stores[0].get_messages(queue, ids, details=details)
        found: dict[str, Message] = {}
        for store in stores:
            for message in await store.get_messages(queue, ids, details=details):
                found[message.id] = message
        return [found[one] for one in dict.fromkeys(ids) if one in found]

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Edit a message in the store that has it."""
        at = await self._at(queue)
        if at.before is not None:
            try:
                edited = await at.before.edit(queue, edit)
            except NotFound:
                pass
            else:
                with suppress(NotFound, Conflict):  # it may be in both for a moment
                    await at.store.edit(queue, edit)
                return edited
        return await at.store.edit(queue, edit)

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages; all or none in each store, while a queue is moved."""
        if queue.project == _OWN_QUEUES:
            for store in self._everywhere():
                try:
                    await store.delete(queue, ids, claim_ids=claim_ids)
                except Unavailable:
                    if store is self._home:
                        raise  # what is in a pool comes again
            return ()
        at = await self._at(queue)
        if at.before is None:
            return await at.store.delete(queue, ids, claim_ids=claim_ids)
        # A copy of what is here may still be there, and nobody holds that.
        moved = {one.id for one in await at.store.get_messages(queue, ids)}
        older = [one for one in ids if one not in moved]
        if older and (refused := await at.before.delete(queue, older, claim_ids=claim_ids)):
            return refused
        # What nobody holds may have come here meanwhile.
        left = [one for one in ids if one in moved] if claim_ids else ids
        return await at.store.delete(queue, left, claim_ids=claim_ids) if left else ()

    async def pop(self, queue: QueueRef, take: Take) -> Claimed:
        """Take messages out of the store where the queue lies."""
        return await (await self._at(queue)).store.pop(queue, take)

    async def claim(self, queue: QueueRef, take: Take) -> Claimed:
        """Claim in the store where the queue lies; of queues in every store, in one of them."""
        if queue.project != _OWN_QUEUES:
            return await (await self._at(queue)).store.claim(queue, take)
        claimed = Claimed(None)
        for store in self._everywhere():
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
        at = await self._at(queue)
        if at.before is not None:
            try:
                return await at.before.get_claim(queue, claim_id, details=details)
            except NotFound:
                pass
        return await at.store.get_claim(queue, claim_id, details=details)

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Renew a claim in the store where it was made."""
        at = await self._at(queue)
        if at.before is not None:
            try:
                await at.before.renew(queue, claim_id, ttl_ms=ttl_ms, grace_ms=grace_ms)
            except NotFound:
                pass
            else:
                return
        await at.store.renew(queue, claim_id, ttl_ms=ttl_ms, grace_ms=grace_ms)

    async def release(self, queue: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        """End a claim in the store where it was made."""
        for store in (await self._at(queue)).all:
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
        """Settle in the store where the claim was made: the other one knows nothing of it."""
        at = await self._at(queue)
        older: Settled | None = None
        if at.before is not None:
            older = await at.before.settle(
                queue, claim_id, settlements, retries=retries, version=version
            )
            if Outcome.DONE in older.outcomes:
                return older
        settled = await at.store.settle(
            queue, claim_id, settlements, retries=retries, version=version
        )
        if older is None or Outcome.DONE in settled.outcomes:
            return settled
        pairs = zip(older.outcomes, settled.outcomes, strict=True)
        outcomes = [old if new is Outcome.NOT_FOUND else new for old, new in pairs]
        return Settled(outcomes, older.moved + settled.moved)

    async def move(self, queue: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        """Move messages within the pool of both queues.

        Raises:
            Invalid: the target lies in another pool.
        """
        place = await self._catalogue.place(queue)
        await self._catalogue.join(move.target, Place(place.pool))
        target = await self._catalogue.place(move.target)
        if target.pool != place.pool:
            raise Invalid(
                f"The queues {queue.name!r} and {move.target.name!r} lie in different pools, and "
                "messages are moved within one."
            )
        at = await self._of(place)
        outcomes = list(await at.store.move(queue, ids, move))
        if at.before is not None and target.draining == place.draining:
            left = [index for index, one in enumerate(outcomes) if one is Outcome.NOT_FOUND]
            older = await at.before.move(queue, [ids[index] for index in left], move)
            for index, outcome in zip(left, older, strict=True):
                outcomes[index] = outcome
        return outcomes

    async def adopt(
        self, queue: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        """Take in messages of another store where their queue lies."""
        store = (await self._at(queue)).store
        await store.adopt(queue, messages, source=source, number=number)

    async def next_due(self, queue: QueueRef) -> int | None:
        """The earliest instant of all stores of the queue."""
        found = [await store.next_due(queue) for store in await self._all_of(queue)]
        return min((due for due in found if due is not None), default=None)

    def listen(self, listener: Listener) -> None:
        """Tell what becomes ready in any store."""
        self._home.listen(listener)
        self._branches.listener = listener

    async def watch(self, queue: QueueRef) -> None:
        """Begin to announce a queue, where it lies now."""
        stores = await self._all_of(queue)
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
        for store in await self._all_of(queue):
            await store.purge(queue)

    async def drop(self, queue: QueueRef) -> None:
        """Remove all that any store has of a queue."""
        for store in await self._all_of(queue):
            await store.drop(queue)

    async def stats(self, queue: QueueRef) -> Stats:
        """Count a queue's messages in all its stores."""
        found = [await store.stats(queue) for store in await self._all_of(queue)]
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

    async def census(self) -> AsyncIterator[QueueRef]:
        """Name the queues of all stores that are open."""
        for store in self._everywhere():
            async for queue in store.census():
                yield queue

    async def split(self, queue: QueueRef, count: int) -> Sequence[int]:
        """Cut the messages of all stores of a queue into ranges."""
        stores = await self._all_of(queue)
        each = -(-count // len(stores))
        cuts = {cut for store in stores for cut in await store.split(queue, each)}
        found = sorted(cuts)
        return found if len(found) <= count else [*found[: count - 1], found[-1]]

    async def expose(self, queue: QueueRef, limit: int) -> int:
        """Make delayed messages ready, in all stores of the queue."""
        return max([await store.expose(queue, limit) for store in await self._all_of(queue)])

    async def sweep(self, limit: int, retries_of: RetriesOf = no_retries) -> Swept:
        """Tidy up in every store; one that is away does not keep the others from it.

        Stores of pools that nobody has needed yet are opened meanwhile.
        """
        swept = await self._home.sweep(limit, retries_of)
        await self._catalogue.tidy()
        await self._open_pools()
        for name, store in self._branches.stores().items():
            try:
                swept = swept.plus(await store.sweep(store.sweep_step, retries_of))
            except Unavailable as exc:
                logger.warning("sweep of the pool %r put off: %s", name, exc)
        return swept

    async def _open_pools(self) -> None:
        known = await self._registry.known()
        for pool in known.values():
            self._branches.begin(pool)
        for name in self._branches.stores():
            if name not in known:
                await self._branches.forget(name)

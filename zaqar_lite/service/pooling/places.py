"""Where the messages of a queue are: which stores have them, or remember its keys."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import RecordChanged, Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.notes import OWN_PROJECT
from zaqar_lite.service.pooling.branches import Branches
from zaqar_lite.service.pooling.catalogue import Catalogue, Place
from zaqar_lite.service.pooling.drains import ARRIVES_MS, Drains
from zaqar_lite.service.pooling.registry import Registry
from zaqar_lite.storage.base import MessageStore

OWN = "/"
"""How the server's own store is named where messages leave it; no pool's name has a slash."""


class At(NamedTuple):
    """The stores of a queue: where it lies, and which it is moved out of."""

    store: MessageStore
    before: MessageStore | None

    @property
    def all(self) -> tuple[MessageStore, ...]:
        """Both, the older first: what moves on the way is seen in one of them."""
        return (self.store,) if self.before is None else (self.before, self.store)


class Places:
    """The stores of queues, as the catalogue has them; `home` is the server's own."""

    def __init__(
        self,
        home: MessageStore,
        registry: Registry,
        catalogue: Catalogue,
        branches: Branches,
        drains: Drains,
        *,
        clock: Clock,
    ) -> None:
        self.home = home
        self.registry = registry
        self.catalogue = catalogue
        self.branches = branches
        self._drains = drains
        self.clock = clock
        self._turn = 0

    async def pool(self, name: str | None) -> MessageStore:
        """The open store of a pool; None, or OWN: the server's own.

        Raises:
            Unavailable: it does not answer, or there is no such pool.
        """
        if name in {None, OWN}:
            return self.home
        pool = (await self.registry.known()).get(name) or (await self.registry.pools()).get(name)
        if pool is None:
            raise Unavailable(f"The pool {name!r}, where the queue lies, is not registered.")
        return await self.branches.store(pool)

    async def of(self, place: Place) -> At:
        """The stores of a place."""
        before = None if place.draining is None else await self.pool(place.draining)
        return At(await self.pool(place.pool), before)

    async def at(self, queue: QueueRef) -> At:
        """The stores of a queue."""
        return await self.of(await self.catalogue.place(queue))

    def everywhere(self) -> tuple[MessageStore, ...]:
        """All stores that are open, each time another one first."""
        stores = (self.home, *self.branches.stores().values())
        self._turn = (self._turn + 1) % len(stores)
        return (*stores[self._turn :], *stores[: self._turn])

    async def all_of(self, queue: QueueRef) -> tuple[MessageStore, ...]:
        """The stores that may have messages of a queue; the server's own queues lie in each."""
        if queue.project == OWN_PROJECT:
            return self.everywhere()
        return (await self.at(queue)).all

    async def remembering(self, queue: QueueRef) -> Sequence[MessageStore]:
        """The stores that have idempotency keys of a queue, the older first."""
        place = await self.catalogue.place(queue)
        own = await self.pool(place.pool)
        return (own,) if place.keys_in is None else (await self.pool(place.keys_in), own)

    async def of_redrive(self, queue: QueueRef, target: QueueRef, ids: Sequence[str]) -> At:
        """The stores of a queue whose messages may be put under another queue's name just now.

        From each of them they go on to where the target lies.

        Raises:
            Unavailable: messages of the target come from a third pool, or its place is changed.
        """
        place = await self.catalogue.place(queue)
        await self.catalogue.join(target, Place(place.pool))
        there = (await self.catalogue.entry(target)).place
        at = await self.of(place)
        if place.draining is None:
            goes_on = False
        elif there.pool != place.pool:
            goes_on = (there.pool or OWN) == place.draining
        else:
            goes_on = there.draining in {None, place.draining}
        if not goes_on:
            at = await self._without_older(queue, ids, at)
        if there.pool != place.pool:
            await self._let_go_on(target, place.pool or OWN)
        elif goes_on and place.draining is not None:
            await self._let_go_on(target, place.draining)
        return at

    async def _without_older(self, queue: QueueRef, ids: Sequence[str], at: At) -> At:
        """Leave out the store that a queue is moved out of, if it has none of the messages."""
        if at.before is not None and await at.before.get_messages(queue, ids):
            raise Unavailable(
                f"Messages of the queue {queue.name!r} are being moved to its pool: they can be "
                "redriven once they are there."
            )
        return At(at.store, None)

    async def _let_go_on(self, queue: QueueRef, pool: str) -> None:
        """Note, for the next seconds at least, that a pool has messages of a queue of another."""
        entry, now = await self.catalogue.entry(queue), self.clock.now_ms()
        place = entry.place
        if place.draining == pool and now - place.arrives_at < ARRIVES_MS // 3:
            return
        if place.draining not in {None, pool}:
            raise Unavailable(f"The queue {queue.name!r} is being moved to its pool.")
        await self._drains.carry(pool)
        place = msgspec.structs.replace(place, draining=pool, arrives_at=now)
        try:
            await self.catalogue.change(queue, place, entry.version)
        except RecordChanged as exc:
            raise Unavailable(f"The queue {queue.name!r} is being moved.") from exc

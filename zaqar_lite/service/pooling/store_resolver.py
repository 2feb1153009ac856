"""Find the stores of a queue: those that have its messages, and those that remember its keys."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import RecordChanged, Unavailable
from zaqar_lite.domain.identity import DELIVERIES_PROJECT
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.pooling.drains import ARRIVES_MS, Drains
from zaqar_lite.service.pooling.open_connections import OpenConnections
from zaqar_lite.service.pooling.placement import Place, Placements
from zaqar_lite.service.pooling.pools import PoolRegistry
from zaqar_lite.storage.base import MessageStore

OWN = "/"
"""How the server's own store is named where messages leave it; no pool's name has a slash."""


class QueueStores(NamedTuple):
    """The stores of a queue: `new`, where it lies, and `old`, which it is moved out of, if any."""

    new: MessageStore
    old: MessageStore | None

    @property
    def all(self) -> tuple[MessageStore, ...]:
        """Both, the old one first: a message that moves meanwhile is seen in one of them."""
        return (self.new,) if self.old is None else (self.old, self.new)


class StoreResolver:
    """The stores of queues, as the catalogue has them; `home` is the server's own."""

    def __init__(
        self,
        home: MessageStore,
        registry: PoolRegistry,
        catalogue: Placements,
        open_stores: OpenConnections,
        drains: Drains,
        *,
        clock: Clock,
    ) -> None:
        self.home = home
        self.registry = registry
        self.catalogue = catalogue
        self.open_stores = open_stores
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
        return await self.open_stores.store(pool)

    async def stores_at(self, place: Place) -> QueueStores:
        """The stores of a queue that lies in this place."""
        old = None if place.draining is None else await self.pool(place.draining)
        return QueueStores(await self.pool(place.pool), old)

    async def stores_of(self, queue: QueueRef) -> QueueStores:
        """The stores of a queue."""
        return await self.stores_at(await self.catalogue.place(queue))

    def all_open(self) -> tuple[MessageStore, ...]:
        """All open stores; each call begins with another one."""
        stores = (self.home, *self.open_stores.stores().values())
        self._turn = (self._turn + 1) % len(stores)
        return (*stores[self._turn :], *stores[: self._turn])

    async def all_of(self, queue: QueueRef) -> tuple[MessageStore, ...]:
        """The stores that may have messages of a queue; queues of the server itself lie in all."""
        if queue.project == DELIVERIES_PROJECT:
            return self.all_open()
        return (await self.stores_of(queue)).all

    async def stores_with_keys(self, queue: QueueRef) -> Sequence[MessageStore]:
        """The stores that remember idempotency keys of a queue, the old one first."""
        place = await self.catalogue.place(queue)
        own = await self.pool(place.pool)
        return (own,) if place.keys_in is None else (await self.pool(place.keys_in), own)

    async def stores_of_redrive(
        self, queue: QueueRef, target: QueueRef, ids: Sequence[str]
    ) -> QueueStores:
        """The stores of a queue in which a redrive to `target` may rename messages just now.

        A drain carries the renamed messages from each of them to where the target lies.

        Raises:
            Unavailable: messages of the target come from a third pool, or its place is changed.
        """
        place = await self.catalogue.place(queue)
        await self.catalogue.join(target, Place(place.pool))
        there = (await self.catalogue.entry(target)).place
        stores = await self.stores_at(place)
        if place.draining is None:
            goes_on = False
        elif there.pool != place.pool:
            goes_on = (there.pool or OWN) == place.draining
        else:
            goes_on = there.draining in {None, place.draining}
        if not goes_on:
            stores = await self._without_old(queue, ids, stores)
        if there.pool != place.pool:
            await self._carry_on(target, place.pool or OWN)
        elif goes_on and place.draining is not None:
            await self._carry_on(target, place.draining)
        return stores

    async def _without_old(
        self, queue: QueueRef, ids: Sequence[str], stores: QueueStores
    ) -> QueueStores:
        """Leave out the old store, which must have none of these messages."""
        if stores.old is not None and await stores.old.get_messages(queue, ids):
            raise Unavailable(
                f"Messages of the queue {queue.name!r} are being moved to its pool: they can be "
                "redriven once they are there."
            )
        return QueueStores(stores.new, None)

    async def _carry_on(self, queue: QueueRef, pool: str) -> None:
        """Begin to carry messages of a queue from `pool` to the queue's own pool, and note it."""
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

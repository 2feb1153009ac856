"""Where the queues of a pool that is drained go: another pool that takes their messages in."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from zaqar_lite.domain import metadata as rules
from zaqar_lite.domain.errors import NotFound, Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.pooling.catalogue import Catalogue, flavor_name
from zaqar_lite.service.pooling.pool import Pool
from zaqar_lite.service.pooling.registry import Registry
from zaqar_lite.service.pooling.stores import PooledMessages
from zaqar_lite.storage.management import ManagementStore

_MOST_SOURCES = 1_000


class Targets:
    """Choose pools for queues that have to leave theirs."""

    def __init__(
        self,
        messages: PooledMessages,
        management: ManagementStore,
        registry: Registry,
        catalogue: Catalogue,
    ) -> None:
        self._messages = messages
        self._management = management
        self._registry = registry
        self._catalogue = catalogue

    async def choose(self, queue: QueueRef, pool: str) -> str | None:
        """The pool that a queue goes to from `pool`; None: the server's own store.

        A queue, its dead letters and its lines go to the same one; with a filter, all queues of a
        project do.

        Raises:
            Unavailable: no pool that fits takes new queues and answers.
        """
        record = await self._management.get_queue(queue)
        metadata = {} if record is None else record.metadata
        for other in await self._beside(queue, metadata):
            place = (await self._catalogue.entry(other)).place
            if place.draining == pool:
                return place.pool
        filtered = await self._management.filtered_queues(queue.project)
        for one in filtered:
            place = (await self._catalogue.entry(one.queue)).place
            if place.pool != pool:
                return place.pool
        flavor = flavor_name(metadata)
        try:
            fitting = await self._registry.fitting(queue.project, flavor)
        except NotFound:  # the flavor is no more
            flavor, fitting = None, await self._registry.fitting(queue.project, None)
        needs = [metadata, *(one.metadata for one in filtered)]
        others = [
            one
            for one in fitting
            if one.name != pool
            and not any([await self._registry.missing(one.name, each) for each in needs])
            and await self._answers(one)
        ]
        if others:
            return random.choices(others, [one.weight for one in others])[0].name  # noqa: S311 - a share
        if flavor is None and not fitting:
            return None
        raise Unavailable(f"No pool that the queue {queue.name!r} could go to answers.")

    async def may_leave(self, queue: QueueRef, pool: str) -> bool:
        """Whether a queue may leave now: of a project's with a filter, the first of those leads."""
        filtered = await self._management.filtered_queues(queue.project)
        if not filtered or queue == filtered[0].queue:
            return True
        places = [(await self._catalogue.entry(one.queue)).place for one in filtered]
        return any(place.pool != pool for place in places)

    async def beside(self, queue: QueueRef) -> Sequence[QueueRef]:
        """The queues that lie in the same pool as this one: its dead letters, their sources."""
        record = await self._management.get_queue(queue)
        return await self._beside(queue, {} if record is None else record.metadata)

    async def _beside(self, queue: QueueRef, metadata: Mapping[str, Any]) -> Sequence[QueueRef]:
        target = rules.dead_letter_target(metadata)
        line_of = (await self._catalogue.entry(queue)).place.beside
        names = [name for name in (target, line_of) if name is not None]
        names += await self._management.dead_letter_sources(queue, limit=_MOST_SOURCES)
        return [QueueRef(queue.project, name) for name in names]

    async def _answers(self, pool: Pool) -> bool:
        try:
            await self._messages.pool(pool.name)
        except Unavailable:
            return False
        return True

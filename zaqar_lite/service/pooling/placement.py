"""The catalogue: in which pool each queue lies, decided once, before the queue's record is made.

A queue without an entry lies in the server's own store: it is older than pooling, or nobody has
made it yet. What a process has read of a queue's place it goes by for FRESH seconds. So that nobody
posts to where no one looks, the place of a queue that is not made yet, or was deleted, is read each
time. An entry that ends with its queue is kept for LEFT_MS, marked: whoever makes the queue again
within that time finds it in the same place, and may choose another one only after MOVED_MS.
"""

import logging
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from zaqar_lite.domain import metadata as rules
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid, NotFound, RecordChanged, Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.delivery.outbox import is_internal
from zaqar_lite.service.pooling.pools import FRESH, Pool, PoolRegistry
from zaqar_lite.service.records import Kind, all_queues, all_records, retried
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
PLACE = "placement"
CARRY = "pool-carry"
"""Records of redriven messages that wait in a pool for their target in another: `target@pool`."""
CARRIED_MS = 30_000
"""How long after a redrive more of its messages may come."""
FLAVOR = "_flavor"
LEFT_MS = 60_000
HELD_MS = 60_000
"""How long the holders of claims may go on in a frozen queue."""
MOVED_MS = 5_000
"""How long after its end a queue is not made in another place: FRESH, and what clocks differ by."""
_MAX_CACHED = 10_000
_PAGE = 1_000
_READ_AT_ONCE = 100
"""Entries of deleted queues that are looked at before others have their turn."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a queue lies; no `pool`: in the server's own store.

    A queue of a `group` is frozen since `since`, while it moves to the pool `to`; after HELD_MS
    the holders of claims are refused, too. `keys_in` names the pool that it left at `since`, which
    may remember idempotency keys of it. `left` is when it was deleted; all in milliseconds.
    """

    pool: str | None = None
    to: str | None = None
    group: str = ""
    since: int = 0
    keys_in: str | None = None
    left: int = 0

    def admits(self, now: int, *, holder: bool) -> bool:
        """Whether the queue is served, to the `holder` of a claim or to others."""
        return not self.group or (holder and now < self.since + HELD_MS)


class Entry(msgspec.Struct, frozen=True):
    """A place with the version of its record; 0 where there is none."""

    place: Place
    version: int


class Placements:
    """Decide and tell where queues lie."""

    def __init__(self, management: ManagementStore, registry: PoolRegistry, clock: Clock) -> None:
        self.management = management
        self._registry = registry
        self._clock = clock
        self._kind = Kind(management, PLACE, "The place of", Place)
        self._cache: Cache[QueueRef, tuple[float, Place]] = Cache(_MAX_CACHED)
        self._tidied: tuple[str, str] | None = None
        self._rests_until = 0

    async def place(self, queue: QueueRef) -> Place:
        """Where a queue lies, as of FRESH seconds ago at most."""
        found = self._cache.get(queue)
        if found is not None and time.monotonic() - found[0] < FRESH:
            return found[1]
        # Its entry is older than its record, so none that is read behind the record is none at all.
        is_made = is_internal(queue) or await self._has_record(queue)
        begun = time.monotonic()
        entry = await self.entry(queue)
        if is_made:
            self._remember(queue, begun, entry.place)
        return entry.place

    async def entry(self, queue: QueueRef) -> Entry:
        """Where a queue lies now."""
        begun = time.monotonic()
        place, version = await self._kind.read(*queue)
        if place is not None:
            self._remember(queue, begun, place)
        return Entry(place or Place(), version)

    def _remember(self, queue: QueueRef, begun: float, place: Place) -> None:
        """Go by a place that was read or written from `begun` on, unless its queue was deleted."""
        if not place.left:
            self._cache[queue] = begun, place

    @retried("The pool of {1.name!r}")
    async def decide(self, queue: QueueRef, metadata: Mapping[str, Any]) -> Place:
        """Choose where a queue lies, and its dead letters with it, unless that is decided.

        To be called before the queue's record is made or changed.

        Raises:
            Invalid: `_flavor` names none, or one whose pools the queue does not lie in; the
                dead-letter queue lies in another pool, or for a filter any queue of the project;
                or the store of the pool can't do what the metadata ask for.
            Unavailable: no pool of its flavor takes new queues, or it is being moved.
        """
        flavor, target = await self._flavor(queue, metadata), _target(queue, metadata)
        if metadata.get(rules.FILTER) is not None:
            await self._check_filter(queue)
        entry = await self.entry(queue)
        is_new = not await self._is_placed(queue, entry)
        place = await self._required(queue, metadata) if is_new else _fixed(entry.place)
        if place is None:
            place = await self._choose(queue, metadata, entry.place if entry.version else None)
        else:
            await self._check(queue, metadata, place, flavor)
        if target is not None:
            await self.join(target, place)
            if (await self.entry(target)).place.pool != place.pool:
                raise RecordChanged("Another request has put the dead-letter queue elsewhere.")
        if is_new:
            place = await self._begin(queue, place, entry)
            if place.pool is not None and place.pool not in await self._registry.pools():
                for one in {queue, target or queue}:
                    await self.leave(one)
                raise RecordChanged("The pool was deleted meanwhile.")
        return place

    async def _check(
        self,
        queue: QueueRef,
        metadata: Mapping[str, Any],
        place: Place,
        flavor: Sequence[str] | None,
    ) -> None:
        """Refuse metadata that ask for another pool than the one where the queue must lie."""
        if missing := await self._registry.missing(place.pool, metadata):
            raise Invalid(f"{missing} can't be set: {queue.name!r} lies in {_named(place)}.")
        if flavor is not None and place.pool not in flavor:
            raise Invalid(
                f"The queue {queue.name!r} lies in {_named(place)}, and the flavor "
                f"{metadata[FLAVOR]!r} has other pools. A queue stays where it is: its dead "
                "letters, the queues that they come from, and all queues of a project with a "
                "_filter lie in one pool."
            )
        target = _target(queue, metadata)
        theirs = None if target is None else await self._placed(target)
        if target is not None and theirs is not None and theirs.pool != place.pool:
            raise Invalid(
                f"_dead_letter_queue can't be {target.name!r}: it lies in {_named(theirs)}, "
                f"and {queue.name!r} in {_named(place)}. A queue and its dead-letter queue must "
                "lie in the same pool."
            )

    @retried("The pool of {1.name!r}")
    async def join(self, queue: QueueRef, place: Place) -> None:
        """Let a queue that nobody has made yet lie where another one does."""
        entry = await self.entry(queue)
        if (place == Place() and not entry.version) or await self._is_placed(queue, entry):
            return
        await self._begin(queue, place, entry)

    async def _begin(self, queue: QueueRef, place: Place, before: Entry) -> Place:
        """Let a queue that is about to be made lie in a pool, `before` which it had an entry.

        Raises:
            Unavailable: it was deleted a moment ago, and others may still look where it lay.
        """
        left = before.place.left
        if left and place.pool != before.place.pool and self._clock.now_ms() - left < MOVED_MS:
            raise Unavailable(
                f"The queue {queue.name!r} was deleted a moment ago, and lay in another pool.",
                retry_after=MOVED_MS // 1000,
            )
        await self.write(queue, Place(place.pool), before.version)
        return Place(place.pool)

    async def write(self, queue: QueueRef, place: Place, expected: int | None = None) -> None:
        """Let a queue lie in a place, whatever would be chosen, where its entry is as `expected`.

        Raises:
            RecordChanged: it is at another version; None is any.
        """
        begun = time.monotonic()
        self._cache.pop(queue, None)
        await self._kind.put(*queue, place, expected)
        self._remember(queue, begun, place)

    async def leave(self, queue: QueueRef, *, is_made: bool = False) -> None:
        """Mark the entry of a queue that is about to be deleted; `is_made`: it has a record."""
        place, version = astuple(await self.entry(queue))
        if (is_made or version) and not place.left:
            await self.write(queue, replace(place, left=self._clock.now_ms()))

    async def tidy(self) -> None:
        """Remove entries whose queues were deleted long enough ago, of the next few entries.

        A look reads records from the store, so it rests for LEFT_MS after one that removed nothing.
        """
        now = self._clock.now_ms()
        if now < self._rests_until:
            return
        self._rests_until = now + LEFT_MS
        records = await self.management.list_records(PLACE, after=self._tidied, limit=_READ_AT_ONCE)
        last = records[-1] if len(records) == _READ_AT_ONCE else None
        self._tidied = None if last is None else (last.project, last.name)
        for record in records:
            queue, place = QueueRef(record.project, record.name), self._kind.decode(record)
            if not place.left or now - place.left < LEFT_MS:
                continue
            with suppress(RecordChanged):
                if await self._has_record(queue):  # it was never deleted, or made without us
                    await self.write(queue, replace(place, left=0), record.version)
                else:
                    await self._kind.delete(*queue, record.version)
                    self._cache.pop(queue, None)
                    self._rests_until = now

    async def in_pool(self, pool: str) -> AsyncIterator[tuple[QueueRef, Entry]]:
        """The queues that lie in a pool, move to it, or have keys in it."""
        async for record in all_records(self.management, PLACE, page_size=_PAGE):
            queue, place = QueueRef(record.project, record.name), self._kind.decode(record)
            if pool not in (place.pool, place.to, place.keys_in):
                continue
            if not place.left or await self._has_record(queue):
                yield queue, Entry(place, record.version)

    async def holds(self, pool: str) -> QueueRef | None:
        """A queue that lies in a pool."""
        async for queue, _ in self.in_pool(pool):
            return queue
        return await self.carried_from(pool)

    async def carried_from(self, pool: str) -> QueueRef | None:
        """A queue whose redriven messages wait in a pool, to be carried to its own."""
        async for record in all_records(self.management, CARRY):
            name, _, waits_in = record.name.partition("@")
            if waits_in == pool:
                return QueueRef(record.project, name)
        return None

    async def _choose(
        self, queue: QueueRef, metadata: Mapping[str, Any], before: Place | None
    ) -> Place:
        """Choose a pool by its weight, or the one where the queue was `before`, if it fits."""
        flavor = flavor_name(metadata)
        pools = await self._registry.fitting(queue.project, flavor)
        fitting = [one for one in pools if not await self._registry.missing(one.name, metadata)]
        if not fitting and (missing := await self._registry.missing(None, metadata)):
            raise Invalid(f"{missing} can't be set: no pool that fits can do it.")
        if not fitting and pools and flavor is not None:
            raise Invalid(f"No pool of the flavor {flavor} can do what is asked for.")
        if before is not None and (
            before.pool in {pool.name for pool in fitting} or (not fitting and before.pool is None)
        ):
            return Place(before.pool)
        return Place(pick(fitting))

    async def _required(self, queue: QueueRef, metadata: Mapping[str, Any]) -> Place | None:
        """Where a queue must lie, for its dead letters or for those that come to it."""
        target = _target(queue, metadata)
        if target is not None and (found := await self._placed(target)) is not None:
            return found
        for source in await self.management.dead_letter_sources(queue, limit=1):
            return await self._placed(QueueRef(queue.project, source))
        if metadata.get(rules.FILTER) is not None:
            for record in await self.management.list_queues(queue.project, limit=1):
                return _fixed((await self.entry(record.queue)).place)
        for record in await self.management.filtered_queues(queue.project):
            return await self._placed(record.queue)
        return None

    async def _check_filter(self, queue: QueueRef) -> None:
        """A filter sees all queues of its project, in one step of one store."""
        pools: set[str | None] = set()
        async for record in all_queues(self.management, queue.project):
            pools.add((await self.entry(record.queue)).place.pool)
            if len(pools) > 1:
                raise Invalid(
                    f"{rules.FILTER} can't be set: it sees what is posted to any queue of the "
                    "project, so all of them must lie in one pool, and they lie in several."
                )

    async def _placed(self, queue: QueueRef) -> Place | None:
        """Where a queue lies for good; None where that is not decided.

        Raises:
            Unavailable: it is being moved.
        """
        entry = await self.entry(queue)
        return _fixed(entry.place) if await self._is_placed(queue, entry) else None

    async def _is_placed(self, queue: QueueRef, entry: Entry) -> bool:
        return bool(entry.version and not entry.place.left) or await self._has_record(queue)

    async def _flavor(self, queue: QueueRef, metadata: Mapping[str, Any]) -> Sequence[str] | None:
        name = flavor_name(metadata)
        if name is None:
            return None
        try:
            return (await self._registry.flavor(queue.project, name)).pools
        except NotFound as exc:
            raise Invalid(str(exc)) from exc

    async def _has_record(self, queue: QueueRef) -> bool:
        return await self.management.get_queue(queue) is not None


def pick(pools: Sequence[Pool]) -> str | None:
    """One of the pools, by their weights; None: the server's own store."""
    if not pools:
        return None
    return random.choices(pools, [pool.weight for pool in pools])[0].name  # noqa: S311 - a share


def flavor_name(metadata: Mapping[str, Any]) -> str | None:
    """The flavor that a queue's metadata name."""
    return metadata.get(FLAVOR) or None


def _target(queue: QueueRef, metadata: Mapping[str, Any]) -> QueueRef | None:
    name = rules.dead_letter_target(metadata)
    return None if name is None else QueueRef(queue.project, name)


def _named(place: Place) -> str:
    return "the server's own store" if place.pool is None else f"the pool {place.pool!r}"


def _fixed(place: Place) -> Place:
    """Refuse to decide by where a queue lies that is being moved."""
    if place.group:
        raise Unavailable("A queue that must lie in the same pool is being moved.", retry_after=5)
    return place

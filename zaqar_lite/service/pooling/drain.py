"""Draining pools: the queues of a pool move to other pools, and are frozen meanwhile.

Queues that must lie together (a queue, its dead letters, what it dead-letters for, its ordered
subscriptions; with a filter, the project) move as one group:

1. Their placements say that they are frozen, and where they go. From then on they are 503, except
   for what the holder of a claim does.
2. After `wait` seconds all processes know that. What nobody holds moves, in batches.
3. After HELD_MS the holders of claims are refused, too. When all processes know that, what is still
   held moves as well, delayed until its lease would have ended.
4. When the old store has no message of the group left, it thaws: its placements name the new pool.

A batch is noted before the new store takes it in, under a number that the store knows; so whoever
goes on after a crash repeats the batch, and each message arrives once. A queue has one batch at a
time. A store that does not answer holds up only what goes there.

Redriven messages whose target lies in another pool wait in a queue of their own, and are carried
from there to the target.
"""

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import sample
from typing import Any

import msgspec
from msgspec.structs import replace

from zaqar_lite.domain import metadata as rules
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Conflict, NotFound, RecordChanged, Unavailable
from zaqar_lite.domain.identity import DELIVERIES_PROJECT
from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.models import ListQuery, Message, Move, QueueRef, Record
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.service.background import Background, BackgroundWorker, LoggedErrors
from zaqar_lite.service.delivery.outbox import OUTBOX_QUEUES, is_internal, ordered_queue, put
from zaqar_lite.service.jobs.bulk import Job, JobAct
from zaqar_lite.service.jobs.jobs import RUNNING, running_name
from zaqar_lite.service.pooling.placement import (
    CARRIED_MS,
    CARRY,
    HELD_MS,
    Entry,
    Place,
    flavor_name,
    pick,
)
from zaqar_lite.service.pooling.pooled_store import PooledMessages, staging_queue
from zaqar_lite.service.pooling.pools import PoolRegistry
from zaqar_lite.service.records import Held, Holder, Kind, Lease, all_queues, all_records
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
DRAIN = "pool-drain"
KEPT_MS = 30 * 86_400_000
"""How long it is told how a drain ended."""
_LEASE_MS = 10_000
_LOOK_EVERY = 1.0
_MOST_FROZEN = 100
_BATCH, _BYTES = 500, 1_048_576
_SOURCES = 1_000
"""A queue that is the dead-letter queue of so many moves with all queues of its project."""
_LATE = 4
"""How many times as long as `wait` the old pool is looked into after a queue has left it."""
_ROUNDS_REST = 5
"""How many times as long as a look at the whole catalogue the worker rests after it."""
_KEYS = "Messages have moved, and idempotency keys are left: they are asked for until they end."
_KEYS_BEFORE = "Queues came here a moment ago: they move when the pool before forgets their keys."
_MOVED = "The queue was moved to another pool: begin the job again, for the messages that are left."
_HELD = "Messages of frozen queues are held by claims: they move when these end, or in a minute."


class Batch(msgspec.Struct):
    """Messages on their way from one store to another; the numbers of a drain's batches grow."""

    project: str
    queue: str
    ids: list[str]
    number: int


class Drain(Lease, omit_defaults=True):
    """How far the draining of a pool is, leased by the process that works on it.

    `number` is that of the last batch, and `batches` are on their way; instants in milliseconds.
    """

    pool: str
    id: str
    started_at: int
    ended_at: int = 0
    state: str = "running"
    queues: int = 0
    moved: int = 0
    problem: str | None = None
    number: int = 0
    batches: list[Batch] = msgspec.field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self.state != "running"


class Drains:
    """Begin to drain pools; their records tell how far that is, or how it ended."""

    def __init__(self, management: ManagementStore, registry: PoolRegistry, clock: Clock) -> None:
        self.kind = Kind[Drain](
            management,
            DRAIN,
            "The drain of the pool",
            Drain,
            lives=lambda drain: KEPT_MS if drain.is_over else None,
        )
        self._registry = registry
        self._clock = clock

    async def begin(self, pool: str) -> Drain:
        """Begin to drain a pool; one that is being drained goes on.

        Raises:
            NotFound: there is no such pool.
            Conflict: its weight is not 0, so that new queues would come.
        """
        if (await self._registry.kind.get("", pool)).weight:
            raise Conflict(
                f"The pool {pool} still gets new queues: set its weight to 0 first, and drain it "
                "then."
            )

        def build(drain: Drain | None) -> Drain:
            if drain is not None and not drain.is_over:
                return drain
            return Drain(pool, secrets.token_hex(8), self._clock.now_ms())

        return (await self.kind.write("", pool, build))[0]


@contextmanager
def _told_in(drain: Drain) -> Iterator[None]:
    """Tell in a drain that a store does not answer, and go on with what does not need it."""
    try:
        yield
    except Unavailable as exc:
        drain.problem = exc.shown


@dataclass(eq=False, repr=False)
class DrainWorker(BackgroundWorker):
    """Work on the drains that nobody works on, and carry redriven messages to their pools."""

    messages: PooledMessages
    drains: Drains
    wait: float

    def __post_init__(self) -> None:
        self._placements, self._clock = self.messages.placements, self.messages.clock
        self._registry, self._management = self.messages.registry, self._placements.management
        self._holder = Holder(self._clock)
        self._rest = 0.0
        self._work = Background("drains", self._look, rest=_LOOK_EVERY)

    async def _look(self) -> float:
        async for record in all_records(self._management, DRAIN, ""):
            await self._look_at(record)
        async for record in all_records(self._management, CARRY):
            await self._carry_redriven(record)
        return max(min(_LOOK_EVERY, self.wait), self._rest)

    async def _look_at(self, record: Record) -> None:
        """Make one round of a drain, unless it is over or another process works on it."""
        drain = self.drains.kind.decode(record)
        if drain.is_over or self._holder.wait_for(drain):
            return
        work = Held(self.drains.kind, "", drain.pool, drain, record.version)
        try:
            await self._holder.hold(work, _LEASE_MS)
            await self._round(work)
        except RecordChanged:
            logger.info("another process drains the pool %r", drain.pool)
        except Unavailable as exc:
            logger.warning("the pool %r is drained later: %s", drain.pool, exc)
            drain.problem = exc.shown
            with suppress(RecordChanged):
                await self._holder.hold(work, _LEASE_MS)

    async def _round(self, work: Held[Drain]) -> None:
        drain = work.value
        drain.problem, drain.queues = None, 0
        for batch in tuple(drain.batches):
            with _told_in(drain):
                await self._repeat(work, batch)
        under_way = {(batch.project, batch.queue) for batch in drain.batches}
        frozen: dict[str, dict[QueueRef, Entry]] = defaultdict(dict)
        waiting: list[QueueRef] = []
        begun = time.monotonic()
        async for queue, entry in self._placements.in_pool(drain.pool):
            drain.queues += 1
            if queue in under_way:  # and its group, which is not whole without it
                continue
            if entry.place.group:
                if entry.place.pool == drain.pool:  # else it comes here, and goes on later
                    frozen[entry.place.group][queue] = entry
            elif entry.place.pool == drain.pool:
                waiting.append(queue)
            else:
                with _told_in(drain):
                    await self._leave_behind(work, queue, entry)
        self._rest = (time.monotonic() - begun) * _ROUNDS_REST
        for group in frozen.values():
            with _told_in(drain):
                await self._move(work, group)
        await self._freeze_some(work, waiting, sum(map(len, frozen.values())))
        if not drain.queues and await self._is_empty(drain.pool):
            drain.state, drain.ended_at = "completed", self._clock.now_ms()
            logger.info("the pool %r is empty: %d messages were moved", drain.pool, drain.moved)
        await self._holder.hold(work, _LEASE_MS)

    async def _keep(self, work: Held[Drain]) -> None:
        """Hold a drain for longer, if its lease is half over: a group may have 100,000 queues."""
        if self._clock.now_ms() > work.value.held_until - _LEASE_MS / 2:
            await self._holder.hold(work, _LEASE_MS)

    async def _is_empty(self, pool: str) -> bool:
        """Whether no delivery of a message is left there, and nothing that was redriven."""
        if await self._registry.kind.find("", pool) is None:
            return True  # or it could not have been deleted meanwhile
        store = await self.messages.pool(pool)
        delivers = any([(await store.stats(queue)).total for queue in OUTBOX_QUEUES])
        return not delivers and await self._placements.carried_from(pool) is None

    # -- groups --

    async def _freeze_some(
        self, work: Held[Drain], waiting: Sequence[QueueRef], count: int
    ) -> None:
        """Freeze queues with their groups, where `count` are frozen already.

        One that has nowhere to go takes a place, too, so that a round ends; chance lets others pass
        it in the next one.
        """
        drain = work.value
        # Those of the server itself move with their queues, or last.
        for queue in sorted(sample(waiting, len(waiting)), key=is_internal):
            if count >= _MOST_FROZEN:
                break
            if (await self._placements.entry(queue)).place.group:
                continue
            group = await self._group_of(work, queue)
            if any(entry.place.keys_in for entry in group.values()):
                drain.problem = _KEYS_BEFORE  # a place names one pool that remembers keys
                continue
            count += 1
            with _told_in(drain):
                count += await self._freeze(work, group) - 1

    async def _group_of(self, work: Held[Drain], queue: QueueRef) -> dict[QueueRef, Entry]:
        """The queues of the pool that must move together with one of them, itself included."""
        filtered = await self._management.filtered_queues(queue.project)
        todo = [queue]
        if filtered:
            todo += [one.queue async for one in all_queues(self._management, queue.project)]
        seen = {*todo}
        entries: dict[QueueRef, Entry] = {}
        while todo:
            await self._keep(work)
            one = todo.pop()
            entries[one] = await self._placements.entry(one)
            record = await self._management.get_queue(one)
            metadata = {} if record is None else record.metadata
            names = [rules.dead_letter_target(metadata)]
            names += (sources := await self._management.dead_letter_sources(one, limit=_SOURCES))
            if len(sources) == _SOURCES:  # there may be more
                all_of_project = all_queues(self._management, one.project)
                names += [other.queue.name async for other in all_of_project]
            found = {QueueRef(one.project, name) for name in names if name is not None}
            found |= {ordered_queue(one.project, at) for at in metadata.get(rules.ORDERED, ())}
            todo += found - seen
            seen |= found
        return {one: at for one, at in entries.items() if at.place.pool == work.value.pool}

    async def _freeze(self, work: Held[Drain], group: Mapping[QueueRef, Entry]) -> int:
        """Freeze the queues of a group, which some of them may be already; answer how many."""
        frozen = [entry.place for entry in group.values() if entry.place.group]
        if frozen:
            name, target = frozen[0].group, frozen[0].to
        else:
            name, target = secrets.token_hex(8), await self._target(group, work.value.pool)
        for queue, entry in group.items():
            await self._keep(work)
            if not entry.place.group:
                place = Place(work.value.pool, to=target, group=name, since=self._clock.now_ms())
                await self._placements.write(queue, place, entry.version)
        return len(group)

    async def _target(self, group: Collection[QueueRef], pool: str) -> str | None:
        """The pool that a group goes to; None: the server's own store.

        Raises:
            Unavailable: no pool that fits takes new queues and answers, or they are this one.
        """
        records = [await self._management.get_queue(queue) for queue in group]
        needs: list[Mapping[str, Any]] = [one.metadata for one in records if one is not None]
        project = next(iter(group)).project
        flavors = {flavor_name(metadata) for metadata in needs} - {None} or {None}
        fitting = None
        for flavor in flavors:
            try:
                found = await self._registry.fitting(project, flavor)
            except NotFound:  # the flavor is no more
                found = await self._registry.fitting(project, None)
            fitting = found if fitting is None else [one for one in fitting if one in found]
        others = [
            one
            for one in fitting or ()
            if one.name != pool
            and not any([await self._registry.missing(one.name, each) for each in needs])
            and await self._takes(one.name, pool)
        ]
        if others:
            return pick(others)
        if flavors == {None} and not fitting and await self._takes(None, pool):
            return None
        queue = next(iter(group))
        raise Unavailable(f"No other store that the queue {queue.name!r} could go to answers.")

    async def _takes(self, pool: str | None, old: str) -> bool:
        """Whether a store answers, and is not that of the old pool by another URI.

        What moves within one store is there a second time, and is moved without an end.
        """
        probe = QueueRef(DELIVERIES_PROJECT, f"~probe.{secrets.token_hex(8)}")
        with suppress(Unavailable):
            here, there = await self.messages.pool(old), await self.messages.pool(pool)
            await put(there, probe, NewMessage(b"0", _LEASE_MS))  # the old one may be full
            is_one = (await here.stats(probe)).total
            await there.purge(probe, forget=True)
            return not is_one
        return False

    # -- messages --

    async def _move(self, work: Held[Drain], group: Mapping[QueueRef, Entry]) -> None:
        """Move the messages of a frozen group as far as that goes now."""
        pool, now = work.value.pool, self._clock.now_ms()
        places = [entry.place for entry in group.values()]
        since = max(place.since for place in places)
        if now < since + self.wait * 1000:
            return
        whole = await self._group_of(work, next(iter(group)))
        if whole.keys() - group.keys():  # a crash came before all were frozen
            await self._freeze(work, {**whole, **group})
            return
        old, new = await self.messages.pool(pool), await self.messages.pool(places[0].to)
        held = now >= since + HELD_MS + 2_000 * self.wait  # though clocks differ
        for queue in group:
            await self._keep(work)
            async for found in self._movable(old, queue, held=held):
                begun = time.monotonic()
                await next_turn()
                await self._carry(work, queue, found, old, new)
                await asyncio.sleep((time.monotonic() - begun) / 4)  # for other requests
        for queue in group:  # a dead letter that a holder moves meanwhile comes late
            await self._keep(work)
            if (await old.stats(queue)).total:
                if work.value.problem in (None, _KEYS):  # keys keep no request waiting
                    work.value.problem = _HELD
                return
        for queue, entry in group.items():
            await self._keep(work)
            await self._end_jobs(queue)
            place = Place(places[0].to, keys_in=pool, since=self._clock.now_ms())
            await self._placements.write(queue, place, entry.version)

    async def _end_jobs(self, queue: QueueRef) -> None:
        """End what goes by the positions of messages, which have others in another pool."""
        jobs = Kind(self._management, RUNNING, "The job", Job)
        for job in await jobs.page(queue.project, None, len(JobAct), prefix=f"{queue.name}/"):
            if job.order.ids is None and not job.is_over():
                job.state, job.error = "failed", _MOVED
                await jobs.put(queue.project, running_name(queue, job.act), job, None)

    async def _movable(
        self, old: MessageStore, queue: QueueRef, *, held: bool
    ) -> AsyncIterator[list[Message]]:
        """Batches of the messages that move; with `held`, those that claims hold, too."""
        marker: Marker | None = None
        while True:
            chosen = ListQuery(
                _BATCH, marker, include_claimed=True, include_delayed=True, details=True
            )
            page = await old.list_messages(queue, chosen)
            if page.marker is None or not page.messages:
                return
            marker = Marker(page.marker)
            batch: list[Message] = []
            size = 0
            for one in page.messages:
                if one.claim_id is not None and not held:
                    continue
                if batch and size + len(one.body) > _BYTES:
                    yield await self._as_moved(old, queue, batch)
                    batch, size = [], 0
                size += len(one.body)
                batch.append(one)
            if batch:
                yield await self._as_moved(old, queue, batch)

    async def _carry(
        self,
        work: Held[Drain],
        queue: QueueRef,
        found: Sequence[Message],
        old: MessageStore,
        new: MessageStore,
        *,
        batch: Batch | None = None,
    ) -> None:
        """Move one batch, which is noted first unless it is a repeated one."""
        drain = work.value
        if batch is None:
            drain.number += 1
            batch = Batch(*queue, [one.id for one in found], drain.number)
            drain.batches.append(batch)
            await self._holder.hold(work, _LEASE_MS)
        source = f"{drain.pool}/{drain.id}"
        await new.import_messages(queue, found, source=source, number=batch.number)
        await old.delete(queue, batch.ids, claim_ids=None)
        drain.moved += len(batch.ids)
        drain.batches.remove(batch)

    async def _repeat(self, work: Held[Drain], batch: Batch) -> None:
        """Go on with a batch that was on its way when a process ended, or a store was away."""
        drain, queue = work.value, QueueRef(batch.project, batch.queue)
        place = (await self._placements.entry(queue)).place
        if place.group or place.keys_in == drain.pool:
            old = await self.messages.pool(drain.pool)
            new = await self.messages.pool(place.to if place.group else place.pool)
            found = await old.get_messages(queue, batch.ids, details=True)
            found = await self._as_moved(old, queue, found)
            await self._carry(work, queue, found, old, new, batch=batch)
        else:
            drain.batches.remove(batch)

    async def _leave_behind(self, work: Held[Drain], queue: QueueRef, entry: Entry) -> None:
        """Note that a queue has nothing left in the old pool: no key, and nothing that came late.

        A request that the old store answered only after some time may have stored messages behind
        the move.
        """
        old, place = await self.messages.pool(work.value.pool), entry.place
        if (await old.stats(queue)).total:
            new = await self.messages.pool(place.pool)
            async for found in self._movable(old, queue, held=True):
                await self._carry(work, queue, found, old, new)
        elif (await old.find_idempotency_keys(queue)).are_any:
            work.value.problem = work.value.problem or _KEYS
        elif self._clock.now_ms() - place.since >= _LATE * self.wait * 1000:
            await self._placements.write(queue, Place(place.pool), entry.version)

    async def _carry_redriven(self, record: Record) -> None:
        """Carry redriven messages from where they wait to their target."""
        name, _, pool = record.name.partition("@")
        target = QueueRef(record.project, name)
        place = (await self._placements.entry(target)).place
        if place.group:
            return
        with LoggedErrors(f"redriven messages of {name!r}"):
            old, new = await self.messages.pool(pool), await self.messages.pool(place.pool)
            staging = staging_queue(target)
            is_empty = True
            async for found in self._movable(old, staging, held=False):
                is_empty = False
                if new is old:  # the target came here, and a store may not take a second copy
                    for one in found:
                        due = max((one.delay_expires_at or 0) - one.now, 0)
                        move = Move(target, one.expires_at - one.now, due, reset=False)
                        await old.move(staging, (one.id,), move)
                    continue
                for one in found:
                    redriven = 0 if one.origin is None else one.origin.redriven
                    source = f"{one.id}/{redriven}"
                    await new.import_messages(target, (one,), source=source, number=1)
                await old.delete(staging, [one.id for one in found], claim_ids=None)
            begun = msgspec.json.decode(record.value, type=int)
            if is_empty and self._clock.now_ms() - begun >= CARRIED_MS:
                await self._management.delete_record(
                    CARRY, record.project, record.name, expected=record.version
                )

    async def _as_moved(
        self, old: MessageStore, queue: QueueRef, found: Sequence[Message]
    ) -> list[Message]:
        """Messages as the new store takes them: leases stay behind, as delays that end with them.

        A delay that a normal queue ignored stays behind, too.
        """
        record = await self._management.get_queue(queue)
        ignores = record is not None and not record.is_delayed
        moved: list[Message] = []
        for one in found:
            until = None if ignores else one.delay_expires_at
            if one.parked_until is not None:
                until = one.parked_until
            elif one.claim_id is not None:
                with suppress(NotFound):
                    claim = await old.get_claim(queue, one.claim_id)
                    until = one.now + max(claim.ttl_ms - claim.age_ms, 0)
            moved.append(replace(one, delay_expires_at=until))
        return moved

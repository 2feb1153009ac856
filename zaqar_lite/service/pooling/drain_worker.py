"""Draining pools in the background: queues move to other pools, and serve meanwhile.

A queue that is moved lies in two stores. Posts and claims go to the new one at once; in the old one
nobody claims any more, and what is held there stays with its holder until it is given back, lapses
or is deleted. A process goes by the old place for a while (`registry.FRESH`), and what it has begun
takes its time, so messages move only after `wait` seconds. Then they move in batches, each in steps
that are written down:

1. the batch's number and ids are noted;
2. the new store takes the messages in, once for each number, however often this is repeated;
3. what was deleted in the old store since it was read is noted as gone; now the batch is checked;
4. what is gone is deleted in the new store, and the rest in the old one.

A process that works on a drain holds it, for a few seconds from its last note on, and each note is
written at the version that it has seen: one that was taken for dead can only repeat what its
follower has done, which changes nothing.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from zaqar_lite.domain import metadata as rules
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    Conflict,
    Invalid,
    NotFound,
    RecordChanged,
    Unavailable,
)
from zaqar_lite.domain.models import Edit, Message, QueueRef, Record, Selection
from zaqar_lite.domain.turns import Turns
from zaqar_lite.service.background import Background, BackgroundWorker
from zaqar_lite.service.delivery.outbox import OUTBOX_QUEUES
from zaqar_lite.service.pooling.drains import (
    ARRIVES_MS,
    DRAIN,
    KEPT_MS,
    Batch,
    Drain,
    decode,
    encode,
)
from zaqar_lite.service.pooling.placement import Entry, Place, Placements, flavor_name
from zaqar_lite.service.pooling.pooled_store import PooledMessages
from zaqar_lite.service.pooling.pools import Pool, PoolRegistry
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

_MOST_SOURCES = 1_000


class Targets:
    """Choose pools for queues that have to leave theirs."""

    def __init__(
        self,
        messages: PooledMessages,
        management: ManagementStore,
        registry: PoolRegistry,
        catalogue: Placements,
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


logger = logging.getLogger(__name__)
_HELD_MS = 10_000
_LOOK_EVERY = 1.0
_QUEUES, _BATCH, _BYTES = 100, 100, 524_288
_DRAINS = 100
_ROUNDS_REST = 5
"""How many times as long as a round in which nothing moved a drain rests behind it."""
_KEYS = "Messages have moved, and idempotency keys are left: they are asked for until they end."
_SHARE = 0.25
"""How long a drain rests after a batch, in parts of the batch's time."""


class Drainer(BackgroundWorker):
    """Work on the drains that nobody works on."""

    def __init__(
        self,
        messages: PooledMessages,
        management: ManagementStore,
        catalogue: Placements,
        targets: Targets,
        *,
        clock: Clock,
        turns: Turns,
        wait: float,
    ) -> None:
        self._messages = messages
        self._management = management
        self._catalogue = catalogue
        self._targets = targets
        self._clock = clock
        self._turns = turns
        self._wait = wait
        self._name = secrets.token_hex(8)
        self._seen: dict[tuple[QueueRef, int], float] = {}
        self._rests: dict[str, float] = {}
        self._work = Background("drains", self._look, rest=_LOOK_EVERY)

    async def _look(self) -> float:
        after: tuple[str, str] | None = None
        while page := await self._management.list_records(DRAIN, "", after=after, limit=_DRAINS):
            for record in page:
                await self._look_at(record)
            after = "", page[-1].name
        return min(_LOOK_EVERY, self._wait)

    async def _look_at(self, record: Record) -> None:
        """Make one round of a drain, unless it is over or another process works on it."""
        drain = decode(record.value)
        now, begun = self._clock.now_ms(), time.monotonic()
        if drain.is_over and now - drain.ended_at >= KEPT_MS:
            with suppress(RecordChanged):
                await self._management.delete_record(DRAIN, "", drain.pool, expected=record.version)
        if drain.is_over or self._rests.get(drain.pool, begun) > begun:
            return
        if drain.holder not in ("", self._name) and drain.held_until > now:
            return
        number = drain.number
        work = _Work(self._management, drain, record.version, self._clock, self._name)
        try:
            await work.save()
            await self._round(work)
        except RecordChanged:
            logger.info("another process drains the pool %r", drain.pool)
        except Unavailable as exc:
            logger.warning("the pool %r is drained later: %s", drain.pool, exc)
            drain.problem = exc.shown
            with suppress(RecordChanged):
                await work.save()
            return  # without a rest: most of the time it waited for the store
        if drain.number == number:
            # A round looks at the whole catalogue, and a drain may wait for a claim of hours.
            ended = time.monotonic()
            self._rests[drain.pool] = ended + (ended - begun) * _ROUNDS_REST

    async def _round(self, work: "_Work") -> None:
        drain = work.drain
        if drain.batch is not None:
            await self._finish(work, drain.batch)
        drain.problem, drain.queues = None, 0
        after: tuple[str, str] | None = None
        while True:
            queues, after = await self._catalogue.queues_of(drain.pool, after, _QUEUES)
            for queue in queues:
                if not await self._move(work, queue):
                    drain.queues += 1
            await work.save()
            if after is None:
                break
        may_end = not drain.queues and self._clock.now_ms() >= drain.arrives_at + ARRIVES_MS
        if may_end and (drain.arrivals or await self._has_no_notes(drain.pool)):
            drain.state, drain.ended_at = "completed", self._clock.now_ms()
            logger.info("the pool %r is empty: %d messages were moved", drain.pool, drain.moved)
        await work.save()

    async def _move(self, work: "_Work", queue: QueueRef) -> bool:
        """Move a queue as far as that goes now; answer whether all of it has moved."""
        pool = work.drain.pool
        entry = await self._catalogue.entry(queue)
        place = entry.place
        if place.keys_in == pool and place.draining is None:
            return await self._leave(work, queue, entry)
        if place.pool == pool and work.drain.arrivals:
            return True
        if place == Place(pool, beside=place.beside):
            await self._send(queue, pool, entry)
        if place.draining != pool:
            return False  # if it comes here from another pool, it goes on when that is over
        seen = self._seen.setdefault((queue, place.moved_at), time.monotonic())
        if time.monotonic() - seen < self._wait:
            return False
        old, new = await self._messages.pool(pool), await self._messages.pool(place.pool)
        while found := await _movable(old, queue):
            begun = time.monotonic()
            await self._turns.wait()
            await self._carry(work, queue, found, old, new)
            await asyncio.sleep((time.monotonic() - begun) * _SHARE)
        if await self._may_get_more(work, queue, old):
            return False
        self._seen.pop((queue, place.moved_at), None)
        return await self._leave(work, queue, entry)

    async def _send(self, queue: QueueRef, pool: str, entry: Entry) -> None:
        """Let a queue lie in another pool from now on, if it may leave this one yet."""
        if await self._targets.may_leave(queue, pool):
            target = await self._targets.choose(queue, pool)
            now = self._clock.now_ms()
            moved = Place(target, pool, keys_in=pool, moved_at=now, beside=entry.place.beside)
            await self._catalogue.change(queue, moved, entry.version)

    async def _may_get_more(self, work: "_Work", queue: QueueRef, old: MessageStore) -> bool:
        """Whether the old store has messages of a queue, or may still put dead letters there."""
        for other in () if work.drain.arrivals else await self._targets.beside(queue):
            place = (await self._catalogue.entry(other)).place
            if place.pool == work.drain.pool or (await old.stats(other)).total:
                return True
        return bool((await old.stats(queue)).total)

    async def _leave(self, work: "_Work", queue: QueueRef, entry: Entry) -> bool:
        """Note that no message is left; answer whether no idempotency key is either."""
        place, old = entry.place, await self._messages.pool(work.drain.pool)
        if self._clock.now_ms() < place.arrives_at + ARRIVES_MS:
            return False  # a redrive may put more there
        keys_in = place.keys_in
        if keys_in == work.drain.pool and await old.remembers(queue):
            work.drain.problem = _KEYS
        elif keys_in == work.drain.pool:
            keys_in = None
        left = Place(place.pool, keys_in=keys_in, beside=place.beside)
        if left != place:
            await self._catalogue.change(queue, left, entry.version)
        return keys_in != work.drain.pool

    async def _carry(
        self,
        work: "_Work",
        queue: QueueRef,
        found: Sequence[Message],
        old: MessageStore,
        new: MessageStore,
    ) -> None:
        """Move one batch."""
        drain = work.drain
        drain.number += 1
        drain.batch = batch = Batch(*queue, [one.id for one in found])
        await work.save()
        await new.adopt(queue, found, source=drain.source, number=drain.number)
        await self._check(work, batch, found, old, new)

    async def _finish(self, work: "_Work", batch: Batch) -> None:
        """Go on with a batch that was on its way when a process was killed."""
        place = (await self._catalogue.entry(batch.ref)).place
        old = await self._messages.pool(work.drain.pool)
        new = await self._messages.pool(place.pool)
        if batch.checked:
            await self._clear(work, batch, old, new)
            return
        found = await old.get_messages(batch.ref, batch.ids, details=True)
        await new.adopt(batch.ref, found, source=work.drain.source, number=work.drain.number)
        await self._check(work, batch, found, old, new)

    async def _check(
        self,
        work: "_Work",
        batch: Batch,
        found: Sequence[Message],
        old: MessageStore,
        new: MessageStore,
    ) -> None:
        """Look at what happened in the old store to messages that are in the new one by now."""
        read = {one.id: one for one in found}
        there = {one.id: one for one in await old.get_messages(batch.ref, batch.ids)}
        batch.gone = [one for one in batch.ids if one not in there]
        batch.ids = [one for one in batch.ids if one in there]
        batch.checked = True
        await work.save()
        for one in there.values():
            if one.id in read and _edited(read[one.id], one):
                change = Edit(
                    one.id,
                    one.body,
                    max(one.expires_at - one.now, 1),
                    max((one.delay_expires_at or 0) - one.now, 0),
                )
                with suppress(NotFound, Conflict, Invalid):
                    await new.edit(batch.ref, change)
        await self._clear(work, batch, old, new)

    async def _clear(
        self, work: "_Work", batch: Batch, old: MessageStore, new: MessageStore
    ) -> None:
        if batch.gone:
            await new.delete(batch.ref, batch.gone, claim_ids=None)
        if batch.ids:
            await old.delete(batch.ref, batch.ids, claim_ids=None)
        work.drain.moved += len(batch.ids)
        work.drain.batch = None
        await work.save()

    async def _has_no_notes(self, pool: str) -> bool:
        """Whether what is to be delivered has been, of the messages that were posted there."""
        store = await self._messages.pool(pool)
        return not any([(await store.stats(lane)).total for lane in OUTBOX_QUEUES])


class _Work:
    """A drain that this process holds, at the version of its record."""

    def __init__(
        self, management: ManagementStore, drain: Drain, version: int, clock: Clock, name: str
    ) -> None:
        self.drain = drain
        self._management = management
        self._version = version
        self._clock = clock
        self._name = name

    async def save(self) -> None:
        """Write how far it is, and hold it for a while from now.

        Raises:
            RecordChanged: another process holds it.
        """
        self.drain.holder, self.drain.held_until = self._name, self._clock.now_ms() + _HELD_MS
        record = await self._management.put_record(
            DRAIN, "", self.drain.pool, encode(self.drain), expected=self._version
        )
        self._version = record.version


async def _movable(old: MessageStore, queue: QueueRef) -> Sequence[Message]:
    """The next messages that nobody holds: those that are ready first."""
    for delayed in (False, True):
        selection = Selection(_BATCH, include_delayed=delayed, details=True)
        page = await old.list_messages(queue, selection)
        if page.messages:
            found: list[Message] = []
            size = 0
            for one in page.messages:
                size += len(one.body)
                if found and size > _BYTES:
                    break
                if not delayed and one.delay_expires_at and one.delay_expires_at > one.now:
                    one.delay_expires_at = None  # it was made ready before it was due
                found.append(one)
            return found
    return ()


def _edited(before: Message, now: Message) -> bool:
    return now.claim_id is None and (
        (before.body, before.expires_at, before.delay_expires_at)
        != (now.body, now.expires_at, now.delay_expires_at)
        and bool(now.delay_expires_at)
    )

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
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    Conflict,
    Invalid,
    NotFound,
    RecordChanged,
    Unavailable,
)
from zaqar_lite.domain.models import Edit, Message, QueueRef, Record, Selection
from zaqar_lite.service.background import Background
from zaqar_lite.service.notes import NOTES
from zaqar_lite.service.pooling.catalogue import Catalogue, Place
from zaqar_lite.service.pooling.drains import DRAIN, Batch, Drain, decode, encode
from zaqar_lite.service.pooling.stores import PooledMessages
from zaqar_lite.service.pooling.targets import Targets
from zaqar_lite.service.turns import Turns
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
_HELD_MS = 10_000
_LOOK_EVERY = 1.0
_QUEUES, _BATCH, _BYTES = 100, 100, 524_288
_MOST_DRAINS = 100
_ROUNDS_REST = 5
"""How many times as long as a round in which nothing moved a drain rests behind it."""
_SHARE = 0.25
"""How long a drain rests after a batch, in parts of the batch's time."""


class Drainer:
    """Work on the drains that nobody works on."""

    def __init__(
        self,
        messages: PooledMessages,
        management: ManagementStore,
        catalogue: Catalogue,
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
        self._seen: dict[QueueRef, float] = {}
        self._rests: dict[str, float] = {}
        self._work = Background("drains", self._look, rest=_LOOK_EVERY)

    def start(self) -> None:
        """Begin to look for drains, in a task of the running event loop."""
        self._work.start()

    async def stop(self) -> None:
        """End; what is under way goes on in another process, or in the next one."""
        await self._work.stop()

    async def _look(self) -> float:
        for record in await self._management.list_records(DRAIN, "", limit=_MOST_DRAINS):
            await self._look_at(record)
        return min(_LOOK_EVERY, self._wait)

    async def _look_at(self, record: Record) -> None:
        """Make one round of a drain, unless it is over or another process works on it."""
        drain = decode(record.value)
        now, begun = self._clock.now_ms(), time.monotonic()
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
        if not drain.queues and await self._has_no_notes(drain.pool):
            drain.state, drain.ended_at = "completed", self._clock.now_ms()
            logger.info("the pool %r is empty: %d messages were moved", drain.pool, drain.moved)
        await work.save()

    async def _move(self, work: "_Work", queue: QueueRef) -> bool:
        """Move a queue as far as that goes now; answer whether all of it has moved."""
        pool = work.drain.pool
        entry = await self._catalogue.entry(queue)
        if entry.place.draining is None:
            if entry.place.pool == pool:
                target = await self._targets.choose(queue, pool)
                moved = Place(target, draining=pool, beside=entry.place.beside)
                await self._catalogue.change(queue, moved, entry.version)
            return False
        if entry.place.draining != pool:
            return False  # it comes here from another pool, and goes on when that is over
        seen = self._seen.setdefault(queue, time.monotonic())
        if time.monotonic() - seen < self._wait:
            return False
        old, new = await self._messages.pool(pool), await self._messages.pool(entry.place.pool)
        while found := await _movable(old, queue):
            begun = time.monotonic()
            await self._turns.wait()
            await self._carry(work, queue, found, old, new)
            await asyncio.sleep((time.monotonic() - begun) * _SHARE)
        if (await old.stats(queue)).total:
            return False
        place = Place(entry.place.pool, beside=entry.place.beside)
        await self._catalogue.change(queue, place, entry.version)
        self._seen.pop(queue, None)
        return True

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
        return not any([(await store.stats(lane)).total for lane in NOTES])


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

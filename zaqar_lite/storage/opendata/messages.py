"""Messages and claims of the embedded store: memory first, then one wait for the commit."""

from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial

from zaqar_lite.domain.histories import HistoryPage, HistoryState
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
    RetriesOf,
    Selection,
    Stats,
    Swept,
    Take,
    no_retries,
)
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted, Recalled
from zaqar_lite.domain.settlements import Outcome, Settled, Settlement
from zaqar_lite.storage.base import MAX_EXAMINED, Listener, MessageStore
from zaqar_lite.storage.opendata import (
    claiming,
    due,
    past,
    posting,
    reading,
    settling,
    staging,
    sweeping,
)
from zaqar_lite.storage.opendata.claiming import live_claim, refusal
from zaqar_lite.storage.opendata.database import DatabaseUser
from zaqar_lite.storage.opendata.due import STEP, expose, ripens_at
from zaqar_lite.storage.opendata.entries import NEVER
from zaqar_lite.storage.opendata.grouping import list_group
from zaqar_lite.storage.opendata.paging import cold_of_claim, cold_tail, load, prepared, purge_some
from zaqar_lite.storage.opendata.reading import cold_named, named, read
from zaqar_lite.storage.opendata.shares import cost_of
from zaqar_lite.storage.opendata.staging import PART


class OpenDataMessageStore(DatabaseUser, MessageStore):
    """The message store over RFC 0001's records."""

    sweep_step = MAX_EXAMINED // 4
    capabilities = frozenset(
        {
            Capability.ATOMIC_BATCH,
            Capability.EXCLUSIVE,
            Capability.DURABLE,
            Capability.FAN_OUT,
            Capability.HISTORY,
        }
    )
    poll_interval_ms = 60_000  # one process: no announcement is lost

    @property
    def examined(self) -> int:
        """How many entries the operations on the queues there are have looked at (for tests)."""
        return sum(queue.examined for queue in self._db.queues)

    async def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        db = self._db
        if len(messages) > PART:
            posted = await staging.post(
                db, queue, messages, client_id=client_id, batch_key=batch_key, version=version
            )
            if posted is not None:
                return posted
        cost = cost_of(messages)
        if not db.shares.joins(queue.project, cost):
            await db.shares.wait(queue.project, cost)
        while True:
            if queue in db.staging:
                await db.staging[queue].wait()
            found, now = await prepared(db, queue, version, cold_tail)
            if queue in db.staging:
                continue
            there = found or db.queues.make(queue)
            if there.total + len(messages) <= db.options.max_messages or db.settle(there, now):
                break
            await db.committer.durable()  # what has expired makes room
        posted = posting.post(
            db, there, messages, client_id=client_id, batch_key=batch_key, now=now
        )
        await db.committer.durable()
        return posted

    async def recall(
        self, queue: QueueRef, messages: Collection[str], batch: str | None = None
    ) -> Recalled:
        db = self._db
        there = db.queue(queue, None)
        if there is None:
            return Recalled()
        found = there.keys.recall(messages, batch, db.clock.now_ms(), db.names.write)
        await db.committer.visible(there.epoch)
        return found

    async def remembers(self, queue: QueueRef) -> bool:
        there = self._db.queue(queue, None)
        return there is not None and there.keys.last_due() > self._db.clock.now_ms()

    async def list_messages(self, queue: QueueRef, selection: Selection) -> Page:
        if selection.group is not None:
            return await list_group(self._db, queue, selection, selection.group)
        return await reading.list_messages(self._db, queue, selection)

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        db = self._db
        there, now = await prepared(db, queue, None, cold_named(db, ids), reads=True)
        if there is None:
            return ()
        return await read(db, there, named(db, there, ids, now), now, details=details)

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        return await posting.edit(self._db, queue, edit)

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        db = self._db
        there, now = await prepared(db, queue, None, cold_named(db, ids))
        if there is None:
            return ()
        found = named(db, there, ids, now)
        if claim_ids is not None:
            refused = [
                Refusal(db.names.write(entry.name), reason)
                for entry in found
                if (reason := refusal(entry.holder(now), claim_ids)) is not None
            ]
            if refused:
                return refused
        keeps = past.keeps_done(there)
        for entry in found:
            if keeps and (holder := entry.holder(now)) is not None:
                past.record_done(db, there, entry, now, holder.client_id)
            there.remove(entry)
        await db.finish(there, changed=found)
        return ()

    async def pop(self, queue: QueueRef, take: Take) -> Claimed:
        return await claiming.hand_out(self._db, queue, take, partial(claiming.remove, self._db))

    async def claim(self, queue: QueueRef, take: Take) -> Claimed:
        return await claiming.hand_out(self._db, queue, take, partial(claiming.hold, take))

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        there, now = await prepared(self._db, queue, None, cold_of_claim(claim_id), reads=True)
        there, claim = live_claim(there, claim_id, now)
        answer = Claim(claim.id, claim.ttl_ms, now - claim.created_at, ())
        answer.messages = await read(
            self._db, there, due.live(there, claim, now), now, details=details
        )
        return answer

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        db = self._db
        there, now = await prepared(db, queue, None, cold_of_claim(claim_id))
        there, claim = live_claim(there, claim_id, now)
        due.renew(there, claim, now, ttl_ms, grace_ms)
        db.announce(queue, 0)
        await db.finish(there, changed=True)

    async def release(self, queue: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        await settling.release(self._db, queue, claim_id, delay_ms)

    async def settle(
        self,
        queue: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement],
        *,
        retries: Retries = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        return await settling.settle(self._db, queue, claim_id, settlements, retries, version)

    async def move(self, queue: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        return await settling.move(self._db, queue, ids, move)

    async def adopt(
        self, queue: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        await posting.adopt(self._db, queue, messages, source=source, number=number)

    async def next_due(self, queue: QueueRef) -> int | None:
        there = self._db.queue(queue, None)
        instant = NEVER if there is None else ripens_at(there)
        return None if instant >= NEVER else max(0, instant - self._db.clock.now_ms())

    def listen(self, listener: Listener) -> None:
        self._db.listener = listener

    async def watch(self, queue: QueueRef) -> None:
        self._db.watched[queue] += 1

    async def unwatch(self, queue: QueueRef) -> None:
        watched = self._db.watched
        watched[queue] -= 1
        if watched[queue] <= 0:
            del watched[queue]

    async def purge(self, queue: QueueRef) -> None:
        """Remove the messages and claims there are, in steps that are each durable; see the seam.

        What is posted meanwhile comes behind, and stays.
        """
        db = self._db
        until = db.ids.next
        while (there := db.queue_to_change(queue, None)) is not None:
            first = there.first_position()
            if first is None or first >= until:
                await db.committer.visible(there.epoch)
                return
            await purge_some(db, there, until)
            await db.committer.durable()

    async def drop(self, queue: QueueRef) -> None:
        """Remove the queue, and its record with it; see the seam.

        A long queue, history or list of keys goes in steps, each durable before the next; the
        record goes last. What others do to the queue in between goes with it, also where it was
        recovered or made again.
        """
        db = self._db
        while (there := db.queue_to_change(queue, None)) is not None:
            if there.total > STEP or there.cold_pages:
                await purge_some(db, there, db.ids.next)
            elif there.done or there.failed:
                await past.trim(db, there, None)
            elif len(there.keys) > STEP:
                there.keys.forget(NEVER, STEP)
                db.changed(there)
            else:
                for page in list(there.pages):
                    for entry in list(page.entries.values()):
                        there.remove(entry)
                there.keys.forget(NEVER)
                db.remove_record(there)
                db.changed(there)
                break
            await db.committer.durable()
        await db.committer.durable()

    async def stats(self, queue: QueueRef) -> Stats:
        return await reading.stats(self._db, queue)

    async def census(self) -> AsyncIterator[QueueRef]:
        for queue in self._db.queues:
            if queue.total:
                yield queue.ref

    async def split(self, queue: QueueRef, count: int) -> Sequence[int]:
        return await reading.split(self._db, queue, count)

    async def expose(self, queue: QueueRef, limit: int) -> int:
        db = self._db
        exposed = 0
        while (there := db.queue_to_change(queue, None)) is not None and exposed < limit:
            now = db.clock.now_ms()
            db.settle(there, now)  # or what has expired would be counted
            count, needed = expose(there, now, limit - exposed)
            exposed += count
            if count:
                db.announce(queue, count)
                db.changed(there)
            if needed is None:
                break
            await load(db, there, [needed], {needed})
        if exposed:
            await db.committer.durable()
        return exposed

    async def sweep(self, limit: int, retries_of: RetriesOf = no_retries) -> Swept:
        return await sweeping.sweep(self._db, limit, retries_of)

    async def history(
        self, queue: QueueRef, state: HistoryState, *, marker: str | None, limit: int
    ) -> HistoryPage:
        there = self._db.queue(queue, None)
        if there is None:
            return HistoryPage((), None)
        await self._db.committer.visible(there.epoch)
        return await past.read(self._db, there, state, marker, limit)

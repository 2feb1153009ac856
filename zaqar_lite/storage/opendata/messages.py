"""Messages and claims of the embedded store: memory first, then one wait for the commit."""

from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial

from zaqar_lite.domain.histories import HistoryPage, HistoryState
from zaqar_lite.domain.models import (
    NO_RETRIES,
    Capability,
    Claim,
    Claimed,
    ClaimRequest,
    Edit,
    ListQuery,
    Message,
    Move,
    Page,
    QueueRef,
    Refusal,
    RetryPolicy,
    RetryPolicyOf,
    Stats,
    SweepResult,
    no_retries,
)
from zaqar_lite.domain.posts import IdempotencyKey, KnownKeys, NewMessage, Posted
from zaqar_lite.domain.settlements import Outcome, Settled, Settlement
from zaqar_lite.storage.base import MAX_EXAMINED, Listener, MessageStore
from zaqar_lite.storage.opendata import (
    claiming,
    due,
    history,
    paging,
    posting,
    reading,
    settling,
    staging,
    sweeping,
)
from zaqar_lite.storage.opendata.claiming import live_claim, refusal
from zaqar_lite.storage.opendata.database import DatabaseUser
from zaqar_lite.storage.opendata.due import STEP, count_lapsed, expose, next_ready_at, promote
from zaqar_lite.storage.opendata.entries import NEVER
from zaqar_lite.storage.opendata.entries import Page as QueuePage
from zaqar_lite.storage.opendata.paging import (
    caught_up,
    cold_first_and_last,
    cold_of_claim,
    cold_tail,
    load,
    load_some,
    prepared,
    purge_some,
)
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import cold_of_ids, find_all_live, read
from zaqar_lite.storage.opendata.staging import PART
from zaqar_lite.storage.sql.shares import cost_of


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
        ref: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        db = self._db
        if len(messages) > PART:
            posted = await staging.post(
                db, ref, messages, client_id=client_id, batch_key=batch_key, version=version
            )
            if posted is not None:
                return posted
        cost = cost_of(messages)
        if not db.shares.joins(ref.project, cost):
            await db.shares.wait(ref.project, cost)
        while True:
            if ref in db.staging:
                await db.staging[ref].wait()
            found, now = await prepared(db, ref, version, cold_tail)
            if ref in db.staging:
                continue
            queue = found or db.queues.make(ref)
            if queue.total + len(messages) <= db.options.max_messages:
                break
            is_settled = db.catch_up(queue, now)  # what has expired makes room
            if queue.expired_pages:
                await load_some(db, queue, queue.expired_pages)
            elif is_settled:
                break
            else:
                await db.committer.durable()
        posted = posting.post(
            db, queue, messages, client_id=client_id, batch_key=batch_key, now=now
        )
        await db.committer.durable()
        return posted

    async def find_idempotency_keys(
        self, ref: QueueRef, messages: Collection[str] = (), batch: str | None = None
    ) -> KnownKeys:
        db = self._db
        queue = db.queue(ref, None)
        if queue is None:
            return KnownKeys()
        found = queue.keys.recall(messages, batch, db.clock.now_ms(), db.id_texts.write)
        await db.committer.visible(queue.epoch)
        return found._replace(are_any=queue.keys.last_due() > db.clock.now_ms())

    async def list_messages(self, ref: QueueRef, selection: ListQuery) -> Page:
        if selection.group is not None:
            return await reading.list_group(self._db, ref, selection, selection.group)
        return await reading.list_messages(self._db, ref, selection)

    async def get_messages(
        self, ref: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        db = self._db
        queue, now = await prepared(db, ref, None, cold_of_ids(db, ids), reads=True)
        if queue is None:
            return ()
        return await read(db, queue, find_all_live(db, queue, ids, now), now, details=details)

    async def edit(self, ref: QueueRef, edit: Edit) -> Message:
        return await posting.edit(self._db, ref, edit)

    async def delete(
        self, ref: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        db = self._db
        queue, now = await prepared(db, ref, None, cold_of_ids(db, ids))
        if queue is None:
            return ()
        found = find_all_live(db, queue, ids, now)
        if claim_ids is not None:
            refused = [
                Refusal(db.id_texts.write(entry.shown_id), reason)
                for entry in found
                if (reason := refusal(entry.holder(now), claim_ids)) is not None
            ]
            if refused:
                return refused
        keeps = history.keeps_done(queue)
        for entry in found:
            if keeps and (holder := entry.holder(now)) is not None:
                history.record_done(db, queue, entry, now, holder.client_id)
            queue.remove(entry)
        await db.finish(queue, changed=found)
        return ()

    async def claim(self, ref: QueueRef, request: ClaimRequest) -> Claimed:
        if request.removes:
            finish = partial(claiming.remove, self._db)
            return await claiming.hand_out(self._db, ref, request, finish)
        return await claiming.hand_out(self._db, ref, request, partial(claiming.hold, request))

    async def get_claim(self, ref: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        queue, now = await prepared(self._db, ref, None, cold_of_claim(claim_id), reads=True)
        queue, claim = live_claim(queue, claim_id, now)
        answer = Claim(claim.id, claim.ttl_ms, now - claim.created_at, ())
        answer.messages = await read(
            self._db, queue, due.live(queue, claim, now), now, details=details
        )
        return answer

    async def renew(self, ref: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        db = self._db
        queue, now = await prepared(db, ref, None, cold_of_claim(claim_id))
        queue, claim = live_claim(queue, claim_id, now)
        due.renew(queue, claim, now, ttl_ms, grace_ms)
        db.announce(ref, 0)
        await db.finish(queue, changed=True)

    async def release(self, ref: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        await settling.release(self._db, ref, claim_id, delay_ms)

    async def settle(
        self,
        ref: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement],
        *,
        retries: RetryPolicy = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        return await settling.settle(self._db, ref, claim_id, settlements, retries, version)

    async def move(self, ref: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        return await settling.move_messages(self._db, ref, ids, move)

    async def import_messages(
        self, ref: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        await posting.import_messages(self._db, ref, messages, source=source, number=number)

    async def next_due(self, ref: QueueRef) -> int | None:
        queue = self._db.queue(ref, None)
        instant = NEVER if queue is None else next_ready_at(queue)
        return None if instant >= NEVER else max(0, instant - self._db.clock.now_ms())

    def listen(self, listener: Listener) -> None:
        self._db.listener = listener

    async def watch(self, ref: QueueRef) -> None:
        self._db.watched[ref] += 1

    async def unwatch(self, ref: QueueRef) -> None:
        watched = self._db.watched
        watched[ref] -= 1
        if watched[ref] <= 0:
            del watched[ref]

    async def purge(self, ref: QueueRef) -> None:
        """Remove the messages and claims there are, in steps that are each durable; see the seam.

        What is posted meanwhile comes behind, and stays.
        """
        db = self._db
        until = db.ids.next
        while (queue := db.queue_to_change(ref, None)) is not None:
            first = queue.first_position()
            if first is None or first >= until:
                await db.committer.visible(queue.epoch)
                return
            await purge_some(db, queue, until)
            await db.committer.durable()

    async def drop(self, ref: QueueRef) -> None:
        """Remove the queue, and its record with it; see the seam.

        A long queue, history or list of keys goes in steps, each durable before the next; the
        record goes last. What others do to the queue in between goes with it, also where it was
        recovered or made again.
        """
        db = self._db
        while (queue := db.queue_to_change(ref, None)) is not None:
            if queue.total > STEP or queue.cold_pages:
                await purge_some(db, queue, db.ids.next)
            elif queue.done or queue.failed:
                await history.trim(db, queue, None)
            elif len(queue.keys) > STEP:
                queue.keys.forget(NEVER, STEP)
                db.changed(queue)
            else:
                for page in list(queue.pages):
                    for entry in list(page.entries.values()):
                        queue.remove(entry)
                queue.keys.forget(NEVER)
                db.remove_record(queue)
                db.changed(queue)
                break
            await db.committer.durable()
        await db.committer.durable()

    async def stats(self, ref: QueueRef) -> Stats:
        db = self._db
        while True:
            queue, now = await caught_up(db, ref, cold_first_and_last)
            if queue is None:
                return Stats()
            if promote(queue, now, STEP) < STEP and not queue.due:
                break
            await db.turns.wait()  # so much is due that other tasks must run in between
        lapsed = count_lapsed(queue, now)
        stats = Stats(
            queue.ready_count + lapsed,
            queue.delayed_count + queue.parked_count,
            queue.claimed_count - lapsed,
        )
        stats.ready_since = claiming.ready_since(queue, now)
        found = await read(db, queue, paging.first_and_last(queue), now)
        if found:
            stats.oldest, stats.newest = found[0], found[-1]
        return stats

    async def nonempty_queues(self) -> AsyncIterator[QueueRef]:
        for queue in self._db.queues:
            if queue.total:
                yield queue.ref

    async def partition(self, ref: QueueRef, count: int) -> Sequence[int]:
        db = self._db

        def needed(queue: Queue) -> list[QueuePage]:
            return paging.cold_at(queue, _cuts(queue.total, count))

        queue, _ = await caught_up(db, ref, needed)
        if queue is None:
            return ()
        ends = paging.pages_at(queue, _cuts(queue.total, count))
        cuts = [list(page.entries)[within] for page, within in ends]
        await db.committer.visible(queue.epoch)
        return cuts

    async def release_delayed(
        self, ref: QueueRef, limit: int, *, version: int | None = None
    ) -> int:
        db = self._db
        exposed = 0
        while (queue := db.queue_to_change(ref, version)) is not None and exposed < limit:
            now = db.clock.now_ms()
            db.catch_up(queue, now)  # or what has expired would be counted
            count, needed = expose(queue, now, limit - exposed)
            exposed += count
            if count:
                db.announce(ref, count)
                db.changed(queue)
            if needed is None:
                break
            await load(db, queue, [needed], {needed})
        if exposed:
            await db.committer.durable()
        return exposed

    async def sweep(self, limit: int, retries_of: RetryPolicyOf = no_retries) -> SweepResult:
        return await sweeping.sweep(self._db, limit, retries_of)

    async def history(
        self, ref: QueueRef, state: HistoryState, *, marker: str | None, limit: int
    ) -> HistoryPage:
        db = self._db
        queue, failures = db.queue(ref, None), db.committer.failures
        if queue is None:
            return HistoryPage((), None)
        page = await history.read(db, queue, state, marker, limit)
        await reading.confirm(db, queue, queue.epoch, failures)
        return page


def _cuts(total: int, count: int) -> list[int]:
    """The indexes at which at most `count` ranges of `total` entries end."""
    ranges = min(count, total)
    return [total * (index + 1) // ranges - 1 for index in range(ranges)]

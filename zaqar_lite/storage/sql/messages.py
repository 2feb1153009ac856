"""The message store over the tables; what each operation promises is in the seam."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from functools import partial

from zaqar_lite.domain.errors import Conflict, Unavailable
from zaqar_lite.domain.models import (
    NO_RETRIES,
    Capability,
    Claim,
    Claimed,
    ClaimRequest,
    Edit,
    HistoryPage,
    HistoryState,
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
from zaqar_lite.domain.refusals import Deadlines, edited, no_claim, no_message
from zaqar_lite.domain.settlements import Outcome, Settled, Settlement
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.storage.base import MAX_EXAMINED, MessageStore
from zaqar_lite.storage.sql import (
    claiming,
    claims,
    entries,
    expiring,
    history,
    importing,
    posting,
    reading,
    settling,
    sweeping,
)
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.entries import DELAYED
from zaqar_lite.storage.sql.queues import NEVER
from zaqar_lite.storage.store import Condition
from zaqar_lite.storage.watchers import Listener, Watch

_STEP = 250
"""Settlements that are made in one step."""
_QUEUES = 500
"""Queues that are named in one step."""


class SqlMessageStore(MessageStore):
    """The message store over a database, in RAM or in a file."""

    poll_interval_ms = 60_000  # one process: no announcement is lost
    sweep_step = MAX_EXAMINED // 4

    def __init__(self, db: Database) -> None:
        self._db = db
        promises = {
            Capability.ATOMIC_BATCH,
            Capability.EXCLUSIVE,
            Capability.FAN_OUT,
            Capability.HISTORY,
        }
        self.capabilities = frozenset(
            {*promises, Capability.DURABLE} if db.place.syncs else promises
        )

    async def open(self) -> None:
        await self._db.open()
        with suppress(Unavailable):  # such as of a full disk, which claims are to empty
            await posting.finish_posts(self._db)

    async def close(self) -> None:
        await self._db.close()

    async def ping(self) -> None:
        self._db.check_writable()
        self._db.room.check_file()

    def condition(self) -> Condition:
        return self._db.condition()

    async def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        return await posting.post(self._db, queue, messages, client_id, batch_key, version)

    async def find_idempotency_keys(
        self, queue: QueueRef, messages: Collection[str] = (), batch: str | None = None
    ) -> KnownKeys:
        return await self._db.read_queue(queue, KnownKeys(), reading.find_keys, messages, batch)

    async def list_messages(self, queue: QueueRef, selection: ListQuery) -> Page:
        return await reading.list_messages(self._db, queue, selection)

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        nothing: Sequence[Message] = ()
        return await self._db.read_queue(queue, nothing, reading.get_messages, ids, details=details)

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        return await self._db.write(_edit, queue, edit)

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        nothing: Sequence[Refusal] = ()
        return await self._db.change_queue(queue, None, nothing, settling.delete, ids, claim_ids)

    async def claim(self, queue: QueueRef, request: ClaimRequest) -> Claimed:
        await self._db.pass_gate()
        if claiming.has_nothing(self._db, self._db.queue_at(queue, request.version)):
            return Claimed(None)  # no batch is needed
        return await self._db.change_queue(
            queue, request.version, Claimed(None), claiming.claim, request
        )

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        found = await self._db.read_queue(queue, None, claims.get_claim, claim_id, details=details)
        if found is None:
            raise no_claim(claim_id)
        return found

    async def settle(
        self,
        queue: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement] | Settlement,
        *,
        retries: RetryPolicy = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        if isinstance(settlements, Settlement):
            nothing = Settled([Outcome.NOT_FOUND], 0)
            return await self._db.change_queue(
                queue, version, nothing, settling.settle_all, claim_id, settlements, retries
            )
        outcomes: list[Outcome] = []
        moved = 0
        for first in range(0, len(settlements) or 1, _STEP):
            part = settlements[first : first + _STEP]
            # The first step's version decides for all of them.
            read = version if first == 0 else None
            nothing = Settled([Outcome.NOT_FOUND] * len(part), 0)
            done = await self._db.change_queue(
                queue, read, nothing, settling.settle, claim_id, part, retries
            )
            outcomes += done.outcomes
            moved += done.moved
        return Settled(outcomes, moved)

    async def move(self, queue: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        nothing: Sequence[Outcome] = [Outcome.NOT_FOUND] * len(ids)
        return await self._db.change_queue(queue, None, nothing, settling.move, ids, move)

    async def import_messages(
        self, queue: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        await self._db.write(importing.import_messages, queue, messages, source, number)

    async def next_due(self, queue: QueueRef) -> int | None:
        found = await self._db.look(Database.queue, queue)
        instant = NEVER if found is None else found.ready_at
        return None if instant >= NEVER else max(0, instant - self._db.clock.now_ms())

    async def watch(self, queue: QueueRef, listener: Listener) -> Watch:
        return Watch(partial(self.next_due, queue), self._db.watchers.add(queue, listener))

    async def purge(self, queue: QueueRef, *, forget: bool = False) -> None:
        step = Database.remove_queue if forget else Database.empty_queue
        async with posting.alone(self._db, queue):
            await self._db.change_queue(queue, None, None, step)

    async def stats(self, queue: QueueRef, *, ranges: int = 0) -> Stats:
        await expiring.tidy(self._db, queue)
        found = await self._db.read_queue(queue, Stats(), reading.stats)
        if ranges and found.total:
            found.cuts = await reading.cut(self._db, queue, found.total, ranges)
        return found

    async def nonempty_queues(self) -> AsyncIterator[QueueRef]:
        after = 0
        while True:
            rows = await self._db.read(QueueRef("", ""), _holding, after)
            for number, project, name, is_held in rows:
                after = number
                if is_held:
                    yield QueueRef(project, name)
            if len(rows) < _QUEUES:
                return
            await next_turn()

    async def release_delayed(
        self, queue: QueueRef, limit: int, *, version: int | None = None
    ) -> int:
        await expiring.tidy(self._db, queue)  # or what has expired would be counted
        found = self._db.queue_at(queue, version)
        if found is None or not found.delayed:
            return 0
        return await self._db.change_queue(queue, version, 0, expiring.release_delayed, limit)

    async def sweep(self, limit: int, retries_of: RetryPolicyOf = no_retries) -> SweepResult:
        return await sweeping.sweep(self._db, limit, retries_of)

    async def history(
        self, queue: QueueRef, state: HistoryState, *, marker: str | None, limit: int
    ) -> HistoryPage:
        nothing = HistoryPage((), None)
        return await self._db.read_queue(queue, nothing, history.read, state, marker, limit)


def _edit(db: Database, ref: QueueRef, wanted: Edit) -> Message:
    queue, now = db.queue_at(ref, wanted.version), db.clock.now_ms()
    message_id = wanted.message_id
    here = {} if queue is None else entries.find(db, queue, (message_id,), now)
    if queue is None or message_id not in here:
        raise no_message(message_id)
    entry = here[message_id]
    due = entry.due if entry.state == DELAYED else 0
    due, expires = edited(wanted, Deadlines(due, entry.expires), now)
    db.touch(queue)
    if wanted.body is not None:
        if len(wanted.body) > entry.size:
            db.check_growth()
        held = "SELECT holders FROM body WHERE number = ?"
        if entry.is_shared and entries.first_of(db, held, (entry.body,)) > 1:
            raise Conflict(
                f"The body of message {message_id} can't be changed: other queues hold it too."
            )
        db.execute("UPDATE body SET body = ? WHERE number = ?", (wanted.body, entry.body))
        db.execute(
            "UPDATE entry SET size = ? WHERE queue = ? AND position = ?",
            (len(wanted.body), queue.content, entry.position),
        )
        queue.bytes += len(wanted.body) - entry.size
    if wanted.ttl_ms is not None:
        entries.raise_ttl(db, queue, (entry.position,), wanted.ttl_ms, expires)
    if wanted.delay_ms is not None:
        db.execute(
            "UPDATE entry SET due = ? WHERE queue = ? AND position = ?",
            (due, queue.content, entry.position),
        )
        queue.ready_at = min(queue.ready_at, due)
        if due <= now:
            expiring.end_waits(db, queue, now, MAX_EXAMINED)
        db.announce(ref, int(due <= now))
    return entries.find_messages(db, queue, (message_id,), now)[message_id]


def _holding(db: Database, after: int) -> Sequence[tuple[int, str, str, int]]:
    """Some queues after a number, and whether each holds messages."""
    db.write_queues()
    found: Sequence[tuple[int, str, str, int]] = db.execute(
        "SELECT number, project, name, ready + delayed + leased + parked > 0 FROM queue"
        " WHERE number > ? ORDER BY number LIMIT ?",
        (after, _QUEUES),
    ).fetchall()
    return found

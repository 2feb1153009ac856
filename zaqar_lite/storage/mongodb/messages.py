"""The message store: each operation of the seam, by the parts of the driver."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress

from pymongo.errors import PyMongoError

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
    StoreOptions,
    Swept,
    Take,
    no_retries,
)
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted, Recalled
from zaqar_lite.domain.settlements import Outcome, Settled, Settlement
from zaqar_lite.storage.base import Listener, MessageStore
from zaqar_lite.storage.mongodb import clearing
from zaqar_lite.storage.mongodb.changing import Changing
from zaqar_lite.storage.mongodb.claiming import Claiming
from zaqar_lite.storage.mongodb.clearing import Clearing
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import translating
from zaqar_lite.storage.mongodb.holding import Holding
from zaqar_lite.storage.mongodb.keys import Keys
from zaqar_lite.storage.mongodb.listing import Listing
from zaqar_lite.storage.mongodb.posting import Posting
from zaqar_lite.storage.mongodb.queues import CLAIMED, POPPED, Queues, QueueState, key_of
from zaqar_lite.storage.mongodb.readiness import POLL_INTERVAL_MS, Readiness
from zaqar_lite.storage.mongodb.rewriting import Rewriting
from zaqar_lite.storage.mongodb.settling import Settling
from zaqar_lite.storage.mongodb.sweeping import Sweeping


@translating
class MongoMessageStore(MessageStore):
    """Messages and claims in MongoDB; shared by any number of processes."""

    poll_interval_ms = POLL_INTERVAL_MS
    capabilities = frozenset(
        {
            Capability.ATOMIC_BATCH,
            Capability.EXCLUSIVE,
            Capability.DURABLE,
            Capability.SHARED,
        }
    )

    def __init__(self, connection: Connection, options: StoreOptions) -> None:
        self._connection = connection
        self._queues = Queues(connection)
        keys = Keys(connection, options.idempotency_window_ms)
        self._readiness = Readiness(connection)
        rewriting = Rewriting(connection, self._queues, self._readiness)
        self._posting = Posting(connection, self._queues, keys, options, self._readiness)
        self._claiming = Claiming(connection, self._queues, rewriting)
        self._holding = Holding(connection, self._queues)
        self._settling = Settling(self._queues, rewriting)
        self._changing = Changing(connection, self._queues, self._readiness)
        self._clearing = Clearing(connection)
        self._listing = Listing(connection, self._queues)
        self._sweeping = Sweeping(
            connection,
            self._queues,
            self._clearing,
            loose_ends=self._claiming.loose_ends,
            rewriting=rewriting,
            readiness=self._readiness,
        )

    async def open(self) -> None:
        """Connect, create and check the indexes; see the seam."""
        await self._connection.open(self)

    async def close(self) -> None:
        """Finish the posts, and close the connections if nobody else uses them; see the seam."""
        await self._posting.close()
        await self._readiness.close()
        await self._connection.close(self)

    async def ping(self) -> None:
        """Ask the server for its time; see the seam."""
        await self._connection.ping()

    async def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages; see the seam."""
        return await self._posting.post(
            queue, messages, client_id=client_id, batch_key=batch_key, version=version
        )

    async def recall(
        self, queue: QueueRef, messages: Collection[str], batch: str | None = None
    ) -> Recalled:
        """Tell what is remembered of keys; see the seam."""
        return await self._posting.recall(queue, messages, batch)

    async def remembers(self, queue: QueueRef) -> bool:
        """Whether a key is remembered; see the seam."""
        return await self._posting.remembers(queue)

    async def list_messages(self, queue: QueueRef, selection: Selection) -> Page:
        """List messages; see the seam."""
        return await self._listing.page(queue, selection)

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        """Fetch messages by id; see the seam."""
        return await self._listing.get(queue, ids, details=details)

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Change a delayed message; see the seam."""
        return await self._changing.edit(queue, edit)

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages; see the seam."""
        return await self._changing.delete(queue, ids, claim_ids=claim_ids)

    async def pop(self, queue: QueueRef, take: Take) -> Claimed:
        """Remove and hand out ready messages; see the seam."""
        return await self._claiming.take(queue, take, held=POPPED)

    async def claim(self, queue: QueueRef, take: Take) -> Claimed:
        """Hand out ready messages under a new claim; see the seam."""
        return await self._claiming.take(queue, take, held=CLAIMED)

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a claim; see the seam."""
        return await self._holding.get(queue, claim_id, details=details)

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Let a live claim, and what it holds, live on; see the seam."""
        await self._holding.renew(queue, claim_id, ttl_ms=ttl_ms, grace_ms=grace_ms)

    async def release(self, queue: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        """Free what a claim still holds; see the seam."""
        await self._settling.release(queue, claim_id, delay_ms)

    async def settle(
        self,
        queue: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement],
        *,
        retries: Retries = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        """Settle messages of a claim; see the seam."""
        return await self._settling.settle(
            queue, claim_id, settlements, retries=retries, version=version
        )

    async def move(self, queue: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        """Move messages to another queue; see the seam."""
        return await self._settling.move(queue, ids, move)

    async def adopt(
        self, queue: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        """Take in messages of another store; see the seam."""
        await self._posting.adopt(queue, messages, source=source, number=number)

    async def next_due(self, queue: QueueRef) -> int | None:
        """How long until a message becomes ready by time; see the seam."""
        return await self._listing.next_due(queue)

    def listen(self, listener: Listener) -> None:
        """Announce to `listener` what became ready; see the seam."""
        self._readiness.listen(listener)

    async def watch(self, queue: QueueRef) -> None:
        """Begin to announce a queue; see the seam."""
        await self._readiness.watch(queue)

    async def unwatch(self, queue: QueueRef) -> None:
        """End what `watch` began."""
        self._readiness.unwatch(queue)

    async def purge(self, queue: QueueRef) -> None:
        """End all messages and claims there are now, by one update; see the seam."""
        await self._clear(await self._queues.end_messages(key_of(queue)))

    async def drop(self, queue: QueueRef) -> None:
        """End the queue's life, its record included, by one update; see the seam."""
        await self._clear(await self._queues.end_life(key_of(queue)))

    async def _clear(self, state: QueueState | None) -> None:
        """Begin to remove what nobody can see any more; the sweep does the rest."""
        if state is not None:
            with suppress(PyMongoError):
                await self._clearing.step(state.key, state.birth, clearing.STEP)

    async def stats(self, queue: QueueRef) -> Stats:
        """Count the live messages; see the seam."""
        return await self._listing.stats(queue)

    def census(self) -> AsyncIterator[QueueRef]:
        """Name the queues that may hold messages; see the seam."""
        return self._listing.census()

    async def split(self, queue: QueueRef, count: int) -> Sequence[int]:
        """Cut the live messages into ranges; see the seam."""
        return await self._listing.split(queue, count)

    async def expose(self, queue: QueueRef, limit: int) -> int:
        """Make delayed messages ready; see the seam."""
        return await self._sweeping.expose(queue, limit)

    async def sweep(self, limit: int, retries_of: RetriesOf = no_retries) -> Swept:
        """Tidy up in bounded steps; see the seam."""
        return await self._sweeping.sweep(limit, retries_of)

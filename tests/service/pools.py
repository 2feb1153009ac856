"""Two pools in memory, whose stores can fail, and the drain from one into the other."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial

from msgspec.structs import replace

from tests.waiting import at_work, until
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import (
    NO_RETRIES,
    Capability,
    Claimed,
    ClaimRequest,
    DelayMode,
    ListQuery,
    Message,
    QueueRef,
    Refusal,
    RetryPolicy,
    StoreOptions,
)
from zaqar_lite.domain.posts import NewMessage, identify
from zaqar_lite.service.pooling.drain import Drain, Drains, DrainWorker
from zaqar_lite.service.pooling.placement import (
    Place,
    Placements,
)
from zaqar_lite.service.pooling.pooled_store import OpenConnections, PooledMessages
from zaqar_lite.service.pooling.pools import Pool, PoolRegistry, StoreKind
from zaqar_lite.storage.sql import create
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.messages import SqlMessageStore
from zaqar_lite.storage.sql.place import InRam

QUEUE, LETTERS = QueueRef("p", "orders"), QueueRef("p", "letters")
OPTIONS = StoreOptions()
CLIENT = "0" * 32


class Failing(SqlMessageStore):
    """A store that fails once: `fails` is an operation, and whether it is done before it fails."""

    fails: tuple[str, bool] | None = None

    async def import_messages(
        self, queue: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        self._fail("import_messages", done=False)
        await super().import_messages(queue, messages, source=source, number=number)
        self._fail("import_messages", done=True)

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        self._fail("get_messages", done=False)
        return await super().get_messages(queue, ids, details=details)

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        if claim_ids is None:
            self._fail("delete", done=False)
        refused = await super().delete(queue, ids, claim_ids=claim_ids)
        if claim_ids is None:
            self._fail("delete", done=True)
        return refused

    def _fail(self, operation: str, *, done: bool) -> None:
        if self.fails == (operation, done):
            self.fails = None
            raise Unavailable("planted")


class Pools:
    """Two pools in memory, one of which is drained into the other."""

    def __init__(self) -> None:
        self.clock = clock = Clock()
        home, self.management = create("memory://", clock=clock, options=OPTIONS)
        self.tables = Database(InRam(), clock, OPTIONS)  # of the old one
        self.old = Failing(self.tables)
        self.new = Failing(Database(InRam(), clock, OPTIONS))
        self.stores = stores = {
            "old": self.old,
            "new": self.new,
            "newer": SqlMessageStore(Database(InRam(), clock, OPTIONS)),
        }
        kind = StoreKind("memory", {Capability.FAN_OUT})
        registry = PoolRegistry(self.management, lambda _: kind)
        placements = Placements(self.management, registry, clock)
        open_stores = OpenConnections(lambda pool: stores[pool.name])
        self.drains = Drains(self.management, registry, clock)
        self.messages = PooledMessages(home, registry, placements, open_stores, clock)
        self.registry, self.placements = registry, placements
        self.worker = DrainWorker(self.messages, self.drains, wait=0.02)

    async def begin(self) -> None:
        """Let a queue lie in one pool, which takes new ones no more, beside another that does."""
        await self.registry.put_pool(Pool("old", "memory://old", 1))
        await self.placements.decide(QUEUE, {})
        await self.registry.put_pool(Pool("old", "memory://old", 0))
        await self.registry.put_pool(Pool("new", "memory://new", 1))

    async def post(self, count: int, queue: QueueRef = QUEUE) -> list[str]:
        new = [NewMessage(b"%d" % n, 3_600_000) for n in range(count)]
        posted = await self.messages.post(queue, new, client_id=CLIENT, version=None)
        return [one.id for one in posted]

    async def claim(
        self, limit: int = 1, ttl_ms: int = 60_000, retries: RetryPolicy = NO_RETRIES
    ) -> Claimed:
        """Claim what can be claimed."""
        request = ClaimRequest(
            limit, None, DelayMode.IGNORE, ttl_ms, client_id=CLIENT, retries=retries
        )
        return await self.messages.claim(QUEUE, request)

    async def places(self, *queues: QueueRef) -> set[Place]:
        """Where queues lie."""
        return {(await self.placements.entry(one)).place for one in queues}

    async def post_keyed(self, *bodies: str, whole: str | None = None) -> list[tuple[str, bool]]:
        """Post messages whose keys are their bodies; answer ids, and which were known."""
        keyed = [
            NewMessage(body.encode(), 3_600_000, 0, identify(QUEUE, body, (body.encode(),)))
            for body in bodies
        ]
        batch_key = None if whole is None else identify(QUEUE, whole, [one.body for one in keyed])
        posted = await self.messages.post(
            QUEUE, keyed, client_id=CLIENT, batch_key=batch_key, version=None
        )
        return [(one.id, one.duplicate) for one in posted]

    async def listed(self) -> list[str]:
        page = await self.messages.list_messages(QUEUE, ListQuery(1_000, include_claimed=True))
        return [one.id for one in page.messages]

    async def consume(self) -> list[str]:
        """Claim and delete what can be claimed."""
        claimed = await self.claim(10)
        ids = [one.id for one in claimed.messages]
        if claimed.claim_id is not None:
            refused = await self.messages.delete(QUEUE, ids, claim_ids=(claimed.claim_id,))
            assert refused == ()
        return ids


@asynccontextmanager
async def draining(pools: Pools) -> AsyncIterator[None]:
    await pools.drains.begin("old")
    async with at_work(pools.worker):
        yield


async def until_over(pools: Pools) -> Drain:
    return await until(lambda: pools.drains.kind.get("", "old"), lambda drain: drain.is_over)


async def until_place(pools: Pools, wanted: Place) -> None:
    """Wait until the queue lies where it should."""
    found = partial(pools.placements.entry, QUEUE)
    await until(found, lambda entry: replace(entry.place, since=0) == wanted)


async def until_problem(pools: Pools, text: str) -> None:
    """Wait until the drain tells a problem."""
    found = partial(pools.drains.kind.get, "", "old")
    await until(found, lambda drain: text in (drain.problem or ""))

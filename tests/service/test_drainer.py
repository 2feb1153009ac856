"""The steps of a drain when a store fails before or behind each of them."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import (
    DelayMode,
    Message,
    QueueRef,
    Refusal,
    Selection,
    StoreOptions,
    Take,
)
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.service.pooling.branches import Branches
from zaqar_lite.service.pooling.catalogue import Catalogue
from zaqar_lite.service.pooling.drainer import Drainer
from zaqar_lite.service.pooling.drains import Drain, Drains
from zaqar_lite.service.pooling.pool import Pool
from zaqar_lite.service.pooling.registry import Registry
from zaqar_lite.service.pooling.stores import PooledMessages
from zaqar_lite.service.pooling.targets import Targets
from zaqar_lite.service.turns import Turns
from zaqar_lite.storage.memory import create
from zaqar_lite.storage.memory.messages import MemoryMessageStore
from zaqar_lite.storage.memory.state import State

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("p", "orders")
OPTIONS = StoreOptions()
CLIENT = "0" * 32


class Failing(MemoryMessageStore):
    """A store that fails once where it is told to, and acts for somebody else where it is told to.

    `fails` is the operation, and whether it is done before it fails. `deletes` is a message that
    somebody deletes by `pooled` before it is taken in.
    """

    fails: tuple[str, bool] | None = None
    deletes: str | None = None
    pooled: PooledMessages

    async def adopt(
        self, queue: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        deleted, self.deletes = self.deletes, None
        if deleted is not None:
            assert await self.pooled.delete(queue, (deleted,), claim_ids=()) == ()
        self._fail("adopt", done=False)
        await super().adopt(queue, messages, source=source, number=number)
        self._fail("adopt", done=True)

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
        clock = Clock()
        home, self.management = create("memory://", clock=clock, options=OPTIONS)
        self.old = Failing(State(), clock, OPTIONS)
        self.new = Failing(State(), clock, OPTIONS)
        stores = {"old": self.old, "new": self.new}
        registry = Registry(self.management, lambda _: "memory")
        catalogue = Catalogue(self.management, registry, clock)
        branches = Branches(lambda pool: stores[pool.name])
        self.messages = PooledMessages(home, registry, catalogue, branches)
        self.old.pooled = self.new.pooled = self.messages
        self.registry, self.catalogue = registry, catalogue
        self.drains = Drains(self.management, registry, clock)
        targets = Targets(self.messages, self.management, registry, catalogue)
        self.drainer = Drainer(
            self.messages,
            self.management,
            catalogue,
            targets,
            clock=clock,
            turns=Turns(),
            wait=0.02,
        )

    async def begin(self) -> None:
        """Let a queue lie in one pool, which takes new ones no more, beside another that does."""
        await self.registry.put_pool(Pool("old", "memory://old", 1))
        await self.catalogue.decide(QUEUE, {})
        await self.registry.put_pool(Pool("old", "memory://old", 0))
        await self.registry.put_pool(Pool("new", "memory://new", 1))

    async def post(self, count: int) -> list[str]:
        new = [NewMessage(b"%d" % n, 3_600_000) for n in range(count)]
        posted = await self.messages.post(QUEUE, new, client_id=CLIENT, version=None)
        return [one.id for one in posted]

    async def listed(self) -> list[str]:
        page = await self.messages.list_messages(QUEUE, Selection(1_000, include_claimed=True))
        return [one.id for one in page.messages]

    async def consume(self) -> list[str]:
        """Claim and delete what can be claimed."""
        take = Take(10, None, DelayMode.IGNORE, 60_000, client_id=CLIENT)
        claimed = await self.messages.claim(QUEUE, take)
        ids = [one.id for one in claimed.messages]
        if claimed.claim_id is not None:
            refused = await self.messages.delete(QUEUE, ids, claim_ids=(claimed.claim_id,))
            assert refused == ()
        return ids


@asynccontextmanager
async def draining(pools: Pools) -> AsyncIterator[None]:
    await pools.drains.begin("old")
    pools.drainer.start()
    try:
        yield
    finally:
        await pools.drainer.stop()


async def until_over(pools: Pools) -> Drain:
    async with asyncio.timeout(30):
        while True:
            drain = await pools.drains.get("old")
            if drain.is_over:
                return drain
            await asyncio.sleep(0.01)


@pytest.fixture
async def pools() -> Pools:
    made = Pools()
    await made.begin()
    return made


@pytest.mark.parametrize("done", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize(
    ("store", "operation"), [("new", "adopt"), ("old", "get_messages"), ("old", "delete")]
)
async def test_each_message_arrives_once_whatever_step_fails(
    pools: Pools, store: str, operation: str, *, done: bool
) -> None:
    posted = await pools.post(150)
    getattr(pools, store).fails = operation, done
    consumed: list[str] = []
    async with draining(pools):
        async with asyncio.timeout(30):
            while not (await pools.drains.get("old")).is_over:
                consumed += await pools.consume()
                await asyncio.sleep(0.005)
        while found := await pools.consume():
            consumed += found
    assert sorted(consumed) == sorted(posted)
    assert await pools.listed() == []
    assert (await pools.old.stats(QUEUE)).total == 0
    assert 100 <= (await pools.drains.get("old")).moved <= 150


@pytest.mark.parametrize("fails", [None, ("delete", False), ("delete", True)])
async def test_what_is_deleted_on_the_way_stays_deleted(
    pools: Pools, fails: tuple[str, bool] | None
) -> None:
    posted = await pools.post(3)
    pools.new.deletes, pools.new.fails = posted[1], fails
    async with draining(pools):
        drain = await until_over(pools)
    assert drain.moved == 2
    assert await pools.listed() == [posted[0], posted[2]]


async def test_a_queue_made_while_the_pool_is_drained_lies_elsewhere(pools: Pools) -> None:
    await pools.post(1)
    async with draining(pools):
        await until_over(pools)
        place = await pools.catalogue.decide(QueueRef("p", "late"), {})
    assert place.pool == "new"
    assert (await pools.catalogue.entry(QUEUE)).place.pool == "new"
    assert await pools.catalogue.holds("old") is None

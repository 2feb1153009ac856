"""The steps of a drain when a store fails before or behind each of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import KeyReused, NotFound, Unavailable
from zaqar_lite.domain.models import (
    Capability,
    DeadLetter,
    DelayMode,
    Message,
    Move,
    QueueRef,
    Refusal,
    Retries,
    Selection,
    Stats,
    StoreOptions,
    Take,
)
from zaqar_lite.domain.posts import NewMessage, identify
from zaqar_lite.domain.settlements import Act, Outcome, Settlement
from zaqar_lite.domain.turns import Turns
from zaqar_lite.service.pooling.drain_worker import Drainer, Targets
from zaqar_lite.service.pooling.drains import (
    ARRIVES_MS,
    DRAIN,
    KEPT_MS,
    Drain,
    Drains,
    decode,
    encode,
)
from zaqar_lite.service.pooling.open_connections import OpenConnections
from zaqar_lite.service.pooling.placement import Place, Placements
from zaqar_lite.service.pooling.pooled_store import PooledMessages
from zaqar_lite.service.pooling.pools import Pool, PoolRegistry, StoreKind
from zaqar_lite.service.pooling.store_resolver import StoreResolver
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
        self.clock = clock = Clock()
        home, self.management = create("memory://", clock=clock, options=OPTIONS)
        self.old = Failing(State(), clock, OPTIONS)
        self.new = Failing(State(), clock, OPTIONS)
        stores = {
            "old": self.old,
            "new": self.new,
            "newer": MemoryMessageStore(State(), clock, OPTIONS),
        }
        kind = StoreKind("memory", {Capability.FAN_OUT})
        registry = PoolRegistry(self.management, lambda _: kind, clock)
        catalogue = Placements(self.management, registry, clock)
        open_stores = OpenConnections(lambda pool: stores[pool.name])
        self.drains = Drains(self.management, registry, clock)
        places = StoreResolver(home, registry, catalogue, open_stores, self.drains, clock=clock)
        self.messages = PooledMessages(places, hold=0.02)
        self.old.pooled = self.new.pooled = self.messages
        self.registry, self.catalogue = registry, catalogue
        self.targets = Targets(self.messages, self.management, registry, catalogue)
        self.drainer = Drainer(
            self.messages,
            self.management,
            catalogue,
            self.targets,
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
            (record,) = await pools.management.list_records(DRAIN, "", limit=2)
            drain = decode(record.value)
            if drain.is_over:
                return drain
            await asyncio.sleep(0.01)


async def until_place(pools: Pools, is_there: Callable[[Place], bool]) -> None:
    """Wait until the queue lies where it should."""
    async with asyncio.timeout(30):
        while not is_there((await pools.catalogue.entry(QUEUE)).place):  # noqa: ASYNC110 - as a client
            await asyncio.sleep(0.005)


async def rounds(pools: Pools) -> None:
    """Let a few rounds of the drain go by."""
    version = 0
    async with asyncio.timeout(30):
        for _ in range(20):
            while (  # noqa: ASYNC110 - as a client
                record := await pools.management.get_record(DRAIN, "", "old")
            ) is None or (record.version == version):
                await asyncio.sleep(0)
            version = record.version


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


async def test_a_store_that_was_away_for_a_while_delays_a_drain_by_no_more(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain rests for five times as long as a round, but not as long as it waited in vain."""
    away, begun = 2.0, time.monotonic()
    stats = pools.old.stats

    async def away_at_first(queue: QueueRef) -> Stats:
        if time.monotonic() - begun < away:
            await asyncio.sleep(away)
            raise Unavailable("planted")
        return await stats(queue)

    monkeypatch.setattr(pools.old, "stats", away_at_first)
    async with draining(pools):
        async with asyncio.timeout(5 * away):
            drain = await until_over(pools)
    assert drain.problem is None


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


@pytest.mark.parametrize("fails", [None, ("adopt", False)])
async def test_a_message_moves_with_its_attempts(
    pools: Pools, fails: tuple[str, bool] | None
) -> None:
    (posted,) = await pools.post(1)
    take = Take(10, None, DelayMode.IGNORE, 60_000, client_id=CLIENT)
    claim_id = (await pools.messages.claim(QUEUE, take)).claim_id or ""
    failure = [Settlement(posted, Act.RELEASE, failed=True, reason="no answer")]
    await pools.messages.settle(QUEUE, claim_id, failure, retries=Retries())
    pools.new.fails = fails
    async with draining(pools):
        await until_over(pools)
    (moved,) = await pools.messages.get_messages(QUEUE, [posted], details=True)
    assert [attempt.reason for attempt in moved.attempts] == ["no answer"]


async def test_a_queue_made_while_the_pool_is_drained_lies_elsewhere(pools: Pools) -> None:
    await pools.post(1)
    async with draining(pools):
        await until_over(pools)
        place = await pools.catalogue.decide(QueueRef("p", "late"), {})
    assert place.pool == "new"
    assert (await pools.catalogue.entry(QUEUE)).place.pool == "new"
    assert await pools.catalogue.holds("old") is None


async def test_keyed_posts_are_known_across_the_move(pools: Pools) -> None:
    ((first, _),) = await pools.post_keyed("1")
    whole = await pools.post_keyed("2", "3", whole="all")
    async with draining(pools):
        await until_place(pools, lambda place: place.draining is not None)
        assert await pools.post_keyed("1") == [(first, True)]
        await until_place(pools, lambda place: place.draining is None)
        known, (new, is_known) = await pools.post_keyed("1", "4")
        assert (known, is_known) == ((first, True), False)
        assert await pools.post_keyed("4", "1") == [(new, True), (first, True)]
        again = await pools.post_keyed("2", "3", whole="all")
        assert again == [(message_id, True) for message_id, _ in whole]
        other = NewMessage(b"5", 60_000, 0, identify(QUEUE, "1", (b"5",)))
        with pytest.raises(KeyReused) as raised:
            await pools.messages.post(QUEUE, (other,), client_id=CLIENT, version=None)
        assert raised.value.index == 0
        assert set(await pools.listed()) == {first, new, *(one for one, _ in whole)}
        drain = await pools.drains.get("old")
        assert (drain.is_over, drain.queues) == (False, 1)
        assert await pools.catalogue.holds("old") == QUEUE
        pools.clock.advance(OPTIONS.idempotency_window_ms)
        await until_over(pools)
    assert (await pools.post_keyed("1"))[0] != (first, True)
    assert await pools.catalogue.holds("old") is None


async def test_a_keyed_post_waits_until_all_processes_know_of_the_move(pools: Pools) -> None:
    """One that does not know may still post the same key into the old pool."""
    pools.messages._hold = 0.3
    await pools.post_keyed("1")
    async with draining(pools):
        await until_place(pools, lambda place: place.draining is not None)
        moved_at = (await pools.catalogue.entry(QUEUE)).place.moved_at
        assert moved_at
        await pools.post_keyed("1")
        assert pools.clock.now_ms() >= moved_at + 300


async def test_a_deleted_queue_forgets_the_keys_that_it_left_behind(pools: Pools) -> None:
    ((first, _),) = await pools.post_keyed("1")
    async with draining(pools):
        await until_place(pools, lambda place: place == Place("new", keys_in="old"))
        await pools.messages.drop(QUEUE)
        ((again, is_known),) = await pools.post_keyed("1")
    assert (again != first, is_known) == (True, False)


async def test_a_part_of_a_keyed_post_is_known_by_its_own_keys(pools: Pools) -> None:
    ((first, _),) = await pools.post_keyed("1")
    half = OPTIONS.idempotency_window_ms // 2
    pools.clock.advance(half)
    async with draining(pools):
        await until_place(pools, lambda place: place == Place("new", keys_in="old"))
        known, (new, _) = await pools.post_keyed("1", "2", whole="all")
        assert known == (first, True)
        assert await pools.post_keyed("1", "2", whole="all") == [(first, True), (new, True)]
        mixed = [
            NewMessage(b"1", 3_600_000, 0, identify(QUEUE, "1", (b"1",))),
            NewMessage(b"3", 3_600_000),
        ]
        whole = identify(QUEUE, "mixed", (b"1", b"3"))
        with pytest.raises(Unavailable):
            await pools.messages.post(QUEUE, mixed, client_id=CLIENT, batch_key=whole, version=None)
        pools.clock.advance(half)
        await until_over(pools)
    again, last = await pools.post_keyed("1", "2", whole="all")
    assert (again[1], last) == (False, (new, True))


async def test_drains_of_many_pools_go_on_and_are_forgotten_after_their_end(pools: Pools) -> None:
    posted = await pools.post(1)
    for number in range(100):
        other = Drain(f"a-{number}", "0", 1, ended_at=pools.clock.now_ms(), state="completed")
        await pools.management.put_record(DRAIN, "", other.pool, encode(other), expected=0)
    async with draining(pools):
        async with asyncio.timeout(30):
            while not (await pools.drains.get("old")).is_over:  # noqa: ASYNC110 - as a client
                await asyncio.sleep(0.005)
        assert await pools.consume() == posted
        assert (await pools.drains.get("a-99")).is_over
        pools.clock.advance(KEPT_MS)
        async with asyncio.timeout(30):
            while await pools.management.list_records(DRAIN, "", limit=1):  # noqa: ASYNC110 - as a client
                await asyncio.sleep(0.005)
    with pytest.raises(NotFound):
        await pools.drains.get("old")


async def test_a_redrive_does_not_hide_how_a_drain_ended(pools: Pools) -> None:
    await pools.post(1)
    async with draining(pools):
        ended = await until_over(pools)
    for _ in range(2):
        await pools.drains.carry("old")
        assert await pools.drains.get("old") == ended
    begun = await pools.drains.begin("old")
    assert (begun.is_over, (await pools.drains.get("old")).id) == (False, begun.id)


async def test_all_queues_of_a_project_with_a_filter_go_to_one_pool(pools: Pools) -> None:
    """The weights change after the first of them has left."""
    filtered = QueueRef("p", "z-filtered")
    await pools.management.create_queue(filtered, {"_filter": "a = 1"}, max_queues=9)
    await pools.catalogue.put(filtered, "old")
    leave = [await pools.targets.may_leave(queue, "old") for queue in (QUEUE, filtered)]
    assert leave == [False, True]
    await pools.catalogue.put(filtered, "new")
    await pools.registry.put_pool(Pool("new", "memory://new", 0))
    await pools.registry.put_pool(Pool("newer", "memory://newer", 1))
    async with draining(pools):
        await until_over(pools)
    assert (await pools.catalogue.entry(QUEUE)).place == Place("new")


LETTERS = QueueRef("p", "letters")


async def test_dead_letters_of_what_is_held_in_the_old_pool_move_too(pools: Pools) -> None:
    await pools.management.create_queue(QUEUE, {"_dead_letter_queue": "letters"}, max_queues=9)
    await pools.catalogue.put(LETTERS, "old")
    posted = await pools.post(1)
    dead = Retries(DeadLetter(LETTERS, max_failures=1))
    take = Take(1, None, DelayMode.IGNORE, 60_000, client_id=CLIENT, retries=dead)
    claimed = await pools.messages.claim(QUEUE, take)
    assert claimed.claim_id is not None
    async with draining(pools):
        await rounds(pools)
        settled = await pools.messages.settle(
            QUEUE, claimed.claim_id, [Settlement(posted[0], Act.DEAD)], retries=dead
        )
        assert settled.moved == 1
        await until_over(pools)
    assert (await pools.old.stats(LETTERS)).total == 0
    assert [one.id for one in await pools.new.get_messages(LETTERS, posted)] == posted


async def test_a_redrive_that_goes_by_an_older_place_strands_nothing(pools: Pools) -> None:
    for queue in (LETTERS, QUEUE):
        version = (await pools.catalogue.entry(queue)).version
        await pools.catalogue.change(queue, Place("new", draining="old"), version)
    for name in ("old", "new"):
        await pools.messages.pool(name)
    (letter,) = await pools.old.post(
        LETTERS, (NewMessage(b"1", 60_000),), client_id=CLIENT, version=None
    )
    await Placements(pools.management, pools.registry, pools.clock).put(QUEUE, "new")
    outcomes = await pools.messages.move(LETTERS, [letter.id], Move(QUEUE, 3_600_000))
    assert outcomes == [Outcome.DONE]
    async with draining(pools):
        await rounds(pools)
        pools.clock.advance(ARRIVES_MS)
        await until_over(pools)
    assert await pools.consume() == [letter.id]


@pytest.mark.parametrize("target", [Place("newer"), Place("new", draining="newer")])
async def test_a_redrive_waits_for_letters_that_cannot_go_on_to_its_target(
    pools: Pools, target: Place
) -> None:
    """They were told to be no more while they were in a third pool."""
    await pools.registry.put_pool(Pool("newer", "memory://newer", 1))
    await pools.catalogue.put(LETTERS, "old")
    await pools.catalogue.put(QUEUE, "newer")
    (letter,) = await pools.messages.post(
        LETTERS, (NewMessage(b"1", 3_600_000),), client_id=CLIENT, version=None
    )
    for queue, place in ((LETTERS, Place("new", draining="old")), (QUEUE, target)):
        version = (await pools.catalogue.entry(queue)).version
        await pools.catalogue.change(queue, place, version)
    with pytest.raises(Unavailable, match="redriven once they are there"):
        await pools.messages.move(LETTERS, [letter.id], Move(QUEUE, 3_600_000))
    assert len(await pools.old.get_messages(LETTERS, [letter.id])) == 1


async def test_a_queue_that_left_keys_behind_takes_what_is_redriven(pools: Pools) -> None:
    ((first, _),) = await pools.post_keyed("1")
    async with draining(pools):
        await until_place(pools, lambda place: place == Place("new", keys_in="old"))
        (one,) = await pools.messages.post(
            LETTERS, (NewMessage(b"2", 3_600_000),), client_id=CLIENT, version=None
        )
        outcomes = await pools.messages.move(LETTERS, [one.id], Move(QUEUE, 3_600_000))
        assert outcomes == [Outcome.DONE]
        async with asyncio.timeout(30):
            while (await pools.new.stats(QUEUE)).total < 2:  # noqa: ASYNC110 - as a client
                await asyncio.sleep(0.005)
        pools.clock.advance(ARRIVES_MS)
        await until_place(pools, lambda place: place == Place("new", keys_in="old"))
        assert await pools.post_keyed("1") == [(first, True)]
        pools.clock.advance(OPTIONS.idempotency_window_ms)
        await until_place(pools, lambda place: place == Place("new"))


@asynccontextmanager
async def redriven(pools: Pools, ids: Sequence[str]) -> AsyncIterator[None]:
    """Move letters of one pool to a queue of another, and let them arrive."""
    pools.drainer.start()
    try:
        outcomes = await pools.messages.move(LETTERS, ids, Move(QUEUE, 3_600_000))
        assert outcomes == [Outcome.DONE] * len(ids)
        yield
        pools.clock.advance(ARRIVES_MS)
        await until_place(pools, lambda place: place == Place("new"))
        await until_over(pools)
    finally:
        await pools.drainer.stop()


@pytest.mark.parametrize("done", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize(
    ("store", "operation"),
    [("new", "adopt"), ("old", "get_messages"), ("old", "delete"), ("old", "none")],
)
async def test_letters_arrive_once_in_another_pool(
    pools: Pools, store: str, operation: str, *, done: bool
) -> None:
    await pools.catalogue.put(QUEUE, "new")
    await pools.catalogue.put(LETTERS, "old")
    for name in ("old", "new"):
        await pools.messages.pool(name)
    new = [NewMessage(b"%d" % n, 60_000) for n in range(150)]
    posted = await pools.old.post(LETTERS, new, client_id=CLIENT, version=None)
    ids = [one.id for one in posted]
    getattr(pools, store).fails = operation, done
    consumed: list[str] = []
    async with redriven(pools, ids[:120]):
        assert await pools.messages.move(LETTERS, ids, Move(QUEUE, 3_600_000)) == [
            *[Outcome.NOT_FOUND] * 120,
            *[Outcome.DONE] * 30,
        ]
        async with asyncio.timeout(30):
            while len(consumed) < len(ids):
                consumed += await pools.consume()
                await asyncio.sleep(0.005)
    assert sorted(consumed) == sorted(ids)
    assert await pools.consume() == []
    assert (await pools.old.stats(QUEUE)).total == (await pools.old.stats(LETTERS)).total == 0
    with pytest.raises(NotFound):
        await pools.drains.get("old")


async def test_a_queue_of_the_servers_own_store_redrives_into_a_pool(pools: Pools) -> None:
    await pools.catalogue.put(QUEUE, "new")
    (one,) = await pools.messages.post(
        LETTERS, (NewMessage(b"1", 60_000),), client_id=CLIENT, version=None
    )
    async with redriven(pools, [one.id]):
        pass
    assert (await pools.new.stats(QUEUE)).ready == 1
    (found,) = await pools.messages.get_messages(QUEUE, (one.id,))
    assert found.origin is not None
    assert (found.origin.source, found.origin.redriven) == (LETTERS.name, 1)

"""The catalogue of pools forgets where deleted queues lay."""

from contextlib import suppress
from functools import partial
from typing import cast

import pytest

from tests.failing import failing
from tests.service.test_subscriptions import Interrupted
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    ConfigurationError,
    Forbidden,
    LimitReached,
    NotFound,
    RecordChanged,
    Unavailable,
)
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import Capability, QueueRecord, QueueRef, StoreOptions
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.pooling import placement as module
from zaqar_lite.service.pooling.placement import LEFT_MS, MOVED_MS, PLACE, Place, Placements
from zaqar_lite.service.pooling.pools import Pool, PoolRegistry, StoreKind
from zaqar_lite.service.queues import Queues
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.sql import create

pytestmark = pytest.mark.anyio


def catalogue(clock: Clock) -> tuple[ManagementStore, Placements]:
    """A store of records in memory, and where it says that queues lie."""
    _, management = create("memory://", clock=clock, options=StoreOptions())
    registry = PoolRegistry(management, lambda _: StoreKind("memory"))
    return management, Placements(management, registry, clock)


def of_one_queue(clock: Clock) -> tuple[ManagementStore, PoolRegistry, Placements, Queues]:
    """What the service has of queues, where a project may have one."""
    limits = Limits(max_queues_per_project=1)
    messages, management = create("memory://", clock=clock, options=StoreOptions())
    registry = PoolRegistry(management, lambda _: StoreKind("memory"))
    placements = Placements(management, registry, clock)
    policies = Policies(management, limits, checked=False)
    queues = Queues(management, messages, policies, limits, placements=placements)
    return management, registry, placements, queues


async def test_queues_that_come_and_go_keep_no_other_from_being_forgotten() -> None:
    clock = Clock()
    management, placements = catalogue(clock)

    async def made_and_deleted(name: str) -> None:
        await placements.write(QueueRef("p", name), Place("pool"))
        await placements.leave(QueueRef("p", name))

    await made_and_deleted("z-the-last-by-name")
    for number in range(250):
        await placements.write(QueueRef("p", f"a-{number:03}"), Place("pool"))
    for _ in range(3):
        clock.advance(LEFT_MS)
        await placements.tidy()
    kept = await management.list_records(PLACE, "p", limit=1_000)
    assert [one.name for one in kept] == [f"a-{number:03}" for number in range(250)]


async def test_a_masked_option_that_is_sent_back_stays_what_it_is() -> None:
    _, registry, _, _ = of_one_queue(Clock())
    pool = Pool("one", "memory://one", 1, options={"password": "hush", "page": 3})
    await registry.put_pool(pool)
    change = {**pool.shown_options, "page": 4, "api_key": "***"}
    changed, _ = await registry.change_pool("one", {"options": change})
    assert changed.options == {"password": "hush", "page": 4, "api_key": "***"}


async def test_many_entries_go_soon_after_their_queues() -> None:
    clock = Clock()
    management, placements = catalogue(clock)
    for number in range(350):
        await placements.write(QueueRef("p", f"{number:03}"), Place("pool", left=clock.now_ms()))
    clock.advance(LEFT_MS)
    for _ in range(4):
        await placements.tidy()
    assert await management.list_records(PLACE, limit=1) == []


@pytest.mark.parametrize("is_made", [False, True])
async def test_an_entry_is_kept_for_a_while_after_its_queue(is_made: bool) -> None:
    """And as long as the queue's record is there, which was never deleted."""
    clock, queue = Clock(), QueueRef("p", "q")
    management, placements = catalogue(clock)
    if is_made:
        await management.create_queue(queue, {}, max_queues=1)
    await placements.write(queue, Place("pool"))
    await placements.leave(queue)
    await placements.tidy()
    assert (await placements.entry(queue)).place.pool == "pool"
    assert await placements.holds("pool") == (queue if is_made else None)
    clock.advance(LEFT_MS + 1)
    await placements.tidy()
    assert (await placements.entry(queue)).place == (Place("pool") if is_made else Place())


async def test_queues_that_are_too_many_leave_no_entries() -> None:
    clock = Clock()
    management, _, placements, queues = of_one_queue(clock)
    await queues.create(QueueRef("p", "one"), {})
    with pytest.raises(LimitReached):
        await queues.create(QueueRef("p", "two"), {})
    clock.advance(LEFT_MS)
    await placements.tidy()
    assert [one.name for one in await management.list_records(PLACE, limit=9)] == ["one"]


async def test_a_queue_that_could_not_be_made_leaves_its_pool_when_it_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    management, registry, placements, queues = of_one_queue(clock)
    await registry.put_pool(Pool("a", "memory://a", 1))
    queue, never = QueueRef("p", "q"), QueueRef("p", "never")
    with monkeypatch.context() as away:
        away.setattr(management, "create_queue", failing(Unavailable("The store is away.")))
        with pytest.raises(Unavailable):
            await queues.create(queue, {})
    assert await placements.holds("a") == queue
    await queues.delete(queue)
    await queues.delete(never)
    assert await placements.holds("a") is None
    assert (await placements.entry(never)).version == 0


async def test_a_dead_letter_queue_that_is_one_too_many_keeps_its_place() -> None:
    clock = Clock()
    _, registry, placements, queues = of_one_queue(clock)
    await registry.put_pool(Pool("a", "memory://a", 1))
    letters = QueueRef("p", "letters")
    await queues.create(QueueRef("p", "one"), {"_dead_letter_queue": letters.name})
    await queues.ensure_dead_letter_queue(letters)
    clock.advance(LEFT_MS)
    await placements.tidy()
    assert (await placements.entry(letters)).place == Place("a")


async def test_a_place_for_letters_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    management, _, _, queues = of_one_queue(Clock())
    looks, letters = list[QueueRef](), QueueRef("p", "letters")

    async def get_queue(queue: QueueRef) -> QueueRecord:
        looks.append(queue)
        return QueueRecord(queue, {}, 1)

    monkeypatch.setattr(management, "get_queue", get_queue)
    for queue in (letters, letters, None):
        await queues.ensure_dead_letter_queue(queue)
    assert looks == [letters]


async def test_a_pool_that_can_not_be_made_can_do_nothing_and_hinders_nothing() -> None:
    _, management = create("memory://", clock=Clock(), options=StoreOptions())
    broken: set[str] = set()

    def check(pool: Pool | None) -> StoreKind:
        assert pool is not None
        if pool.uri in broken:
            raise ConfigurationError("its library is not installed")
        return StoreKind("memory", {Capability.FAN_OUT})

    registry = PoolRegistry(management, check)
    for name in ("lacks", "has"):
        await registry.put_pool(Pool(name, f"memory://{name}", 1, "fast"))
    broken.add("memory://lacks")
    assert await registry.missing("lacks", {"_priority": "1"}) == "_priority"
    assert await registry.missing("has", {"_priority": "1"}) is None
    await registry.put_pool(Pool("beside", "memory://beside", 1, "fast"))
    await registry.change_pool("lacks", {"uri": "memory://again"})
    assert await registry.missing("lacks", {"_priority": "1"}) is None


async def test_a_change_of_a_pool_keeps_what_others_change_meanwhile() -> None:
    _, management = create("memory://", clock=Clock(), options=StoreOptions())
    store = Interrupted(management)
    others, registry = (
        PoolRegistry(cast(ManagementStore, one), lambda _: StoreKind("memory"))
        for one in (management, store)
    )
    await others.put_pool(Pool("a", "memory://a", 1))
    store.at, store.meanwhile = 2, lambda: others.put_flavor("p", "gold", ["a"])
    pool, _ = await registry.change_pool("a", {"weight": 0})
    assert (pool.weight, pool.flavor) == (0, "gold")
    store.calls, store.meanwhile = 0, lambda: others.kind.delete("", "a")
    with pytest.raises(NotFound):
        await registry.change_pool("a", {"weight": 1})


@pytest.mark.parametrize("is_deleted", [False, True], ids=["never", "deleted"])
async def test_what_others_make_is_found_in_its_pool_at_once(is_deleted: bool) -> None:
    """Also by a process that has just looked for a queue that was not there."""
    clock, queue = Clock(), QueueRef("p", "q")
    management, placements = catalogue(clock)
    other = Placements(management, placements._registry, clock)
    await placements._registry.put_pool(Pool("a", "memory://a", 1))
    if is_deleted:
        await placements.decide(queue, {})
        await placements.leave(queue)
        clock.advance(LEFT_MS)
    assert (await other.place(queue)).pool == ("a" if is_deleted else None)
    await placements.tidy()
    await placements._registry.put_pool(Pool("a", "memory://a", 0))
    await placements._registry.put_pool(Pool("b", "memory://b", 1))
    await placements.decide(queue, {})
    assert (await other.place(queue)).pool == "b"


@pytest.mark.parametrize("pool", [None, "a"])
async def test_a_queue_is_made_again_elsewhere_when_nobody_goes_by_its_old_place(
    pool: str | None,
) -> None:
    clock, queue = Clock(), QueueRef("p", "q")
    _, placements = catalogue(clock)
    if pool is not None:
        await placements.write(queue, Place(pool))
    await placements._registry.put_pool(Pool("b", "memory://b", 1))
    await placements.leave(queue, is_made=True)
    for act in (placements.decide(queue, {}), placements.join(queue, Place("b"))):
        with pytest.raises(Unavailable, match="a moment ago") as raised:
            await act
        assert raised.value.retry_after
    clock.advance(MOVED_MS)
    assert (await placements.decide(queue, {})).pool == "b"


@pytest.mark.parametrize("at", range(1, 12))
async def test_a_queue_lies_beside_its_dead_letters_though_others_make_them_meanwhile(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, queue, letters = Clock(), QueueRef("p", "q"), QueueRef("p", "letters")
    management, others = catalogue(clock)
    store = Interrupted(management)
    placements = Placements(cast(ManagementStore, store), others._registry, clock)
    for name in ("a", "b"):
        await others._registry.put_pool(Pool(name, f"memory://{name}", 1))
    monkeypatch.setattr(module, "pick", lambda _: "a")
    store.at, store.meanwhile = at, partial(others.write, letters, Place("b"), 0)
    with suppress(RecordChanged):  # who is slower leaves them where they are
        await placements.decide(queue, {"_dead_letter_queue": "letters"})
    places = [(await others.entry(one)).place.pool for one in (queue, letters)]
    assert places in (["a", "a"], ["b", "b"])


@pytest.mark.parametrize("at", range(1, 14))
async def test_no_queue_stays_in_a_pool_that_is_deleted_meanwhile(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, queue, letters = Clock(), QueueRef("p", "q"), QueueRef("p", "letters")
    management, others = catalogue(clock)
    store = Interrupted(management)
    registry = PoolRegistry(cast(ManagementStore, store), lambda _: StoreKind("memory"))
    placements = Placements(cast(ManagementStore, store), registry, clock)
    for name in ("a", "b"):
        await others._registry.put_pool(Pool(name, f"memory://{name}", 1))

    async def meanwhile() -> None:
        with suppress(Forbidden):
            await others._registry.delete_pool("a", others.holds)

    monkeypatch.setattr(module, "pick", lambda fitting: fitting[0].name)
    store.at, store.meanwhile = at, meanwhile
    metadata = {"_dead_letter_queue": "letters"}
    with suppress(Unavailable):  # who may still go by the pool that was deleted
        await placements.decide(queue, metadata)
    clock.advance(MOVED_MS)
    place = await placements.decide(queue, metadata)
    assert place.pool in await others._registry.pools()
    assert (await others.entry(letters)).place.pool == place.pool

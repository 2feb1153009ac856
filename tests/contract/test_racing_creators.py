"""Creators that race on two servers: what a project may have is never exceeded, on any store."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest

from tests.contract.serving import Server, race
from tests.contract.stores import Stores
from tests.contract.subject import QueueUnderTest
from zaqar_lite.domain.errors import Invalid, LimitReached
from zaqar_lite.domain.identity import How, Principal
from zaqar_lite.domain.models import Record
from zaqar_lite.domain.quotas import UNLIMITED
from zaqar_lite.domain.topics import KIND as TOPIC
from zaqar_lite.domain.topics import topic_ref
from zaqar_lite.service import topics as topics_module
from zaqar_lite.service.identity import keys as keys_module
from zaqar_lite.service.identity.keys import Keys
from zaqar_lite.service.pooling import pools as registry_module
from zaqar_lite.service.pooling.pools import FLAVOR, POOL, Pool, PoolRegistry, StoreKind
from zaqar_lite.service.quotas import quotas as quotas_module
from zaqar_lite.service.quotas.quotas import Quotas
from zaqar_lite.service.schedules import schedules as schedules_module
from zaqar_lite.service.schedules.schedules import KIND as SCHEDULE
from zaqar_lite.service.schedules.schedules import Plan, Schedules

pytestmark = pytest.mark.anyio
MOST = 3
FLAVORED = "flavored"
OPERATOR = Principal(How.KEY, None)
Make = Callable[[str], Awaitable[object]]
"""Make a thing of a name."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow few of each kind, of which there may be as many as the documents say."""
    for module, name, most in (
        (topics_module, "MAX_TOPICS", 1_000),
        (schedules_module, "MAX_SCHEDULES", 10_000),
        (keys_module, "MAX_KEYS", 1_000),
        (registry_module, "MAX_POOLS", 100),
        (registry_module, "MAX_FLAVORS", 1_000),
        (quotas_module, "MAX_PROJECTS", 10_000),
    ):
        assert getattr(module, name) == most
        monkeypatch.setattr(module, name, MOST)


def makers(stores: Stores, project: str) -> dict[str, Make]:
    """What each kind of thing is made by; a pool and a quota are the server's, not a project's."""
    server = Server(stores)
    management, clock = server.management, server.clock
    schedules, keys = Schedules(management, server.messages, clock), Keys(management, clock)
    pools = PoolRegistry(management, lambda _: StoreKind("memory"))
    quotas = Quotas(management, UNLIMITED, shared=True)
    plan = Plan("q", msgspec.Raw(b"1"), every=3_600)
    return {
        TOPIC: lambda name: server.topics.create(topic_ref(project, name), {}),
        SCHEDULE: lambda name: schedules.put(project, name, plan),
        keys_module.LISTED: lambda _: keys.create(OPERATOR, project, ["*:*"]),
        FLAVOR: lambda name: pools.put_flavor(project, name, [FLAVORED]),
        POOL: lambda name: pools.put_pool(Pool(name, f"memory://{name}", 1)),
        quotas_module.KIND: lambda name: quotas.set(name, {"queues": 1}),
    }


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        (TOPIC, LimitReached),
        (SCHEDULE, LimitReached),
        (keys_module.LISTED, Invalid),
        (FLAVOR, Invalid),
        (POOL, Invalid),
        (quotas_module.KIND, Invalid),
    ],
)
async def test_racing_creators_fill_a_bound_exactly(
    stores: Stores, queue: QueueUnderTest, kind: str, refusal: type[Exception]
) -> None:
    project = queue.ref.project

    async def made_so_far() -> list[Record]:
        of = None if kind in {POOL, quotas_module.KIND} else project
        return list(await stores.management.list_records(kind, of, limit=10))

    async def forget(records: Sequence[Record]) -> None:
        for one in records:
            await stores.management.delete_record(one.kind, one.project, one.name)

    await forget(await made_so_far())  # by other tests with this store
    if kind == FLAVOR:
        pool = msgspec.json.encode(Pool(FLAVORED, "memory://flavored", 1))
        await stores.management.put_record(POOL, "", FLAVORED, pool, expected=None)
    makes = [makers(one, project)[kind] for one in await stores.peers(2)]
    made = await race(makes, [f"{queue.ref.name}-{n}" for n in range(2 * MOST)], refusal)
    assert len(made) == MOST
    assert len(await made_so_far()) == MOST
    await forget((await made_so_far())[1:])
    # Those that fit are not refused, and who races for the last room with itself is let in.
    again = ["x", "y"] if kind == keys_module.LISTED else ["x", *["y"] * 4]
    assert len(await race(makes, again)) == len(again)
    assert len(await made_so_far()) == MOST
    await forget(await made_so_far())
    await stores.management.delete_record(POOL, "", FLAVORED)


async def test_a_pool_beyond_the_bound_is_still_served(
    stores: Stores, queue: QueueUnderTest
) -> None:
    """It may be there since an older version, or since a deletion that found a queue in it."""
    names = [f"{queue.ref.name}-{n}" for n in range(MOST + 2)]
    for name in names:
        pool = Pool(name, f"memory://{name}", 1)
        await stores.management.put_record(POOL, "", name, msgspec.json.encode(pool), expected=None)
    pools = PoolRegistry(stores.management, lambda _: StoreKind("memory"))
    assert {*names} <= {*await pools.pools()}
    for name in names:
        await stores.management.delete_record(POOL, "", name)

"""Creators that race on two servers: what a project may have is never exceeded, on any store."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import cycle

import msgspec
import pytest

from tests.contract.stores import Stores
from tests.contract.subject import QueueUnderTest
from zaqar_lite.domain import metadata
from zaqar_lite.domain.errors import Conflict, Invalid, LimitReached
from zaqar_lite.domain.identity import How, Principal
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.metadata import ORDERED
from zaqar_lite.domain.models import Record
from zaqar_lite.domain.quotas import UNLIMITED
from zaqar_lite.domain.subscriptions import SubscriptionDraft
from zaqar_lite.domain.topics import KIND as TOPIC
from zaqar_lite.domain.topics import topic_ref
from zaqar_lite.domain.yielding import Turns
from zaqar_lite.service import topics as topics_module
from zaqar_lite.service.delivery.outbox import Outbox
from zaqar_lite.service.identity import keys as keys_module
from zaqar_lite.service.identity.keys import Keys
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.pooling import pools as registry_module
from zaqar_lite.service.pooling.pools import FLAVOR, POOL, Pool, PoolRegistry, StoreKind
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.quotas import quotas as quotas_module
from zaqar_lite.service.quotas.quotas import Quotas
from zaqar_lite.service.routing import Router
from zaqar_lite.service.schedules import schedules as schedules_module
from zaqar_lite.service.schedules.schedules import KIND as SCHEDULE
from zaqar_lite.service.schedules.schedules import Plan, Schedules
from zaqar_lite.service.subscriptions import subscriptions as subscriptions_module
from zaqar_lite.service.subscriptions.subscriber_cache import SubscriberCache
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.service.topics import Topics

pytestmark = pytest.mark.anyio
LIMITS = Limits()
MOST = 3
FLAVORED = "flavored"
OPERATOR = Principal(How.KEY, None)
Make = Callable[[str], Awaitable[object]]
"""Make a thing of a name."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow few of each kind."""
    monkeypatch.setattr(topics_module, "MAX_TOPICS", MOST)
    monkeypatch.setattr(schedules_module, "MAX_SCHEDULES", MOST)
    monkeypatch.setattr(keys_module, "MAX_KEYS", MOST)
    for name in ("MAX_POOLS", "MAX_FLAVORS"):
        monkeypatch.setattr(registry_module, name, MOST)
    monkeypatch.setattr(quotas_module, "MAX_PROJECTS", MOST)
    for module in (metadata, subscriptions_module):
        monkeypatch.setattr(module, "MAX_ORDERED", MOST)


@dataclass
class Server:
    """The services of one server."""

    topics: Topics
    schedules: Schedules
    keys: Keys
    subscriptions: Subscriptions
    pools: PoolRegistry
    quotas: Quotas


def serve(stores: Stores) -> Server:
    management, messages, clock = stores.management, stores.messages, stores.clock
    policies = Policies(management, LIMITS, checked=True)
    queues = Queues(management, messages, policies, LIMITS)
    return Server(
        Topics(management, messages, limits=LIMITS, clock=clock, turns=Turns()),
        Schedules(
            management,
            Messages(
                messages,
                queues,
                policies,
                Router(management, LIMITS),
                Outbox(policies, clock),
                limits=LIMITS,
                clock=clock,
            ),
            clock,
        ),
        Keys(management, clock),
        Subscriptions(
            management,
            queues,
            policies,
            SubscriberCache(management),
            confirmations=None,
            limits=LIMITS,
            clock=clock,
            refused={},
        ),
        PoolRegistry(management, lambda _: StoreKind("memory")),
        Quotas(management, UNLIMITED, shared=True),
    )


def makers(server: Server, project: str) -> dict[str, Make]:
    """What each kind of thing is made by; a pool and a quota are the server's, not a project's."""
    plan = Plan("q", msgspec.Raw(b"1"), every=3_600)
    return {
        TOPIC: lambda name: server.topics.create(topic_ref(project, name), {}),
        SCHEDULE: lambda name: server.schedules.put(project, name, plan),
        keys_module.LISTED: lambda _: server.keys.create(OPERATOR, project, ["*:*"]),
        FLAVOR: lambda name: server.pools.put_flavor(project, name, [FLAVORED]),
        POOL: lambda name: server.pools.put_pool(Pool(name, f"memory://{name}", 1)),
        quotas_module.KIND: lambda name: server.quotas.set(name, {"queues": 1}),
    }


async def race(
    makes: Sequence[Make], names: Sequence[str], refusal: type[Exception] | None
) -> list[object]:
    """Make all at once, by all servers in turn; answer what those got that were let in."""
    outcomes = await asyncio.gather(
        *(make(name) for make, name in zip(cycle(makes), names, strict=False)),
        return_exceptions=True,
    )
    refused = [one for one in outcomes if isinstance(one, BaseException)]
    assert [one for one in refused if type(one) is not refusal] == []
    return [one for one in outcomes if not isinstance(one, BaseException)]


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
    makes = [makers(serve(one), project)[kind] for one in await stores.peers(2)]
    made = await race(makes, [f"{queue.ref.name}-{n}" for n in range(2 * MOST)], refusal)
    assert len(made) == MOST
    assert len(await made_so_far()) == MOST
    await forget((await made_so_far())[1:])
    # Those that fit are not refused, and who races for the last room with itself is let in.
    again = ["x", "y"] if kind == keys_module.LISTED else ["x", *["y"] * 4]
    assert len(await race(makes, again, None)) == len(again)
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
    assert {*names} <= {*await serve(stores).pools.pools()}
    for name in names:
        await stores.management.delete_record(POOL, "", name)


async def test_racing_subscribers_become_as_many_ordered_as_there_may_be(
    stores: Stores, queue: QueueUnderTest
) -> None:
    servers = [serve(one) for one in await stores.peers(2)]

    def subscriber(server: Server) -> Make:
        async def subscribe(name: str) -> str:
            draft = SubscriptionDraft(f"http://receiver.example/{name}", None, {"ordered": True})
            return (await server.subscriptions.create(queue.ref, draft)).id

        return subscribe

    makes = [subscriber(one) for one in servers]
    made = await race(makes, [str(n) for n in range(2 * MOST)], Invalid)
    assert len(made) == MOST
    assert {*await ordered_of(stores, queue)} == {*made}
    left = await servers[0].subscriptions.page(queue.ref, marker=None, limit=10)
    assert {one.id for one in left} == {*made}, "one that was refused is still there"
    # A server that has not seen that others ended lets their successors in.
    await servers[1].subscriptions.delete(queue.ref, str(made[0]))
    await makes[0]("next")


async def test_subscriptions_that_race_for_the_last_line_change_one_of_them(
    stores: Stores, queue: QueueUnderTest
) -> None:
    servers = [serve(one) for one in await stores.peers(2)]
    made = []
    for number in range(MOST + 1):
        draft = SubscriptionDraft(
            f"http://receiver.example/{number}", None, {"ordered": number < MOST - 1}
        )
        made.append((await servers[0].subscriptions.create(queue.ref, draft)).id)

    def changer(server: Server) -> Make:
        ordered = SubscriptionDraft(None, None, {"ordered": True})
        return lambda one: server.subscriptions.update(queue.ref, one, ordered)

    changed = await race([changer(one) for one in servers], made[-2:], Invalid)
    assert len(changed) == 1
    page = await servers[0].subscriptions.page(queue.ref, marker=None, limit=10)
    assert {*await ordered_of(stores, queue)} == {one.id for one in page if one.is_ordered}
    assert sum(one.is_ordered for one in page) == MOST


async def test_a_change_that_fails_takes_no_line(stores: Stores, queue: QueueUnderTest) -> None:
    server = serve(stores)
    for name in ("one", "other"):
        draft = SubscriptionDraft(f"http://{name}.example", None, {})
        made = await server.subscriptions.create(queue.ref, draft)
    taken = SubscriptionDraft("http://one.example", None, {"ordered": True})
    with pytest.raises(Conflict, match="another subscription with this subscriber"):
        await server.subscriptions.update(queue.ref, made.id, taken)
    assert await ordered_of(stores, queue) == []


@pytest.mark.parametrize("confirmed", [False, True])
async def test_a_line_that_a_crash_left_out_is_taken_at_the_next_try(
    stores: Stores, queue: QueueUnderTest, confirmed: bool
) -> None:
    server = serve(stores)
    await server.subscriptions.create(queue.ref, SubscriptionDraft("http://a.example", None, {}))
    draft = SubscriptionDraft("http://b.example", None, {"ordered": True})
    made = await server.subscriptions.create(queue.ref, draft)
    if confirmed:  # as who is a queue is at once, before its queue's record names it
        await server.subscriptions.confirm(queue.ref, made.id, confirmed=True, token=None)
    record = await stores.management.get_queue(queue.ref)
    assert record is not None
    crashed = {name: value for name, value in record.metadata.items() if name != ORDERED}
    await stores.management.update_queue(replace(record, metadata=crashed))
    with pytest.raises(Conflict) if confirmed else nullcontext():
        assert (await server.subscriptions.create(queue.ref, draft)).id == made.id
    assert await ordered_of(stores, queue) == [made.id]


async def ordered_of(stores: Stores, queue: QueueUnderTest) -> list[str]:
    """The ordered subscriptions that the queue's record names."""
    record = await stores.management.get_queue(queue.ref)
    assert record is not None
    return list(record.metadata.get(ORDERED, ()))

"""What operations cost in commands and plans, whatever else is in the queue."""

import pytest

from tests.contract.stores import Stores
from tests.contract.subject import MINUTE, QueueUnderTest, ids, new
from tests.drivers.mongodb.commands import Commands, Explained, explain, name_of, queries, writes
from tests.drivers.mongodb.inspection import database_of
from tests.services import MongoServer
from zaqar_lite.domain.models import DelayMode, QueueRef

pytestmark = pytest.mark.anyio

BEFORE = 300
"""Delayed or claimed messages before the ready ones."""
SLACK = 12
"""Index keys that a plan may examine beyond what it returns: ends of ranges, limits."""


async def hold(queue: QueueUnderTest, count: int) -> None:
    """Post and claim messages."""
    await queue.post(*map(str, range(count)))
    held = await queue.claim(count)
    assert len(held.messages) == count


async def test_a_post_of_100_takes_three_commands(
    queue: QueueUnderTest, commands: Commands
) -> None:
    await queue.post("first")
    commands.clear()
    await queue.post(*map(str, range(100)))
    assert [name_of(c) for c in commands.take()] == ["aggregate", "insert", "update"]


@pytest.mark.parametrize(
    ("batch_key", "keyed", "most"), [("b", False, 6), (None, True, 6), ("b", True, 7)]
)
async def test_a_post_with_keys_takes_six_or_seven_commands(
    queue: QueueUnderTest, commands: Commands, batch_key: str | None, keyed: bool, most: int
) -> None:
    """Read, look up, stage, remember (each kind of key), take places, commit."""
    await queue.post("first")
    messages = [new(str(n), key=str(n) if keyed else None) for n in range(20)]
    commands.clear()
    await queue.post_all(messages, batch_key=batch_key)
    assert len(commands.take()) == most
    await queue.post_all(messages, batch_key=batch_key)
    assert len(commands.take()) == 3


async def test_a_post_to_a_queue_with_a_record_takes_three_from_the_first(
    stores: Stores, queue: QueueUnderTest, commands: Commands
) -> None:
    record, _ = await stores.management.create_queue(queue.ref, {}, max_queues=10)
    commands.clear()
    await queue.post("first", version=record.version)
    assert len(commands.take()) == 3


async def test_a_page_takes_two_commands_with_any_filter(
    queue: QueueUnderTest, commands: Commands
) -> None:
    await hold(queue, BEFORE)
    await queue.post(*map(str, range(20)))
    commands.clear()
    for claimed in (False, True):
        for exclude in (None, "consumer"):
            page = await queue.page(limit=10, claimed=claimed, delayed=False, exclude=exclude)
            assert len(page.messages) == 10
            assert len(commands.take()) == 2


@pytest.mark.parametrize("before", [0, BEFORE])
async def test_a_claim_on_a_normal_queue_takes_five_commands(
    queue: QueueUnderTest, commands: Commands, before: int
) -> None:
    if before:
        await hold(queue, before)
    await queue.post(*map(str, range(25)))
    commands.clear()
    assert len((await queue.claim(20)).messages) == 20
    assert len(commands.take()) <= 5


@pytest.mark.parametrize("before", [0, BEFORE])
async def test_a_claim_on_a_delayed_queue_takes_six_commands(
    queue: QueueUnderTest, commands: Commands, before: int
) -> None:
    if before:
        await queue.post(*map(str, range(before)), delay=90 * MINUTE, ttl=200 * MINUTE)
    await queue.post(*map(str, range(25)), delay=MINUTE)
    queue.advance(2 * MINUTE)
    commands.clear()
    claimed = await queue.claim(20, mode=DelayMode.HONOUR)
    assert [m.body for m in claimed.messages] == [b'"%d"' % n for n in range(20)]
    assert len(commands.take()) <= 6


async def test_a_delete_of_20_takes_two_commands(queue: QueueUnderTest, commands: Commands) -> None:
    await queue.post(*map(str, range(40)))
    claimed = await queue.claim(20)
    commands.clear()
    assert not await queue.delete(*ids(claimed.messages), claims=[claimed.claim_id or ""])
    assert len(commands.take()) == 2
    assert not await queue.delete(*ids(await queue.listed()))
    assert await queue.bodies() == []


async def test_getting_renewing_and_releasing_a_claim_take_one_or_two(
    queue: QueueUnderTest, commands: Commands
) -> None:
    await queue.post(*"abc")
    claim_id = await queue.claim_id()
    commands.clear()
    await queue.get_claim(claim_id)
    assert len(commands.take()) == 1
    await queue.renew(claim_id)
    assert len(commands.take()) == 2
    await queue.release(claim_id)
    assert len(commands.take()) == 1


async def exercise(stores: Stores, queue: QueueUnderTest, other: QueueUnderTest) -> None:
    """Every operation of both stores once, on a queue with everything in it."""
    management, ref = stores.management, queue.ref
    record, _ = await management.create_queue(ref, {"_dead_letter_queue": "other"}, max_queues=9)
    record = await management.update_queue(record)
    await management.list_queues(ref.project, limit=5, name_contains="e", metadata={"a": 1})
    await management.count_queues(ref.project)
    await management.dead_letter_sources(other.ref, limit=5)
    await management.exposing_queues(limit=5)
    await hold(queue, 60)
    await queue.post(*map(str, range(60)), delay=30 * MINUTE)
    (late,) = await queue.post("late", delay=40 * MINUTE)
    ready = await queue.post(*map(str, range(40)))
    await queue.post_all([new("keyed", key="k")], batch_key="b")
    await queue.post_all([new("keyed", key="k")], batch_key="b")
    await queue.page(limit=10)
    for claimed, delayed in ((False, False), (True, False), (False, True)):
        await queue.page(limit=10, claimed=claimed, delayed=delayed, exclude="me")
    await queue.get(*ready)
    await queue.edit(late, "edited", delay=50 * MINUTE)
    policy = other.as_dead_letter_queue(1)
    for _ in range(2):
        held = await queue.claim(10, dead_letter=policy)
        await queue.release(held.claim_id or "")
    for mode in DelayMode:
        held = await queue.claim(5, mode=mode)
        await queue.get_claim(held.claim_id or "")
        await queue.renew(held.claim_id or "")
        await queue.delete(*ids(held.messages), claims=[held.claim_id or ""])
        await queue.pop(5, mode=mode)
    await queue.delete(*ready, claims=[])
    await queue.delete(*ready)
    await queue.stats()
    await stores.messages.split(ref, 3)
    await queue.expose(5)
    queue.advance(5 * MINUTE)
    await stores.messages.sweep(100)
    queue.advance(300 * MINUTE)
    await stores.messages.sweep(100)
    await queue.purge()
    await management.delete_queue(ref, version=record.version)
    await queue.drop()


async def test_every_query_is_an_index_scan(  # noqa: PLR0917 - fixtures
    stores: Stores,
    queue: QueueUnderTest,
    other: QueueUnderTest,
    commands: Commands,
    mongodb: MongoServer,
    database_name: str,
) -> None:
    """Every command of every operation, as it was sent, explained by the server."""
    commands.clear()
    await exercise(stores, queue, other)
    sent = commands.take()
    assert {name_of(command) for command in sent} == {
        *("find", "aggregate", "insert", "update", "delete", "findAndModify")
    }
    shapes: set[str] = set()
    with database_of(mongodb.url, database_name) as database:
        for command in sent:
            for query in queries(command):
                plan = explain(database, query)
                assert plan.stages & {"IXSCAN", "IDHACK", "EXPRESS_IXSCAN"}, query
                assert "COLLSCAN" not in plan.stages, query
                shapes.add(f"{name_of(command)} {query.get('hint')}")
            for write in writes(command) if mongodb.real else ():
                assert "COLLSCAN" not in explain(database, write).stages, write
    assert len(shapes) > 15


@pytest.mark.parametrize("state", ["claimed", "delayed"])
async def test_what_is_claimed_or_delayed_costs_a_page_and_a_claim_nothing(  # noqa: PLR0917
    stores: Stores,
    queue: QueueUnderTest,
    commands: Commands,
    mongodb: MongoServer,
    database_name: str,
    state: str,
) -> None:
    """Entries examined, not milliseconds: no more than returned, and the same plan as without."""
    alone = QueueUnderTest(stores, QueueRef("project", "alone"))
    if state == "claimed":
        await hold(queue, BEFORE)
    else:
        await queue.post(*map(str, range(BEFORE)), delay=90 * MINUTE)
    plans: list[list[Explained]] = []
    with database_of(mongodb.url, database_name) as database:
        for each in (queue, alone):
            await each.post(*map(str, range(25)))
            commands.clear()
            mode = DelayMode.HONOUR if state == "delayed" else DelayMode.IGNORE
            await each.page(limit=20, claimed=False, delayed=False)
            await each.claim(20, mode=mode)
            reads = [c for c in commands.take() if name_of(c) in ("find", "aggregate")]
            plans.append([explain(database, query) for read in reads for query in queries(read)])
    crowded, quiet = plans
    assert [plan.stages for plan in crowded] == [plan.stages for plan in quiet]
    for plan in crowded:
        if mongodb.real:
            assert plan.keys <= plan.returned + SLACK, plan
        assert plan.returned <= 25, plan

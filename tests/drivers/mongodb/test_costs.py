"""What operations cost in commands and plans, whatever else is in the queue."""

import asyncio
from contextlib import nullcontext

import pytest

from tests.contract.stores import Stores
from tests.contract.subject import (
    MINUTE,
    QueueUnderTest,
    ack,
    bury,
    fail,
    give_back,
    ids,
    new,
    texts,
)
from tests.drivers.costs import costs
from tests.drivers.mongodb.commands import (
    Commands,
    Explained,
    explain,
    name_of,
    queries,
    unportable,
    writes,
)
from tests.drivers.mongodb.conftest import OpenStores
from tests.drivers.mongodb.inspection import database_of
from tests.drivers.mongodb.plays import SCENARIOS, perform
from tests.services import MongoServer
from zaqar_lite.domain.errors import LimitReached
from zaqar_lite.domain.models import Claimed, DelayMode, QueueRef, RetryPolicy
from zaqar_lite.domain.settlements import Outcome
from zaqar_lite.service.metrics import queue_depths as census
from zaqar_lite.service.metrics.shared_counters import SharedCounters
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb import claiming, listing, posting, readiness

pytestmark = pytest.mark.anyio

BEFORE = 300
"""Delayed or claimed messages before the ready ones."""
MANY = 100
"""Expired messages, and exhausted ones, before a ready one."""
SLACK = 12
"""Index keys that a plan may examine beyond what it returns: ends of ranges, limits."""


async def hold(queue: QueueUnderTest, count: int) -> None:
    """Post and claim messages."""
    await queue.post(*map(str, range(count)))
    held = await queue.claim(count)
    assert len(held.messages) == count


@pytest.mark.parametrize("before", [0, BEFORE])
async def test_what_each_operation_takes(
    queue: QueueUnderTest, commands: Commands, before: int
) -> None:
    if before:
        await hold(queue, before)
    assert await costs(queue, lambda: len(commands.take())) == {
        "post of one": 3,  # take positions, insert, commit
        "post": 3,
        "page": 2,
        "get": 2,
        "get with attempts": 2,
        "stats": 5 if before else 4,
        "claim": 3,
        "get_claim": 1,
        "renew": 2,
        "release": 2,
        "second claim": 3,
        "get with an attempt each": 2,
        "delete by a claim": 2,
        "delete of one": 1,
        "post with keys": 5,  # look up, take positions, insert messages and keys, commit
        "the same post again": 2,
        "pop": 4,
        "edit of a ttl": 2,
        "edit of a body": 2,
        "claim of what is due": 3,
        "acknowledge ten": 2,
        "extend five": 2,
        "fail ten": 2,
        "claim of ten that lapsed": 3,
        "purge": 4,
    }


@pytest.mark.parametrize("keyed", [False, True])
async def test_sixteen_posters_share_their_transactions(
    queue: QueueUnderTest, commands: Commands, keyed: bool
) -> None:
    await queue.post("first")
    commands.clear()

    async def poster(name: int) -> None:
        for number in range(4):
            text = f"{name}-{number}"
            await queue.post(new(text, key=text if keyed else None))

    await asyncio.gather(*map(poster, range(16)))
    assert len(commands.take()) <= 64 * 1.2
    assert len(await queue.bodies()) == 65


async def test_a_full_queue_is_known_to_be_full_without_counting(
    open_stores: OpenStores,
    queue: QueueUnderTest,
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are counted when the bound is reached, and then not before a while has passed."""
    monkeypatch.setattr(posting, "_MS_PER_COUNTED", 20)
    most = MAX_EXAMINED + 200
    full = queue.at(await open_stores(max_messages=most))
    posted = await full.post(*map(str, range(most)))
    costs = []
    for _ in range(3):
        commands.clear()
        with pytest.raises(LimitReached):
            await full.post("one too many")
        costs.append([name_of(command) for command in commands.take()])
    assert "aggregate" in costs[0], "counted"
    assert costs[1:] == [["findAndModify", "abortTransaction"]] * 2
    await full.delete(*posted[:10])
    full.advance(MINUTE)
    await full.post("fits")
    assert await full.counts() == (most - 9, 0, 0)


@pytest.mark.parametrize(("lapsed", "most"), [(False, 8), (True, 10)])
async def test_twelve_claimers_of_four_take_few_commands_each(
    queue: QueueUnderTest, commands: Commands, lapsed: bool, most: int
) -> None:
    """Whom others got ahead of looks elsewhere, and does not read what it did not get.

    Whoever meets lapses first ends them all; each is counted once.
    """
    message_ids = await queue.post(*map(str, range(200)))
    if lapsed:
        await queue.claim(200, ttl=MINUTE)
        queue.advance(2 * MINUTE)
    commands.clear()
    answers = await asyncio.gather(*[queue.claim(4) for _ in range(12)])
    assert [len(answer.messages) for answer in answers] == [4] * 12
    assert len(commands.take()) <= 12 * most
    await queue.sweep()
    assert [one.failure_count for one in await queue.get(*message_ids)] == [int(lapsed)] * 200


async def test_a_claim_behind_many_dead_or_expired_messages_makes_progress(
    queue: QueueUnderTest,
    other: QueueUnderTest,
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is in its way is moved or deleted within the budget, and the next call goes on."""
    await queue.post(*map(str, range(MANY)), ttl=20 * MINUTE)
    await queue.post(*map(str, range(MANY)))
    await queue.release((await queue.claim(2 * MANY)).claim_id or "")
    queue.advance(21 * MINUTE)
    await queue.post("ready")
    monkeypatch.setattr(claiming, "_BUDGET", 20)
    policy = other.as_dead_letter_queue(1)
    answers: list[Claimed] = []
    while not answers or not answers[-1].messages:
        commands.clear()
        answers.append(await queue.claim(1, dead_letter=policy))
        assert len(commands.take()) <= 25
        assert answers[-1].messages or answers[-1].more
    assert texts(answers[-1].messages) == ["ready"]
    assert sum(answer.moved for answer in answers) == MANY
    assert 2 <= len(answers) <= 12


async def test_settling_twenty_takes_a_command_for_each_kind_of_change(
    queue: QueueUnderTest, other: QueueUnderTest, commands: Commands
) -> None:
    """And a read; letters need positions and a commit besides."""
    await other.post("first")
    message_ids = await queue.post(*map(str, range(20)))
    claim_id = await queue.claim_id(20)
    acts = [ack, fail, give_back, bury]
    settlements = [acts[n % 4](each) for n, each in enumerate(message_ids)]
    commands.clear()
    settled = await queue.stores.messages.settle(
        queue.ref, claim_id, settlements, retries=RetryPolicy(other.as_dead_letter_queue())
    )
    assert [name_of(command) for command in commands.take()] == [
        *("aggregate", "findAndModify", "update", "delete", "commitTransaction")
    ]
    assert (list(settled.outcomes), settled.moved) == ([Outcome.DONE] * 20, 5)


async def test_a_look_at_a_hundred_watched_queues_takes_two_commands(
    stores: Stores, queue: QueueUnderTest, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where nobody waits nothing is asked."""
    monkeypatch.setattr(readiness, "LOOK_MS", 3_600_000)  # only the looks of this test
    news = stores.messages._readiness  # type: ignore[attr-defined]
    await news.look_again()
    assert commands.take() == []
    for number in range(100):
        await stores.messages.watch(queue.named(f"queue-{number}").ref, print)
    commands.clear()
    await news.look_again()
    assert [name_of(command) for command in commands.take()] == ["aggregate"] * 2


async def test_who_asks_for_no_attempts_reads_none(
    queue: QueueUnderTest, commands: Commands, mongodb: MongoServer, database_name: str
) -> None:
    """Every read of a page, a message, a claim and the counts leaves them in the server."""
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id()
    await queue.settle(claim_id, fail(message_id, detail="x" * 2_000))
    commands.clear()
    await queue.page()
    await queue.get(message_id)
    await queue.stats()
    claim_id = await queue.claim_id()
    await queue.get_claim(claim_id)
    await queue.delete(message_id, claims=[claim_id])
    reads = [command for command in commands.take() if name_of(command) in ("find", "aggregate")]
    await queue.post("b")
    await queue.settle(await queue.claim_id(), fail((await queue.listed())[0].id))
    with database_of(mongodb.url, database_name) as database:
        for read in reads:
            answer = database.command({k: v for k, v in read.items() if k != "lsid"})
            assert all("a" not in document for document in answer["cursor"]["firstBatch"]), read


async def exercise(stores: Stores, queue: QueueUnderTest, other: QueueUnderTest) -> None:
    """Every operation of both stores: the plays, and the others on a queue of all states."""
    for number, play in enumerate(SCENARIOS.values()):
        await perform(play, queue.named(f"play-{number}"), nullcontext())
    management, ref = stores.management, queue.ref
    record, _ = await management.create_queue(ref, {"_dead_letter_queue": "other"}, max_queues=9)
    record = await management.update_queue(record)
    await management.list_queues(ref.project, limit=5, name_contains="e", metadata={"a": 1})
    await management.count_queues(ref.project)
    await management.dead_letter_sources(other.ref, limit=5)
    await management.exposing_queues(limit=5)
    await hold(queue, 60)
    await queue.post(*map(str, range(60)), delay=30 * MINUTE)
    ready = await queue.post(*map(str, range(40)))
    await queue.page(limit=10)
    for claimed, delayed in ((False, False), (True, False), (False, True)):
        await queue.page(limit=10, claimed=claimed, delayed=delayed, exclude="me")
    await queue.get(*ready)
    for mode in DelayMode:
        held = await queue.claim(5, mode=mode)
        await queue.get_claim(held.claim_id or "")
        await queue.renew(held.claim_id or "")
        await queue.next_due()
        await queue.delete(*ids(held.messages), claims=[held.claim_id or ""])
        await queue.pop(5, mode=mode)
    await queue.delete(*ready, claims=[])
    await queue.delete(*ready)
    await other.post("moved")
    for number in (1, 2):
        adopted = await other.listed()
        await stores.messages.delete(other.ref, ids(adopted), claim_ids=None)
        await stores.messages.import_messages(queue.ref, adopted, source="pool", number=number)
    await management.put_record("kind", *ref, b"1", expected=None, ttl_ms=MINUTE)
    await management.list_records("kind", limit=5)
    await queue.stats()
    await stores.messages.stats(ref, ranges=3)
    await queue.release_delayed(5)
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
    """Every command of every operation, as it was sent, explained by the server.

    None asks for what MongoDB's kin lack: `hint` in findAndModify, upserts, `$$NOW` everywhere.
    """
    commands.clear()
    await exercise(stores, queue, other)
    sent = commands.take()
    assert {name_of(command) for command in sent} - {"abortTransaction"} == {
        *("find", "aggregate", "insert", "update", "delete", "findAndModify"),
        "commitTransaction",
    }
    assert [fault for command in sent for fault in unportable(command)] == []
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


async def test_a_page_passes_over_messages_of_its_reader_in_bounded_steps(
    queue: QueueUnderTest, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is two commands: it reads up to a bound, and looks for the next one."""
    monkeypatch.setattr(listing, "MAX_EXAMINED", 5)
    await queue.post(*map(str, range(20)))
    commands.clear()
    assert (await queue.page(limit=10, exclude="producer")).messages == ()
    assert [name_of(command) for command in commands.take()] == ["aggregate"] * (4 * 2)
    await queue.post("theirs", client="another")
    commands.clear()
    page = await queue.page(limit=10, exclude="producer")
    assert texts(page.messages) == ["theirs"]
    assert [name_of(command) for command in commands.take()] == ["aggregate"] * (5 * 2)


async def test_a_count_of_all_queues_takes_five_commands_each_and_a_scrape_none(
    stores: Stores, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census, "_SHARE", 0)  # it need not rest here
    monkeypatch.setattr(census, "_FRESH", 3_600)
    for number in range(30):
        queue = QueueUnderTest(stores, QueueRef("project", f"q-{number}"))
        await queue.post(*map(str, range(number % 3 + 1)))
    counting = census.QueueDepths(stores.messages, stores.management, SharedCounters(None))
    commands.clear()
    for _ in range(1_500):
        found = await counting.latest()
        if "totals" in found:
            break
        await asyncio.sleep(0.02)
    assert found["totals"] == [60, 0, 0]
    assert len(commands.take()) <= 5 * 30 + 5
    await counting.latest()
    assert commands.take() == []
    await counting.stop()

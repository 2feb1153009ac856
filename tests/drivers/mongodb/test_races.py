"""Races: pauses planted between two steps, and deaths in the middle."""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE

import pytest
from pymongo.asynchronous.client_session import AsyncClientSession

from tests.contract.pausing import pause_after, pause_before, stopped
from tests.contract.stores import Stores
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, ack, extend, ids, new, texts
from tests.drivers.mongodb.commands import Commands
from tests.drivers.mongodb.conftest import OpenStores
from tests.drivers.mongodb.deaths import dies, driver, lost_answer
from tests.drivers.mongodb.inspection import database_of
from tests.services import MongoServer
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import KeyReused, LimitReached, NotFound, QueueChanged, Unavailable
from zaqar_lite.domain.models import DelayMode, QueueRecord
from zaqar_lite.domain.settlements import Outcome
from zaqar_lite.storage.mongodb import changing, claiming, sweeping, transactions
from zaqar_lite.storage.mongodb.claiming import Claiming
from zaqar_lite.storage.mongodb.transitions import POP_TIME_MS

pytestmark = pytest.mark.anyio


async def test_a_process_that_was_killed_in_a_post_holds_up_its_queue_for_seconds(
    queue: QueueUnderTest, mongodb: MongoServer, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server would keep its transaction, and with it the queue's counter, for a minute."""
    monkeypatch.setattr(transactions, "DEAD_MS", 500)
    monkeypatch.setattr(transactions, "BEAT_SECONDS", 0.2)
    await queue.post("before")
    words = ["-m", "tests.drivers.mongodb.worker", mongodb.url, database_name]
    worker = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=PIPE)
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"in a transaction\n"
    worker.kill()
    await worker.wait()
    await queue.post("after")
    assert await queue.bodies() == ["before", "after"]


# --- writers ----------------------------------------------------------------------------------


async def test_a_slow_writer_is_waited_for_and_not_skipped(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    """It holds the counter until its commit: until then nobody passes it, or sees its messages."""
    await queue.post("first")
    async with stopped(pause_before(driver(queue), "_insert"), queue.post("slow")):
        fast = asyncio.create_task(second.post("fast"))
        assert await second.bodies() == ["first"]
        assert texts((await second.claim()).messages) == ["first"]
        assert not fast.done()
    await fast
    assert await queue.bodies() == ["first", "slow", "fast"]


@pytest.mark.parametrize("step", ["insert_many", "commit_transaction"])
async def test_a_writer_that_died_leaves_nothing(
    queue: QueueUnderTest, second: QueueUnderTest, step: str
) -> None:
    """No message and no key of it is there, so its retry stores all of them, once."""
    batch = [new("a", key="k"), new("b")]
    owner = AsyncClientSession if step == "commit_transaction" else driver(queue)._connection.keys
    await dies(owner, step, lambda: queue.post_all(batch, batch_key="batch"))
    assert await second.bodies() == []
    await second.post("between")
    first = await second.post_all(batch, batch_key="batch")
    assert not any(posted.duplicate for posted in first)
    again = await queue.post_all(batch, batch_key="batch")
    assert [posted.id for posted in again] == [posted.id for posted in first]
    assert await queue.bodies() == ["between", "a", "b"]


async def test_a_post_and_a_drop_happen_one_after_the_other(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    await queue.post("before")
    async with stopped(pause_before(driver(queue), "_insert"), queue.post("slow 1", "slow 2")):
        drop = asyncio.create_task(second.drop())
    await drop
    assert await second.bodies() in ([], ["slow 1", "slow 2"])


async def test_of_a_gathered_batch_who_is_refused_is_refused_for_itself(
    open_stores: OpenStores, queue: QueueUnderTest
) -> None:
    small = queue.at(await open_stores(max_messages=5))
    await small.post(new("known", key="k"))
    answers = await asyncio.gather(
        small.post("a"),
        small.post_all([new("other", key="k")]),
        small.post("too", "many", "for", "the", "queue"),
        small.post("stale", version=7),
        small.post_all([new("known", key="k")]),
        small.post(new("b", key="l"), batch_key="m"),
        small.post(new("b", key="l"), batch_key="m"),
        return_exceptions=True,
    )
    kinds = [type(answer) for answer in answers]
    assert kinds == [list, KeyReused, LimitReached, QueueChanged, list, list, list]
    assert answers[5] == answers[6]
    assert await small.bodies() == ["known", "a", "b"]


async def test_who_gives_up_waiting_holds_up_nobody(queue: QueueUnderTest) -> None:
    async with stopped(pause_before(driver(queue), "_insert"), queue.post("first")):
        impatient = asyncio.create_task(queue.post("impatient"))
        other = asyncio.create_task(queue.post("other"))
        await asyncio.sleep(0)
        impatient.cancel()
    await other
    assert await queue.bodies() == ["first", "other"]


async def test_after_a_rollback_a_marker_reader_misses_no_acknowledged_message(
    queue: QueueUnderTest, mongodb: MongoServer, database_name: str
) -> None:
    """A failover takes back what no majority had: messages that a reader saw, and the counter."""
    await queue.post("kept")
    with database_of(mongodb.url, database_name) as database:
        before = database["zaqar_queues"].find_one({"_id": "project/queue"})
        assert before is not None
        await queue.post("seen", "and", "rolled back")
        page = await queue.page()
        database["zaqar_messages"].delete_many({"k": {"$gt": before["k"]}})
        database["zaqar_queues"].replace_one({"_id": before["_id"]}, before)
    await queue.post("acknowledged")
    assert texts((await queue.page(after=page.marker)).messages) == ["acknowledged"]


# --- claims and dead letters ------------------------------------------------------------------


async def test_a_delete_that_loses_every_race_says_so(
    queue: QueueUnderTest, second: QueueUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "_ROUNDS", 1)
    (message_id,) = await queue.post("still there")
    has_looked = pause_after(driver(queue)._queues, "find_with_state")
    with pytest.raises(Unavailable):
        async with stopped(has_looked, queue.delete(message_id, claims=())):
            claim = await second.claim()
    assert texts(claim.messages) == ["still there"]
    assert texts(await second.get(message_id)) == ["still there"]


async def test_a_claim_that_is_slow_to_take_gets_only_what_is_free(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    await queue.post(*"abcdef")
    async with stopped(
        pause_after(driver(queue)._queues, "find_with_state"), queue.claim(4)
    ) as slow:
        fast = await second.claim(3)
    held = await slow
    assert texts(fast.messages) == ["a", "b", "c"]
    assert texts(held.messages) == ["d", "e", "f"]
    assert [message.claim_count for message in held.messages] == [1, 1, 1]


async def changed(queue: QueueUnderTest, version: int) -> QueueRecord:
    """Change the queue's record."""
    return await queue.stores.management.update_queue(QueueRecord(queue.ref, {"k": 1}, version))


@pytest.mark.parametrize("pops", [False, True])
async def test_a_claim_whose_queue_changes_halfway_is_answered_with_what_it_holds(
    queue: QueueUnderTest, second: QueueUnderTest, pops: bool
) -> None:
    """Repeated under the new record, it would leave the first messages held by nobody."""
    record, _ = await queue.stores.management.create_queue(queue.ref, {}, max_queues=5)
    await queue.post(*"abc")
    take = queue.pop if pops else queue.claim
    has_looked = pause_after(driver(queue)._queues, "find_with_state")
    async with stopped(has_looked, take(2, version=record.version)) as slow:
        await second.claim(1)
        await changed(second, record.version)
    taken = await slow
    assert (texts(taken.messages), taken.more) == (["b"], True)
    assert texts((await second.claim()).messages) == ["c"]


async def test_a_settlement_whose_queue_changes_halfway_is_told_as_done(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    """Repeated under the new record, what it has acknowledged would not be found."""
    record, _ = await queue.stores.management.create_queue(queue.ref, {}, max_queues=5)
    a, b = await queue.post(*"ab")
    claim_id = await queue.claim_id()
    writes = pause_before(driver(queue)._connection.messages, "bulk_write")
    act = queue.settle(claim_id, ack(a), ack(b), version=record.version)
    async with stopped(writes, act) as slow:
        await second.settle(claim_id, extend(b, HOUR))
        await changed(second, record.version)
    assert list((await slow).outcomes) == [Outcome.DONE] * 2
    assert await queue.bodies() == []


async def test_what_is_due_in_a_moment_does_not_make_a_claim_search_again(
    queue: QueueUnderTest, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step reads what is due by a late estimate of the server's time, whatever its own is."""
    monkeypatch.setattr(claiming, "_MARGIN_MS", 2 * MINUTE)
    monkeypatch.setattr(claiming, "_MOST_DUE", 3)
    old, clock = queue.stores, Clock(wall=lambda: time.time() - 600)
    queue = queue.at(await Stores.open(old.case, old.uri, clock, old.options, old.opened))
    await queue.post(*"abc", delay=MINUTE)
    await queue.claim(mode=DelayMode.HONOUR)  # it learns by how much its clock is behind
    commands.clear()
    assert not (await queue.claim(mode=DelayMode.HONOUR)).more
    assert len(commands.take()) == 1


async def test_what_is_being_popped_is_in_no_queue(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    await queue.post(*"ab")
    async with stopped(pause_before(Claiming, "_read_held"), queue.pop(2)) as slow:
        assert await second.bodies() == []
        assert (await second.claim()).claim_id is None
        await second.sweep()
        assert not await second.get(*ids(await queue.listed()))
    assert texts((await slow).messages) == ["a", "b"]
    assert await second.counts() == (0, 0, 0)


async def test_what_a_dead_popper_took_comes_back(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    """Nobody was given it."""
    await queue.post(*"ab")
    await dies(Claiming, "_read_held", lambda: queue.pop(2))
    assert await second.bodies() == []
    queue.advance(POP_TIME_MS + 1_000)
    await second.sweep()
    popped = await second.pop()
    assert texts(popped.messages) == ["a", "b"]
    assert [message.claim_count for message in popped.messages] == [0, 0]


async def test_a_slow_delete_does_not_take_what_another_holds_by_now(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id(ttl=60_000)
    writes = pause_before(driver(queue)._connection.messages, "bulk_write")
    async with stopped(writes, queue.delete(message_id, claims=[claim_id])) as slow:
        queue.advance(61_000)
        held = await second.claim()
        assert ids(held.messages) == [message_id]
    assert [refusal.id for refusal in await slow] == [message_id]
    assert (await queue.get_one(message_id)).claim_id == held.claim_id


async def exhausted(queue: QueueUnderTest, *bodies: str) -> None:
    """Post messages and use up their one claim."""
    await queue.post(*bodies)
    await queue.release(await queue.claim_id(len(bodies)))


async def test_an_edit_whose_answer_was_lost_and_that_others_have_passed_is_unavailable(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    """Neither done nor refused: the message was handed out and acknowledged since."""
    (message_id,) = await queue.post("a", delay=HOUR)
    with lost_answer(driver(queue)._connection.messages, "bulk_write", second.pop) as between:
        with pytest.raises(Unavailable):
            await queue.edit(message_id, "b", delay=0)
    assert ids(between[0].messages) == [message_id]
    assert await queue.bodies() == []


async def test_a_known_key_needs_no_room_in_a_queue_over_its_limit(
    open_stores: OpenStores, queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """No limit stops dead letters, so a queue may hold more than it is given room for."""
    limited = queue.at(await open_stores(max_messages=2))
    first = await limited.post(new("a", key="a"))
    await other.post(*"bcd")
    await other.release(await other.claim_id())
    assert (await other.claim(dead_letter=queue.as_dead_letter_queue(1))).moved == 3
    assert await limited.post(new("a", key="a")) == first
    again, refused = await asyncio.gather(
        limited.post(new("a", key="a")), limited.post("e"), return_exceptions=True
    )
    assert again == first
    assert isinstance(refused, LimitReached)


async def test_a_count_from_before_a_purge_is_not_taken_for_what_came_after_it(
    open_stores: OpenStores, queue: QueueUnderTest
) -> None:
    limited = queue.at(await open_stores(max_messages=3))
    await limited.post(*"abc", ttl=MINUTE)
    queue.advance(2 * MINUTE)
    has_counted = pause_after(driver(limited)._connection.messages, "count_documents")
    with pytest.raises(LimitReached):  # noqa: PT012 - raised once the context goes on
        async with stopped(has_counted, limited.post("one too many")):
            await queue.purge()
            await queue.post(*"def")
    assert await queue.bodies() == ["d", "e", "f"]


async def test_a_letter_of_a_mover_that_died_stays_where_it_was(
    queue: QueueUnderTest, second: QueueUnderTest, other: QueueUnderTest
) -> None:
    policy = other.as_dead_letter_queue(1)
    await exhausted(queue, "a", "b")
    await dies(AsyncClientSession, "commit_transaction", lambda: queue.claim(dead_letter=policy))
    assert await second.bodies() == ["a", "b"]
    there = other.at(second.stores)
    assert await there.bodies() == []
    assert (await second.claim(dead_letter=policy)).moved == 2
    assert await second.bodies() == []
    assert texts((await there.claim()).messages) == ["a", "b"]


async def test_a_letter_and_a_post_that_race_have_each_a_place(
    queue: QueueUnderTest, second: QueueUnderTest, other: QueueUnderTest
) -> None:
    await exhausted(queue, "a", "b")
    there = other.at(second.stores)
    async with stopped(pause_before(driver(second), "_insert"), there.post("posted")):
        moving = asyncio.create_task(queue.claim(dead_letter=other.as_dead_letter_queue(1)))
        assert await other.bodies() == []
    page = await there.page(limit=1)
    assert (await moving).moved == 2
    assert texts(page.messages) == ["posted"]
    assert texts((await there.page(after=page.marker)).messages) == ["a", "b"]


@pytest.mark.parametrize("is_drop", [False, True])
async def test_what_a_purge_has_not_removed_yet_does_not_exist(
    queue: QueueUnderTest,
    mongodb: MongoServer,
    database_name: str,
    monkeypatch: pytest.MonkeyPatch,
    is_drop: bool,
) -> None:
    """It removes in steps; the sweep goes on where it ended."""
    monkeypatch.setattr(sweeping, "STEP", 10)
    posted = await queue.post(*map(str, range(20)))
    claim_id = await queue.claim_id(15)
    await queue.post("delayed", delay=MINUTE)
    await (queue.drop() if is_drop else queue.purge())
    with database_of(mongodb.url, database_name) as database:
        messages = database["zaqar_messages"]
        assert messages.count_documents({}) == 11
        await queue.post("new")
        with pytest.raises(NotFound):
            await queue.get_claim(claim_id)
        with pytest.raises(NotFound):
            await queue.renew(claim_id)
        await queue.release(claim_id)
        assert not await queue.delete(*posted, claims=[claim_id])
        assert not await queue.get(*posted)
        queue.advance(11 * MINUTE)
        assert await queue.counts() == (1, 0, 0)
        assert await queue.bodies() == ["new"]
        assert texts((await queue.claim(mode=DelayMode.HONOUR)).messages) == ["new"]
        await queue.sweep()
        assert messages.count_documents({}) == 1
        assert database["zaqar_queues"].count_documents({"u": {"$exists": True}}) == 0


async def test_a_sweep_removes_as_much_as_it_is_told_of_several_purges(
    queue: QueueUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "STEP", 1)
    for number in range(3):
        await queue.named(f"queue-{number}").post(*map(str, range(11)))
        await queue.named(f"queue-{number}").purge()
    for limit in (10, 4, 12, 4):
        assert (await queue.stores.messages.sweep(limit)).deleted == limit


async def test_what_is_due_at_one_instant_is_brought_in_its_order(
    queue: QueueUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is more than one step examines."""
    monkeypatch.setattr(claiming, "MAX_EXAMINED", 20)
    await queue.post(*map(str, range(65)), delay=MINUTE)
    queue.advance(2 * MINUTE)
    seen: list[str] = []
    while claimed := (await queue.claim(10, mode=DelayMode.HONOUR)).messages:
        seen += texts(claimed)
    assert seen == [str(number) for number in range(65)]


async def test_a_lapse_in_a_queue_that_was_forgotten_is_removed(
    queue: QueueUnderTest, other: QueueUnderTest, mongodb: MongoServer, database_name: str
) -> None:
    """A tombstone goes after a day, whatever its queue has left; the sweep goes on."""
    for each in (queue, other):
        await each.post("a")
        await each.claim(ttl=MINUTE)
    queue.advance(2 * MINUTE)
    with database_of(mongodb.url, database_name) as database:
        database["zaqar_queues"].delete_one({"_id": "project/queue"})
        await queue.sweep()
        assert [message["q"] for message in database["zaqar_messages"].find()] == ["project/other"]
    assert await other.counts() == (1, 0, 0)


async def test_a_drop_that_died_leaves_nothing_to_the_next_life(
    queue: QueueUnderTest, second: QueueUnderTest, stores: Stores
) -> None:
    await stores.management.create_queue(queue.ref, {}, max_queues=5)
    await queue.post_all([new("old", key="k"), new("older", ttl=2 * HOUR)], batch_key="b")
    claim_id = await queue.claim_id(1)
    await dies(driver(queue), "_clear", queue.drop)
    assert await stores.management.get_queue(queue.ref) is None
    assert await second.bodies() == []
    assert await second.counts() == (0, 0, 0)
    (posted,) = await second.post_all([new("new", key="k")], batch_key="b")
    assert not posted.duplicate
    assert texts((await second.claim()).messages) == ["new"]
    await second.release(claim_id)
    assert await second.counts() == (0, 0, 1)


async def test_a_pop_that_stopped_before_its_delete_hands_out_nothing_of_others(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    """Its messages came back meanwhile; one of them was claimed, and one deleted in its time."""
    await queue.post(*"ab")
    removes = pause_before(driver(queue)._connection.messages, "delete_many")
    async with stopped(removes, queue.pop(2)) as slow:
        queue.advance(POP_TIME_MS + 1_000)
        await second.sweep()
        held = await second.claim(1)
    assert texts(held.messages) == ["a"]
    assert texts((await slow).messages) == []
    assert await second.bodies() == ["a", "b"]


async def test_a_batch_is_known_as_stored_when_its_first_message_is_gone(
    queue: QueueUnderTest, second: QueueUnderTest
) -> None:
    """The answer to its commit was lost, and another consumer was quick."""
    with lost_answer(AsyncClientSession, "commit_transaction", lambda: second.pop(1)) as between:
        await queue.post(*"abc")
    assert texts(between[0].messages) == ["a"]
    assert await queue.bodies() == ["b", "c"]


async def test_a_batch_that_filled_its_queue_is_known_as_stored(
    open_stores: OpenStores, queue: QueueUnderTest
) -> None:
    """The answer to its commit was lost, and the repetition has no room for it."""
    full = queue.at(await open_stores(max_messages=3))
    with lost_answer(AsyncClientSession, "commit_transaction", queue.counts):
        posted = await full.post(*"abc")
    assert posted == ids(await queue.listed())

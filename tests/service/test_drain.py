"""The steps of a drain when a store fails before or behind each of them."""

import asyncio
import operator
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from tests.failing import failing
from tests.service.composed import Composed
from tests.service.pools import (
    CLIENT,
    LETTERS,
    OPTIONS,
    QUEUE,
    Failing,
    Pools,
    draining,
    until_over,
    until_place,
    until_problem,
)
from tests.waiting import at_work, until
from zaqar_lite.domain.errors import KeyReused, NotFound, Unavailable
from zaqar_lite.domain.metadata import ORDERED
from zaqar_lite.domain.models import (
    ClaimRequest,
    DeadLetter,
    ListQuery,
    Move,
    QueueRef,
    RetryPolicy,
)
from zaqar_lite.domain.posts import NewMessage, identify
from zaqar_lite.domain.settlements import Act, Outcome, Settlement
from zaqar_lite.service.delivery.outbox import ordered_queue, outbox_queue
from zaqar_lite.service.jobs import jobs as jobs_module
from zaqar_lite.service.jobs.bulk import Choice, JobAct, Order
from zaqar_lite.service.jobs.jobs import JobRunner
from zaqar_lite.service.pooling import drain as module
from zaqar_lite.service.pooling.drain import DRAIN, Drain, DrainWorker
from zaqar_lite.service.pooling.placement import (
    CARRIED_MS,
    CARRY,
    HELD_MS,
    PLACE,
    Place,
)
from zaqar_lite.service.pooling.pooled_store import OpenConnections
from zaqar_lite.service.pooling.pools import Pool
from zaqar_lite.service.records import Held
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.messages import SqlMessageStore
from zaqar_lite.storage.sql.place import InRam

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pools() -> Pools:
    made = Pools()
    await made.begin()
    return made


@pytest.mark.parametrize("done", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize(("store", "operation"), [("new", "import_messages"), ("old", "delete")])
async def test_each_message_arrives_once_whatever_step_fails(
    pools: Pools, store: str, operation: str, *, done: bool
) -> None:
    posted = await pools.post(1_050)
    getattr(pools, store).fails = operation, done
    async with draining(pools):
        drain = await until_over(pools)
    consumed: list[str] = []
    while found := await pools.consume():
        consumed += found
    assert sorted(consumed) == sorted(posted)
    assert (drain.moved, drain.queues) == (1_050, 0)
    assert (await pools.old.stats(QUEUE)).total == 0


async def test_a_batch_is_repeated_as_it_was(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a slow request stores before the repeat is in another one. A bug is as a crash is."""
    expected, store = await pools.post(3), pools.new.import_messages

    async def crash(*given: Any, **named: Any) -> None:
        monkeypatch.undo()
        await store(*given, **named)
        late = [NewMessage(b"late", 3_600_000)]
        posted = await pools.old.post(QUEUE, late, client_id=CLIENT, version=None)
        expected.append(posted[0].id)
        raise KeyError("planted")

    monkeypatch.setattr(pools.new, "import_messages", crash)
    async with draining(pools):
        drain = await until_over(pools)
    assert await pools.listed() == expected
    assert drain.moved == 4


async def test_a_sweep_makes_no_dead_letter_of_what_is_on_its_way(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease has lapsed, which nobody has met before the drain."""
    await pools.management.create_queue(QUEUE, {"_dead_letter_queue": "letters"}, max_queues=9)
    await pools.placements.write(LETTERS, Place("old"))
    dead = RetryPolicy(DeadLetter(LETTERS, max_failures=1))
    await pools.post(1)
    await pools.claim(retries=dead)
    pools.clock.advance(60_000)
    store = pools.new.import_messages

    async def retries_of(queue: QueueRef) -> RetryPolicy:
        return dead if queue == QUEUE else RetryPolicy()

    async def beside_a_sweep(*given: Any, **named: Any) -> None:
        await pools.messages.sweep(1_000, retries_of)
        await store(*given, **named)

    monkeypatch.setattr(pools.new, "import_messages", beside_a_sweep)
    async with draining(pools):
        drain = await until_over(pools)
    assert drain.moved == 1
    assert [(await pools.new.stats(one)).total for one in (QUEUE, LETTERS)] == [1, 0]


@pytest.mark.parametrize("fails", [None, "import_messages", "delete"])
async def test_what_a_slow_request_stores_behind_the_move_arrives_too(
    pools: Pools, monkeypatch: pytest.MonkeyPatch, fails: str | None
) -> None:
    """Once, though a store fails when it is carried."""
    pools.worker.wait = 0.1
    store, may_go_on = pools.old.post, asyncio.Event()

    async def post_late(*given: Any, **named: Any) -> Any:
        await may_go_on.wait()
        return await store(*given, **named)

    monkeypatch.setattr(pools.old, "post", post_late)
    posting = asyncio.create_task(pools.post(2))
    await asyncio.sleep(0)
    async with draining(pools):
        await until(lambda: pools.placements.place(QUEUE), lambda place: place.pool == "new")
        if fails is not None:
            (pools.new if fails == "import_messages" else pools.old).fails = fails, True
        may_go_on.set()
        posted = await posting
        await until_over(pools)
    assert await pools.listed() == posted
    assert sorted(await pools.consume()) == sorted(posted)
    assert (await pools.old.stats(QUEUE)).total == 0


async def test_who_watches_a_queue_follows_it_to_its_new_pool(pools: Pools) -> None:
    heard: asyncio.Queue[int] = asyncio.Queue()
    watch = await pools.messages.watch(QUEUE, heard.put_nowait)
    await pools.post(1)
    assert await asyncio.wait_for(heard.get(), 5) == 1
    async with draining(pools):
        await until_over(pools)
    assert await watch.next_due() is None
    await pools.post(2)
    assert await asyncio.wait_for(heard.get(), 5) == 2
    delayed = [NewMessage(b"1", 3_600_000, 60_000)]
    await pools.messages.post(QUEUE, delayed, client_id=CLIENT, version=None)
    assert 50_000 < (await watch.next_due() or 0) <= 60_000
    watch.end()
    assert not pools.old._db.watchers
    assert not pools.new._db.watchers


@pytest.mark.parametrize("by_ids", [False, True])
async def test_a_job_that_goes_by_positions_does_not_end_as_if_all_were_done(
    pools: Pools, monkeypatch: pytest.MonkeyPatch, by_ids: bool
) -> None:
    monkeypatch.setattr(jobs_module, "_LOOK_EVERY", 0.05)
    ids, back = await pools.post(120), QueueRef("p", "back")
    order = Order(ids=ids if by_ids else None, filter=None if by_ids else Choice(), to=back.name)
    order.max_per_second = 40
    jobs = Composed(pools.clock, (pools.messages.as_store, pools.management)).jobs()
    async with at_work(JobRunner(jobs, pools.clock, lambda: 0)):
        job = await jobs.begin(QUEUE, JobAct.REDRIVE, order)
        await until(lambda: pools.old.stats(back), lambda stats: stats.total)
        async with draining(pools):
            read = partial(jobs.get, QUEUE, JobAct.REDRIVE, job.id)
            ended = await until(read, lambda job: job.ended_at)
    assert ended.done == (await pools.messages.stats(back)).total
    assert (ended.state, ended.done == 120) == ("completed" if by_ids else "failed", by_ids)
    assert ("begin the job again" in ended.error) is not by_ids


async def test_a_frozen_queue_refuses_all_but_the_holders_of_claims(pools: Pools) -> None:
    posted = await pools.post(2)
    claim_id = (await pools.claim()).claim_id or ""
    async with draining(pools):
        await until_problem(pools, "held by claims")
        for act in (pools.post(1), pools.consume(), pools.listed()):
            with pytest.raises(Unavailable, match="being moved"):
                await act
        assert len((await pools.messages.get_claim(QUEUE, claim_id)).messages) == 1
        await pools.messages.settle(
            QUEUE, claim_id, Settlement("", Act.EXTEND, ttl_ms=60_000, grace_ms=0)
        )
        done = [Settlement(posted[0], Act.ACK)]
        settled = await pools.messages.settle(QUEUE, claim_id, done)
        assert settled.outcomes == [Outcome.DONE]
        await until_over(pools)
    assert await pools.listed() == posted[1:]


async def test_what_is_under_way_may_end_before_a_frozen_queue_moves(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.01)
    await pools.post(1)
    pools.worker.wait = 60
    async with draining(pools):
        await until(lambda: pools.placements.entry(QUEUE), lambda entry: entry.place.to == "new")
        await asyncio.sleep(0.2)
        assert (await pools.old.stats(QUEUE)).total == 1
        pools.clock.advance(60_000)
        await until_place(pools, Place("new", keys_in="old"))
        pools.clock.advance(240_000)
        await until_over(pools)


async def test_what_is_held_for_a_minute_moves_without_its_holder(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.01)
    await pools.post(1)
    claim_id = (await pools.claim(ttl_ms=600_000)).claim_id or ""
    extend = Settlement("", Act.EXTEND, ttl_ms=600_000, grace_ms=0)
    pools.worker.wait = 5
    async with draining(pools):
        await until(lambda: pools.placements.entry(QUEUE), lambda entry: entry.place.to == "new")
        pools.clock.advance(5_000)
        await until_problem(pools, "held by claims")
        await pools.messages.settle(QUEUE, claim_id, extend)
        pools.clock.advance(HELD_MS)
        with pytest.raises(Unavailable, match="being moved"):
            await pools.messages.settle(QUEUE, claim_id, extend)
        assert (await pools.old.stats(QUEUE)).claimed == 1  # some process may not know it yet
        pools.clock.advance(10_000)
        await until_place(pools, Place("new", keys_in="old"))
        pools.clock.advance(20_000)
        await until_over(pools)
    (moved,) = (await pools.new.list_messages(QUEUE, ListQuery(1, include_delayed=True))).messages
    left = (moved.delay_expires_at or 0) - pools.clock.now_ms()
    assert 0 < left <= 600_000 - HELD_MS


async def test_a_queue_of_the_server_is_named_once_in_however_many_stores_it_is(
    pools: Pools,
) -> None:
    own = outbox_queue("p")
    for name in (None, "old", "new"):
        store = await pools.messages.pool(name)
        await store.post(own, [NewMessage(b"1", 60_000)], client_id=CLIENT, version=None)
        assert [one async for one in pools.messages.nonempty_queues()] == [own]


async def test_a_repeated_batch_moves_a_message_with_its_attempts(pools: Pools) -> None:
    (posted,) = await pools.post(1)
    claim_id = (await pools.claim()).claim_id or ""
    failure = [Settlement(posted, Act.RELEASE, delay_ms=60_000, failed=True, reason="no answer")]
    await pools.messages.settle(QUEUE, claim_id, failure, retries=RetryPolicy())
    pools.new.fails = "import_messages", False
    async with draining(pools):
        await until_over(pools)
    (moved,) = await pools.messages.get_messages(QUEUE, [posted], details=True)
    assert [attempt.reason for attempt in moved.attempts] == ["no answer"]
    assert await pools.consume() == []  # it still waits for its next try


async def test_keyed_posts_are_known_across_the_move(pools: Pools) -> None:
    ((first, _),) = await pools.post_keyed("1")
    whole = await pools.post_keyed("2", "3", whole="all")
    async with draining(pools):
        await until_place(pools, Place("new", keys_in="old"))
        known, (new, is_known) = await pools.post_keyed("1", "4")
        assert (known, is_known) == ((first, True), False)
        assert await pools.post_keyed("4", "1") == [(new, True), (first, True)]
        again = await pools.post_keyed("2", "3", whole="all")
        assert again == [(message_id, True) for message_id, _ in whole]
        for index, reused in enumerate(([("1", b"5")], [("1", b"1"), ("4", b"5")])):
            sent = [NewMessage(b, 60_000, 0, identify(QUEUE, key, (b,))) for key, b in reused]
            with pytest.raises(KeyReused) as raised:
                await pools.messages.post(QUEUE, sent, client_id=CLIENT, version=None)
            assert raised.value.index == index
        assert set(await pools.listed()) == {first, new, *(one for one, _ in whole)}
        await until_problem(pools, "idempotency keys")
        assert (await pools.drains.kind.get("", "old")).queues == 1
        assert await pools.placements.holds("old") == QUEUE
        held, new_message = QueueRef("p", "held"), NewMessage(b"1", 3_600_000)
        await pools.old.post(held, [new_message], client_id=CLIENT, version=None)
        await pools.old.claim(held, ClaimRequest(1, ttl_ms=60_000))
        await pools.placements.write(held, Place("old"))
        await until_problem(pools, "held by claims")
        pools.clock.advance(OPTIONS.idempotency_window_ms)
        await until_over(pools)
    assert (await pools.post_keyed("1"))[0] != (first, True)
    assert await pools.placements.holds("old") is None


async def test_a_queue_moves_on_when_the_pool_before_has_forgotten_its_keys(pools: Pools) -> None:
    first = await pools.post_keyed("1")
    async with draining(pools):
        await until_place(pools, Place("new", keys_in="old"))
        await pools.registry.put_pool(Pool("newer", "memory://newer", 1))
        await pools.registry.put_pool(Pool("new", "memory://new", 0))
        await pools.drains.begin("new")
        drain = await until(lambda: pools.drains.kind.get("", "new"), lambda drain: drain.problem)
        assert "forgets" in (drain.problem or "")
        assert await pools.post_keyed("1") == [(first[0][0], True)]
        pools.clock.advance(OPTIONS.idempotency_window_ms)
        await until_place(pools, Place("newer"))


async def test_a_deleted_queue_forgets_the_keys_that_it_left_behind(pools: Pools) -> None:
    ((first, _),) = await pools.post_keyed("1")
    async with draining(pools):
        await until_place(pools, Place("new", keys_in="old"))
        await pools.messages.purge(QUEUE, forget=True)
        ((again, is_known),) = await pools.post_keyed("1")
    assert (again != first, is_known) == (True, False)


async def test_a_part_of_a_keyed_post_is_known_by_its_own_keys(pools: Pools) -> None:
    ((first, _),) = await pools.post_keyed("1")
    half = OPTIONS.idempotency_window_ms // 2
    pools.clock.advance(half)
    async with draining(pools):
        await until_place(pools, Place("new", keys_in="old"))
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
        await pools.drains.kind.put("", other.pool, other, 0)
    async with draining(pools):
        await until_over(pools)
        assert await pools.consume() == posted
        assert (await pools.drains.kind.get("", "a-99")).is_over
        pools.clock.advance(30 * 86_400_000)
    assert not await pools.management.list_records(DRAIN, "", limit=1)
    with pytest.raises(NotFound):
        await pools.drains.kind.get("", "old")


@pytest.mark.parametrize("other", ["pool", "own"])
async def test_a_pool_that_is_the_same_store_by_another_name_gets_nothing(
    pools: Pools, other: str
) -> None:
    posted = await pools.post(1)
    if other == "pool":
        pools.stores["new"] = pools.old
    else:
        pools.messages.home = pools.old
        await pools.registry.put_pool(Pool("new", "memory://new", 0))
    async with draining(pools):
        await until_problem(pools, "No other store")
        probes = "SELECT name FROM queue WHERE name LIKE '~probe.%'"
        await until(lambda: not pools.tables.execute(probes).fetchall())  # before any sweep
        assert await pools.consume() == posted


async def test_a_pool_that_was_deleted_meanwhile_is_drained(pools: Pools) -> None:
    await pools.management.delete_record(PLACE, *QUEUE)
    await pools.drains.begin("old")
    await pools.registry.kind.delete("", "old")
    async with at_work(pools.worker):
        assert (await until_over(pools)).state == "completed"


async def test_a_queue_that_no_other_pool_fits_holds_up_no_other(pools: Pools) -> None:
    await pools.registry.put_pool(Pool("old", "memory://old", 1))
    await pools.registry.put_flavor("p", "alone", ["old"])
    first = QueueRef("p", "a-first")
    await pools.placements.decide(first, {"_flavor": "alone"})
    await pools.management.create_queue(first, {"_flavor": "alone"}, max_queues=9)
    await pools.registry.put_pool(Pool("newer", "memory://newer", 1, "alone"))
    await pools.registry.put_pool(Pool("old", "memory://old", 0, "alone"))
    await pools.registry.put_pool(Pool("newer", "memory://newer", 0, "alone"))
    posted = await pools.post(1)
    async with draining(pools):
        await until_place(pools, Place("new"))
        await until_problem(pools, "takes new queues")
        assert await pools.listed() == posted
        assert (await pools.placements.entry(first)).place == Place("old")


async def test_a_pool_that_is_away_holds_up_only_what_goes_there(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = failing(Unavailable("planted"))
    other = QueueRef("p", "others")
    await pools.registry.put_pool(Pool("newer", "memory://newer", 1))
    posted = await pools.post(3)
    await pools.placements.write(other, Place("old"))
    (one,) = await pools.post(1, other)
    for queue, to in ((QUEUE, "new"), (other, "newer")):
        version = (await pools.placements.entry(queue)).version
        await pools.placements.write(queue, Place("old", to=to, group=to, since=1), version)
    with monkeypatch.context() as patched:
        patched.setattr(pools.new, "import_messages", away)
        async with draining(pools):
            await until(lambda: pools.placements.place(other), lambda place: place.pool == "newer")
            await until_problem(pools, "planted")
            with pytest.raises(Unavailable, match="being moved"):
                await pools.listed()
    assert len(await pools.stores["newer"].get_messages(other, [one])) == 1
    async with draining(pools):
        drain = await until_over(pools)
    assert (drain.moved, await pools.listed()) == (4, posted)


async def test_queues_that_lie_together_move_together(pools: Pools) -> None:
    """A queue, its dead letters and its ordered subscriptions; another one moves by itself."""
    line, other = ordered_queue("p", "s"), QueueRef("p", "other")
    metadata = {"_dead_letter_queue": LETTERS.name, ORDERED: ["s"]}
    await pools.management.create_queue(QUEUE, metadata, max_queues=9)
    for queue in (LETTERS, line, other):
        await pools.placements.write(queue, Place("old"))
    await pools.drains.begin("old")
    drain, version = await pools.drains.kind.read("", "old")
    assert drain is not None
    work = Held(pools.drains.kind, "", "old", drain, version)
    group = await pools.worker._group_of(work, LETTERS)
    assert group.keys() == {QUEUE, LETTERS, line}
    assert (await pools.worker._group_of(work, other)).keys() == {other}
    await pools.registry.put_pool(Pool("newer", "memory://newer", 1))
    async with draining(pools):
        await until_over(pools)
    assert len(await pools.places(*group)) == 1


async def test_all_queues_of_one_dead_letter_queue_go_with_it_to_one_pool(pools: Pools) -> None:
    """However many they are, and though other processes would go on when a lease ends."""
    others = [DrainWorker(pools.messages, pools.drains, wait=0.02) for _ in range(2)]
    queues = [QueueRef("p", f"q-{number:04}") for number in range(1_100)]
    metadata = {"_dead_letter_queue": LETTERS.name}
    for queue in queues:
        await pools.management.create_queue(queue, metadata, max_queues=9_999)
        await pools.placements.write(queue, Place("old"))
    await pools.placements.write(LETTERS, Place("old"))
    await pools.registry.put_pool(Pool("newer", "memory://newer", 1))
    async with draining(pools):
        for other in others:
            other.start()
        await until_over(pools)
        for other in others:
            await other.stop()
    assert len(await pools.places(LETTERS, *queues)) == 1


async def test_a_group_that_a_crash_froze_in_part_is_frozen_whole(pools: Pools) -> None:
    await pools.management.create_queue(QUEUE, {"_dead_letter_queue": LETTERS.name}, max_queues=9)
    await pools.placements.write(LETTERS, Place("old"))
    version = (await pools.placements.entry(QUEUE)).version
    await pools.placements.write(QUEUE, Place("old", to="newer", group="g", since=1), version)
    await pools.registry.put_pool(Pool("newer", "memory://newer", 1))
    async with draining(pools):
        await until_over(pools)
    assert await pools.places(QUEUE, LETTERS) == {Place("newer")}


async def test_all_queues_of_a_project_with_a_filter_go_to_one_pool(pools: Pools) -> None:
    filtered = QueueRef("p", "z-filtered")
    await pools.management.create_queue(QUEUE, {}, max_queues=9)
    await pools.management.create_queue(filtered, {"_filter": "a = 1"}, max_queues=9)
    await pools.placements.write(filtered, Place("old"))
    await pools.registry.put_pool(Pool("newer", "memory://newer", 1))
    async with draining(pools):
        await until_over(pools)
    assert len(await pools.places(QUEUE, filtered)) == 1


async def test_dead_letters_of_what_is_held_in_the_old_pool_move_too(pools: Pools) -> None:
    await pools.management.create_queue(QUEUE, {"_dead_letter_queue": "letters"}, max_queues=9)
    await pools.placements.write(LETTERS, Place("old"))
    posted = await pools.post(1)
    dead = RetryPolicy(DeadLetter(LETTERS, max_failures=1))
    claim_id = (await pools.claim(retries=dead)).claim_id or ""
    async with draining(pools):
        await until_problem(pools, "held by claims")
        settled = await pools.messages.settle(
            QUEUE, claim_id, [Settlement(posted[0], Act.DEAD)], retries=dead
        )
        assert settled.moved == 1
        await until_over(pools)
    assert (await pools.old.stats(LETTERS)).total == 0
    assert [one.id for one in await pools.new.get_messages(LETTERS, posted)] == posted


@asynccontextmanager
async def redriven(pools: Pools, ids: Sequence[str]) -> AsyncIterator[None]:
    """Move letters of one pool to a queue of another, and let them arrive."""
    async with at_work(pools.worker):
        outcomes = await pools.messages.move(LETTERS, ids, Move(QUEUE, 3_600_000))
        assert outcomes == [Outcome.DONE] * len(ids)
        yield
        pools.clock.advance(CARRIED_MS)
        await until(lambda: pools.management.list_records(CARRY, "p", limit=1), operator.not_)


@pytest.mark.parametrize("done", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize(
    ("store", "operation"), [("new", "import_messages"), ("old", "delete"), ("old", "none")]
)
async def test_letters_arrive_once_in_another_pool(
    pools: Pools, store: str, operation: str, *, done: bool
) -> None:
    await pools.placements.write(QUEUE, Place("new"))
    await pools.placements.write(LETTERS, Place("old"))
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


async def test_a_queue_of_the_servers_own_store_redrives_into_a_pool(pools: Pools) -> None:
    await pools.placements.write(QUEUE, Place("new"))
    (one,) = await pools.post(1, LETTERS)
    async with redriven(pools, [one]):
        await until(lambda: pools.new.stats(QUEUE), lambda stats: stats.ready)
    (found,) = await pools.messages.get_messages(QUEUE, (one,))
    assert found.origin is not None
    assert (found.origin.source, found.origin.redriven) == (LETTERS.name, 1)


async def test_of_what_is_frozen_letters_wait_and_what_was_delivered_is_deleted(
    pools: Pools,
) -> None:
    line, frozen = ordered_queue("p", "s"), Place("old", to="new", group="g", since=1)
    for queue in (LETTERS, line):
        await pools.placements.write(queue, Place("old"))
    (letter,), (delivered,) = await pools.post(1, LETTERS), await pools.post(1, line)
    for queue in (QUEUE, line):
        version = (await pools.placements.entry(queue)).version
        place = replace(frozen, since=pools.clock.now_ms()) if queue == line else frozen
        await pools.placements.write(queue, place, version)
    for act in (
        pools.messages.move(LETTERS, [letter], Move(QUEUE, 3_600_000)),
        pools.messages.list_messages(line, ListQuery(1)),
    ):
        with pytest.raises(Unavailable, match="being moved"):
            await act
    assert len(await pools.old.get_messages(LETTERS, [letter])) == 1
    await pools.messages.delete(line, (delivered,), claim_ids=None)
    assert (await pools.old.stats(line)).total == 0


async def test_a_pool_that_is_away_holds_up_no_delivery_as_the_servers_own_store_does(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = failing(Unavailable("away"))
    queue, home, request = outbox_queue("p"), pools.messages.home, ClaimRequest(1, ttl_ms=60_000)
    await pools.messages.pool("old")
    for store in (pools.old, home):
        monkeypatch.setattr(store, "delete", away)
        monkeypatch.setattr(store, "claim", away)
        with pytest.raises(Unavailable) if store is home else nullcontext():
            await pools.messages.delete(queue, ["m"], claim_ids=None)
        with pytest.raises(Unavailable) if store is home else nullcontext():
            await pools.messages.claim(queue, request)


async def test_a_pool_with_redriven_messages_is_not_empty(pools: Pools) -> None:
    await pools.placements.write(QUEUE, Place("new"))
    assert await pools.placements.holds("old") is None
    await pools.placements.write(LETTERS, Place("old"))
    (letter,) = await pools.post(1, LETTERS)
    await pools.messages.move(LETTERS, [letter], Move(QUEUE, 3_600_000))
    await pools.placements.write(LETTERS, Place("new"))
    assert await pools.placements.holds("old") == QUEUE


async def test_a_pools_store_is_closed_when_it_becomes_another_one_or_the_server_ends(
    pools: Pools,
) -> None:
    """Also where several requests find that it has become another one."""
    made: list[str] = []
    closed: list[str] = []

    class Closing(SqlMessageStore):
        async def close(self) -> None:
            closed.append("store")
            await asyncio.sleep(0)
            await super().close()

    def make(pool: Pool) -> SqlMessageStore:
        made.append(pool.uri)
        return Closing(Database(InRam(), pools.clock, OPTIONS))

    connections = pools.messages.connections = OpenConnections(make)
    uris = ["memory://one", "memory://two"]
    for number, pool in enumerate(Pool("p", uri, 1) for uri in uris):
        found = await asyncio.gather(*(connections.store(pool) for _ in range(3)))
        assert len({id(one) for one in found}) == 1
        assert len(closed) == number
    await pools.messages.close()
    assert (made, len(closed)) == (uris, 2)


async def test_letters_arrive_that_a_process_moves_after_a_long_stop(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile it is forgotten that there are any."""
    await pools.placements.write(QUEUE, Place("new"))
    await pools.placements.write(LETTERS, Place("old"))
    (letter,) = await pools.post(1, LETTERS)
    move = pools.old.move

    async def late(*given: Any) -> Sequence[Outcome]:
        pools.clock.advance(CARRIED_MS)
        await until(lambda: pools.management.list_records(CARRY, "p", limit=1), operator.not_)
        return await move(*given)

    monkeypatch.setattr(pools.old, "move", late)
    async with redriven(pools, [letter]):
        await until(lambda: pools.new.stats(QUEUE), lambda stats: stats.ready)


async def test_who_waits_for_a_pool_that_becomes_another_one_may_try_again(pools: Pools) -> None:
    opening = asyncio.Event()

    class Silent(SqlMessageStore):
        async def open(self) -> None:
            opening.set()
            await asyncio.Event().wait()

    silent, answers = (kind(Database(InRam(), pools.clock, OPTIONS)) for kind in (Silent, Failing))
    connections = OpenConnections(lambda pool: silent if pool.uri == "memory://1" else answers)
    waiting = asyncio.create_task(connections.store(Pool("p", "memory://1", 1)))
    await opening.wait()
    assert await connections.store(Pool("p", "memory://2", 1)) is answers
    with pytest.raises(Unavailable, match="another one"):
        await waiting
    await connections.close()


async def test_a_sweep_comes_to_pools_that_nobody_has_needed_since_the_start(
    pools: Pools,
) -> None:
    await pools.messages.sweep(1_000)
    await until(lambda: set(pools.messages.connections.stores()) == {"old", "new"})

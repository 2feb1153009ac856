"""However much is due at once, no step of the event loop does more than a bounded part of it."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.drivers.opendata.store import HOUR, MINUTE, OTHER, QUEUE, Store, texts
from zaqar_lite.domain.models import (
    Copy,
    DeadLetter,
    HistoryState,
    NewMessage,
    Selection,
)
from zaqar_lite.storage.opendata.due import STEP
from zaqar_lite.storage.opendata.engine import Stored
from zaqar_lite.storage.opendata.entries import PAGE_SIZE
from zaqar_lite.storage.opendata.format.keys import RecordType

pytestmark = pytest.mark.anyio
MANY = 4 * STEP
MOST = 2 * STEP + PAGE_SIZE  # a step of bringing the queue up to now, and one of taking


class Steps:
    """The most that was looked at between two turns of the event loop."""

    def __init__(self) -> None:
        self.longest = 0


@asynccontextmanager
async def watched(store: Store) -> AsyncIterator[Steps]:
    """Take a turn whenever the event loop gives one, and look how much was done meanwhile."""
    steps = Steps()

    async def watch() -> None:
        before = store.messages.examined
        while True:
            await asyncio.sleep(0)
            after = store.messages.examined
            steps.longest = max(steps.longest, after - before)
            before = after

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0)
    yield steps
    await asyncio.sleep(0)
    watcher.cancel()


async def post_many(store: Store, count: int, *, ttl: int = 2 * HOUR, delay: int = 0) -> list[str]:
    ids = []
    for start in range(0, count, 1_000):
        new = [NewMessage(b'"many"', ttl, delay)] * min(1_000, count - start)
        posted = await store.messages.post(QUEUE, new, client_id="p", version=None)
        ids += [message.id for message in posted]
    return ids


async def test_a_page_reads_no_more_of_the_log_than_it_shows(store: Store) -> None:
    """Whose a message is stands in the log only, once the store was opened again."""
    ids = await post_many(store, 1_000)
    await store.restart()
    read: list[bytes] = []
    get = store.db.engine.get

    async def counted(wanted: Sequence[bytes]) -> dict[bytes, Stored]:
        read.extend(wanted)
        return await get(wanted)

    store.db.engine.get = counted  # type: ignore[assignment, method-assign]
    before = store.messages.examined
    page = await store.messages.list_messages(
        QUEUE, Selection(limit=20, exclude_client_id="another")
    )
    assert [message.id for message in page.messages] == ids[:20]
    assert store.messages.examined - before <= 40
    assert len(read) <= 60  # 20 bodies, and who posted what


async def test_a_claim_opens_only_the_pages_it_hands_out(store: Store) -> None:
    await post_many(store, MANY, delay=HOUR)
    store.clock.advance(HOUR)
    before = store.messages.examined
    assert len((await store.claim(20)).messages) == 20
    assert store.messages.examined - before <= PAGE_SIZE + 20
    before = store.messages.examined
    assert len((await store.claim(20)).messages) == 20
    assert store.messages.examined - before == 20


async def test_counting_what_is_due_takes_many_steps(store: Store) -> None:
    await post_many(store, MANY, delay=HOUR)
    store.clock.advance(HOUR)
    async with watched(store) as steps:
        stats = await store.messages.stats(QUEUE)
    assert (stats.ready, stats.delayed) == (MANY, 0)
    assert 0 < steps.longest <= MOST


async def test_a_listing_shows_what_is_due_without_opening_it(store: Store) -> None:
    await post_many(store, MANY, delay=HOUR)
    assert not (await store.messages.list_messages(QUEUE, Selection(limit=10))).messages
    store.clock.advance(HOUR)
    before = store.messages.examined
    assert len((await store.messages.list_messages(QUEUE, Selection(limit=10))).messages) == 10
    assert store.messages.examined - before <= 1_000


@pytest.mark.parametrize("seed", range(5))
async def test_what_is_due_is_never_overtaken(seed: int, store: Store) -> None:
    """Random delays and priorities; the claims come by priority, then in the order of posting."""
    choose = random.Random(seed)
    posted = []
    for number in range(1_200):
        delay = 5_000 * choose.choice((0, 1, 2, 5, choose.randint(0, 9)))
        posted.append((choose.choice((100, 100, 100, 7, 200)), number, delay))
    for start in range(0, len(posted), 100):
        new = [
            NewMessage(b"%d" % number, HOUR, delay, priority=priority)
            for priority, number, delay in posted[start : start + 100]
        ]
        await store.messages.post(QUEUE, new, client_id="p", version=None)
    handed_out: set[int] = set()
    for now in (2_500, 7_500, 12_500, 12_500, 32_500, 47_500):
        store.clock.advance(now - store.passed)
        store.passed = now
        waiting = sorted(row for row in posted if row[2] <= now and row[1] not in handed_out)
        expected = [number for _, number, _ in waiting][: choose.choice((1, 20, 150))]
        found = [int(text) for text in texts(await store.claim(len(expected) or 1))]
        assert found == expected
        handed_out.update(found)


async def test_delays_are_found_in_pages_that_were_joined(store: Store) -> None:
    """The first page's own delay ends last; what it took over comes before what is ready."""
    for number in range(30):
        ids = await store.post(*["many"] * (PAGE_SIZE - 1))
        delay, priority = (MINUTE, 100) if number else (HOUR // 2, 200)
        await store.post(NewMessage(b'"%d"' % number, HOUR, delay, priority=priority))
        await store.messages.delete(QUEUE, ids, claim_ids=None)
    await store.sweep()
    assert len(await store.records(RecordType.ACTIVE)) < 5
    await store.post(NewMessage(b'"ready"', HOUR, priority=150))
    store.clock.advance(MINUTE)
    expected = [*map(str, range(1, 30)), "ready"]
    assert texts(await store.claim(50)) == expected


async def test_what_expires_at_once_goes_in_many_steps(store: Store) -> None:
    await post_many(store, MANY, ttl=MINUTE)
    await store.post("stays")
    store.clock.advance(MINUTE)
    async with watched(store) as steps:
        assert texts(await store.claim()) == ["stays"]
    assert 0 < steps.longest <= MOST
    assert (await store.messages.stats(QUEUE)).total == 1
    await store.sweep()


async def test_what_lapses_at_once_is_ready_in_many_steps(store: Store) -> None:
    await post_many(store, MANY)
    first = await store.claim(1_000)
    for _ in range(MANY // 1_000):
        await store.claim(1_000)
    store.clock.advance(MINUTE)
    async with watched(store) as steps:
        again = await store.claim(1_000)
    assert [m.id for m in again.messages] == [m.id for m in first.messages]
    assert all(message.claim_count == 2 for message in again.messages)
    assert 0 < steps.longest <= MOST


async def test_a_claim_passes_over_what_others_deleted_in_many_steps(store: Store) -> None:
    """The keys of entries that were deleted unclaimed lie before the first one that is left."""
    await store.post("first")
    ids = await post_many(store, MANY)
    await store.post("last")
    for start in range(0, MANY, 1_000):
        await store.messages.delete(QUEUE, ids[start : start + 1_000], claim_ids=None)
    async with watched(store) as steps:
        assert texts(await store.claim(1)) == ["first"]
        assert texts(await store.claim(1)) == ["last"]
    assert 0 < steps.longest <= MOST


async def test_exhausted_messages_are_moved_in_many_steps(store: Store) -> None:
    await post_many(store, 3_000)
    for _ in range(3):
        await store.claim(1_000)
    store.clock.advance(MINUTE)
    await store.post("healthy")
    async with watched(store) as steps:
        claimed_now = await store.claim(letters=DeadLetter(OTHER, 1, None))
    assert texts(claimed_now) == ["healthy"]
    assert claimed_now.moved == 3_000
    assert (await store.messages.stats(OTHER)).ready == 3_000
    assert 0 < steps.longest <= MOST


async def test_a_history_that_is_over_at_once_is_trimmed_in_many_batches(store: Store) -> None:
    await store.management.create_queue(QUEUE, {"_done_retention": 60}, max_queues=9)
    await post_many(store, 2 * STEP)
    while ids := [message.id for message in (await store.claim(1_000)).messages]:
        await store.messages.delete(QUEUE, ids, claim_ids=None)
    store.clock.advance(2 * MINUTE)
    assert await store.history(HistoryState.DONE) == []
    for _ in range(3):
        await store.messages.sweep(1_000)
        assert len(store.db.written.deletes) <= STEP + 2 * PAGE_SIZE
    assert not await store.records(RecordType.ATTEMPTS)


async def test_a_sweep_after_many_lapses_moves_the_exhausted_in_steps(store: Store) -> None:
    policy = {"_max_claim_count": 1, "_dead_letter_queue": "other"}
    await store.management.create_queue(QUEUE, policy, max_queues=9)
    await post_many(store, 3_000)
    for _ in range(3):
        await store.claim(1_000)
    store.clock.advance(MINUTE)
    moved = [(await store.messages.sweep(1_000)).moved for _ in range(8)]
    assert sum(moved) == 3_000
    assert max(moved) <= 1_000
    assert (await store.messages.stats(OTHER)).ready == 3_000


async def test_a_copy_in_a_queue_where_much_is_due_waits_its_turn(store: Store) -> None:
    """Posting fills other queues without bringing them up to now."""
    await post_many(store, MANY, ttl=MINUTE)
    store.clock.advance(MINUTE)
    async with watched(store) as steps:
        copied = NewMessage(b'"copied"', HOUR, copies=(Copy(QUEUE, HOUR, 0, 100),))
        await store.post(copied, to=OTHER)
        assert texts(await store.claim()) == ["copied"]
    assert 0 < steps.longest <= MOST
    await store.sweep()

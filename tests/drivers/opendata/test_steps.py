"""However much is due at once, no step of the event loop does more than a bounded part of it."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.drivers.opendata.store import HOUR, MINUTE, OTHER, QUEUE, Store, listed, texts
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import LimitReached
from zaqar_lite.domain.histories import HistoryState
from zaqar_lite.domain.models import (
    Claimed,
    DeadLetter,
    ListQuery,
    QueueRef,
    RetryPolicy,
    StoreOptions,
)
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.storage.opendata.claiming import MOST_MOVED
from zaqar_lite.storage.opendata.due import STEP
from zaqar_lite.storage.opendata.engine import Stored
from zaqar_lite.storage.opendata.entries import PAGE_SIZE
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.registry import create_stores

pytestmark = pytest.mark.anyio
MANY = 20 * STEP
MOST = 5 * STEP + PAGE_SIZE  # what one call looks at: some lapses, and then what is first


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


async def claim_on(
    store: Store, limit: int = 20, *, letters: DeadLetter | None = None
) -> tuple[Claimed, list[int]]:
    """Claim until something comes or nothing is left; tell what each call looked at, too."""
    looked_at = []
    while True:
        before = store.messages.examined
        claimed = await store.claim(limit, letters=letters)
        looked_at.append(store.messages.examined - before)
        assert looked_at[-1] or not claimed.more, "an empty answer must have made progress"
        if claimed.messages or not claimed.more:
            return claimed, looked_at


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
        QUEUE, ListQuery(limit=20, exclude_client_id="another")
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
    assert not (await store.messages.list_messages(QUEUE, ListQuery(limit=10))).messages
    store.clock.advance(HOUR)
    before = store.messages.examined
    assert len((await store.messages.list_messages(QUEUE, ListQuery(limit=10))).messages) == 10
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


async def test_a_claim_passes_over_what_has_expired_in_many_calls(store: Store) -> None:
    await post_many(store, MANY, ttl=MINUTE)
    await store.post("stays")
    store.clock.advance(MINUTE)
    async with watched(store) as steps:
        claimed, looked_at = await claim_on(store)
    assert texts(claimed) == ["stays"]
    assert len(looked_at) > 1
    assert 0 < steps.longest <= max(looked_at) <= MOST
    assert (await store.messages.stats(QUEUE)).total == 1


async def test_others_do_not_wait_for_what_has_expired(store: Store) -> None:
    """It is gone from its instant on, whether or not anything has come to it."""
    ids = await post_many(store, MANY, ttl=MINUTE)
    (stays,) = await store.post("stays")
    held = await store.claim(1)
    store.clock.advance(MINUTE)
    before = store.messages.examined
    assert not await store.messages.get_messages(QUEUE, ids[1:20])
    assert await store.messages.delete(QUEUE, ids[1:20], claim_ids=["0" * 32]) == ()
    await store.post("more")
    found = await store.messages.get_messages(QUEUE, [stays, held.messages[0].id])
    assert [message.claim_id for message in found] == [None, None]
    assert store.messages.examined == before


async def test_a_full_queue_has_room_where_something_has_expired(tmp_path: Path) -> None:
    clock = Clock()
    options = StoreOptions(max_messages=3 * STEP)
    stores = create_stores(f"opendata+slatedb://{tmp_path}/data", clock=clock, options=options)
    async with stores[0] as messages:
        for ttl in (MINUTE, HOUR, HOUR):
            new = [NewMessage(b"1", ttl)] * STEP
            await messages.post(QUEUE, new, client_id="p", version=None)
        with pytest.raises(LimitReached):
            await messages.post(QUEUE, new, client_id="p", version=None)
        clock.advance(MINUTE)
        await messages.post(QUEUE, new, client_id="p", version=None)
        with pytest.raises(LimitReached):
            await messages.post(QUEUE, new[:1], client_id="p", version=None)


async def test_what_lapses_at_once_comes_back_in_its_order(store: Store) -> None:
    await post_many(store, 5 * STEP)
    first = await store.claim(10)
    for _ in range(5 * STEP // 10):
        await store.claim(10)
    store.clock.advance(MINUTE)
    async with watched(store) as steps:
        again, looked_at = await claim_on(store, 10)
    assert [m.id for m in again.messages] == [m.id for m in first.messages]
    assert all(message.claim_count == 2 for message in again.messages)
    assert len(looked_at) > 1
    assert 0 < steps.longest <= max(looked_at) <= MOST


async def test_a_claim_passes_over_what_others_deleted_in_many_calls(store: Store) -> None:
    """The keys of entries that were deleted unclaimed lie before the first one that is left."""
    await store.post("first")
    ids = await post_many(store, MANY)
    await store.post("last")
    for start in range(0, MANY, 1_000):
        await store.messages.delete(QUEUE, ids[start : start + 1_000], claim_ids=None)
    async with watched(store) as steps:
        assert texts((await claim_on(store, 1))[0]) == ["first"]
        claimed, looked_at = await claim_on(store, 1)
    assert texts(claimed) == ["last"]
    assert 0 < steps.longest <= max(looked_at) <= MOST


async def test_what_is_gone_is_not_kept_in_mind(store: Store) -> None:
    """Whoever lists and deletes, and never claims, leaves nothing behind."""
    ids = await post_many(store, MANY)
    (left,) = await store.post("left")
    await store.claim(1)
    for start in range(1, MANY, 1_000):
        await store.messages.delete(QUEUE, ids[start : start + 1_000], claim_ids=None)
    await store.sweep()
    queue = store.db.queues.get(QUEUE)
    assert queue is not None
    assert len(queue.ready) + len(queue.expiries) < MANY // 100
    await store.messages.delete(QUEUE, [left], claim_ids=None)
    await store.post("new")
    assert texts(await store.claim()) == ["new"]


async def test_exhausted_messages_are_moved_in_many_calls(store: Store) -> None:
    await post_many(store, 3_000)
    for _ in range(3):
        await store.claim(1_000)
    store.clock.advance(MINUTE)
    await store.post("healthy")
    async with watched(store) as steps:
        claimed, looked_at = await claim_on(store, letters=DeadLetter(OTHER, 1, None))
    assert texts(claimed) == ["healthy"]
    assert len(looked_at) >= 3_000 // MOST_MOVED
    assert (await store.messages.stats(OTHER)).ready == 3_000
    assert 0 < steps.longest <= max(looked_at) <= MOST


async def test_a_page_of_others_messages_is_found_behind_many_of_ones_own(store: Store) -> None:
    await post_many(store, MANY)
    new = [NewMessage(b'"other"', HOUR)]
    await store.messages.post(QUEUE, new, client_id="another", version=None)
    async with watched(store) as steps:
        page = await store.messages.list_messages(QUEUE, ListQuery(limit=10, exclude_client_id="p"))
    assert texts(list(page.messages)) == ["other"]
    assert 0 < steps.longest <= STEP


async def test_queues_are_looked_through_in_steps(store: Store) -> None:
    """Names and metadata are asked of each queue of the project."""
    for start in range(0, 5_000, 1_000):
        await asyncio.gather(*[
            store.management.create_queue(
                QueueRef("project", f"queue-{number:04}"), {"kind": number}, max_queues=9_999
            )
            for number in range(start, start + 1_000)
        ])  # fmt: skip
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(others())
    await asyncio.sleep(0)
    found = await store.management.list_queues("project", limit=5, metadata={"kind": 4_999})
    counting.cancel()
    assert [record.queue.name for record in found] == ["queue-4999"]
    assert turns >= 5
    rest = await store.management.list_queues("project", marker="queue-1499", limit=9_999)
    assert len(rest) == 3_500


async def test_a_long_queue_is_purged_in_many_steps(store: Store) -> None:
    await post_many(store, MANY // 2)
    await post_many(store, MANY // 2, delay=HOUR)
    while (await store.claim(1_000)).messages:
        pass
    turns = 0

    async def post_meanwhile() -> None:
        nonlocal turns
        while True:
            await store.post("later")
            turns += 1

    posting = asyncio.create_task(post_meanwhile())
    await store.messages.purge(QUEUE)
    posting.cancel()
    await asyncio.gather(posting, return_exceptions=True)
    assert turns >= 3
    left = await listed(store)
    assert set(left) <= {"later"}
    assert not await store.records(RecordType.CLAIM)


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
    await post_many(store, 3_000)
    for _ in range(3):
        await store.claim(1_000)
    store.clock.advance(MINUTE)

    async def retries_of(_: QueueRef) -> RetryPolicy:
        return RetryPolicy(DeadLetter(OTHER, 1))

    moved = [(await store.messages.sweep(1_000, retries_of)).moved for _ in range(8)]
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
        assert texts((await claim_on(store))[0]) == ["copied"]
    assert 0 < steps.longest <= MOST
    await store.sweep()

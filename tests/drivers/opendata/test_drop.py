"""Deleting a queue with a long history: in bounded steps, whatever happens between them."""

import asyncio

import pytest

from tests.drivers.opendata.snapshot import check_invariants
from tests.drivers.opendata.store import HOUR, QUEUE, Store
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.histories import HistoryState
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.opendata.due import STEP
from zaqar_lite.storage.opendata.engine import Batch, Engine
from zaqar_lite.storage.opendata.entries import PAGE_SIZE
from zaqar_lite.storage.opendata.format.keys import RecordType

pytestmark = pytest.mark.anyio
MANY = 3 * STEP
MOST = STEP + 3 * PAGE_SIZE


class Commits:
    """The sizes of an engine's batches; from one of them on, the disk is full."""

    def __init__(self, engine: Engine, *, fails_at: int | None = None) -> None:
        self.sizes: list[int] = []
        self._commit = engine.commit
        self._fails_at = fails_at
        engine.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, batch: Batch) -> None:
        if len(self.sizes) == self._fails_at:
            raise Unavailable("The disk is full.")
        await self._commit(batch)
        self.sizes.append(len(batch.puts) + len(batch.deletes))


async def with_history(store: Store, count: int = MANY) -> None:
    """A queue with so many done messages, and one that waits."""
    await store.management.create_queue(QUEUE, {"_done_retention": 3_600}, max_queues=9)
    for _ in range(0, count, 1_000):
        new = [NewMessage(b'"many"', HOUR)] * min(1_000, count)
        await store.messages.post(QUEUE, new, client_id="p", version=None)
        ids = [message.id for message in (await store.claim(1_000)).messages]
        await store.messages.delete(QUEUE, ids, claim_ids=None)
    await store.sweep()
    await store.post("waits")


async def is_nothing_left(store: Store) -> bool:
    kinds = (RecordType.DONE, RecordType.ATTEMPTS, RecordType.CONFIG, RecordType.PAYLOAD)
    return not [kind for kind in kinds if await store.records(kind)]


async def test_a_long_history_is_forgotten_in_bounded_batches(store: Store) -> None:
    await with_history(store)
    commits = Commits(store.db.engine)
    await store.messages.drop(QUEUE)
    assert len(commits.sizes) > MANY // STEP
    assert STEP // 2 < max(commits.sizes) <= MOST
    assert await is_nothing_left(store)
    await store.restart()
    assert await store.management.get_queue(QUEUE) is None


async def test_no_record_is_left_of_a_queue_that_had_none_but_its_own(store: Store) -> None:
    """The root of its pages stayed for ever."""
    await store.management.create_queue(QUEUE, {}, max_queues=9)
    await store.sweep()
    await store.messages.drop(QUEUE)
    for kind in (RecordType.CONFIG, RecordType.ACTIVE, RecordType.DONE, RecordType.FAILED):
        assert not await store.records(kind)
    await store.management.create_queue(QUEUE, {}, max_queues=9)
    assert await store.records(RecordType.ACTIVE)


async def test_a_failure_between_the_steps_leaves_the_queue_with_less_history(
    store: Store,
) -> None:
    await with_history(store)
    before = await store.history(HistoryState.DONE, limit=1_000)
    Commits(store.db.engine, fails_at=2)
    with pytest.raises(Unavailable):
        await store.messages.drop(QUEUE)
    await store.restart()
    record = await store.management.get_queue(QUEUE)
    assert record is not None
    assert record.metadata == {"_done_retention": 3_600}
    after = await store.history(HistoryState.DONE, limit=1_000)
    assert after == before[-len(after) :]  # the oldest went first
    assert len(before) - 2 * MOST <= len(after) <= len(before) - STEP
    assert len(await store.records(RecordType.ATTEMPTS)) == len(after)
    await store.messages.drop(QUEUE)
    assert await is_nothing_left(store)


async def test_others_may_use_and_drop_the_queue_between_the_steps(store: Store) -> None:
    await with_history(store)
    drops = [asyncio.create_task(store.messages.drop(QUEUE)) for _ in range(3)]
    used = 0
    while not all(drop.done() for drop in drops):
        await store.post("meanwhile")
        used += await store.acknowledge()
        await store.messages.sweep(100)
    await asyncio.gather(*drops)
    assert used
    await store.messages.drop(QUEUE)
    await store.sweep()
    assert await is_nothing_left(store)
    await store.post("afterwards")
    await store.restart()
    assert (await store.messages.stats(QUEUE)).total == 1
    await check_invariants(store.db)


async def test_a_queue_that_is_recovered_between_the_steps_is_dropped_whole(store: Store) -> None:
    """Somebody else's batch fails while a page is read: the queue in memory is another one then."""
    await with_history(store)
    await store.restart()
    read, db = store.db.engine.get, store.db

    async def recovered_meanwhile(wanted: list[bytes]) -> object:
        db.engine.get = read  # type: ignore[method-assign]
        found = await read(wanted)
        await db._recover()
        return found

    db.touched.add(db.queues.make(QUEUE))
    db.engine.get = recovered_meanwhile  # type: ignore[method-assign, assignment]
    await store.messages.drop(QUEUE)
    assert await is_nothing_left(store)

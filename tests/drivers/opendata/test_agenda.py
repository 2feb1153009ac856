"""The sweep visits the queues that changed or in which something is due, and no others."""

import asyncio

import pytest

from tests.drivers.opendata.store import HOUR, MINUTE, OTHER, QUEUE, Store
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.histories import HistoryState
from zaqar_lite.domain.models import QueueRef, RetryPolicy
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.opendata.engine import Batch

pytestmark = pytest.mark.anyio


async def visits(store: Store) -> int:
    """How many queues a sweep visits."""
    before = store.db.queues.agenda.visits
    await store.messages.sweep(1_000)
    return store.db.queues.agenda.visits - before


async def settle(store: Store) -> None:
    """Sweep until nothing is visited any more."""
    for _ in range(5):
        if not await visits(store):
            return
    raise AssertionError("the sweep does not come to rest")


async def test_idle_queues_are_not_visited(store: Store) -> None:
    refs = [QueueRef("project", f"queue-{number}") for number in range(2_000)]
    for start in range(0, len(refs), 1_000):
        await asyncio.gather(*[store.post("waits", to=ref) for ref in refs[start : start + 1_000]])
    await settle(store)
    assert await visits(store) == 0
    store.clock.advance(MINUTE)
    assert await visits(store) == 0
    await store.post("changed", to=refs[7])
    assert await visits(store) == 1


async def test_a_queue_is_visited_when_something_is_due_there(store: Store) -> None:
    await store.post("expires", NewMessage(b'"delayed"', 3 * HOUR, 2 * MINUTE))
    await store.claim(1)
    await settle(store)
    store.clock.advance(MINUTE - 1_000)
    assert await visits(store) == 0
    store.clock.advance(1_000)
    assert (await store.messages.sweep(100)).lapsed == 1
    await settle(store)
    store.clock.advance(MINUTE)
    assert (await store.messages.sweep(100)).promoted == 1
    await settle(store)
    store.clock.advance(HOUR)
    assert (await store.messages.sweep(100)).expired == 1
    await settle(store)
    store.clock.advance(2 * HOUR)
    assert (await store.messages.sweep(100)).expired == 1
    await settle(store)
    assert not list(store.db.queues)  # nothing is left of it


async def test_a_history_is_trimmed_at_its_instant(store: Store) -> None:
    await store.management.create_queue(QUEUE, {"_done_retention": 60}, max_queues=9)
    await store.post("done")
    await store.acknowledge()
    await settle(store)
    assert await visits(store) == 0
    store.clock.advance(MINUTE)
    await settle(store)
    assert await store.history(HistoryState.DONE) == []
    queue = store.db.queues.get(QUEUE)
    assert queue is not None
    assert not queue.done


async def test_a_queue_that_waits_to_be_forgotten_is_visited_after_an_error(store: Store) -> None:
    """It waits for the batch that is being written."""
    ids = await store.post("deleted")
    await store.post("lapses", to=OTHER)
    await store.claim(queue=OTHER)
    await settle(store)
    store.clock.advance(2 * MINUTE)
    commit, is_writing, is_written = store.db.engine.commit, asyncio.Event(), asyncio.Event()

    async def slow(batch: Batch) -> None:
        is_writing.set()
        await is_written.wait()
        await commit(batch)

    async def retries_of(_: QueueRef) -> RetryPolicy:
        raise Unavailable("the other store does not answer")

    store.db.engine.commit = slow  # type: ignore[method-assign]
    deletion = asyncio.create_task(store.messages.delete(QUEUE, ids, claim_ids=None))
    await is_writing.wait()
    with pytest.raises(Unavailable, match="other store"):
        await store.messages.sweep(100, retries_of)
    is_written.set()
    await deletion
    await settle(store)
    assert [queue.ref for queue in store.db.queues] == [OTHER]


async def test_what_is_due_after_a_restart_is_found(store: Store) -> None:
    await store.post("expires")
    await store.restart()
    await settle(store)
    store.clock.advance(HOUR)
    assert (await store.messages.sweep(100)).expired == 1


async def test_a_queue_that_a_refused_post_made_is_forgotten(store: Store) -> None:
    store.db.queues.make(QUEUE)
    await settle(store)
    assert store.db.queues.get(QUEUE) is None


async def test_a_queue_without_messages_rests(store: Store) -> None:
    """Of it there is only the record, before and after a restart; asking for that wakes nobody."""
    for name in ("one", "two"):
        ref = QueueRef("project", name)
        await store.management.create_queue(ref, {"kind": name}, max_queues=9)
    await store.post("comes and goes", to=ref)
    assert await store.acknowledge(ref)
    await settle(store)
    for _ in range(2):
        assert not list(store.db.queues)
        found = await store.management.list_queues("project", limit=9)
        assert [record.metadata for record in found] == [{"kind": "one"}, {"kind": "two"}]
        record = await store.management.get_queue(ref)
        assert record is not None
        assert record.metadata == {"kind": "two"}
        assert not list(store.db.queues)
        await store.restart()
    await store.post("again", to=ref)
    assert [queue.ref for queue in store.db.queues] == [ref]
    assert await store.acknowledge(ref)

"""What goes on while a failed batch is undone: nothing is moved, removed or shown meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from tests.drivers.opendata.store import HOUR, MINUTE, OTHER, QUEUE, THIRD, Store, listed, texts
from tests.drivers.opendata.test_recovery import replace, while_reading
from tests.drivers.opendata.test_shares import until
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.histories import HistoryState
from zaqar_lite.domain.models import (
    Claimed,
    ClaimRequest,
    DeadLetter,
    DelayMode,
    QueueRef,
    RetryPolicy,
)
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.storage.opendata.engine import Batch, Row
from zaqar_lite.storage.opendata.entries import PAGE_SIZE

pytestmark = pytest.mark.anyio


class Pause:
    """A place at which a task waits until it is let go."""

    def __init__(self) -> None:
        self.reached, self._over = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await self._over.wait()

    async def end(self) -> None:
        """Let the task go, and give it time for all that it does without the engine."""
        self._over.set()
        for _ in range(10):
            await asyncio.sleep(0)


async def nothing() -> None:
    """Do nothing."""


async def fail_a_batch(
    store: Store,
    during: Callable[[], Awaitable[object]] = nothing,
    *,
    before: Callable[[], Awaitable[object]] = nothing,
    by: Awaitable[object],
) -> None:
    """Let the batch of an operation fail; do something before, and during the recovery."""
    engine, commit, scan = store.db.engine, store.db.engine.commit, store.db.engine.scan

    async def fail(_: Batch) -> None:
        replace(store, "commit", commit)
        await before()
        raise Unavailable("planted")

    async def slow(start: bytes, end: bytes) -> AsyncIterator[Sequence[Row]]:
        engine.scan = scan  # type: ignore[method-assign]
        await during()
        async for chunk in scan(start, end):
            yield chunk

    replace(store, "commit", fail)
    engine.scan = slow  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="planted"):
        await by
    store.db.committer._refused = None  # instead of waiting for a second


@pytest.mark.parametrize("failing", [QUEUE, OTHER], ids=["source", "target"])
async def test_no_dead_letter_is_moved_while_a_failed_batch_is_undone(
    store: Store, failing: QueueRef
) -> None:
    """The move would be undone in one of its queues: the message was lost, or there twice."""
    await store.post("a")
    await store.claim()
    store.clock.advance(2 * MINUTE)
    pause = Pause()

    async def retries_of(_: QueueRef) -> RetryPolicy:
        await pause.wait()
        return RetryPolicy(DeadLetter(OTHER, 1, None))

    sweep = asyncio.create_task(store.messages.sweep(100, retries_of))
    await pause.reached.wait()
    await fail_a_batch(store, pause.end, by=store.post("refused", to=failing))
    with pytest.raises(Unavailable, match="last good state"):
        await sweep
    assert (await listed(store), await listed(store, OTHER)) == (["a"], [])
    assert (await store.messages.sweep(100, retries_of)).moved == 1
    await store.restart()
    assert (await listed(store), await listed(store, OTHER)) == ([], ["a"])


async def test_a_purge_removes_nothing_while_a_failed_batch_is_undone(store: Store) -> None:
    """The other queue's copy lost its payload: the recovery counted the holders without it."""
    copied = NewMessage(b'"m"', HOUR, copies=(Copy(OTHER, HOUR, 0, 100),))
    await store.post(copied)
    await store.restart()  # so that the purge must read the page
    pause = Pause()
    while_reading(store, pause.wait)
    purge = asyncio.create_task(store.messages.purge(QUEUE))
    await pause.reached.wait()
    await fail_a_batch(store, pause.end, by=store.post("refused", to=THIRD))
    with pytest.raises(Unavailable, match="last good state"):
        await purge
    await store.messages.purge(QUEUE)
    assert (await listed(store), await listed(store, OTHER)) == ([], ["m"])
    assert texts(await store.claim(queue=OTHER)) == ["m"]


@pytest.mark.parametrize("when", ["during", "after"])
async def test_what_was_read_of_a_batch_that_failed_is_not_shown(store: Store, when: str) -> None:
    """A reader that came to wait for the batch during the recovery was never answered."""
    await store.post("stored")
    await store.restart()
    await store.messages.stats(QUEUE)  # the page is in memory,
    (entry,) = store.db.queues.make(QUEUE).pages[0].entries.values()
    store.db.bodies.forget(entry.id)  # and the body is not
    pause, readers = Pause(), list[asyncio.Task[list[str]]]()

    async def read() -> None:
        while_reading(store, pause.wait)
        readers.append(asyncio.create_task(listed(store)))
        await pause.reached.wait()

    during = pause.end if when == "during" else nothing
    await fail_a_batch(store, during, before=read, by=store.post("refused"))
    await pause.end()
    with pytest.raises(Unavailable, match=r"last good state|may not be stored"):
        await asyncio.wait_for(readers[0], 10)
    assert await listed(store) == ["stored"]


async def test_a_history_shows_nothing_that_is_not_stored(store: Store) -> None:
    """Messages come to its last page while the first ones are read."""
    await store.management.create_queue(QUEUE, {"_done_retention": 3_600}, max_queues=9)
    await store.post(*["done"] * PAGE_SIZE)
    await pop(store, PAGE_SIZE)
    await store.post("done", "refused")
    await pop(store, 1)
    pause = Pause()
    while_reading(store, pause.wait)
    reader = asyncio.create_task(
        store.messages.history(QUEUE, HistoryState.DONE, marker=None, limit=1_000)
    )
    await pause.reached.wait()
    await fail_a_batch(store, before=pause.end, by=pop(store, 1))
    with pytest.raises(Unavailable):  # of the batch, or of the recovery, as the disk is fast
        await reader
    assert len(await store.history(HistoryState.DONE, limit=1_000)) == PAGE_SIZE + 1


async def pop(store: Store, limit: int) -> Claimed:
    return await store.messages.claim(
        QUEUE, ClaimRequest(limit, None, DelayMode.IGNORE, removes=True)
    )


async def fail_a_batch_unreadably(store: Store) -> Callable[[], None]:
    """Let the batch of a post fail, and nothing be read after it; answer what mends the reading."""
    engine, commit, scan = store.db.engine, store.db.engine.commit, store.db.engine.scan

    def unreadable(start: bytes, end: bytes) -> AsyncIterator[Sequence[Row]]:
        raise Unavailable("planted: it can't be read")

    async def fail(_: Batch) -> None:
        replace(store, "commit", commit)
        engine.scan = unreadable  # type: ignore[method-assign]
        raise Unavailable("planted")

    def mend() -> None:
        engine.scan = scan  # type: ignore[method-assign]

    replace(store, "commit", fail)
    with pytest.raises(Unavailable, match="planted"):
        await store.post("refused")
    return mend


async def test_a_last_good_state_that_cannot_be_read_is_read_later(store: Store) -> None:
    """All operations were refused until a restart, or one that waited for a batch never ended."""
    await store.post("a")
    mend = await fail_a_batch_unreadably(store)
    for operation in (store.post("b"), listed(store), store.db.committer.visible(1 << 60)):
        with pytest.raises(Unavailable, match="last good state"):
            await asyncio.wait_for(operation, 1)
    mend()
    await until(lambda: not store.db.committer.is_refusing)
    await store.post("c")
    assert await listed(store) == ["a", "c"]
    await store.restart()
    assert await listed(store) == ["a", "c"]


async def test_closing_waits_for_no_state_that_cannot_be_read(store: Store) -> None:
    await store.post("a")
    mend = await fail_a_batch_unreadably(store)
    mend()
    async with asyncio.timeout(5):
        await store.restart()
    assert await listed(store) == ["a"]

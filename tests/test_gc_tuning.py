"""Garbage collections are short whatever is kept, and what they put off is collected in the end."""

import asyncio
import gc
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import pytest

from zaqar_lite.server import gc_tuning
from zaqar_lite.server.gc_tuning import Collector


class Node:
    """An object in a cycle; counts those there are."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Node.alive += 1

    def __del__(self) -> None:
        Node.alive -= 1


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    made.start()
    yield made
    made.stop()
    gc.unfreeze()
    gc.collect()


@pytest.fixture
def freezes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every collection for a long one, and as many frozen objects as were left for many."""
    monkeypatch.setattr(gc_tuning, "_LONG", 0.0)
    monkeypatch.setattr(gc_tuning, "_ENOUGH", 20_000)
    monkeypatch.setattr(gc_tuning, "_TOO_MANY", 1)


@contextmanager
def full_collections() -> Iterator[list[int]]:
    """How many objects each full collection has looked at."""
    looked_at: list[int] = []

    def note(phase: str, collection: dict[str, int]) -> None:
        if phase == "start" and collection["generation"] == 2:
            looked_at.append(len(gc.get_objects()))

    gc.callbacks.append(note)
    try:
        yield looked_at
    finally:
        gc.callbacks.remove(note)


def test_no_collection_looks_at_all_that_is_kept(collector: Collector) -> None:
    collector._left = 0  # as in a server: what other tests have left is not what this is about
    kept: list[list[object]] = []
    with full_collections() as looked_at:
        while len(kept) < 1_500_000:
            kept += [[] for _ in range(10_000)]
            if not len(kept) % 100_000:
                collector.look(is_idle=False)
    assert len(looked_at) > 10
    assert max(looked_at) < 100_000
    with full_collections() as looked_at:
        collector.look(is_idle=True)
    assert max(looked_at) > 1_500_000, "the thorough one waits until nobody else does"


@pytest.mark.anyio
async def test_who_asks_and_who_works_is_not_idle(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job, a stream and a long answer work without a request that begins or ends."""
    looks: asyncio.Queue[bool] = asyncio.Queue()
    monkeypatch.setattr(gc_tuning, "_INTERVAL", 0.001)
    monkeypatch.setattr(collector, "look", lambda *, is_idle: looks.put_nowait(is_idle))
    requests, worked = 0, 0.0
    following = asyncio.create_task(collector.follow(lambda: requests, lambda: worked))
    assert await looks.get()
    found = []
    for _ in range(3):
        requests += 1
        found.append(await looks.get())
    for _ in range(3):
        worked += 1.0
        found.append(await looks.get())
    assert not any(found)
    assert [await looks.get(), await looks.get()][1]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.usefixtures("freezes_all")
def test_what_was_frozen_and_freed_since_makes_no_thorough_collection(collector: Collector) -> None:
    base: list[list[object]] = [[] for _ in range(50_000)]
    gc.collect()
    collector.look(is_idle=False)
    with full_collections() as looked_at:
        for _ in range(30):
            kept: list[list[object]] = [[] for _ in range(10_000)]
            gc.collect()
            collector.look(is_idle=False)
            del kept
    assert len(looked_at) >= 30
    assert max(looked_at) < len(base)


def most_garbage() -> tuple[int, int]:
    """Leave frozen garbage again and again; answer the most that was there, and its bound."""
    gc_tuning._LONG, gc_tuning._ENOUGH, gc_tuning._TOO_MANY = 0.0, 20_000, 1
    collector, most = Collector(), 0
    collector.start()
    # Half as many again: what was frozen at the start and freed since makes room for garbage.
    bound = max(20_000, gc.get_freeze_count()) * 3 // 2 + 20_000
    for _ in range(3 * bound // 10_000):
        kept = [Node() for _ in range(10_000)]
        gc.collect()
        collector.look(is_idle=False)
        del kept
        most = max(most, Node.alive)
    return most, bound


def test_garbage_that_was_frozen_does_not_grow_without_bound() -> None:
    # In a process of its own: the bound grows with what other tests have left in this one.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        most, bound = pool.submit(most_garbage).result()
    assert 10_000 < most <= bound

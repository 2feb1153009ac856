"""Garbage collections are short whatever is kept, and what they put off is collected in the end."""

import gc
import multiprocessing
from collections.abc import Callable, Iterator
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


WAITING: list[Callable[[], None]] = []
"""What the event loop would call soon."""


def turn() -> None:
    """Call what waits, as the event loop does."""
    while WAITING:
        WAITING.pop()()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    made.start(WAITING.append)
    yield made
    WAITING.clear()
    made.stop()
    gc.unfreeze()
    gc.collect()


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
                turn()
    assert len(looked_at) > 10
    thorough = [count for count in looked_at if count > 100_000]
    # At 500,000 objects, and at twice as many; what this process had before makes them come sooner.
    assert 1 <= len(thorough) <= 3


def most_garbage() -> tuple[int, int]:
    """Leave frozen garbage again and again; answer the most that was there, and its bound."""
    gc_tuning._LONG, gc_tuning._ENOUGH = 0.0, 20_000
    collector, most = Collector(), 0
    collector.start(WAITING.append)
    # Half as many again: what was frozen at the start and freed since makes room for garbage.
    bound = max(20_000, gc.get_freeze_count()) * 3 // 2 + 20_000
    for _ in range(3 * bound // 10_000):
        kept = [Node() for _ in range(10_000)]
        gc.collect()
        turn()
        del kept
        most = max(most, Node.alive)
    return most, bound


def test_garbage_that_was_frozen_does_not_grow_without_bound() -> None:
    # In a process of its own: the bound grows with what other tests have left in this one.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        most, bound = pool.submit(most_garbage).result()
    assert 10_000 < most <= bound

"""Long work on the tables is done in steps, and others have their turn between them.

It is asked in RAM, where an operation awaits nothing else.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.drivers.sql.store import RAM, Store
from tests.drivers.store import HOUR, MINUTE, OTHER, QUEUE, message
from tests.waiting import rounds_beside
from zaqar_lite.domain import yielding
from zaqar_lite.domain.models import ListQuery, QueueRef
from zaqar_lite.domain.posts import Copy, IdempotencyKey, NewMessage
from zaqar_lite.domain.yielding import _ROUNDS, STEP
from zaqar_lite.storage.base import MAX_EXAMINED

pytestmark = pytest.mark.anyio
Work = Callable[[Store], Awaitable[tuple[Awaitable[object], int]]]
"""Prepares long work, and tells how many turns it leaves to others at least."""
MANY = 5 * MAX_EXAMINED // 2


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """A store in RAM."""
    async with Store(RAM) as opened:
        yield opened


async def _many(store: Store) -> None:
    await store.post(*[message("text", ttl=MINUTE)] * MANY)


async def _over(store: Store) -> None:
    await _many(store)
    store.clock.advance(MINUTE)


async def _queues(store: Store) -> None:
    for number in range(MAX_EXAMINED + 1):
        await store.management.create_queue(QueueRef("p", f"{number}"), {}, max_queues=MANY)


async def list_nothing(store: Store) -> tuple[Awaitable[object], int]:
    await _many(store)
    wanted = ListQuery(1, None, exclude_client_id="producer")
    return store.messages.list_messages(QUEUE, wanted), MANY // MAX_EXAMINED


async def cut(store: Store) -> tuple[Awaitable[object], int]:
    await _many(store)
    return store.messages.stats(QUEUE, ranges=2), MANY // MAX_EXAMINED


async def count_what_is_over(store: Store) -> tuple[Awaitable[object], int]:
    await _over(store)
    return store.messages.stats(QUEUE), 50


async def sweep_what_is_over(store: Store) -> tuple[Awaitable[object], int]:
    await _over(store)
    return store.messages.sweep(MAX_EXAMINED), 50


async def sweep_what_was_purged(store: Store) -> tuple[Awaitable[object], int]:
    await _many(store)
    await store.messages.purge(QUEUE)
    return store.messages.sweep(MAX_EXAMINED), 10


async def find_queues_that_hold_messages(store: Store) -> tuple[Awaitable[object], int]:
    await _queues(store)

    async def find() -> None:
        assert not [ref async for ref in store.messages.nonempty_queues()]

    return find(), 2


async def search_queues(store: Store) -> tuple[Awaitable[object], int]:
    await _queues(store)
    return store.management.list_queues("p", limit=1, name_contains="x"), 5


async def list_records_behind_those_that_are_over(store: Store) -> tuple[Awaitable[object], int]:
    for number in range(20):
        name = f"{number:02}"
        await store.management.put_record("k", "p", name, b"", expected=0, ttl_ms=MINUTE)
    store.clock.advance(MINUTE)
    return store.management.list_records("k", limit=1), 20


async def post_many(store: Store) -> tuple[Awaitable[object], int]:
    """They are counted, their keys looked up, cut, and stored."""
    new = [NewMessage(b"1", HOUR, 0, IdempotencyKey(f"{key}", b"x")) for key in range(MANY)]
    return store.post(*new), 2 * (MANY // 200) + MANY // STEP + MANY // 30


async def post_copies(store: Store) -> tuple[Awaitable[object], int]:
    """Copies are counted, and then cut and stored."""
    new = [NewMessage(b"1", HOUR, 0, copies=(Copy(OTHER, HOUR, 0, MANY),))] * MANY
    rest = MANY // 200 + MANY // STEP + MANY // 30
    return store.post(*new), rest + MANY + 2 * (MANY // 100)


@pytest.mark.parametrize(
    "prepare",
    [
        *(list_nothing, cut, count_what_is_over, sweep_what_is_over, sweep_what_was_purged),
        *(find_queues_that_hold_messages, search_queues, list_records_behind_those_that_are_over),
        *(post_many, post_copies),
    ],
)
async def test_others_have_turns(
    prepare: Work, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yielding, "_SLICE", 0.0)
    work, turns = await prepare(store)
    rounds, _ = await rounds_beside(work)
    assert rounds >= _ROUNDS * turns


async def test_a_large_post_keeps_few_bytes_in_a_step(tmp_path: Path) -> None:
    kept, sizes = "SELECT ifnull(sum(length(content)), 0) FROM post", [0]
    async with Store(tmp_path / "data") as store:
        posting = asyncio.create_task(store.post(*[message("x" * 1_000)] * 2_000))
        while not posting.done():
            await asyncio.sleep(0)
            sizes.append(store.db.execute(kept).get)
        await posting
    assert max(sizes) > 2_000_000
    assert max(after - before for before, after in pairwise(sizes)) < 60_000

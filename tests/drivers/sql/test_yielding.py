"""Long work on the tables is done in steps, and others have their turn between them.

It is asked in RAM, where an operation awaits nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable
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
Act = Callable[[Store], Awaitable[object]]
MANY = 5 * MAX_EXAMINED // 2
KEYED = [NewMessage(b"1", HOUR, 0, IdempotencyKey(f"{key}", b"x")) for key in range(MANY)]
COPIED = [NewMessage(b"1", HOUR, 0, copies=(Copy(OTHER, HOUR, 0, MANY),))] * MANY


async def nothing(_: Store) -> None: ...


async def many(store: Store) -> None:
    await store.post(*[message("text", ttl=MINUTE)] * MANY)


async def over(store: Store) -> None:
    await many(store)
    for number in range(20):
        await store.management.put_record("k", "p", f"{number}", b"", expected=0, ttl_ms=MINUTE)
    store.clock.advance(MINUTE)


async def purged(store: Store) -> None:
    await many(store)
    await store.messages.purge(QUEUE)


async def queues(store: Store) -> None:
    for number in range(MAX_EXAMINED + 1):
        await store.management.create_queue(QueueRef("p", f"{number}"), {}, max_queues=MANY)


async def name_queues(store: Store) -> None:
    assert not [ref async for ref in store.messages.nonempty_queues()]


NOBODYS = ListQuery(1, None, exclude_client_id="producer")
WORK: dict[str, tuple[Act, Act, int]] = {
    "list": (many, lambda store: store.messages.list_messages(QUEUE, NOBODYS), 2),
    "cut": (many, lambda store: store.messages.stats(QUEUE, ranges=2), 3),
    "count": (over, lambda store: store.messages.stats(QUEUE), 50),
    "sweep what is over": (over, lambda store: store.messages.sweep(MAX_EXAMINED), 50),
    "sweep what was purged": (purged, lambda store: store.messages.sweep(MAX_EXAMINED), 10),
    "name queues": (queues, name_queues, 2),
    "search": (queues, lambda s: s.management.list_queues("p", limit=1, name_contains="x"), 5),
    "list records": (over, lambda store: store.management.list_records("k", limit=1), 20),
    "one large": (nothing, lambda store: store.post("x" * 200_000), 0),
    "a hundred small": (nothing, lambda store: store.post(*["x"] * 100), 0),
    # The post itself has a turn, and each of its parts.
    "two large": (nothing, lambda store: store.post(*["x" * 30_000] * 2), 3),
    # Messages are counted, keys looked up, parts cut and stored; and so are copies.
    "keys": (many, lambda s: s.post(*KEYED), 2 * (MANY // 200) + MANY // STEP + MANY // 30),
    "copies": (
        nothing,
        lambda store: store.post(*COPIED),
        MANY // 200 + MANY // STEP + MANY // 30 + MANY + 2 * (MANY // 100),
    ),
}


@pytest.mark.parametrize("name", WORK)
async def test_others_have_turns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, work, turns = WORK[name]
    monkeypatch.setattr(yielding, "_SLICE", 0.0)
    async with Store(RAM) as store:
        await prepare(store)
        rounds, _ = await rounds_beside(work(store))
    assert turns <= rounds / _ROUNDS <= turns + 1 + turns // 10


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

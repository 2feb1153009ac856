"""A queue is dropped beside posts of several steps: on no store a message outlives it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.drivers.store import HOUR, OTHER, QUEUE, THIRD
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import QueueChanged
from zaqar_lite.domain.models import Edit, ListQuery, StoreOptions
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.registry import create_stores

pytestmark = pytest.mark.anyio
URIS: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: "memory://",
    "embedded": lambda path: f"embedded://{path}",
    "slatedb": lambda path: f"opendata+slatedb://{path}",
}
Stores = tuple[MessageStore, ManagementStore]


@pytest.fixture(params=URIS)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    uri = URIS[request.param](tmp_path / "data")
    messages, management = create_stores(uri, clock=Clock(), options=StoreOptions())
    async with messages, management:
        yield messages, management


async def test_no_large_post_outlives_a_queue_that_is_dropped_beside_it(stores: Stores) -> None:
    messages, management = stores

    async def post(version: int) -> bool:
        new = [NewMessage(b"1", HOUR)] * 1_000
        try:
            await messages.post(QUEUE, new, client_id="producer", version=version)
        except QueueChanged:
            return False
        return True

    posted: list[bool] = []
    for turns in range(0, 100, 5):
        record, _ = await management.create_queue(QUEUE, {}, max_queues=9)
        posting = [asyncio.create_task(post(record.version)) for _ in range(4)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await messages.purge(QUEUE, forget=True)
        posted += await asyncio.gather(*posting)
        assert await management.get_queue(QUEUE) is None
        assert (await messages.stats(QUEUE)).total == 0
    assert True in posted


async def test_no_copy_of_a_large_post_outlives_a_queue_that_is_dropped_meanwhile(
    stores: Stores,
) -> None:
    messages, management = stores
    new = [NewMessage(b"1", HOUR, copies=(Copy(OTHER, HOUR, 0, 100),))] * 1_000
    for turns in range(0, 100, 20):
        await management.create_queue(OTHER, {}, max_queues=9)
        posting = asyncio.ensure_future(
            messages.post(QUEUE, new, client_id="producer", version=None)
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        await messages.purge(OTHER, forget=True)
        await posting
        left = (await messages.stats(OTHER)).total
        assert left in {0, 1_000}, "all come behind the drop, or none does"
    await messages.sweep(1_000)
    assert (await messages.stats(QUEUE)).total == 5_000
    await messages.purge(QUEUE)


@pytest.mark.parametrize("count", [1, 1_000])
async def test_no_copy_makes_a_queue_again_that_was_dropped_since_it_was_chosen(
    count: int, stores: Stores
) -> None:
    messages, management = stores
    copies = tuple(Copy(to, HOUR, 0, 100) for to in (OTHER, THIRD))
    new = [NewMessage(b"1", HOUR, HOUR // 2, copies=copies)]
    record, _ = await management.create_queue(QUEUE, {}, max_queues=9)
    for receiver in (OTHER, THIRD):
        await management.create_queue(receiver, {}, max_queues=9)
    await messages.purge(OTHER, forget=True)
    await messages.post(QUEUE, new * count, client_id="producer", version=record.version)
    found = [(await messages.stats(one)).total for one in (QUEUE, OTHER, THIRD)]
    assert found == [count, 0, count]
    assert OTHER not in [ref async for ref in messages.nonempty_queues()]
    await messages.purge(THIRD)
    await messages.sweep(10_000)
    page = await messages.list_messages(QUEUE, ListQuery(1, include_delayed=True))
    assert [one.body for one in page.messages] == [b"1"]
    # What no other queue holds may be changed.
    await messages.edit(QUEUE, Edit(page.messages[0].id, body=b"2"))

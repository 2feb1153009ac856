"""Random operations on memory:// and embedded://: the counts are what is there, and all goes.

What the tables must say is in `tables.py`; here it is asked in the middle of everything that there
is (`chaos.py`).
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.drivers.chaos import Chaos
from tests.drivers.sql.contract_hooks import check_database
from tests.drivers.sql.store import RAM, Store
from tests.drivers.sql.tables import sizes
from tests.drivers.store import HOUR
from zaqar_lite.domain.errors import LimitReached
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.domain.posts import Copy, NewMessage

pytestmark = pytest.mark.anyio
REFS = tuple(QueueRef(f"project-{number % 2}", f"queue-{number}") for number in range(5))
EVERY = (*REFS, *(QueueRef(f"project-{number}", "filtered") for number in range(2)))
OPTIONS = StoreOptions(max_messages=5_000, max_idempotency_keys=200)
STEPS = 300


@pytest.fixture(params=["memory", "embedded"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Both stores, open."""
    async with Store(RAM if request.param == "memory" else tmp_path / "data", OPTIONS) as opened:
        yield opened


async def delete_records(store: Store) -> None:
    for ref in EVERY:
        record = await store.management.get_queue(ref)
        if record is not None:
            await store.management.delete_queue(ref, version=record.version)


@pytest.mark.parametrize("seed", range(12 if "ZAQAR_TEST_ALL" in os.environ else 3))
async def test_counts_are_what_is_there(store: Store, seed: int) -> None:
    chaos, done = Chaos(store, REFS, random.Random(seed)), []
    for number in range(STEPS):
        done.append(await chaos.step())
        if number % 10 == 0:
            try:
                await check_database(store.db)
            except AssertionError as exc:
                raise AssertionError(f"after {done[-12:]}: {exc}") from exc
    await delete_records(store)
    for ref in EVERY:
        await store.messages.purge(ref, forget=True)
    await store.sweep()
    await check_database(store.db)
    assert sizes(store.db.connection) == {}
    assert not store.db.undone, "what is refused after it has written undoes its batch"


async def test_time_alone_ends_everything(store: Store) -> None:
    """Without a record, and when all has expired and is forgotten, no row is left of a queue."""
    chaos = Chaos(store, REFS, random.Random(7))
    for _ in range(STEPS):
        await chaos.step()
    await delete_records(store)
    for _ in range(200):
        store.clock.advance(HOUR)
        if not (await store.messages.sweep(1_000)).total and not sizes(store.db.connection):
            break
    await check_database(store.db)
    assert sizes(store.db.connection) == {}


async def test_a_large_post_has_room_reserved_from_its_first_step_on(store: Store) -> None:
    """Copies that come while it enters its queue do not take it, and what they may is theirs."""
    queue, source = REFS[0], REFS[2]
    copied = NewMessage(b"1", HOUR, 0, copies=(Copy(queue, HOUR, 0, 100),))

    async def post(ref: QueueRef, *new: NewMessage) -> bool:
        try:
            await store.post(*new, to=ref)
        except LimitReached:
            return False
        return True

    large = asyncio.create_task(post(queue, *[NewMessage(b"1", HOUR, 0)] * 4_900))
    while not ((found := store.db.queue(queue)) and found.reserved):  # noqa: ASYNC110 - a poll
        await asyncio.sleep(0)
    answers = await asyncio.gather(*[post(source, *[copied] * 60) for _ in range(3)])
    assert [await large, *answers] == [True, True, False, False]
    assert (await store.messages.stats(queue)).total == 4_960
    assert await post(source, *[copied] * 40)
    assert not await post(source, copied)


async def test_a_purge_of_many_is_one_row_and_its_garbage_goes(tmp_path: Path) -> None:
    async with Store(tmp_path / "data") as store:
        ref = QueueRef("project", "many")
        for _ in range(20):
            await store.post(*["text"] * 1_000, to=ref)
        before = store.db.connection.total_changes()
        await store.messages.purge(ref)
        assert store.db.connection.total_changes() - before <= 3  # garbage, the queue, the counter
        assert (await store.messages.stats(ref)).total == 0
        await store.post("new", to=ref)
        assert sizes(store.db.connection)["entry"] == 20_001
        await store.sweep()
        assert sizes(store.db.connection) == {"entry": 1, "body": 1, "queue": 1}
        before = store.db.connection.total_changes()
        await store.messages.purge(ref, forget=True)
        assert store.db.connection.total_changes() - before <= 4
        for dropped in (QueueRef("project", name) for name in "abc"):
            await store.management.create_queue(dropped, {}, max_queues=1)
            await store.post("text", to=dropped)
            await store.messages.purge(dropped, forget=True)
        await store.messages.sweep(1_000)
        assert sizes(store.db.connection) == {}
        assert store.rows("project") == 0

"""The log of deliveries, over a store whose calls take a while."""

import asyncio
from typing import Any, cast

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRef, Record, StoreOptions
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.service.delivery.inspection import AttemptLog
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.sql import create

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("p", "q")


class Slow:
    """A store that lets others on in every call, and counts its writes."""

    def __init__(self, store: ManagementStore) -> None:
        self._store = store
        self.writes = 0

    async def get_record(self, *args: Any) -> Record | None:
        await asyncio.sleep(0)
        return await self._store.get_record(*args)

    async def put_record(self, *args: Any, **more: Any) -> Record:
        self.writes += 1
        await asyncio.sleep(0)
        record = await self._store.put_record(*args, **more)
        await asyncio.sleep(0)
        return record


def made() -> tuple[AttemptLog, Slow]:
    clock = Clock()
    store = Slow(create("memory://", clock=clock, options=StoreOptions())[1])
    return AttemptLog(cast(ManagementStore, store), clock), store


def subscription(name: str) -> Subscription:
    return Subscription(name, QUEUE, "http://r.example", 60, {}, 0, 0)


def attempt(at: int) -> dict[str, int]:
    return {"at": 1_000 + at}


async def test_readers_and_the_writer_write_each_attempt_once() -> None:
    log, _ = made()
    for at in range(3):
        log.add(subscription("s"), attempt(at), succeeded=True)
    read = await asyncio.gather(log.flush(), log.read(QUEUE, "s"), log.read(QUEUE, "s"))
    assert read[1] == read[2] == [attempt(at) for at in (2, 1, 0)]


@pytest.mark.parametrize("rounds", range(8))
async def test_what_ends_during_a_write_is_written_next(rounds: int) -> None:
    log, _ = made()
    for at in range(20):
        log.add(subscription("s"), attempt(at), succeeded=True)
    writing = asyncio.create_task(log.flush())
    for _ in range(rounds):
        await asyncio.sleep(0)
    log.add(subscription("s"), attempt(20), succeeded=True)
    await writing
    assert await log.read(QUEUE, "s") == [attempt(at) for at in range(20, 0, -1)]


async def test_a_reader_writes_nothing_of_other_subscriptions() -> None:
    log, store = made()
    for name in ("a", "b", "c"):
        log.add(subscription(name), attempt(1), succeeded=True)
    assert await log.read(QUEUE, "b") == [attempt(1)]
    assert store.writes == 1
    await log.flush()
    assert store.writes == 3

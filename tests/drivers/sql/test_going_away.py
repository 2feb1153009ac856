"""Clients that go away in the middle: nobody else's request suffers, and nothing is left behind."""

import asyncio
import contextlib
import random

import pytest

from tests.drivers.sql.load import Load
from tests.drivers.sql.store import Store
from tests.drivers.store import QUEUE
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.sql import place

pytestmark = pytest.mark.anyio


async def test_posts_of_any_size_are_cancelled_under_load(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_COPY_AT", 128 << 10)
    monkeypatch.setattr(place, "_RESTART_AT", 1 << 20)
    load, greedy, chance = Load(), QueueRef("greedy", "queue"), random.Random(7)

    async def go_away(store: Store, number: int) -> None:
        sent = 0
        while not load.is_over:
            sent += 1
            new = [
                f"{number}-{sent}-{index}" for index in range(chance.choice((1, 60, 900, 2_500)))
            ]
            load.begun.update(new)
            posting = asyncio.create_task(store.post(*new, to=greedy if number % 2 else QUEUE))
            await asyncio.sleep(chance.random() * 0.03)
            posting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await posting
            await store.messages.purge(greedy)

    async with asyncio.timeout(30):
        async with load.on(store, tasks=6):
            going = [asyncio.create_task(go_away(store, number)) for number in range(4)]
            await asyncio.sleep(2)
        await asyncio.gather(*going)
    assert not load.refusals
    if begun := store.db.busy.values():  # by clients that have gone
        await asyncio.wait(begun, timeout=30)
    assert await load.violations(store) == []
    assert not store.db.busy
    await store.restart()
    assert await load.violations(store) == []

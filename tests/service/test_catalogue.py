"""The catalogue of pools forgets where deleted queues lay."""

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.service.pooling.catalogue import LEFT_MS, Catalogue
from zaqar_lite.service.pooling.registry import Registry
from zaqar_lite.storage.memory import create

pytestmark = pytest.mark.anyio


async def test_queues_that_come_and_go_keep_no_other_from_being_forgotten() -> None:
    clock = Clock()
    _, management = create("memory://", clock=clock, options=StoreOptions())
    catalogue = Catalogue(management, Registry(management, lambda _: "memory"), clock)

    async def made_and_deleted(name: str) -> None:
        await catalogue.put(QueueRef("p", name), "pool")
        await catalogue.leave(QueueRef("p", name))

    await made_and_deleted("z-the-last-by-name")
    clock.advance(LEFT_MS + 1)
    for number in range(100):
        await made_and_deleted(f"a-{number:03}")
    assert sum([await catalogue.tidy() for _ in range(6)]) == 1
    clock.advance(LEFT_MS + 1)
    assert sum([await catalogue.tidy() for _ in range(6)]) == 100

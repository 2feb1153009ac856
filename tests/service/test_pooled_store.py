"""The open connections of pools, and what is moved from one to another after a long stop."""

import asyncio
from collections.abc import Sequence
from operator import not_
from typing import Any

import pytest

from tests.service.test_drain import LETTERS, OPTIONS, QUEUE, Failing, Pools, redriven
from tests.waiting import until
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.settlements import Outcome
from zaqar_lite.service.pooling.placement import CARRIED_MS, CARRY, Place
from zaqar_lite.service.pooling.pooled_store import OpenConnections
from zaqar_lite.service.pooling.pools import Pool
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.messages import SqlMessageStore
from zaqar_lite.storage.sql.place import InRam

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pools() -> Pools:
    """Two pools, beside which there may be others."""
    made = Pools()
    await made.begin()
    return made


async def test_a_pools_store_is_closed_when_it_becomes_another_one_or_the_server_ends(
    pools: Pools,
) -> None:
    """Also where several requests find that it has become another one."""
    made: list[str] = []
    closed: list[str] = []

    class Closing(SqlMessageStore):
        async def close(self) -> None:
            closed.append("store")
            await asyncio.sleep(0)
            await super().close()

    def make(pool: Pool) -> SqlMessageStore:
        made.append(pool.uri)
        return Closing(Database(InRam(), pools.clock, OPTIONS))

    connections = OpenConnections(make)
    uris = ["memory://one", "memory://two"]
    for number, pool in enumerate(Pool("p", uri, 1) for uri in uris):
        found = await asyncio.gather(*(connections.store(pool) for _ in range(3)))
        assert len({id(one) for one in found}) == 1
        assert len(closed) == number
    await connections.close()
    assert (made, len(closed)) == (uris, 2)


async def test_who_waits_for_a_pool_that_becomes_another_one_may_try_again(pools: Pools) -> None:
    opening = asyncio.Event()

    class Silent(SqlMessageStore):
        async def open(self) -> None:
            opening.set()
            await asyncio.Event().wait()

    silent, answers = (kind(Database(InRam(), pools.clock, OPTIONS)) for kind in (Silent, Failing))
    connections = OpenConnections(lambda pool: silent if pool.uri == "memory://1" else answers)
    waiting = asyncio.create_task(connections.store(Pool("p", "memory://1", 1)))
    await opening.wait()
    assert await connections.store(Pool("p", "memory://2", 1)) is answers
    with pytest.raises(Unavailable, match="another one"):
        await waiting
    await connections.close()


async def test_a_sweep_comes_to_pools_that_nobody_has_needed_since_the_start(
    pools: Pools,
) -> None:
    await pools.messages.sweep(1_000)
    await until(lambda: set(pools.messages.connections.stores()) == {"old", "new"})


async def test_letters_arrive_that_a_process_moves_after_a_long_stop(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile it is forgotten that there are any."""
    await pools.placements.write(QUEUE, Place("new"))
    await pools.placements.write(LETTERS, Place("old"))
    (letter,) = await pools.post(1, LETTERS)
    move = pools.old.move

    async def late(*given: Any) -> Sequence[Outcome]:
        pools.clock.advance(CARRIED_MS)
        await until(lambda: pools.management.list_records(CARRY, "p", limit=1), not_)
        return await move(*given)

    monkeypatch.setattr(pools.old, "move", late)
    async with redriven(pools, [letter]):
        await until(lambda: pools.new.stats(QUEUE), lambda stats: stats.ready)

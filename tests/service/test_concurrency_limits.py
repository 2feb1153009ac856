"""Permits that processes lease of one quota: never too many, and none lost with a process."""

import asyncio
import json

import pytest

from tests.failing import failing
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.identity import DELIVERIES_PROJECT
from zaqar_lite.domain.models import MAX_RECORD, Record, StoreOptions
from zaqar_lite.service.quotas.concurrency_limits import (
    EXPIRES,
    HEARTBEAT,
    ConcurrencyLeases,
)
from zaqar_lite.storage.sql import create

pytestmark = pytest.mark.anyio


class Processes:
    """Processes that share a store."""

    def __init__(self, count: int = 3) -> None:
        self.clock = Clock(wall=lambda: 0.0, monotonic=lambda: 0.0)  # it moves when it is told to
        self.management = create("memory://", clock=self.clock, options=StoreOptions())[1]
        self.leases = [self.process() for _ in range(count)]
        self.limits = [leases.of("connections") for leases in self.leases]

    def process(self) -> ConcurrencyLeases:
        return ConcurrencyLeases(self.management, workers=3, monotonic=self.now)

    def now(self) -> float:
        return self.clock.now_ms() / 1000

    def advance(self, seconds: float) -> None:
        self.clock.advance(round(seconds * 1000))

    async def take(self, number: int, most: int) -> int:
        """Take as many permits as a process gets, of so many that a project may have."""
        taken = 0
        while await self.limits[number].take("p", most):
            taken += 1
        return taken

    def leave(self, number: int, count: int) -> None:
        """Give permits of a process back."""
        for _ in range(count):
            self.limits[number].leave("p")

    async def beat(self, *but: int) -> None:
        self.advance(HEARTBEAT)
        for number, leases in enumerate(self.leases):
            if number not in but:
                await leases._beat()


async def test_racing_processes_have_together_what_one_may() -> None:
    processes = Processes()
    tries = [limit.take("p", 10) for limit in processes.limits for _ in range(10)]
    taken = await asyncio.gather(*tries)
    assert (sum(taken), sum(limit.count for limit in processes.limits)) == (10, 10)
    assert await processes.limits[0].take("other", 10)


async def test_one_process_may_have_all_of_it() -> None:
    processes = Processes()
    assert await processes.take(0, 5) == 5
    assert not await processes.limits[1].take("p", 5)
    assert await processes.limits[1].take("p", None)


async def test_what_a_process_does_not_need_any_more_is_given_back() -> None:
    processes = Processes()
    assert await processes.take(0, 4) == 4
    assert not await processes.limits[1].take("p", 4)
    processes.leave(0, 3)
    await processes.beat()
    assert await processes.take(1, 4) == 3
    processes.limits[0].leave("p")
    processes.leave(1, 3)
    await processes.beat()
    assert await processes.management.get_record("seats", "p", "connections") is None


async def test_what_a_killed_process_had_comes_back() -> None:
    processes = Processes()
    assert await processes.take(0, 4) == 4
    while processes.now() < EXPIRES - HEARTBEAT:
        await processes.beat(0)
        assert not await processes.limits[1].take("p", 4)
    for _ in range(3):
        await processes.beat(0)
    assert await processes.take(1, 4) == 4


async def test_what_a_process_had_before_it_was_cut_off_is_free_for_others() -> None:
    processes = Processes()
    assert await processes.take(0, 4) == 4
    processes.leave(0, 3)
    processes.advance(EXPIRES)
    await processes.beat()  # which says that it lives again
    assert await processes.take(1, 4) == 3


async def test_a_process_that_was_cut_off_keeps_nothing_that_others_have_taken() -> None:
    processes = Processes()
    for number in (0, 1):
        assert await processes.take(number, 4) == 4
        processes.advance(EXPIRES * (1 - number))
    await processes.beat()
    processes.limits[0].leave("p")
    assert not await processes.limits[0].take("p", 4)


async def test_what_could_not_be_given_back_is_later(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes()
    assert await processes.take(0, 4) == 4
    processes.leave(0, 3)
    put = processes.management.put_record

    async def away(kind: str, *given: object, **named: object) -> Record:
        if kind == "seats":
            raise Unavailable("away")
        return await put(kind, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(processes.management, "put_record", away)
    with pytest.raises(Unavailable):
        await processes.beat()
    monkeypatch.undo()
    await processes.beat()
    assert await processes.take(1, 4) == 3


async def test_a_process_that_stops_leaves_its_permits_at_once() -> None:
    processes = Processes()
    assert await processes.take(0, 4) == 4
    await processes.leases[0].stop()
    assert await processes.limits[1].take("p", 4)


async def test_each_has_its_part_while_the_store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes()
    monkeypatch.setattr(processes.management, "put_record", failing(Unavailable("away")))
    assert await processes.take(0, 6) == 2


async def test_what_a_project_uses_is_told_of_all_processes() -> None:
    processes = Processes()
    waiters = [leases.of("waiters") for leases in processes.leases]
    for number, limit in enumerate((*processes.limits, *waiters)):
        for _ in range(number + 1):
            await limit.take("p", None)
    await waiters[0].take(DELIVERIES_PROJECT, None)
    await processes.beat()
    assert [await limit.total_of("p") for limit in processes.limits] == [6, 6, 6]
    assert [await limit.total_of("p") for limit in waiters] == [15, 15, 15]
    assert await processes.limits[0].total_of("q") == 0
    assert await waiters[1].total_of(DELIVERIES_PROJECT) == 0
    processes.limits[2].leave("p")
    assert await processes.limits[2].total_of("p") == 5
    await processes.beat()
    assert await processes.limits[0].total_of("p") == 5
    await processes.leases[1].stop()
    assert await processes.limits[0].total_of("p") == 3


async def test_a_process_that_uses_nothing_writes_nothing() -> None:
    processes = Processes(1)
    await processes.limits[0].take(DELIVERIES_PROJECT, None)
    await processes.beat()
    assert await processes.management.list_records("process", "", limit=10) == []
    await processes.limits[0].take("p", None)
    await processes.beat()
    processes.limits[0].leave("p")
    await processes.beat()
    (told,) = await processes.management.list_records("process", "", limit=10)
    assert json.loads(told.value) == {"connections": {}}
    for _ in range(6):
        await processes.beat()
    assert await processes.management.list_records("process", "", limit=10) == []


async def test_what_many_projects_use_fits_into_a_record() -> None:
    processes = Processes(2)
    for number in range(2_000):
        await processes.limits[0].take(f"{number:0256}", None)
    await processes.limits[0].take(f"{7:0256}", None)
    await processes.beat()
    (told,) = await processes.management.list_records("process", "", limit=10)
    assert len(told.value) < MAX_RECORD
    assert await processes.limits[1].total_of(f"{7:0256}") == 2

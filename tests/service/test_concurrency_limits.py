"""Seats that processes lease of one quota: never too many, and none lost with a killed process."""

import asyncio
import json

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.identity import DELIVERIES_PROJECT
from zaqar_lite.domain.models import MAX_RECORD, Record, StoreOptions
from zaqar_lite.service.quotas.concurrency_limits import (
    BEAT,
    LIVES,
    ConcurrencyLeases,
    ConcurrencyLimit,
)
from zaqar_lite.storage.sql import create

pytestmark = pytest.mark.anyio


class Time:
    """A clock that tests move, for leases and for the store."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self.clock.advance(round(seconds * 1000))


class House:
    """Processes that share a store."""

    def __init__(self, count: int = 3) -> None:
        self.time = Time()
        self.management = create("memory://", clock=self.time.clock, options=StoreOptions())[1]
        self.leases = [self.process() for _ in range(count)]
        self.seats = [leases.of("connections") for leases in self.leases]

    def process(self) -> ConcurrencyLeases:
        return ConcurrencyLeases(self.management, workers=3, monotonic=self.time)

    async def beat(self, *but: int) -> None:
        self.time.advance(BEAT)
        for number, leases in enumerate(self.leases):
            if number not in but:
                await leases._beat()

    def used(self) -> int:
        return sum(seats.count for seats in self.seats)


async def test_racing_processes_have_together_what_one_may() -> None:
    house = House()
    tries = [seats.take("p", 10) for seats in house.seats for _ in range(10)]
    taken = await asyncio.gather(*tries)
    assert (sum(taken), house.used()) == (10, 10)
    assert await house.seats[0].take("other", 10)


async def test_one_process_may_have_all_of_it() -> None:
    house = House()
    assert [await house.seats[0].take("p", 5) for _ in range(6)] == [True] * 5 + [False]
    assert not await house.seats[1].take("p", 5)
    assert await house.seats[1].take("p", None)


async def test_what_is_free_costs_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    house, written = House(), 0
    put = house.management.put_record

    async def counted(*given: object, **named: object) -> Record:
        nonlocal written
        written += 1
        return await put(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(house.management, "put_record", counted)
    for _ in range(500):
        assert await house.seats[0].take("p", 1_000)
    for _ in range(10_000):
        house.seats[0].leave("p")
        assert await house.seats[0].take("p", 1_000)
    assert written < 20


async def test_what_a_process_does_not_need_any_more_is_given_back() -> None:
    house = House()
    for _ in range(4):
        await house.seats[0].take("p", 4)
    assert not await house.seats[1].take("p", 4)
    for _ in range(3):
        house.seats[0].leave("p")
    for _ in range(2):
        await house.beat()
    assert [await house.seats[1].take("p", 4) for _ in range(4)] == [True] * 3 + [False]
    house.seats[0].leave("p")
    for _ in range(3):
        house.seats[1].leave("p")
    for _ in range(3):
        await house.beat()
    assert await house.management.get_record("seats", "p", "connections") is None


async def test_what_a_killed_process_had_comes_back() -> None:
    house = House()
    for _ in range(4):
        await house.seats[0].take("p", 4)
    while house.time() < LIVES - BEAT:
        await house.beat(0)
        assert not await house.seats[1].take("p", 4)
    for _ in range(3):
        await house.beat(0)
    assert [await house.seats[1].take("p", 4) for _ in range(5)] == [True] * 4 + [False]


async def test_a_process_that_stops_leaves_its_seats_at_once() -> None:
    house = House()
    for _ in range(4):
        await house.seats[0].take("p", 4)
    await house.leases[0].stop()
    assert await house.seats[1].take("p", 4)


async def test_each_has_its_part_while_the_store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()

    async def away(*_: object, **__: object) -> None:
        raise Unavailable("away")

    monkeypatch.setattr(house.management, "put_record", away)
    assert [await house.seats[0].take("p", 6) for _ in range(3)] == [True, True, False]


async def test_a_server_of_one_process_counts_by_itself() -> None:
    seats = ConcurrencyLimit("connections")
    assert [await seats.take("p", 2) for _ in range(3)] == [True, True, False]
    seats.leave("p")
    assert await seats.take("p", 2)
    assert (seats.count, seats.count_of("p"), seats.count_of("q")) == (2, 2, 0)


async def test_what_a_project_uses_is_told_of_all_processes() -> None:
    house = House()
    waiters = [leases.of("waiters") for leases in house.leases]
    for number, seats in enumerate((*house.seats, *waiters)):
        for _ in range(number + 1):
            await seats.take("p", None)
    await waiters[0].take(DELIVERIES_PROJECT, None)
    await house.beat()
    assert [await seats.total_of("p") for seats in house.seats] == [6, 6, 6]
    assert [await seats.total_of("p") for seats in waiters] == [15, 15, 15]
    assert await house.seats[0].total_of("q") == 0
    assert await waiters[1].total_of(DELIVERIES_PROJECT) == 0
    house.seats[2].leave("p")
    assert await house.seats[2].total_of("p") == 5
    await house.beat()
    assert await house.seats[0].total_of("p") == 5
    await house.leases[1].stop()
    assert await house.seats[0].total_of("p") == 3


async def test_a_refused_seat_is_not_told_for_long() -> None:
    """A process whose first seat is refused has told it already, with its sign of life."""
    house = House()
    assert await house.seats[0].take("p", 1)
    assert not await house.seats[1].take("p", 1)
    await house.beat()
    assert [await seats.total_of("p") for seats in house.seats] == [1, 1, 1]


async def test_a_process_that_uses_nothing_writes_nothing() -> None:
    house = House(1)
    await house.seats[0].take(DELIVERIES_PROJECT, None)
    await house.beat()
    assert await house.management.list_records("process", "", limit=10) == []
    await house.seats[0].take("p", None)
    await house.beat()
    house.seats[0].leave("p")
    await house.beat()
    (told,) = await house.management.list_records("process", "", limit=10)
    assert json.loads(told.value) == {"connections": {}}
    for _ in range(6):
        await house.beat()
    assert await house.management.list_records("process", "", limit=10) == []


async def test_what_many_projects_use_fits_into_a_record() -> None:
    house = House(2)
    for number in range(2_000):
        await house.seats[0].take(f"{number:0256}", None)
    await house.seats[0].take(f"{7:0256}", None)
    await house.beat()
    (told,) = await house.management.list_records("process", "", limit=10)
    assert len(told.value) < MAX_RECORD
    assert await house.seats[1].total_of(f"{7:0256}") == 2

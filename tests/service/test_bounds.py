"""Turns at making things within a bound, in two processes over one store."""

import asyncio
import json

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import QuotaReached, Unavailable
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.service import bounds as module
from zaqar_lite.service.bounds import Bound, Bounds
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.sql import create

pytestmark = pytest.mark.anyio


class House:
    """What a project has, and two processes that make it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.management: ManagementStore = create(
            "memory://", clock=self.clock, options=StoreOptions()
        )[1]
        self.made: set[str] = set()
        self.begun = asyncio.Event()
        self.counts = 0
        self.one, self.other = (Bounds(self.management, self.clock) for _ in range(2))

    def bound(self, most: int) -> Bound:
        return Bound("p", "things", most, self.count, QuotaReached(f"It has {most} things."))

    async def count(self, most: int) -> int:
        self.counts += 1
        await asyncio.sleep(0)
        return min(len(self.made), most)

    async def make(
        self, by: Bounds, name: str, quota: int, gate: asyncio.Event | None = None
    ) -> None:
        """Make a thing, once a gate opens."""
        async with by.room(self.bound(quota), lambda: self.undo(name)):
            if gate is not None:
                self.begun.set()
                await gate.wait()
            self.made.add(name)

    async def begin_slowly(self, gate: asyncio.Event) -> "asyncio.Task[None]":
        """Begin to make a thing, and wait until it has its turn."""
        task = asyncio.create_task(self.make(self.one, "slow", 1, gate))
        await self.begun.wait()
        return task

    async def held_until(self) -> object:
        record = await self.management.get_record(module.KIND, "p", "things")
        return 0 if record is None else json.loads(record.value)[0]

    async def undo(self, name: str) -> None:
        self.made.discard(name)


async def test_who_comes_second_waits_for_what_becomes_of_the_first() -> None:
    it, gate = House(), asyncio.Event()
    slow = await it.begin_slowly(gate)
    waiting = asyncio.create_task(it.make(it.other, "waiting", 1))
    await asyncio.sleep(0.1)
    assert (it.made, waiting.done()) == (set(), False)
    slow.cancel()  # its request fails, so that there is room after all
    await waiting
    assert it.made == {"waiting"}
    with pytest.raises(QuotaReached, match="1 things"):
        await it.make(it.one, "more", 1)


async def test_the_lock_of_a_process_that_crashed_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = House()
    crashing = it.one.room(it.bound(1), lambda: it.undo("crashed"))
    await crashing.__aenter__()
    with monkeypatch.context() as patch:
        patch.setattr(module, "PATIENCE", 0.1)
        for other in (it.one, it.other):
            with pytest.raises(Unavailable, match="too many of the same kind"):
                await it.make(other, "next", 1)
    it.clock.advance(round(module.LIVES * 1000) + 1)
    await it.make(it.other, "next", 1)


async def test_what_was_made_too_late_is_removed_again() -> None:
    it, gate = House(), asyncio.Event()
    slow = await it.begin_slowly(gate)
    it.clock.advance(round(module.LIVES * 1000) + 1)
    await it.make(it.other, "next", 1)
    gate.set()
    with pytest.raises(Unavailable, match="too long"):
        await slow
    assert it.made == {"next"}


async def test_a_crowd_of_two_processes_fills_a_bound_exactly() -> None:
    it = House()
    crowd = [it.make((it.one, it.other)[n % 2], str(n), 10) for n in range(30)]
    outcomes = await asyncio.gather(*crowd, return_exceptions=True)
    assert len(it.made) == 10
    assert sum(isinstance(one, QuotaReached) for one in outcomes) == 20
    assert await it.held_until() == 0


async def test_a_crowd_at_a_full_bound_is_refused_together() -> None:
    it = House()
    it.made.update(str(n) for n in range(50))
    crowd = [it.make(it.one, f"x{n}", 50) for n in range(60)]
    refused = await asyncio.gather(*crowd, return_exceptions=True)
    assert all(isinstance(one, QuotaReached) for one in refused)
    assert it.counts == 1


@pytest.mark.parametrize("rounds", range(12))
async def test_who_is_cancelled_in_its_turn_leaves_nothing(rounds: int) -> None:
    """It is cancelled at each of its steps, while another one asks beside it."""
    it = House()
    gone = asyncio.create_task(it.make(it.one, "gone", 2))
    beside = asyncio.create_task(it.make(it.one, "beside", 2))
    for _ in range(rounds):
        await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, beside, return_exceptions=True)
    assert "beside" in it.made
    assert await it.held_until() == 0


async def test_what_is_there_is_counted_only_once_the_kept_count_leaves_no_room() -> None:
    it = House()
    it.made = {f"old {n}" for n in range(90)}
    for n in range(10):
        await it.make(it.one if n % 2 else it.other, f"new {n}", 100)
    assert (len(it.made), it.counts) == (100, 1)
    it.made -= {f"old {n}" for n in range(5)}
    for n in range(5):  # the first of them counts, since the kept count knows of no end
        await it.make(it.one, f"more {n}", 100)
    assert (len(it.made), it.counts) == (100, 2)
    with pytest.raises(QuotaReached):
        await it.make(it.one, "one more", 100)
    assert len(it.made) == 100


async def test_a_bound_that_was_raised_holds_at_its_new_height() -> None:
    it = House()
    it.made = {str(n) for n in range(8)}
    with pytest.raises(QuotaReached):
        await it.make(it.one, "more", 5)
    await it.make(it.one, "ninth", 10)
    await it.make(it.one, "tenth", 10)
    with pytest.raises(QuotaReached):
        await it.make(it.one, "eleventh", 10)
    assert len(it.made) == 10


async def test_a_count_is_made_anew_after_ten_minutes_of_rest() -> None:
    it = House()
    await it.make(it.one, "first", 100)
    it.made |= {f"imported {n}" for n in range(99)}
    it.clock.advance(module.KEPT_MS + 1)
    with pytest.raises(QuotaReached):
        await it.make(it.one, "second", 100)

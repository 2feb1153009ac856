"""Room in a quota that is held while something is made."""

import asyncio
import json

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import QuotaReached, Unavailable
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.service.quotas import reservations as module
from zaqar_lite.service.quotas.reservations import Bound, Reservations
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.memory import create

pytestmark = pytest.mark.anyio


class House:
    """What a project has, and the reservations of two processes over one store."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.management: ManagementStore = create(
            "memory://", clock=self.clock, options=StoreOptions()
        )[1]
        self.made: set[str] = set()
        self.begun = asyncio.Event()
        self.counts = 0
        self.one, self.other = (
            Reservations(self.management, self.clock, is_there=self.is_there) for _ in range(2)
        )

    def bound(self, most: int) -> Bound:
        reached = QuotaReached(f"The project has {most} things.")
        return Bound("p", "things", most, self.count, reached)

    async def count(self, most: int) -> int:
        self.counts += 1
        await asyncio.sleep(0)
        return min(len(self.made), most)

    async def is_there(self, _: str, name: str) -> bool:
        await asyncio.sleep(0)
        return name in self.made

    async def make(
        self, by: Reservations, name: str, quota: int, gate: asyncio.Event | None = None
    ) -> None:
        """Make a thing, once a gate opens."""
        async with by.room(self.bound(quota), name, lambda: self.undo(name)):
            if gate is not None:
                self.begun.set()
                await gate.wait()
            self.made.add(name)

    async def begin_slowly(self, gate: asyncio.Event) -> "asyncio.Task[None]":
        """Begin to make a thing, and wait until its room is reserved."""
        task = asyncio.create_task(self.make(self.one, "slow", 1, gate))
        await self.begun.wait()
        return task

    async def reserved(self) -> object:
        """The reservations that are left."""
        record = await self.management.get_record(module.KIND, "p", "things")
        return {} if record is None else json.loads(record.value)["held"]

    async def undo(self, name: str) -> None:
        self.made.discard(name)


async def test_who_finds_the_last_room_reserved_waits_for_what_becomes_of_it() -> None:
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
    assert await it.management.list_records(module.KIND, "p", limit=10)


async def test_the_reservation_of_a_process_that_crashed_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = House()
    crashing = it.one.room(it.bound(1), "crashed", lambda: it.undo("crashed"))
    await crashing.__aenter__()
    with monkeypatch.context() as patch:
        patch.setattr(module, "PATIENCE", 0.1)
        with pytest.raises(Unavailable, match="too many of the same kind"):
            await it.make(it.other, "next", 1)
    it.clock.advance(round(module.LIVES * 1000) + 1)
    await it.make(it.other, "next", 1)


async def test_what_was_made_behind_its_reservation_is_removed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it, gate = House(), asyncio.Event()
    slow = await it.begin_slowly(gate)
    it.clock.advance(round(module.LIVES * 1000) + 1)
    await it.make(it.other, "next", 1)
    monkeypatch.setattr(module, "LIVES", 0.0)
    gate.set()
    with pytest.raises(Unavailable, match="too long"):
        await slow
    assert it.made == {"next"}


async def test_a_project_makes_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    it, gate = House(), asyncio.Event()
    monkeypatch.setattr(module, "PATIENCE", 2.0)
    monkeypatch.setattr(module, "MOST_HELD", 3)
    tasks = [asyncio.create_task(it.make(it.one, str(n), 10, gate)) for n in range(4)]
    done, held = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(held)) == (1, 3)
    (refused,) = done
    assert isinstance(refused.exception(), Unavailable)
    gate.set()
    await asyncio.gather(*held)
    assert len(it.made) == 3


async def test_a_crowd_writes_its_reservations_together() -> None:
    it = House()
    await asyncio.gather(*(it.make(it.one, str(n), 50) for n in range(50)))
    assert len(it.made) == 50
    assert it.counts < 10
    assert await it.reserved() == {}


async def test_a_crowd_at_a_full_bound_is_refused_together() -> None:
    it = House()
    it.made.update(str(n) for n in range(50))
    before = it.counts
    crowd = [it.make(it.one, f"x{n}", 50) for n in range(60)]
    refused = await asyncio.gather(*crowd, return_exceptions=True)
    assert all(isinstance(one, QuotaReached) for one in refused)
    assert it.counts - before < 10


@pytest.mark.parametrize("rounds", range(12))
async def test_who_is_cancelled_while_it_reserves_leaves_nothing(rounds: int) -> None:
    """It is cancelled at each of its steps, while another one asks beside it."""
    it = House()
    gone = asyncio.create_task(it.make(it.one, "gone", 2))
    beside = asyncio.create_task(it.make(it.one, "beside", 2))
    for _ in range(rounds):
        await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, beside, return_exceptions=True)
    assert "beside" in it.made
    assert await it.reserved() == {}


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

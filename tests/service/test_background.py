"""Work in the background: the loop that rests and wakes, and the sweep that it runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.failing import failing
from tests.service.composed import Composed
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRef, RetryPolicyOf, StoreOptions, SweepResult, no_retries
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.service.background import Background
from zaqar_lite.service.janitor import Janitor
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.messages import SqlMessageStore
from zaqar_lite.storage.sql.place import InRam
from zaqar_lite.storage.sql.records import SqlManagementStore

pytestmark = pytest.mark.anyio


class Work:
    """A step that fails as its list says, then succeeds."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.steps = 0
        self.done = asyncio.Event()

    async def step(self) -> float:
        self.steps += 1
        if self.failures:
            raise self.failures.pop(0)
        self.done.set()
        return 3_600


@asynccontextmanager
async def working(*failures: Exception) -> AsyncIterator[tuple[Work, Background]]:
    """Work in the background that has failed so, and then succeeded once."""
    work = Work(*failures)
    background = Background("the work", work.step, rest=0.001)
    background.start()
    async with asyncio.timeout(30):
        await work.done.wait()
        yield work, background
        await background.stop()


async def test_neither_an_absent_store_nor_a_bug_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    failures = (Unavailable("away"), ZeroDivisionError(), Unavailable("again"))
    async with working(*failures) as (work, _):
        assert work.steps == 4
    assert "the work: away" in caplog.text
    assert "the work failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


async def test_a_store_that_stays_away_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with working(*[Unavailable("away")] * 3, Unavailable("full"), Unavailable("away")):
        pass
    told = ("away", "full", "away", "works again")
    assert caplog.messages == [f"the work: {one}" for one in told]


async def test_it_rests_until_it_is_woken() -> None:
    async with working() as (work, background):
        work.done.clear()
        background.wake()
        await work.done.wait()
        assert work.steps == 2
        await background.stop()  # and again at the end


async def test_a_wake_at_the_moment_of_a_stop_does_not_keep_it_alive() -> None:
    async with working() as (_, background):
        await asyncio.sleep(0)
        background.wake()
        await asyncio.sleep(0)


QUEUE = QueueRef("project", "queue")
MINUTE, HOUR = 60_000, 3_600_000


class Watched(SqlMessageStore):
    """The memory store, and what each of its sweeps did."""

    def __init__(self, clock: Clock) -> None:
        self.db = Database(InRam(), clock, StoreOptions())
        super().__init__(self.db)
        self.swept: list[int] = []
        self.found_nothing = asyncio.Event()

    async def sweep(self, limit: int, retries_of: RetryPolicyOf = no_retries) -> SweepResult:
        swept = await super().sweep(limit, retries_of)
        self.swept.append(swept.total)
        if not swept.total:
            self.found_nothing.set()
        return swept


class House:
    """A memory store with a janitor that rests for an hour."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.messages = Watched(self.clock)
        self.management = SqlManagementStore(self.messages.db)
        one = Composed(self.clock, (self.messages, self.management))
        self.janitor = Janitor(
            self.messages, self.management, one.queues, one.policies, interval=3_600
        )

    async def post(self, count: int, *, ttl: int = HOUR, delay: int = 0) -> None:
        new = [NewMessage(b"1", ttl, delay)] * count
        await self.messages.post(QUEUE, new, client_id="p", version=None)

    async def rest(self) -> None:
        """Wait until a sweep found nothing."""
        await asyncio.wait_for(self.messages.found_nothing.wait(), 30)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    yield made
    await made.janitor.stop()


async def test_the_sweep_goes_on_until_nothing_is_left_and_rests_then(house: House) -> None:
    """Others come in between two steps."""
    await house.post(12_000, ttl=MINUTE)
    house.clock.advance(MINUTE)
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(len(house.messages.swept))
            await asyncio.sleep(0)

    busy = asyncio.create_task(other())
    house.janitor.start()
    await house.rest()
    done = len(house.messages.swept)
    assert sum(house.messages.swept) == 12_000
    assert max(house.messages.swept) <= 2_000
    assert set(turns) >= set(range(done))  # a turn after each step
    for _ in range(1_000):
        await asyncio.sleep(0)
    busy.cancel()
    assert len(house.messages.swept) == done


async def test_an_exposing_queue_is_drained_and_becomes_normal(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = {"_default_message_delay": 60}
    record, _ = await house.management.create_queue(QUEUE, metadata, max_queues=9)
    await house.post(2_500, delay=MINUTE)
    exposing = type(record)(QUEUE, {}, record.version, exposing=True)
    await house.management.update_queue(exposing)
    with monkeypatch.context() as broken:
        broken.setattr(house.messages, "release_delayed", failing(Unavailable("away")))
        assert await house.janitor.step() == 0  # so that it rests
    assert [await house.janitor.step() for _ in range(12)] == [*[250] * 10, 1, 0]
    assert (await house.messages.stats(QUEUE)).ready == 2_500
    assert not await house.management.exposing_queues(limit=9)

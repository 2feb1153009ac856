"""However many long posts one project sends at once, another waits for two of them."""

import asyncio

import pytest

from tests.contract.subject import QueueUnderTest
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.redis.limiter import FEW_STORED, FairTurns

pytestmark = pytest.mark.anyio
HOUR = 3_600_000
LONG = 2_000
THEIRS = QueueRef("another", "queue")


class Sent:
    """The order in which work of these projects had its turn, and what ends it."""

    def __init__(self, most: int = 1) -> None:
        self.turns = FairTurns(most)
        self.begun: list[str] = []
        self.ends: list[asyncio.Event] = []

    async def start(self, *projects: str) -> "list[asyncio.Task[None]]":
        tasks = [asyncio.create_task(self._work(project)) for project in projects]
        await self.settle()
        return tasks

    async def _work(self, project: str) -> None:
        async with self.turns.turn(project):
            self.begun.append(project)
            end = asyncio.Event()
            self.ends.append(end)
            await end.wait()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def end_first(self) -> None:
        self.ends.pop(0).set()
        await self.settle()


async def test_projects_have_their_turns_by_turns() -> None:
    sent = Sent()
    tasks = await sent.start("a", "a", "a", "a")
    tasks += await sent.start("b", "b", "c")
    assert sent.begun == ["a"]
    for _ in tasks:
        await sent.end_first()
    assert sent.begun == ["a", "a", "b", "c", "a", "b", "a"]
    await asyncio.gather(*tasks)
    await sent.start("d")
    assert sent.begun[-1] == "d", "a turn that nobody waited for is free"
    await sent.end_first()


async def test_two_turns_are_given_at_a_time() -> None:
    sent = Sent(2)
    tasks = await sent.start("a", "a", "a", "b")
    assert sent.begun == ["a", "a"]
    await sent.end_first()
    assert sent.begun == ["a", "a", "a"]
    for _ in range(3):
        await sent.end_first()
    await asyncio.gather(*tasks)
    await sent.start("c", "c", "c")
    assert sent.begun[4:] == ["c", "c"]
    for _ in range(3):
        await sent.end_first()


async def test_who_goes_away_takes_no_turn_along() -> None:
    sent = Sent()
    holder, waiting, next_one = await sent.start("a", "b", "c")
    waiting.cancel()
    await sent.settle()
    holder.cancel()
    await sent.settle()
    assert sent.begun == ["a", "c"]
    next_one.cancel()
    async with sent.turns.turn("d"):
        told, last = await sent.start("e", "f")
    told.cancel()  # it was told of its turn, and has not run since
    await asyncio.gather(holder, waiting, next_one, told, return_exceptions=True)
    await sent.settle()
    assert sent.begun == ["a", "c", "f"]
    sent.ends.pop().set()
    await last


async def test_a_short_post_waits_for_two_long_ones(queue: QueueUnderTest) -> None:
    store = queue.stores.messages

    async def post(ref: QueueRef, count: int) -> None:
        new = [NewMessage(b"1", HOUR)] * count
        await store.post(ref, new, client_id="producer", version=None)

    crowd = [asyncio.create_task(post(queue.ref, LONG)) for _ in range(20)]
    await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
    await post(THEIRS, FEW_STORED)
    assert sum(task.done() for task in crowd) <= 4
    await asyncio.gather(*crowd)
    await store.purge(queue.ref)
    await store.purge(THEIRS)

"""However many long posts one project sends at once, another waits for one of them."""

import asyncio

import pytest

from tests.contract.subject import QueueUnderTest
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.redis.limiter import CAPACITY, SHORT_POST, FairLimiter

pytestmark = pytest.mark.anyio
HOUR = 3_600_000
LONG = 2_000
THEIRS = QueueRef("another", "queue")


class Sent:
    """The order in which work of these projects had its turn, and what ends it."""

    def __init__(self) -> None:
        self.limiter = FairLimiter()
        self.begun: list[str] = []
        self.ends: list[asyncio.Event] = []

    def start(self, project: str, cost: int) -> "asyncio.Task[None]":
        return asyncio.create_task(self._work(project, cost))

    async def _work(self, project: str, cost: int) -> None:
        async with self.limiter.slot(project, cost):
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


@pytest.mark.parametrize(("costs", "begun"), [((CAPACITY - 1, 1, 1), 2), ((CAPACITY - 1, 2, 1), 2)])
async def test_there_is_room_for_so_much(costs: tuple[int, ...], begun: int) -> None:
    """What fills the room up, or is the last to find some, is sent; the next waits."""
    sent = Sent()
    tasks = [sent.start("a", cost) for cost in costs]
    await sent.settle()
    assert len(sent.begun) == begun
    await sent.end_first()
    assert len(sent.begun) == 3
    for end in sent.ends:
        end.set()
    await asyncio.gather(*tasks)


async def test_projects_have_their_turns_by_turns() -> None:
    sent = Sent()
    tasks = [sent.start("a", LONG) for _ in range(4)]
    await sent.settle()
    tasks += [sent.start(project, LONG) for project in ("b", "b", "c")]
    await sent.settle()
    assert sent.begun == ["a"]
    for _ in tasks:
        await sent.end_first()
    assert sent.begun == ["a", "a", "b", "c", "a", "b", "a"]
    await asyncio.gather(*tasks)


async def test_who_goes_away_leaves_its_room() -> None:
    sent = Sent()
    first, second, third = (sent.start("a", LONG) for _ in range(3))
    await sent.settle()
    second.cancel()
    first.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    await sent.settle()
    assert len(sent.begun) == 2
    sent.ends.pop().set()
    await third
    sent.ends.clear()
    fourth, fifth = sent.start("a", CAPACITY), sent.start("a", 1)
    await sent.settle()
    assert len(sent.begun) == 3
    await sent.end_first()
    await sent.end_first()
    await asyncio.gather(fourth, fifth)


async def test_who_goes_away_on_its_turn_leaves_its_room() -> None:
    sent = Sent()
    async with sent.limiter.slot("a", LONG):
        second, third = sent.start("a", LONG), sent.start("a", LONG)
        await sent.settle()
    second.cancel()  # it was told of its turn, and has not run since
    await asyncio.gather(second, return_exceptions=True)
    await sent.settle()
    assert sent.begun == ["a"]
    await sent.end_first()
    await third


async def test_a_short_post_waits_for_one_long_one(queue: QueueUnderTest) -> None:
    store = queue.stores.messages

    async def post(ref: QueueRef, count: int) -> None:
        new = [NewMessage(b"1", HOUR)] * count
        await store.post(ref, new, client_id="producer", version=None)

    crowd = [asyncio.create_task(post(queue.ref, LONG)) for _ in range(20)]
    await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
    await post(THEIRS, SHORT_POST)
    assert sum(task.done() for task in crowd) <= 4
    await asyncio.gather(*crowd)
    await store.purge(queue.ref)
    await store.purge(THEIRS)

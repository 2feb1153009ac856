"""Large posts are made in turns: the event loop goes round between their steps."""

import asyncio

import pytest

from tests.service.composed import Composed
from tests.waiting import rounds_beside
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.yielding import STEP, next_turn
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.post_validation import Draft

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("p", "q")
SMALL = 80
"""Messages that the SQL store takes in one step; more of them take turns in the store too."""


@pytest.fixture
def service() -> Messages:
    """The rules of messages over a memory store."""
    return Composed().messages


def _drafts(count: int) -> list[Draft]:
    return [Draft(b"1", 300, None, str(number)) for number in range(count)]


async def test_a_small_post_waits_for_no_turn(service: Messages) -> None:
    small, _ = await rounds_beside(service.post(QUEUE, _drafts(1), size=1, client_id="c"))
    more, _ = await rounds_beside(service.post(QUEUE, _drafts(SMALL), size=1, client_id="c"))
    assert more <= small


async def test_a_step_of_one_large_post_runs_between_two_rounds() -> None:
    """Whatever the number of large posts."""
    here = 0
    taken: list[int] = []

    async def work() -> None:
        for _ in range(10):
            await next_turn()
            taken.append(here)

    working = [asyncio.create_task(work()) for _ in range(5)]
    while not all(task.done() for task in working):
        await asyncio.sleep(0)
        here += 1
    assert len(taken) == 50
    assert len(set(taken)) == 50, "two in one round"


async def test_a_mistake_is_named_by_its_place_in_the_whole_post(service: Messages) -> None:
    drafts = _drafts(2 * STEP)
    drafts[STEP + 7] = Draft(b"1", 1)
    with pytest.raises(Invalid, match=f"Message {STEP + 7}:"):
        await service.post(QUEUE, drafts, size=1, client_id="c")


async def test_what_came_during_a_step_is_answered_before_the_next() -> None:
    """A request is read in one round of the loop and answered in the next, between two steps."""
    seen: list[str] = []
    loop = asyncio.get_running_loop()

    def read() -> None:
        loop.call_soon(seen.append, "answered")

    async def work() -> None:
        for _ in range(2):
            await next_turn()
            seen.append("step")
            loop.call_soon(read)

    await asyncio.gather(work(), work())
    assert seen == ["step", "answered"] * 4

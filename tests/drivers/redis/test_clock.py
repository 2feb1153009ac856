"""A clock that goes back, as that of a replica may that takes over."""

import pytest

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest
from tests.drivers.redis.steps import exhaust

pytestmark = pytest.mark.anyio


async def test_letters_of_a_queue_that_is_made_again_arrive(
    queue: QueueUnderTest, target: QueueUnderTest
) -> None:
    """Their numbers must not be those of letters that left before the queue was deleted."""
    policy = target.as_dead_letter_queue(1)
    queue.advance(MINUTE)
    await exhaust(queue, "a")
    await queue.claim(dead_letter=policy)
    await queue.drop()
    queue.advance(-MINUTE)
    await exhaust(queue, "b")
    await queue.claim(dead_letter=policy)
    assert await target.bodies() == ["a", "b"]


async def test_positions_go_on(queue: QueueUnderTest) -> None:
    queue.advance(HOUR)
    await queue.post("a", ttl=3 * HOUR)
    queue.advance(-HOUR)
    await queue.post("b")
    assert await queue.bodies() == ["a", "b"]

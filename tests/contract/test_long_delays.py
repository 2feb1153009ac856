"""A message that is due in a year costs what any other delayed message costs."""

import random
from collections.abc import Awaitable, Callable

import pytest

from tests.contract.subject import MINUTE, SECOND, QueueUnderTest, new
from zaqar_lite.domain.models import DelayMode
from zaqar_lite.storage.base import MAX_EXAMINED

pytestmark = pytest.mark.anyio
DAY = 1_440 * MINUTE
NEAR, FAR = 20 * MINUTE, 365 * DAY
"""When the last message of a queue is due, after its post; the first one is due in ten minutes."""
LIMIT = 20


async def examined(queue: QueueUnderTest, call: Callable[[], Awaitable[object]]) -> int:
    """How many entries a call looked at; 0 where the store does not count."""
    store = queue.stores.messages
    before: int = getattr(store, "examined", 0)
    await call()
    return getattr(store, "examined", 0) - before


async def costs(queue: QueueUnderTest, last: int, count: int) -> dict[str, int]:
    """Fill a queue with delayed messages, of which twenty become due; look at each call."""

    async def claim() -> None:
        claimed = await queue.claim(LIMIT, mode=DelayMode.HONOUR)
        assert len(claimed.messages) == LIMIT

    async def list_() -> None:
        assert len((await queue.page(limit=LIMIT)).messages) == LIMIT

    delays = [random.randint(10 * MINUTE, last) for _ in range(count)] + [SECOND] * LIMIT
    messages = [new("x", ttl=delay + DAY, delay=delay) for delay in delays]
    for first in range(0, len(messages), 1_000):
        await queue.post(*messages[first : first + 1_000])
    queue.advance(2 * SECOND)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "post": lambda: queue.post(new("x", ttl=last + DAY, delay=last)),
        "claim": claim,
        "list": list_,
        "stats": queue.stats,
    }
    return {name: await examined(queue, call) for name, call in calls.items()}


async def test_a_message_that_is_due_in_a_year_costs_what_any_other_costs(
    queue: QueueUnderTest,
) -> None:
    """Stores that count what they look at look at as much; in all of them what is due is found."""
    count = 3_000 // queue.stores.case.size_divisor
    near = await costs(queue.named("near"), NEAR, count)
    far = await costs(queue.named("far"), FAR, count)
    assert near == far
    assert max(far.values()) <= MAX_EXAMINED

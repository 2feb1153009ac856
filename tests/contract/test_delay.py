"""Delayed messages: never early, never in the way of others, exposed by switching a delay off."""

import random
from collections.abc import Awaitable, Callable

import pytest

from tests.contract.subject import HOUR, MINUTE, SECOND, QueueUnderTest, new, texts
from zaqar_lite.domain.models import Capability, DelayMode
from zaqar_lite.storage.base import MAX_EXAMINED

pytestmark = pytest.mark.anyio

HONOUR, IGNORE = DelayMode.HONOUR, DelayMode.IGNORE


async def test_a_delayed_message_is_never_early_and_delayed_once(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a", delay=10 * MINUTE)
    message = await queue.get_one(message_id)
    assert message.delay_expires_at == message.created_at + 10 * MINUTE
    assert (await queue.claim(mode=HONOUR)).claim_id is None
    queue.advance(9 * MINUTE)
    assert (await queue.claim(mode=HONOUR)).claim_id is None
    assert not (await queue.pop(mode=HONOUR)).messages
    assert await queue.counts() == (0, 1, 0)
    queue.advance(MINUTE)
    for _ in range(3):
        claimed = await queue.claim(mode=HONOUR)
        (found,) = claimed.messages
        assert (found.id, found.delay_expires_at) == (message_id, message.delay_expires_at)
        await queue.release(claimed.claim_id or "")
        assert await queue.counts() == (1, 0, 0)


async def test_a_delayed_message_does_not_ride_out_behind_a_ready_one(
    queue: QueueUnderTest,
) -> None:
    """Upstream's Redis driver tests the delay only until it has found a first message."""
    await queue.post(*map(str, range(15)), delay=10 * MINUTE)  # they hide nothing either
    await queue.post("ready")
    await queue.post("delayed", delay=10 * MINUTE)
    await queue.post("ready too")
    assert texts((await queue.claim(10, mode=HONOUR)).messages) == ["ready", "ready too"]
    assert await queue.counts() == (0, 16, 2)


async def test_each_message_waits_for_its_own_delay(queue: QueueUnderTest) -> None:
    delays = {"c": 30, "a": 10, "d": 40, "b": 20, "now": 0}
    await queue.post(*[new(text, delay=delay * MINUTE) for text, delay in delays.items()])
    assert texts((await queue.claim(mode=HONOUR, ttl=HOUR)).messages) == ["now"]
    queue.advance(5 * MINUTE)
    for expected in "abcd":
        assert (await queue.claim(mode=HONOUR, ttl=HOUR)).claim_id is None
        queue.advance(6 * MINUTE)
        assert texts((await queue.claim(mode=HONOUR, ttl=HOUR)).messages) == [expected]
        queue.advance(4 * MINUTE)


async def test_a_due_message_is_handed_out_at_its_own_place(queue: QueueUnderTest) -> None:
    await queue.post(new("a", delay=20 * MINUTE), new("b"), new("c", delay=10 * MINUTE), new("d"))
    queue.advance(21 * MINUTE)
    assert texts((await queue.claim(2, mode=HONOUR)).messages) == ["a", "b"]
    assert texts((await queue.claim(2, mode=HONOUR)).messages) == ["c", "d"]


async def test_a_due_message_keeps_its_priority(queue: QueueUnderTest) -> None:
    queue.stores.need(Capability.FAN_OUT)
    await queue.post(new("a"), new("urgent", delay=10 * MINUTE, priority=0))
    queue.advance(11 * MINUTE)
    assert texts((await queue.claim(mode=HONOUR)).messages) == ["urgent", "a"]


async def test_a_ttl_shorter_than_the_delay_is_never_claimed(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a", ttl=5 * MINUTE, delay=10 * MINUTE)
    assert await queue.counts() == (0, 1, 0)
    queue.advance(6 * MINUTE)
    assert await queue.counts() == (0, 0, 0)
    assert not await queue.get(message_id)
    queue.advance(6 * MINUTE)
    assert (await queue.claim(mode=HONOUR)).claim_id is None
    assert (await queue.claim(exposing=True)).claim_id is None
    await queue.sweep()
    assert await queue.bodies() == []


async def test_expose_makes_delayed_messages_ready_in_bounded_steps(queue: QueueUnderTest) -> None:
    """From then on, whatever `d` said: switching the delay on again does not take it back."""
    assert await queue.release_delayed(3) == 0
    await queue.post("gone", ttl=2 * MINUTE, delay=10 * MINUTE)
    await queue.post("a", ttl=HOUR, delay=10 * MINUTE)
    queue.advance(3 * MINUTE)
    assert await queue.release_delayed(10) == 1
    await queue.post(*"bcdef", delay=10 * MINUTE)
    await queue.post("g")
    for exposed, counts in ((3, (5, 2, 0)), (2, (7, 0, 0)), (0, (7, 0, 0))):
        assert await queue.release_delayed(3) == exposed
        assert await queue.counts() == counts
    assert texts(await queue.listed(delayed=False)) == list("abcdefg")
    claimed = await queue.claim(3, mode=IGNORE)
    assert texts(claimed.messages) == list("abc")
    await queue.release(claimed.claim_id or "")
    assert texts((await queue.claim(10, mode=HONOUR)).messages) == list("abcdefg")


async def test_a_sweep_promotes_what_is_due_whatever_the_queue_is_by_now(
    queue: QueueUnderTest,
) -> None:
    await queue.post("due", delay=10 * MINUTE)
    await queue.post("not due", delay=20 * MINUTE)
    queue.advance(11 * MINUTE)
    await queue.sweep()
    assert texts((await queue.claim(mode=IGNORE)).messages) == ["due"]


async def test_no_claim_ends_at_due_messages_that_have_expired(queue: QueueUnderTest) -> None:
    """It says that there is more until it has passed them, so its caller goes on."""
    await queue.post(*map(str, range(250)), ttl=10 * MINUTE, delay=9 * MINUTE)
    await queue.post("live", delay=9 * MINUTE)
    queue.advance(11 * MINUTE)
    for _ in range(10):
        claimed = await queue.claim(1, mode=DelayMode.HONOUR)
        if claimed.messages or not claimed.more:
            break
    assert texts(claimed.messages) == ["live"]


# What is due in a year costs what any other delayed message costs.


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

"""Failures: counted once each, followed by a later try, and by the dead letters at a limit."""

import asyncio
from contextlib import suppress

import pytest

from tests.contract.dying import MEETINGS, Meeting, by_pop
from tests.contract.subject import (
    HOUR,
    MINUTE,
    SECOND,
    QueueUnderTest,
    backoff,
    bury,
    fail,
    give_back,
    some,
    texts,
)
from tests.failing import failing
from zaqar_lite.domain.attempts import LAPSED, MAX_CLAIMS, Ended
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import (
    Capability,
    DeadLetter,
    DelayMode,
    HistoryState,
    Message,
    RetryPolicy,
)
from zaqar_lite.domain.settlements import Outcome

pytestmark = pytest.mark.anyio

DONE = Outcome.DONE


@pytest.fixture(params=MEETINGS)
def meet(request: pytest.FixtureRequest) -> Meeting:
    name: str = request.param
    return MEETINGS[name]


async def let_lapse(queue: QueueUnderTest, *, ttl: int = 5 * MINUTE, later: int = MINUTE) -> str:
    """Claim what is ready and let the lease lapse, some time ago; answer the claim's id."""
    claim_id = await queue.claim_id(100, ttl=ttl)
    queue.advance(ttl + later)
    return claim_id


def reason(letter: Message) -> str:
    return some(letter.origin).reason


# Counting.


async def test_failures_and_lapses_are_counted_together_and_releases_are_none(
    queue: QueueUnderTest,
) -> None:
    (message_id,) = await queue.post("a", ttl=10 * HOUR)
    await queue.settle(await queue.claim_id(), fail(message_id))
    await let_lapse(queue)
    await queue.release(await queue.claim_id())
    await queue.settle(await queue.claim_id(), give_back(message_id))
    message = await queue.get_one(message_id)
    assert (message.claim_count, message.failure_count) == (4, 2)
    await queue.settle(await queue.claim_id(), fail(message_id, MINUTE))
    queue.advance(2 * MINUTE)
    await let_lapse(queue)
    (message,) = (await queue.claim()).messages
    assert (message.claim_count, message.failure_count) == (7, 4)


async def test_a_lapse_is_counted_once_however_many_look(queue: QueueUnderTest) -> None:
    message_ids = await queue.post(*"ab")
    claim_id = await let_lapse(queue)
    for _ in range(2):
        assert await queue.counts() == (2, 0, 0)
        assert len(await queue.listed(claimed=False)) == 2
        assert len(await queue.get(*message_ids)) == 2
        assert await queue.is_over(claim_id)
        await queue.sweep()
        await queue.release(claim_id)
    claimed = await queue.claim()
    assert [message.failure_count for message in claimed.messages] == [1, 1]
    await queue.sweep()
    assert [message.failure_count for message in await queue.listed()] == [1, 1]
    assert [len(await queue.attempts(each)) for each in message_ids] == [1, 1]


async def test_a_lapse_is_counted_once_however_many_race(queue: QueueUnderTest) -> None:
    message_ids = await queue.post(*map(str, range(10)))
    await let_lapse(queue)
    peers = [queue.at(stores) for stores in await queue.stores.peers(3)]
    await asyncio.gather(*[peer.sweep() for peer in peers], *[peer.claim(3) for peer in peers * 2])
    await queue.sweep()
    messages = await queue.get(*message_ids, details=True)
    assert [message.failure_count for message in messages] == [1] * 10
    assert [len(message.attempts) for message in messages] == [1] * 10


# Limits.


async def test_a_delay_does_not_keep_a_message_that_has_reached_the_limit(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a")
    retries = RetryPolicy(other.as_dead_letter_queue(max_failures=1), backoff(HOUR))
    claim_id = await queue.claim_id()
    await queue.settle(claim_id, fail(message_id, 10 * MINUTE), retries=retries)
    assert await other.counts() == (1, 0, 0)
    letter = await other.get_one(message_id, details=True)
    assert letter.parked_until is None
    assert [attempt.delay_ms for attempt in letter.attempts] == [0]


async def test_a_release_moves_nothing_whatever_the_limits(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """A deploy that releases kills nothing; what was claimed too often goes at the next claim."""
    (message_id,) = await queue.post("a")
    policy = other.as_dead_letter_queue(1, max_failures=1)
    settled = await queue.settle(
        await queue.claim_id(), give_back(message_id), retries=RetryPolicy(policy)
    )
    assert settled.moved == 0
    assert await queue.counts() == (1, 0, 0)
    assert (await queue.claim(dead_letter=policy)).moved == 1
    letter = await other.get_one(message_id)
    assert (reason(letter), letter.failure_count) == (MAX_CLAIMS, 0)


async def test_a_sweep_asks_for_the_policy_of_each_queue(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    sources = [queue.named(f"{queue.ref.name}-{n}") for n in range(3)]
    for source in sources:
        await source.post(source.ref.name)
        await source.claim(ttl=5 * MINUTE)
    queue.advance(6 * MINUTE)
    await queue.sweep(
        {
            sources[0].ref: RetryPolicy(other.as_dead_letter_queue(max_failures=1)),
            sources[1].ref: RetryPolicy(backoff=backoff(10 * MINUTE)),
        }
    )
    assert [await source.counts() for source in sources] == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
    assert await other.bodies() == [sources[0].ref.name]
    assert [message.failure_count for message in await sources[2].listed()] == [1]


async def test_a_sweep_that_can_not_learn_a_policy_loses_nothing(queue: QueueUnderTest) -> None:
    """The records may lie in another store, which may be down for a moment."""
    (message_id,) = await queue.post("a")
    await let_lapse(queue)
    with suppress(Unavailable):
        await queue.stores.messages.sweep(1_000, failing(Unavailable("The other one is away.")))
    assert await queue.counts() == (1, 0, 0)
    await queue.sweep({queue.ref: RetryPolicy(backoff=backoff(10 * MINUTE))})
    message = await queue.get_one(message_id)
    assert message.failure_count == 1
    assert message.parked_until is not None


async def test_a_lapse_does_not_bring_back_what_has_expired(
    queue: QueueUnderTest, other: QueueUnderTest, meet: Meeting
) -> None:
    """It is gone from its deadline on: no later try and no dead letter."""
    await queue.post("a", ttl=10 * MINUTE)
    await let_lapse(queue, ttl=5 * MINUTE, later=6 * MINUTE)
    await meet(queue, RetryPolicy(backoff=backoff(HOUR)))
    assert await queue.counts() == (0, 0, 0)
    await queue.post("b", ttl=10 * MINUTE)
    await let_lapse(queue, ttl=5 * MINUTE, later=6 * MINUTE)
    assert await meet(queue, RetryPolicy(other.as_dead_letter_queue(ttl=HOUR, max_failures=1))) == 0
    assert await queue.counts() == (0, 0, 0)
    assert await other.bodies() == []


async def test_a_dead_letter_can_go_to_the_queues_own_failed_list(queue: QueueUnderTest) -> None:
    queue.stores.need(Capability.HISTORY)
    await queue.stores.management.create_queue(queue.ref, {"_failed_retention": 0}, max_queues=9)
    failed, rejected, lapsed = await queue.post(*"abc")
    retries = RetryPolicy(DeadLetter(None, ttl_ms=0, max_failures=1))
    claim_id = await queue.claim_id(ttl=5 * MINUTE)
    settled = await queue.settle(claim_id, fail(failed), bury(rejected), retries=retries)
    assert (list(settled.outcomes), settled.moved) == ([DONE, DONE], 2)
    queue.advance(6 * MINUTE)
    assert (await queue.claim(dead_letter=retries.dead_letter)).moved == 1
    assert await queue.bodies() == []
    page = await queue.stores.messages.history(
        queue.ref, HistoryState.FAILED, marker=None, limit=10
    )
    assert [entry.id for entry in page.entries] == [failed, rejected, lapsed]


async def test_a_policy_that_the_store_can_not_keep_does_not_stop_the_sweep(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """Another store keeps the records, and has a list of failed messages."""
    if Capability.HISTORY in queue.stores.messages.capabilities:
        pytest.skip("it keeps it")
    for each in (queue, other):
        await each.post("a")
        await each.claim(ttl=MINUTE)
    queue.advance(2 * MINUTE)
    await queue.sweep({queue.ref: RetryPolicy(DeadLetter(None, max_failures=1))})
    assert await queue.counts() == await other.counts() == (1, 0, 0)


async def test_whoever_follows_a_history_misses_nothing(queue: QueueUnderTest) -> None:
    """Also where all of it was trimmed since."""
    queue.stores.need(Capability.HISTORY)
    await queue.stores.management.create_queue(queue.ref, {"_done_retention": 60}, max_queues=9)
    marker = None
    for _ in range(2):
        ids = await queue.post(*"abc")
        await queue.delete(*ids, claims=[await queue.claim_id()])
        page = await queue.stores.messages.history(
            queue.ref, HistoryState.DONE, marker=marker, limit=10
        )
        assert sorted(entry.id for entry in page.entries) == sorted(ids)
        marker = page.marker
        queue.advance(HOUR)
        await queue.stores.messages.sweep(100)


# The wait before the next try.


async def claim_and_fail(
    queue: QueueUnderTest, retries: RetryPolicy, delay: int | None = None
) -> Message:
    """Claim what must be ready, fail it, and answer how it stands then, with its attempts."""
    (message,) = (await queue.claim()).messages
    assert await queue.outcomes(
        message.claim_id or "", fail(message.id, delay), retries=retries
    ) == [DONE]
    return await queue.get_one(message.id, details=True)


async def test_each_failure_waits_for_its_own_delay(queue: QueueUnderTest) -> None:
    """The n-th delay for the n-th failure, and the last one from then on."""
    await queue.post("a", ttl=100 * HOUR)
    retries = RetryPolicy(backoff=backoff(10 * MINUTE, 30 * MINUTE, 20 * MINUTE))
    for delay in (10, 30, 20, 20, 20):
        message = await claim_and_fail(queue, retries)
        last = message.attempts[-1]
        assert last.delay_ms == delay * MINUTE
        assert message.parked_until == last.ended_at + delay * MINUTE
        queue.advance((delay - 1) * MINUTE)
        assert (await queue.claim()).claim_id is None
        queue.advance(2 * MINUTE)


async def test_chance_spreads_the_delays(queue: QueueUnderTest) -> None:
    message_ids = await queue.post(*map(str, range(30)))
    retries = RetryPolicy(backoff=backoff(10 * MINUTE, jitter=0.5))
    await queue.settle(await queue.claim_id(30), *map(fail, message_ids), retries=retries)
    parked = await queue.listed(details=True)
    delays = [message.attempts[-1].delay_ms for message in parked]
    assert len(delays) == 30
    assert all(5 * MINUTE <= delay <= 15 * MINUTE for delay in delays)
    assert len(set(delays)) > 1
    for message in parked:
        last = message.attempts[-1]
        assert message.parked_until == last.ended_at + last.delay_ms


async def test_a_delay_of_the_consumers_own_goes_before_the_back_off(
    queue: QueueUnderTest,
) -> None:
    """A release that is no failure knows no back-off."""
    await queue.post("a")
    retries = RetryPolicy(backoff=backoff(10 * MINUTE, jitter=1.0))
    message = await claim_and_fail(queue, retries, 3 * MINUTE)
    assert message.parked_until == message.attempts[-1].ended_at + 3 * MINUTE
    queue.advance(4 * MINUTE)
    message = await claim_and_fail(queue, retries, 0)
    assert (message.parked_until, message.attempts[-1].delay_ms) == (None, 0)
    await queue.settle(await queue.claim_id(), give_back(message.id), retries=retries)
    assert await queue.counts() == (1, 0, 0)


async def test_a_lapse_waits_from_the_end_of_its_lease(
    queue: QueueUnderTest, meet: Meeting
) -> None:
    (message_id,) = await queue.post("a")
    retries = RetryPolicy(backoff=backoff(10 * MINUTE))
    await let_lapse(queue, ttl=5 * MINUTE, later=4 * MINUTE)
    assert await queue.counts() == (1, 0, 0)
    assert await meet(queue, retries) == 0
    assert await queue.counts() == (0, 1, 0)
    message = await queue.get_one(message_id, details=True)
    (attempt,) = message.attempts
    assert (attempt.outcome, attempt.reason, attempt.delay_ms) == (
        Ended.LAPSED,
        LAPSED,
        10 * MINUTE,
    )
    assert abs(attempt.ended_at - attempt.claimed_at - 5 * MINUTE) < SECOND
    assert message.parked_until == attempt.ended_at + 10 * MINUTE
    queue.advance(5 * MINUTE)
    assert (await queue.claim(backoff=retries.backoff)).claim_id is None
    queue.advance(2 * MINUTE)
    (message,) = (await queue.claim(backoff=retries.backoff)).messages
    assert (message.claim_count, message.failure_count) == (2, 1)


async def test_a_lapse_that_is_met_late_has_waited_already(
    queue: QueueUnderTest, meet: Meeting
) -> None:
    await queue.post(*"ab")
    await let_lapse(queue, later=11 * MINUTE)
    await queue.post("c")
    await meet(queue, RetryPolicy(backoff=backoff(10 * MINUTE)))
    assert (await queue.counts())[1:] == (0, 0)
    if meet is not by_pop:
        assert texts((await queue.claim()).messages) == ["a", "b", "c"]


async def test_a_lapse_waits_longer_from_failure_to_failure_also_in_a_delayed_queue(
    queue: QueueUnderTest,
) -> None:
    await queue.post("a", ttl=100 * HOUR, delay=MINUTE)
    queue.advance(2 * MINUTE)
    retries = backoff(10 * MINUTE, 30 * MINUTE, HOUR)

    async def claim() -> list[str]:
        claimed = await queue.claim(mode=DelayMode.HONOUR, ttl=5 * MINUTE, backoff=retries)
        return texts(claimed.messages)

    for delay in (10, 30, 60, 60):
        assert await claim() == ["a"]
        for minutes in (6, delay - 3):
            queue.advance(minutes * MINUTE)
            assert await claim() == []
            assert await queue.counts() == (0, 1, 0)
        queue.advance(3 * MINUTE)


async def test_a_message_lives_until_a_minute_after_its_back_off(
    queue: QueueUnderTest, meet: Meeting
) -> None:
    """What was to be tried again must not expire on the way there."""
    retries = RetryPolicy(backoff=backoff(HOUR))
    failed, lapsed = await queue.post(*"ab", ttl=20 * MINUTE)
    claim_id = await queue.claim_id(ttl=5 * MINUTE)
    await queue.settle(claim_id, fail(failed), retries=retries)
    queue.advance(6 * MINUTE)
    await meet(queue, retries)
    for message in await queue.get(failed, lapsed):
        assert abs(message.expires_at - some(message.parked_until) - MINUTE) < SECOND
    queue.advance(54 * MINUTE + 30 * SECOND)
    assert texts((await queue.claim()).messages) == ["a"]
    queue.advance(5 * MINUTE)
    assert texts((await queue.claim()).messages) == ["b"]


async def test_a_message_that_waits_does_not_hide_the_others(
    queue: QueueUnderTest, meet: Meeting
) -> None:
    await queue.post(*map(str, range(20)))
    await let_lapse(queue)
    await queue.post(*map(str, range(20, 25)))
    await meet(queue, RetryPolicy(backoff=backoff(10 * MINUTE)))
    if meet is by_pop:
        assert await queue.counts() == (0, 20, 0)
    else:
        assert texts((await queue.claim()).messages) == [str(n) for n in range(20, 25)]

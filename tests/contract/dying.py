"""The ways in which a message becomes a dead letter, and what its letter says of each."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import pytest

from tests.contract.subject import MINUTE, QueueUnderTest, bury, fail
from zaqar_lite.domain.attempts import LAPSED, MAX_CLAIMS, MAX_FAILURES, REJECTED, Ended
from zaqar_lite.domain.models import DeadLetter, RetryPolicy

CONSUMER = "worker-7"
Meeting = Callable[[QueueUnderTest, RetryPolicy], Awaitable[int]]
"""Let the lapses of a queue be met; answer how many dead letters were moved."""


async def by_claim(queue: QueueUnderTest, retries: RetryPolicy) -> int:
    """Let a claim meet them, which gives back what it gets."""
    claimed = await queue.claim(dead_letter=retries.dead_letter, backoff=retries.backoff)
    await queue.release(claimed.claim_id or "0" * 32)
    return claimed.moved


async def by_pop(queue: QueueUnderTest, retries: RetryPolicy) -> int:
    """Let a pop meet them."""
    return (await queue.pop(dead_letter=retries.dead_letter, backoff=retries.backoff)).moved


async def by_sweep(queue: QueueUnderTest, retries: RetryPolicy) -> int:
    """Let the sweep meet them."""
    done = await queue.sweep({queue.ref: retries})
    moved = sum(swept.moved for swept in done)
    if retries.dead_letter is not None and moved:
        assert retries.dead_letter.target in {ref for swept in done for ref in swept.letters_in}
    return moved


MEETINGS: dict[str, Meeting] = {"claim": by_claim, "pop": by_pop, "sweep": by_sweep}


Policy = Callable[..., DeadLetter]
"""Makes the policy of the queue that a message dies in: `as_dead_letter_queue` of its letters."""
Kill = Callable[[QueueUnderTest, str, Policy], Awaitable[tuple[str, int]]]
"""Let the queue's only message die; answer its last claim, and how many were moved."""


async def _claimed(queue: QueueUnderTest) -> str:
    return await queue.claim_id(ttl=5 * MINUTE, client=CONSUMER)


def exhausted(meet: Meeting) -> Kill:
    """Claim and release it as often as it may be claimed."""

    async def kill(queue: QueueUnderTest, _: str, policy: Policy) -> tuple[str, int]:
        await queue.release(await _claimed(queue))
        await queue.release(claim_id := await _claimed(queue))
        return claim_id, await meet(queue, RetryPolicy(policy(2)))

    return kill


def rejected(reason: str | None) -> Kill:
    """Reject it."""

    async def kill(queue: QueueUnderTest, message_id: str, policy: Policy) -> tuple[str, int]:
        claim_id, retries = await _claimed(queue), RetryPolicy(policy())
        rejection = bury(message_id, reason=reason, detail="no id")
        return claim_id, (await queue.settle(claim_id, rejection, retries=retries)).moved

    return kill


async def _fail(queue: QueueUnderTest, message_id: str, letter: DeadLetter) -> tuple[str, int]:
    """Fail the message; a delay of the consumer's own is none for what is dead."""
    claim_id, failure = await _claimed(queue), fail(message_id, 0, reason="http_503")
    return claim_id, (await queue.settle(claim_id, failure, retries=RetryPolicy(letter))).moved


async def failed(queue: QueueUnderTest, message_id: str, policy: Policy) -> tuple[str, int]:
    """Fail it as often as it may fail."""
    assert (await _fail(queue, message_id, policy(max_failures=2)))[1] == 0
    return await _fail(queue, message_id, policy(max_failures=2))


async def failed_as_often_claimed(
    queue: QueueUnderTest, message_id: str, policy: Policy
) -> tuple[str, int]:
    """Whichever limit is reached first: it would only wait for the next claim to move it."""
    await queue.release(await _claimed(queue))
    return await _fail(queue, message_id, policy(2, max_failures=5))


def lapsed(meet: Meeting) -> Kill:
    """Fail it once, and let its second lease lapse."""

    async def kill(queue: QueueUnderTest, message_id: str, policy: Policy) -> tuple[str, int]:
        assert (await _fail(queue, message_id, policy(max_failures=2)))[1] == 0
        claim_id = await _claimed(queue)
        queue.advance(6 * MINUTE)
        return claim_id, await meet(queue, RetryPolicy(policy(max_failures=2)))

    return kill


async def lapsed_as_often_claimed(queue: QueueUnderTest, _: str, policy: Policy) -> tuple[str, int]:
    """Let the last lease that it may have lapse."""
    await queue.release(await _claimed(queue))
    claim_id = await _claimed(queue)
    queue.advance(6 * MINUTE)
    return claim_id, await by_sweep(queue, RetryPolicy(policy(2)))


@dataclass(frozen=True)
class Way:
    """How a message dies: what does it, the reason, the counts, and how its hand-outs ended."""

    kill: Kill
    reason: str
    failures: int
    ended: tuple[tuple[Ended, str | None], ...]

    async def let_die(
        self, queue: QueueUnderTest, letters: QueueUnderTest, message_id: str, *, ttl: int = 0
    ) -> str:
        """Let the only message die, by a policy with a ttl or none; answer its last claim's id."""
        policy = partial(letters.as_dead_letter_queue, ttl=ttl or None)
        claim_id, moved = await self.kill(queue, message_id, policy)
        assert moved == 1
        await letters.arrived([message_id], 1)
        return claim_id


_RELEASED, _FAILED = (Ended.RELEASED, None), (Ended.FAILED, "http_503")
_LAPSED = (Ended.LAPSED, LAPSED)
WAYS = {
    **{
        f"exhausted, met by a {name}": Way(exhausted(meet), MAX_CLAIMS, 0, (_RELEASED, _RELEASED))
        for name, meet in MEETINGS.items()
        if meet is not by_sweep  # which does not look at what is ready
    },
    "rejected": Way(rejected("malformed"), "malformed", 0, ((Ended.DEAD, "malformed"),)),
    "rejected without a reason": Way(rejected(None), REJECTED, 0, ((Ended.DEAD, REJECTED),)),
    "failed": Way(failed, MAX_FAILURES, 2, (_FAILED, _FAILED)),
    "failed at its last claim": Way(failed_as_often_claimed, MAX_CLAIMS, 1, (_RELEASED, _FAILED)),
    **{
        f"lapsed, met by a {name}": Way(lapsed(meet), MAX_FAILURES, 2, (_FAILED, _LAPSED))
        for name, meet in MEETINGS.items()
    },
    "lapsed at its last claim": Way(lapsed_as_often_claimed, MAX_CLAIMS, 1, (_RELEASED, _LAPSED)),
}
any_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)

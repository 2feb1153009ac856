"""Releasing: at once, idempotent, and only what the claim still holds."""

import pytest

from tests.contract.subject import MINUTE, QueueUnderTest, texts
from zaqar_lite.domain.errors import NotFound

pytestmark = pytest.mark.anyio


async def test_released_messages_are_ready_at_once_at_their_own_places(
    queue: QueueUnderTest,
) -> None:
    await queue.post(*"abcd")
    claim_id = await queue.claim_id(2)
    await queue.release(claim_id)
    assert await queue.counts() == (4, 0, 0)
    assert {message.claim_id for message in await queue.listed()} == {None}
    assert texts((await queue.claim(3)).messages) == ["a", "b", "c"]


async def test_a_released_claim_is_over(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id()
    await queue.release(claim_id)
    with pytest.raises(NotFound):
        await queue.get_claim(claim_id)
    with pytest.raises(NotFound):
        await queue.renew(claim_id)
    assert await queue.delete(message_id, claims=[claim_id])
    assert await queue.bodies() == ["a"]


async def test_releasing_twice_is_no_error_and_frees_nothing_of_others(
    queue: QueueUnderTest,
) -> None:
    """The second release, late, must not free what somebody else holds by now."""
    (message_id,) = await queue.post("a")
    first = await queue.claim_id()
    await queue.release(first)
    second = await queue.claim_id()
    await queue.release(first)
    assert (await queue.get_one(message_id)).claim_id == second
    assert (await queue.claim()).claim_id is None


async def test_releasing_one_claim_leaves_the_others_alone(queue: QueueUnderTest) -> None:
    """Upstream's Redis driver hands out what another claim holds after a release before it."""
    posted = await queue.post(*"abcdef")
    first, second, third = [await queue.claim_id(2) for _ in range(3)]
    await queue.delete(posted[1], claims=[first])
    await queue.release(first)
    claimed = await queue.claim(10)
    assert texts(claimed.messages) == ["a"]
    assert texts((await queue.get_claim(second)).messages) == ["c", "d"]
    assert texts((await queue.get_claim(third)).messages) == ["e", "f"]


async def test_a_raised_ttl_stays_after_a_release(queue: QueueUnderTest) -> None:
    await queue.post("a", ttl=2 * MINUTE)
    claim_id = await queue.claim_id(ttl=10 * MINUTE, grace=MINUTE)
    await queue.release(claim_id)
    queue.advance(9 * MINUTE)
    assert await queue.bodies() == ["a"]
    queue.advance(3 * MINUTE)
    assert await queue.bodies() == []

"""Deleting: by id, by claim, all or none."""

import pytest

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest
from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.models import Refusal, RefusalReason

pytestmark = pytest.mark.anyio

CLAIMED, NOT_CLAIMED = RefusalReason.CLAIMED, RefusalReason.NOT_CLAIMED


async def test_deleting_what_is_not_there_is_no_error(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a")
    for claims in (None, [], ["0" * 32]):
        assert not await queue.delete("0" * 32, claims=claims)
    await queue.delete(message_id)
    assert not await queue.delete(message_id)
    assert not await queue.delete(message_id, message_id, claims=["0" * 32])


async def test_a_claimed_message_is_deleted_by_who_checks_no_claim_alone(
    queue: QueueUnderTest,
) -> None:
    (message_id,) = await queue.post("a")
    await queue.claim()
    assert await queue.delete(message_id, claims=[]) == [Refusal(message_id, CLAIMED)]
    assert await queue.bodies() == ["a"]
    assert not await queue.delete(message_id, claims=None)
    assert await queue.bodies() == []


async def test_what_nobody_holds_is_deleted_without_a_claim_id_alone(
    queue: QueueUnderTest,
) -> None:
    (ready,) = await queue.post("a")
    claim_id = await queue.claim_id()
    await queue.release(claim_id)
    (delayed,) = await queue.post("b", delay=MINUTE)
    refused = await queue.delete(ready, delayed, claims=[claim_id])
    assert set(refused) == {Refusal(ready, NOT_CLAIMED), Refusal(delayed, NOT_CLAIMED)}
    assert await queue.bodies() == ["a", "b"]
    assert not await queue.delete(ready, delayed, claims=[])
    queue.advance(2 * MINUTE)
    assert await queue.bodies() == []


async def test_several_claims_delete_together_all_or_none(queue: QueueUnderTest) -> None:
    message_ids = await queue.post(*"abcde")
    mine, theirs = await queue.claim_id(2), await queue.claim_id(2)
    refused = await queue.delete(*message_ids, claims=[mine])
    assert set(refused) == {
        Refusal(message_ids[2], CLAIMED),
        Refusal(message_ids[3], CLAIMED),
        Refusal(message_ids[4], NOT_CLAIMED),
    }
    assert await queue.bodies() == [*"abcde"]
    assert await queue.counts() == (1, 0, 4)
    assert not await queue.delete(*message_ids[:4], claims=[mine, theirs])
    assert await queue.bodies() == ["e"]


async def test_an_id_with_the_right_place_and_the_wrong_end_is_nobodys(
    queue: QueueUnderTest,
) -> None:
    """An id holds a position: what stands there may be another message, of another life."""
    (message_id,) = await queue.post("a", delay=HOUR, ttl=2 * HOUR)
    other = f"{message_id[:-1]}{(int(message_id[-1], 16) + 1) % 16:x}"
    assert not await queue.get(other)
    with pytest.raises(NotFound):
        await queue.edit(other, "b")
    assert not await queue.delete(other)
    assert not await queue.delete(other, claims=["0" * 32])
    assert await queue.bodies() == ["a"]

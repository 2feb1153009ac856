"""Messages that a server of the version before settling has stored are read on."""

import pytest

from tests.contract.subject import MINUTE, SECOND, QueueUnderTest, fail, give_back
from tests.drivers.mongodb.inspection import database_of
from tests.services import MongoServer
from zaqar_lite.domain.attempts import MAX_CLAIMS
from zaqar_lite.domain.settlements import Outcome

pytestmark = pytest.mark.anyio

NEW_FIELDS = {"ca": True, "cs": True, "l": True, "a": True, "f": True, "x": True}


def make_old(mongodb: MongoServer, name: str) -> None:
    """Take away what the earlier version did not write."""
    with database_of(mongodb.url, name) as database:
        database["zaqar_messages"].update_many({}, {"$unset": {**NEW_FIELDS, "o.r": True}})


async def test_a_claim_of_before_is_read_renewed_and_settled(
    queue: QueueUnderTest, mongodb: MongoServer, database_name: str
) -> None:
    failed, _ = await queue.post(*"ab")
    claim_id = await queue.claim_id(ttl=10 * MINUTE)
    make_old(mongodb, database_name)
    queue.advance(4 * MINUTE)
    claim = await queue.get_claim(claim_id)
    assert claim.ttl_ms == 10 * MINUTE
    assert 4 * MINUTE <= claim.age_ms < 5 * MINUTE
    assert [message.failure_count for message in claim.messages] == [0, 0]
    assert await queue.outcomes(claim_id, fail(failed)) == [Outcome.DONE]
    (attempt,) = await queue.attempts(failed)
    assert 4 * MINUTE <= attempt.ended_at - attempt.claimed_at < 5 * MINUTE
    await queue.renew(claim_id, ttl=5 * MINUTE)
    assert (await queue.get_claim(claim_id)).age_ms < MINUTE


async def test_a_lease_of_before_lapses_as_a_failure(
    queue: QueueUnderTest, mongodb: MongoServer, database_name: str
) -> None:
    (message_id,) = await queue.post("a")
    await queue.claim(ttl=10 * MINUTE)
    make_old(mongodb, database_name)
    queue.advance(11 * MINUTE)
    await queue.sweep()
    (attempt,) = await queue.attempts(message_id)
    assert abs(attempt.ended_at - attempt.claimed_at - 10 * MINUTE) < SECOND
    assert (await queue.get_one(message_id)).failure_count == 1


async def test_what_was_released_or_moved_before_is_shown_and_claimed(
    queue: QueueUnderTest, other: QueueUnderTest, mongodb: MongoServer, database_name: str
) -> None:
    released, letter = await queue.post(*"ab")
    first = await queue.claim_id()
    await queue.release(first)
    await queue.claim(1)
    await queue.claim(dead_letter=other.as_dead_letter_queue(1))
    make_old(mongodb, database_name)
    moved = await other.get_one(letter, details=True)
    assert moved.origin is not None
    assert (moved.origin.reason, moved.failure_count, moved.attempts) == (MAX_CLAIMS, 0, ())
    assert await other.outcomes(first, give_back(letter)) == [Outcome.LAPSED]
    assert [message.claim_count for message in (await other.claim()).messages] == [2]
    assert (await queue.get_one(released)).claim_count == 2

"""Taking in messages of another store: all that they were, under their ids, each call once."""

import pytest
from msgspec.structs import replace

from tests.contract.subject import (
    HOUR,
    MINUTE,
    QueueUnderTest,
    ack,
    fail,
    give_back,
    ids,
    new,
    some,
)
from zaqar_lite.domain.attempts import Ended
from zaqar_lite.domain.ids import new_message_id
from zaqar_lite.domain.models import DelayMode, Message, RetryPolicy
from zaqar_lite.domain.settlements import Outcome

pytestmark = pytest.mark.anyio


async def foreign(other: QueueUnderTest, *, delay: int = 0, failures: int = 0) -> Message:
    """A message that was in another queue, as it was there, under an id of another store."""
    (made,) = await other.post(new("a", headers={"of": "a"}, delay=delay, ttl=HOUR))
    for _ in range(failures):
        claim_id = await other.claim_id(1, client="worker")
        await other.settle(claim_id, fail(made, reason="http_503", detail="went wrong"))
    read = await other.get_one(made, details=True)
    await other.stores.messages.purge(other.ref, forget=True)
    return replace(read, id=new_message_id(read.position - 7))


async def import_messages(queue: QueueUnderTest, number: int, *messages: Message) -> None:
    await queue.stores.messages.import_messages(queue.ref, messages, source="pool", number=number)


async def test_a_message_keeps_all_that_it_was(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    message = await foreign(other, failures=2)
    assert len(message.attempts) == 2
    await import_messages(queue, 1, message)
    found = await queue.get_one(message.id, details=True)
    assert tuple(found.attempts) == tuple(message.attempts)
    assert found == replace(
        message, position=found.position, now=found.now, attempts=found.attempts
    )
    assert await queue.counts() == (1, 0, 0)
    claimed = await queue.claim()
    assert ids(claimed.messages) == [message.id]
    assert claimed.messages[0].claim_count == 3
    assert claimed.claim_id is not None
    await queue.settle(claimed.claim_id, fail(message.id, reason="again"))
    after = await queue.attempts(message.id)
    assert [one.outcome for one in after] == [Ended.FAILED] * 3
    assert [one.number for one in after] == [1, 2, 3]
    claimed = await queue.claim()
    settled = await queue.settle(some(claimed.claim_id), ack(message.id))
    assert settled.outcomes == [Outcome.DONE]
    assert await queue.counts() == (0, 0, 0)


async def test_a_repeat_changes_nothing(queue: QueueUnderTest, other: QueueUnderTest) -> None:
    first, second = await foreign(other), await foreign(other)
    await import_messages(queue, 7, first)
    await import_messages(queue, 7, first)
    assert ids(await queue.listed()) == [first.id]
    await queue.delete(first.id)
    await import_messages(queue, 7, first)
    await import_messages(queue, 6, second)
    assert await queue.listed() == []
    await import_messages(queue, 8, second)
    assert ids(await queue.listed()) == [second.id]
    await queue.stores.messages.import_messages(queue.ref, (first,), source="another", number=1)
    assert ids(await queue.listed()) == [second.id, first.id]


async def test_a_message_is_due_and_expires_when_it_was(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    message = await foreign(other, delay=10 * MINUTE)
    await import_messages(queue, 1, message)
    assert await queue.counts() == (0, 1, 0)
    queue.advance(9 * MINUTE)
    assert not (await queue.claim(mode=DelayMode.HONOUR)).messages
    queue.advance(MINUTE)
    claimed = await queue.claim(mode=DelayMode.HONOUR)
    assert ids(claimed.messages) == [message.id]
    settled = await queue.settle(some(claimed.claim_id), give_back(message.id))
    assert settled.outcomes == [Outcome.DONE]
    found = await queue.get_one(message.id)
    assert (found.delay_expires_at, found.expires_at) == (
        message.delay_expires_at,
        message.expires_at,
    )
    queue.advance(49 * MINUTE)
    assert ids(await queue.listed()) == [message.id]
    queue.advance(MINUTE)
    await import_messages(queue, 2, message)  # what has expired stays out
    assert await queue.listed() == []


async def test_it_dies_or_is_moved_and_comes_back_under_its_id(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """One without an origin gets one when it is moved."""
    message, without = await foreign(other, failures=1), await foreign(other)
    letters = queue.named("letters")
    await import_messages(queue, 1, message)
    retries = RetryPolicy(letters.as_dead_letter_queue(max_failures=2))
    claim_id = await queue.claim_id()
    await queue.settle(claim_id, fail(message.id), retries=retries)
    letter = await letters.get_one(message.id, details=True)
    origin = some(letter.origin)
    assert (origin.source, origin.claim_count) == (queue.ref.name, 2)
    await letters.delete(message.id)
    await import_messages(queue, 2, letter, without)
    assert (await queue.get_one(message.id)).origin == letter.origin
    assert await queue.move(letters, without.id) == [Outcome.DONE]
    moved = some((await letters.get_one(without.id)).origin)
    assert (moved.source, moved.redriven) == (queue.ref.name, 1)


async def test_many_come_in_their_order(queue: QueueUnderTest, other: QueueUnderTest) -> None:
    messages = [await foreign(other) for _ in range(5)]
    await import_messages(queue, 1, *messages[:3])
    (own,) = await queue.post("own")
    await import_messages(queue, 2, *messages[3:])
    expected = [*ids(messages[:3]), own, *ids(messages[3:])]
    assert ids(await queue.listed()) == expected
    assert ids((await queue.claim()).messages) == expected


async def test_parking_stays_behind(queue: QueueUnderTest, other: QueueUnderTest) -> None:
    (made,) = await other.post("a")
    await other.release(await other.claim_id(1), delay=10 * MINUTE)
    read = await other.get_one(made, details=True)
    assert read.parked_until is not None
    await import_messages(queue, 1, replace(read, id=new_message_id(read.position - 7)))
    assert await queue.counts() == (1, 0, 0)

"""Dead letters of a message that more than one queue held, in one dead-letter queue."""

import pytest

from tests.drivers.opendata.store import Store
from tests.drivers.store import HOUR, MINUTE, OTHER, QUEUE
from zaqar_lite.domain.histories import HistoryState
from zaqar_lite.domain.models import DeadLetter, Message, QueueRef, RetryPolicy
from zaqar_lite.domain.posts import Copy, NewMessage

pytestmark = pytest.mark.anyio
LETTERS = QueueRef("project", "letters")


@pytest.fixture
async def two(store: Store) -> Store:
    """Two letters of the same message, from the two queues that held it."""
    await store.management.create_queue(OTHER, {"_filter": "queue = 'queue'"}, max_queues=9)
    await store.post(NewMessage(b'"poison"', HOUR, copies=(Copy(OTHER, HOUR, 0, 100),)))
    retries = RetryPolicy(DeadLetter(LETTERS, 1))
    for source in (QUEUE, OTHER):
        for _ in range(2):
            claimed = await store.claim(queue=source, client=f"of {source.name}", retries=retries)
            if claimed.claim_id is not None:
                await store.release(claimed, source)
    return store


async def letters(store: Store) -> list[Message]:
    return await store.all_messages(LETTERS)


def sources(found: list[Message]) -> list[str]:
    return [message.origin.source for message in found if message.origin is not None]


async def test_both_are_there_after_a_restart(two: Store) -> None:
    before = await letters(two)
    assert sources(before) == ["queue", "other"]
    for _ in range(2):
        await two.restart()
        assert [message.id for message in await letters(two)] == [message.id for message in before]
        assert sources(await letters(two)) == ["queue", "other"]
        assert (await two.messages.stats(LETTERS)).total == 2
        await two.post("new", to=LETTERS)  # the page is written again
        await two.messages.delete(LETTERS, [(await letters(two))[-1].id], claim_ids=None)


async def test_each_keeps_its_claim_over_a_restart(two: Store) -> None:
    first = await two.claim(1, queue=LETTERS, client="one")
    await two.restart()
    assert [message.claim_id for message in await letters(two)] == [first.claim_id, None]
    second = await two.claim(1, queue=LETTERS, client="two")
    assert sources(list(second.messages)) == ["other"]
    await two.restart()
    claims = [message.claim_id for message in await letters(two)]
    assert claims == [first.claim_id, second.claim_id]
    two.clock.advance(2 * MINUTE)
    assert len((await two.claim(queue=LETTERS)).messages) == 2


async def test_each_has_its_own_attempts_in_the_history(two: Store) -> None:
    await two.management.create_queue(LETTERS, {"_done_retention": 0}, max_queues=9)
    expected = [["of queue", "reader"], ["of other", "reader"]]
    for number in (1, 2):
        claimed = await two.claim(1, queue=LETTERS, client="reader")
        ids = [message.id for message in claimed.messages]
        await two.messages.delete(LETTERS, ids, claim_ids=[claimed.claim_id or ""])
        await two.restart()
        page = await two.messages.history(LETTERS, HistoryState.DONE, marker=None, limit=10)
        assert [list(entry.consumers) for entry in page.entries] == expected[:number]


async def test_the_body_goes_with_the_last(two: Store) -> None:
    for left in (1, 0):
        (message, *_) = await letters(two)
        await two.messages.delete(LETTERS, [message.id], claim_ids=None)
        await two.restart()
        assert len(await letters(two)) == left

"""Attempts, leases and parking in the records: over a restart, a check, and a move."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.store import HOUR, MINUTE, OTHER, QUEUE, Store
from zaqar_lite.domain.attempts import MAX_ATTEMPTS
from zaqar_lite.domain.models import DeadLetter, ListQuery, Message, QueueRef, RetryPolicy
from zaqar_lite.domain.settlements import Act, Outcome, Settlement
from zaqar_lite.storage.opendata.entries import EntryExtras
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.format.records import Attempts, encode_attempts

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["opendata+slatedb"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store over each of the engines."""
    opened = Store(f"{request.param}://{tmp_path / 'data'}")
    await opened.messages.open()
    yield opened
    await check_database(opened.db)
    await opened.messages.close()


async def settle(store: Store, claim_id: str | None, *settlements: Settlement) -> list[Outcome]:
    retries = RetryPolicy(DeadLetter(OTHER))
    settled = await store.messages.settle(QUEUE, claim_id or "", settlements, retries=retries)
    return list(settled.outcomes)


async def everything(store: Store, queue: QueueRef = QUEUE) -> list[Message]:
    page = await store.messages.list_messages(
        queue, ListQuery(limit=100, include_claimed=True, include_delayed=True, details=True)
    )
    return list(page.messages)


def without_now(messages: list[Message]) -> list[Message]:
    for message in messages:
        message.now = 0
    return messages


async def test_what_was_settled_is_there_after_a_restart(either: Store) -> None:
    ids = await either.post(*"abcdefg")
    claimed = await either.claim()
    outcomes = await settle(
        either,
        claimed.claim_id,
        Settlement(ids[0], Act.ACK),
        Settlement(ids[1], Act.RELEASE, 10 * MINUTE, failed=True, reason="http_503", detail="no"),
        Settlement(ids[2], Act.RELEASE, 0),
        Settlement(ids[3], Act.EXTEND, ttl_ms=5 * MINUTE),
        Settlement(ids[4], Act.EXTEND, ttl_ms=1_000),
        Settlement(ids[5], Act.DEAD, reason="malformed"),
    )
    assert outcomes == [Outcome.DONE] * 6
    either.clock.advance(2_000)
    before = [without_now(await everything(either, queue)) for queue in (QUEUE, OTHER)]
    for _ in range(2):
        await either.restart()
        assert [without_now(await everything(either, q)) for q in (QUEUE, OTHER)] == before
        stats = await either.messages.stats(QUEUE)
        assert (stats.ready, stats.delayed, stats.claimed) == (2, 1, 2)
    assert await settle(either, claimed.claim_id, Settlement(ids[1], Act.RELEASE)) == [Outcome.DONE]
    assert await settle(either, claimed.claim_id, Settlement(ids[1], Act.ACK)) == [Outcome.LAPSED]
    await either.messages.renew(QUEUE, claimed.claim_id or "", ttl_ms=HOUR, grace_ms=0)
    await either.restart()
    assert [m.claim_id is None for m in await everything(either)] == [
        True,
        True,
        False,
        True,
        False,
    ]
    either.clock.advance(11 * MINUTE)
    again = await either.claim()
    assert [message.id for message in again.messages] == [ids[1], ids[2], ids[4]]
    assert [message.failure_count for message in again.messages] == [1, 0, 1]


async def test_a_message_that_never_failed_takes_no_room_for_it(store: Store) -> None:
    await store.post(*"abc")
    claimed = await store.claim(1)
    queue = store.db.queues.get(QUEUE)
    assert queue is not None
    entries = [entry for page in queue.pages for entry in page.entries.values()]
    assert [entry.extras for entry in entries] == [None] * 3
    assert not await store.records(RecordType.ATTEMPTS)
    await store.sweep()
    assert len(await store.records(RecordType.ATTEMPTS)) == 1  # who holds it, as the RFC has it
    await store.messages.release(QUEUE, claimed.claim_id or "")
    assert [isinstance(entry.extras, EntryExtras) for entry in entries] == [True, False, False]
    assert len(await store.records(RecordType.ATTEMPT)) == 1


async def test_texts_of_attempts_stay_on_disk_and_go_with_the_message(either: Store) -> None:
    (message_id,) = await either.post("a")
    for number in range(2 * MAX_ATTEMPTS):
        claimed = await either.claim()
        await settle(
            either, claimed.claim_id,
            Settlement(message_id, Act.RELEASE, failed=True, reason=f"reason-{number}"),
        )  # fmt: skip
    assert len(await either.records(RecordType.ATTEMPT)) == MAX_ATTEMPTS
    claimed = await either.claim()
    assert await settle(either, claimed.claim_id, Settlement(message_id, Act.DEAD)) == [
        Outcome.DONE
    ]
    (letter,) = await everything(either, OTHER)
    assert len(letter.attempts) == MAX_ATTEMPTS
    assert len(await either.records(RecordType.ATTEMPT)) == MAX_ATTEMPTS
    assert len(await either.records(RecordType.ATTEMPTS)) == 1
    await either.messages.purge(OTHER)
    assert not await either.records(RecordType.ATTEMPT)
    assert not await either.records(RecordType.ATTEMPTS)


async def test_records_of_an_earlier_version_read_on(store: Store) -> None:
    """They tell who held a message, and nothing of how that ended."""
    (message_id,) = await store.post("a")
    claimed = await store.claim()
    await store.messages.release(QUEUE, claimed.claim_id or "")
    (key,) = await store.records(RecordType.ATTEMPTS)
    (attempt,) = await store.records(RecordType.ATTEMPT)
    store.db.put(key, encode_attempts(Attempts(("worker",))))
    store.db.delete(attempt)
    await store.db.committer.durable()
    await store.restart()
    (message,) = await everything(store)
    assert (message.claim_count, message.failure_count, list(message.attempts)) == (1, 0, [])
    again = await store.claim()
    done = await settle(store, again.claim_id, Settlement(message_id, Act.RELEASE, failed=True))
    assert done == [Outcome.DONE]
    (message,) = await everything(store)
    assert [attempt.number for attempt in message.attempts] == [2]
    assert message.failure_count == 1

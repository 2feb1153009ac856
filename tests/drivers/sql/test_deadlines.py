"""Deadlines to the millisecond, and what is forgotten: in RAM, by a clock that stands still."""

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, NotFound
from zaqar_lite.domain.models import (
    ClaimRequest,
    DeadLetter,
    DelayMode,
    Edit,
    ListQuery,
    Message,
    QueueRef,
    RetryPolicy,
    StoreOptions,
)
from zaqar_lite.domain.posts import NewMessage, identify
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.sql import create, place_of
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.messages import SqlMessageStore
from zaqar_lite.storage.sql.records import SqlManagementStore

pytestmark = pytest.mark.anyio

MINUTE = 60_000
DAY = 86_400_000
KEY = identify(QueueRef("project", "queue"), "k", [b"1"])


@pytest.fixture
def clock() -> Clock:
    return Clock(wall=lambda: 1_800_000_000.0, monotonic=lambda: 0.0)


@pytest.fixture
def database(clock: Clock) -> Database:
    return Database(place_of("memory://"), clock, StoreOptions())


@pytest.fixture
def store(database: Database) -> SqlMessageStore:
    return SqlMessageStore(database)


@pytest.fixture
def queue() -> QueueRef:
    return QueueRef("project", "queue")


def count(database: Database, table: str) -> int:
    """How many rows a table has."""
    return int(database.execute(f"SELECT count(*) FROM {table}").get)  # noqa: S608 - our own names


async def post(store: SqlMessageStore, queue: QueueRef, message: NewMessage) -> str:
    (posted,) = await store.post(queue, [message], client_id="producer", version=None)
    return posted.id


async def claim(
    store: SqlMessageStore,
    queue: QueueRef,
    *,
    ttl_ms: int = MINUTE,
    grace_ms: int = 0,
    mode: DelayMode = DelayMode.IGNORE,
    dead_letter: DeadLetter | None = None,
) -> str | None:
    claimed = await store.claim(
        queue,
        ClaimRequest(
            limit=20,
            ttl_ms=ttl_ms,
            grace_ms=grace_ms,
            client_id="consumer",
            delay_mode=mode,
            retries=RetryPolicy(dead_letter),
            version=None,
        ),
    )
    return claimed.claim_id


async def test_a_message_expires_in_the_millisecond_of_its_deadline(
    store: SqlMessageStore, queue: QueueRef, clock: Clock
) -> None:
    message_id = await post(store, queue, NewMessage(b"1", MINUTE))
    clock.advance(MINUTE - 1)
    assert await store.get_messages(queue, [message_id])
    clock.advance(1)
    assert not await store.get_messages(queue, [message_id])


async def test_a_message_is_due_in_the_millisecond_of_its_delay_and_not_before(
    store: SqlMessageStore, queue: QueueRef, clock: Clock
) -> None:
    await post(store, queue, NewMessage(b"1", 10 * MINUTE, MINUTE))
    clock.advance(MINUTE - 1)
    assert await claim(store, queue, mode=DelayMode.HONOUR) is None
    clock.advance(1)
    assert await claim(store, queue, mode=DelayMode.HONOUR) is not None


async def test_a_claim_lapses_in_the_millisecond_of_its_deadline(
    store: SqlMessageStore, queue: QueueRef, clock: Clock
) -> None:
    await post(store, queue, NewMessage(b"1", 10 * MINUTE))
    first = await claim(store, queue)
    assert first is not None
    clock.advance(MINUTE - 1)
    await store.get_claim(queue, first)
    clock.advance(1)
    with pytest.raises(NotFound):
        await store.get_claim(queue, first)
    assert await claim(store, queue) is not None


async def test_a_message_that_ends_with_its_claim_is_not_raised_and_goes_with_it(
    store: SqlMessageStore, queue: QueueRef, clock: Clock
) -> None:
    """Only one that would end earlier gets the grace (zaqar-behaviour 4.2)."""
    message_id = await post(store, queue, NewMessage(b"1", MINUTE))
    await claim(store, queue, ttl_ms=MINUTE, grace_ms=MINUTE)
    clock.advance(MINUTE - 1)
    assert await store.get_messages(queue, [message_id])
    clock.advance(1)
    assert not await store.get_messages(queue, [message_id])
    assert await claim(store, queue) is None


async def test_a_key_is_forgotten_in_the_millisecond_of_its_window(
    store: SqlMessageStore, queue: QueueRef, clock: Clock
) -> None:
    message = NewMessage(b"1", 60 * MINUTE, idempotency_key=KEY)
    first = await post(store, queue, message)
    clock.advance(StoreOptions().idempotency_window_ms - 1)
    assert await post(store, queue, message) == first
    clock.advance(1)
    assert await post(store, queue, message) != first


async def test_nothing_is_kept_of_a_queue_that_is_empty(
    database: Database, store: SqlMessageStore, queue: QueueRef, clock: Clock
) -> None:
    """A client that names a million queues must not fill the memory for good."""
    await post(store, queue, NewMessage(b"1", MINUTE, idempotency_key=KEY))
    await claim(store, queue)
    other = QueueRef("project", "other")
    await post(store, other, NewMessage(b"1", MINUTE))
    clock.advance(60 * MINUTE)
    while (await store.sweep(1)).total:
        pass
    await store.sweep(1)
    assert count(database, "queue") == 0


async def test_a_source_of_adopted_messages_is_forgotten_after_a_day(
    database: Database, store: SqlMessageStore, queue: QueueRef, clock: Clock
) -> None:
    now = clock.now_ms()
    life = 2 * DAY
    message = Message("0" * 32, 1, b"1", life, now, now + life, now)

    async def import_messages(source: int) -> int:
        await store.import_messages(queue, [message], source=f"pool-{source}", number=1)
        return (await store.stats(queue)).total

    for source in range(1_000):
        await import_messages(source)
    clock.advance(DAY - 1)
    await store.sweep(100)
    assert count(database, "record") == 1_000
    assert await import_messages(0) == 1_000, "a repeat"
    clock.advance(1)
    management = SqlManagementStore(database)
    assert [await management.sweep_records(100) for _ in range(11)] == [100] * 10 + [0]
    assert count(database, "record") == 0


async def test_reading_a_queue_that_is_not_there_keeps_nothing_of_it(
    database: Database, store: SqlMessageStore, queue: QueueRef
) -> None:
    await claim(store, queue)
    await store.claim(
        queue, ClaimRequest(limit=1, delay_mode=DelayMode.HONOUR, version=None, removes=True)
    )
    await store.list_messages(queue, ListQuery(limit=1))
    await store.get_messages(queue, ["0" * 32])
    await store.delete(queue, ["0" * 32], claim_ids=None)
    await store.stats(queue)
    await store.partition(queue, 3)
    await store.release_delayed(queue, 3)
    await store.settle_all(queue, "0" * 32, Settlement("", Act.RELEASE))
    with pytest.raises(NotFound):
        await store.edit(queue, Edit("0" * 32, body=b"2"))
    assert count(database, "queue") == 0


@pytest.mark.parametrize("uri", ["memory://host", "memory:///path", "memory://?a=b", "memory://#x"])
def test_a_uri_that_says_more_than_memory_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="memory://"):
        create(uri, clock=Clock(), options=StoreOptions())


async def test_two_stores_share_nothing(queue: QueueRef) -> None:
    one, _ = create("memory://", clock=Clock(), options=StoreOptions())
    two, _ = create("memory://", clock=Clock(), options=StoreOptions())
    await one.post(queue, [NewMessage(b"1", MINUTE)], client_id="c", version=None)
    assert (await two.stats(queue)).total == 0


async def test_a_parking_ends_in_the_millisecond_that_it_says(
    store: SqlMessageStore, queue: QueueRef, clock: Clock
) -> None:
    message_id = await post(store, queue, NewMessage(b"1", MINUTE))
    claim_id = await claim(store, queue)
    assert claim_id is not None
    await store.settle_all(queue, claim_id, Settlement("", Act.RELEASE, 1_000))
    clock.advance(999)
    (message,) = await store.get_messages(queue, [message_id])
    assert message.parked_until == message.now + 1
    clock.advance(1)
    (message,) = await store.get_messages(queue, [message_id])
    assert message.parked_until is None

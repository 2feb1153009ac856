"""Deadlines to the millisecond, and what is forgotten: in RAM, by a clock that stands still."""

import pytest

from tests.drivers.sql.store import RAM, Store
from tests.drivers.store import HOUR, MINUTE, QUEUE, message, texts
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.metadata import DONE_RETENTION
from zaqar_lite.domain.models import DelayMode, Edit, Message, StoreOptions
from zaqar_lite.domain.posts import NewMessage, identify

pytestmark = pytest.mark.anyio

DAY = 24 * HOUR
KEYED = NewMessage(b"1", HOUR, idempotency_key=identify(QUEUE, "k", [b"1"]))


@pytest.fixture
def store() -> Store:
    """Both stores in RAM, whose leases are of a minute."""
    made = Store(RAM, clock=Clock(wall=lambda: 1_800_000_000.0, monotonic=lambda: 0.0))
    made.lease = MINUTE
    return made


async def test_a_message_expires_in_the_millisecond_of_its_deadline(store: Store) -> None:
    await store.post(message("a", ttl=MINUTE))
    store.clock.advance(MINUTE - 1)
    assert await store.bodies() == ["a"]
    store.clock.advance(1)
    assert await store.bodies() == []


async def test_a_message_is_due_in_the_millisecond_of_its_delay_and_not_before(
    store: Store,
) -> None:
    await store.post(message("a", delay=MINUTE))
    store.clock.advance(MINUTE - 1)
    assert (await store.claim(mode=DelayMode.HONOUR)).claim_id is None
    store.clock.advance(1)
    assert (await store.claim(mode=DelayMode.HONOUR)).claim_id is not None


async def test_a_normal_queue_says_nothing_of_what_is_due(store: Store) -> None:
    """Whoever claims would ask again and again until the sweep has made it ready."""
    await store.post(message("a", delay=MINUTE))
    store.clock.advance(MINUTE)
    claimed = await store.claim(mode=DelayMode.IGNORE)
    assert (claimed.messages, claimed.more) == ([], False)
    await store.sweep()
    assert texts(await store.claim(mode=DelayMode.IGNORE)) == ["a"]


async def test_statistics_end_no_lease_and_come_to_an_end(store: Store) -> None:
    await store.post("a", message("b", ttl=2 * MINUTE))
    await store.claim(1)
    store.clock.advance(MINUTE)
    assert await store.counts() == (2, 0, 0)
    store.clock.advance(MINUTE)
    assert await store.counts() == (1, 0, 0)
    assert store.rows("claim") == 1


async def test_a_claim_lapses_in_the_millisecond_of_its_deadline(store: Store) -> None:
    await store.post("a")
    first = (await store.claim()).claim_id or ""
    store.clock.advance(MINUTE - 1)
    await store.messages.get_claim(QUEUE, first)
    store.clock.advance(1)
    with pytest.raises(NotFound):
        await store.messages.get_claim(QUEUE, first)
    assert (await store.claim()).claim_id is not None


async def test_a_message_that_ends_with_its_claim_is_not_raised_and_goes_with_it(
    store: Store,
) -> None:
    """Only one that would end earlier gets the grace (zaqar-behaviour 4.2)."""
    await store.post(message("a", ttl=MINUTE))
    await store.claim()
    store.clock.advance(MINUTE - 1)
    assert await store.bodies() == ["a"]
    store.clock.advance(1)
    assert await store.bodies() == []
    assert (await store.claim()).claim_id is None


async def test_a_key_is_forgotten_in_the_millisecond_of_its_window(store: Store) -> None:
    first = await store.post(KEYED)
    store.clock.advance(StoreOptions().idempotency_window_ms - 1)
    assert await store.post(KEYED) == first
    assert (await store.messages.find_idempotency_keys(QUEUE)).are_any
    store.clock.advance(1)
    assert not (await store.messages.find_idempotency_keys(QUEUE)).are_any
    assert await store.post(KEYED) != first


async def test_a_parking_ends_in_the_millisecond_that_it_says(store: Store) -> None:
    await store.post("a")
    await store.release(await store.claim(), delay=1_000)
    store.clock.advance(999)
    (parked,) = await store.all_messages()
    assert parked.parked_until == parked.now + 1
    store.clock.advance(1)
    (parked,) = await store.all_messages()
    assert parked.parked_until is None


async def test_what_is_done_is_kept_to_the_millisecond_where_its_queue_says_so(
    store: Store,
) -> None:
    for keeps in (False, True):
        if keeps:
            await store.management.create_queue(QUEUE, {DONE_RETENTION: 60}, max_queues=9)
        ids = await store.post("a")
        claimed = await store.claim()
        await store.messages.delete(QUEUE, ids, claim_ids=[claimed.claim_id or ""])
        await store.post("b")
        assert (await store.claim(removes=True)).messages
        assert store.rows("history") == 2 * keeps
    store.clock.advance(MINUTE - 1)
    await store.sweep()
    assert store.rows("history") == 2
    store.clock.advance(1)
    await store.sweep()
    assert store.rows("history") == 0


async def test_a_sweep_over_several_queues_keeps_to_its_limit(store: Store) -> None:
    for name in "ab":
        await store.post(*[message("x", ttl=MINUTE)] * 4, to=QUEUE._replace(name=name))
    store.clock.advance(MINUTE)
    assert [(await store.messages.sweep(5)).expired for _ in range(3)] == [5, 3, 0]


async def test_a_source_of_adopted_messages_is_forgotten_after_a_day(store: Store) -> None:
    now = store.clock.now_ms()
    life = 2 * DAY
    adopted = Message("0" * 32, 1, b"1", life, now, now + life, now)

    async def import_messages(source: int) -> int:
        await store.messages.import_messages(QUEUE, [adopted], source=f"pool-{source}", number=1)
        return (await store.messages.stats(QUEUE)).total

    for source in range(1_000):
        await import_messages(source)
    store.clock.advance(DAY - 1)
    await store.messages.sweep(100)
    assert store.rows("record") == 1_000
    assert await import_messages(0) == 1_000, "a repeat"
    store.clock.advance(1)
    swept = [await store.management.sweep_records(100) for _ in range(11)]
    assert swept == [100] * 10 + [0]
    assert store.rows("record") == 0


async def test_reading_a_queue_that_is_not_there_keeps_nothing_of_it(store: Store) -> None:
    claimed = await store.claim()
    await store.claim(mode=DelayMode.HONOUR, removes=True)
    await store.bodies()
    await store.messages.get_messages(QUEUE, ["0" * 32])
    await store.messages.delete(QUEUE, ["0" * 32], claim_ids=None)
    await store.messages.stats(QUEUE)
    await store.messages.stats(QUEUE, ranges=3)
    await store.messages.release_delayed(QUEUE, 3)
    await store.release(claimed)
    with pytest.raises(NotFound):
        await store.messages.edit(QUEUE, Edit("0" * 32, body=b"2"))
    assert store.rows("queue") == 0

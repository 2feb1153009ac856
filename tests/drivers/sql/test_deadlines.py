"""Deadlines to the millisecond, and what is forgotten: in RAM, by a clock that stands still."""

from collections.abc import Awaitable, Callable

import pytest

from tests.drivers.sql.store import RAM, Store
from tests.drivers.store import HOUR, MINUTE, OTHER, QUEUE, message, texts
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.metadata import DONE_RETENTION
from zaqar_lite.domain.models import DelayMode, Edit, HistoryState, Message, StoreOptions
from zaqar_lite.domain.posts import NewMessage, identify

pytestmark = pytest.mark.anyio

DAY = 24 * HOUR
KEYED = NewMessage(b"1", HOUR, idempotency_key=identify(QUEUE, "k", [b"1"]))
Act = Callable[[Store], Awaitable[object]]


@pytest.fixture
def store() -> Store:
    """Both stores in RAM, whose leases and keys are of a minute."""
    clock = Clock(wall=lambda: 1_800_000_000.0, monotonic=lambda: 0.0)
    made = Store(RAM, StoreOptions(idempotency_window_ms=MINUTE), clock=clock)
    made.lease = MINUTE
    return made


async def claim(store: Store, ttl: int = HOUR) -> None:
    await store.post(message("a", ttl=ttl))
    await store.claim()


async def park(store: Store) -> None:
    await store.post("a")
    await store.release(await store.claim(), delay=MINUTE)


async def acknowledge_and_pop(store: Store) -> None:
    """Also where the queue does not yet say that what is done is kept."""
    for keeps in (False, True):
        if keeps:
            await store.management.create_queue(QUEUE, {DONE_RETENTION: 60}, max_queues=9)
        await store.post("a")
        await store.acknowledge(await store.claim())
        await store.post("b")
        await store.claim(removes=True)


async def ready(store: Store) -> list[str]:
    return texts(await store.claim(mode=DelayMode.HONOUR))


async def is_parked(store: Store) -> bool:
    return (await store.all_messages())[0].parked_until is not None


async def history(store: Store) -> int:
    await store.sweep()
    return store.rows("history")


async def is_known(store: Store) -> list[bool]:
    posted = await store.messages.post(QUEUE, [KEYED], client_id="producer", version=None)
    return [one.duplicate for one in posted]


ENDS: dict[str, tuple[Act, Act, object, object]] = {
    "a message": (lambda store: store.post(message("a", ttl=MINUTE)), Store.bodies, ["a"], []),
    # Only one that would end earlier than its claim gets the grace.
    "a message with its claim": (lambda store: claim(store, MINUTE), Store.bodies, ["a"], []),
    "a delay": (lambda store: store.post(message("a", delay=MINUTE)), ready, [], ["a"]),
    "a claim": (claim, ready, [], ["a"]),
    "a claim, as it is counted": (claim, Store.counts, (0, 0, 1), (1, 0, 0)),
    "a parking": (park, is_parked, True, False),
    "a history": (acknowledge_and_pop, history, 2, 0),
    "a key": (is_known, is_known, [True], [False]),
}


@pytest.mark.parametrize("name", ENDS)
async def test_it_ends_in_the_millisecond_of_its_deadline(store: Store, name: str) -> None:
    begin, look, before, after = ENDS[name]
    await begin(store)
    store.clock.advance(MINUTE - 1)
    assert await look(store) == before
    store.clock.advance(1)
    assert await look(store) == after


async def test_a_sweep_over_several_queues_keeps_to_its_limit(store: Store) -> None:
    for name in "ab":
        await store.post(*[message("x", ttl=MINUTE)] * 4, to=QUEUE._replace(name=name))
    store.clock.advance(MINUTE)
    assert [(await store.messages.sweep(5)).expired for _ in range(3)] == [5, 3, 0]


async def test_a_claim_is_over_in_the_millisecond_of_its_deadline(store: Store) -> None:
    await store.post("a")
    claim_id = (await store.claim()).claim_id or ""
    store.clock.advance(MINUTE - 1)
    await store.messages.get_claim(QUEUE, claim_id)
    store.clock.advance(1)
    with pytest.raises(NotFound):
        await store.messages.get_claim(QUEUE, claim_id)


async def test_a_claim_ends_a_part_of_what_time_has_ended(store: Store) -> None:
    """So it takes no longer than others; they and the sweep end the rest."""
    await store.post(*["held"] * 120, *[message("late", delay=MINUTE)] * 100)
    for _ in range(8):
        await store.claim(15, ttl=MINUTE, mode=DelayMode.HONOUR)
    store.clock.advance(MINUTE)
    for number in range(1, 3):
        assert len((await store.claim(1, mode=DelayMode.HONOUR)).messages) == 1
        queue = store.db.queue(QUEUE)
        assert queue is not None
        assert 120 - 25 * number < queue.leased < 120 - 15 * number
        assert 100 - 45 * number < queue.delayed < 100 - 35 * number


async def test_a_normal_queue_says_nothing_of_what_is_due(store: Store) -> None:
    """Whoever claims would ask again and again until the sweep has made it ready."""
    await store.post(message("a", delay=MINUTE))
    store.clock.advance(MINUTE)
    claimed = await store.claim(mode=DelayMode.IGNORE)
    assert (claimed.messages, claimed.more) == ([], False)
    await store.sweep()
    assert texts(await store.claim(mode=DelayMode.IGNORE)) == ["a"]


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


async def test_a_history_tells_who_held_a_message_in_another_store(store: Store) -> None:
    await store.management.create_queue(QUEUE, {DONE_RETENTION: 60}, max_queues=9)
    await store.post("a", to=OTHER)
    await store.release(await store.claim(queue=OTHER, client="elsewhere"), OTHER)
    (one,) = await store.all_messages(OTHER, details=True)
    await store.messages.purge(OTHER)
    await store.messages.import_messages(QUEUE, [one], source="pool", number=1)
    await store.acknowledge(await store.claim(client="here"))
    page = await store.messages.history(QUEUE, HistoryState.DONE, marker=None, limit=9)
    assert [entry.consumers for entry in page.entries] == [["elsewhere", "here"]]


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

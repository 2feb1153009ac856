"""No operation examines more than a bounded number of entries, whatever a queue holds."""

import asyncio

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import QueueChanged
from zaqar_lite.domain.models import DeadLetter, DelayMode, QueueRef, Retries, Selection, Take
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.memory.messages import MemoryMessageStore

pytestmark = pytest.mark.anyio

CROWD = 5_000
HOUR = 3_600_000
MINUTE = 60_000
MOST = MAX_EXAMINED + 20
LETTERS = QueueRef("project", "letters")


async def post(
    store: MemoryMessageStore, queue: QueueRef, count: int, *, ttl: int = HOUR, delay: int = 0
) -> None:
    new = [NewMessage(b"1", ttl, delay)] * count
    await store.post(queue, new, client_id="p", version=None)


async def claim(
    store: MemoryMessageStore,
    queue: QueueRef,
    limit: int = 1,
    *,
    mode: DelayMode = DelayMode.IGNORE,
    letters: DeadLetter | None = None,
) -> tuple[int, int, bool]:
    """Claim for a minute; answer how many came, how many were examined, and whether more are."""
    before = store.examined
    claimed = await store.claim(
        queue,
        Take(
            limit=limit,
            ttl_ms=MINUTE,
            grace_ms=MINUTE,
            client_id="c",
            delay_mode=mode,
            retries=Retries(letters),
            version=None,
        ),
    )
    return len(claimed.messages), store.examined - before, claimed.more


async def fill(store: MemoryMessageStore, queue: QueueRef, crowd: str, clock: Clock) -> None:
    """Put a crowd of one kind before one ready message, all of it at one instant."""
    match crowd:
        case "expired":
            await post(store, queue, CROWD, ttl=MINUTE)
        case "due":
            await post(store, queue, CROWD, delay=MINUTE)
        case "lapsed":
            await post(store, queue, CROWD)
            while (await claim(store, queue))[0]:
                pass
        case "exhausted":
            await post(store, queue, CROWD)
            while (await claim(store, queue, 1_000))[0]:
                pass
    await post(store, queue, 1)
    clock.advance(2 * MINUTE)


@pytest.mark.parametrize("crowd", ["expired", "due", "lapsed", "exhausted"])
async def test_a_claim_behind_a_crowd_is_bounded_and_goes_on(
    store: MemoryMessageStore, queue: QueueRef, clock: Clock, crowd: str
) -> None:
    await fill(store, queue, crowd, clock)
    letters = DeadLetter(LETTERS, 1) if crowd == "exhausted" else None
    mode = DelayMode.HONOUR if crowd == "due" else DelayMode.IGNORE
    for _ in range(CROWD):
        came, examined, more = await claim(store, queue, mode=mode, letters=letters)
        assert examined <= MOST
        if came:
            break
        assert more, "an empty answer says that there is more"
    else:
        pytest.fail("claiming made no progress")


@pytest.mark.parametrize("crowd", ["expired", "due", "lapsed"])
async def test_a_reading_behind_a_crowd_is_bounded_in_each_step(
    store: MemoryMessageStore, queue: QueueRef, clock: Clock, crowd: str
) -> None:
    await fill(store, queue, crowd, clock)
    stats = await store.stats(queue)
    assert stats.ready == (1 if crowd == "expired" else CROWD + 1)
    assert stats.oldest is not None
    page = await store.list_messages(queue, Selection(limit=1))
    assert len(page.messages) == 1


async def test_the_sweep_visits_only_queues_with_something_due(
    store: MemoryMessageStore, clock: Clock
) -> None:
    for number in range(1_000):
        await post(store, QueueRef("project", f"queue-{number}"), 1)
    await post(store, QueueRef("project", "short"), 1, ttl=MINUTE)
    visited: list[QueueRef] = []
    find = store._state.take_due_queue

    def counting(now: int) -> QueueRef | None:
        ref = find(now)
        if ref is not None:
            visited.append(ref)
        return ref

    store._state.take_due_queue = counting  # type: ignore[method-assign]
    assert not (await store.sweep(1_000)).total
    assert not visited
    clock.advance(2 * MINUTE)
    assert (await store.sweep(1_000)).expired == 1
    assert visited == [QueueRef("project", "short")]


async def test_a_purge_is_given_back_in_steps(store: MemoryMessageStore, queue: QueueRef) -> None:
    await post(store, queue, CROWD)
    await store.purge(queue)
    assert (await store.stats(queue)).total == 0
    given_back = [(await store.sweep(1_000)).deleted for _ in range(CROWD // 1_000 + 1)]
    assert max(given_back) <= MAX_EXAMINED
    assert sum(given_back) == CROWD


def fan_out(queue: QueueRef) -> NewMessage:
    """A message with copies in many queues."""
    copies = tuple(Copy(QueueRef(queue.project, f"copy-{n}"), HOUR, 0, 0) for n in range(2_000))
    return NewMessage(b"1", HOUR, copies=copies)


async def test_the_queues_of_many_copies_are_made_in_steps(
    store: MemoryMessageStore, queue: QueueRef
) -> None:
    posting = asyncio.ensure_future(
        store.post(queue, [fan_out(queue)], client_id="p", version=None)
    )
    rounds = 0
    while not posting.done():
        await asyncio.sleep(0)
        rounds += 1
    await posting
    assert rounds >= 16
    for number in (0, 1_999):
        copied = QueueRef(queue.project, f"copy-{number}")
        assert (await store.stats(copied)).total == 1


async def test_queues_that_a_refused_post_has_made_are_removed(
    store: MemoryMessageStore, queue: QueueRef, clock: Clock
) -> None:
    with pytest.raises(QueueChanged):
        await store.post(queue, [fan_out(queue)], client_id="p", version=7)
    clock.advance(2 * MINUTE)
    for _ in range(10):
        await store.sweep(1_000)
    assert [one async for one in store.census()] == []

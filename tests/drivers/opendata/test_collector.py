"""What the garbage collector has to visit: a collection holds up every request."""

import gc

import pytest

from tests.drivers.opendata.store import HOUR, OTHER, QUEUE, Store
from tests.drivers.opendata.test_recovering import fail_a_batch
from zaqar_lite.domain.models import DeadLetter, RetryPolicy
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.storage.opendata.staging import PART

pytestmark = pytest.mark.anyio
MANY = 1_000
FEW = MANY // 4
"""Pages, heaps and the test itself have some objects, but no message has one of its own."""


def visited() -> int:
    gc.collect()
    return len(gc.get_objects())


async def test_messages_add_nothing_to_visit(store: Store) -> None:
    await store.post("first")
    before = visited()
    await store.post(*(NewMessage(b"1", HOUR) for _ in range(MANY)))
    assert visited() - before < FEW


async def test_copies_add_nothing_to_visit(store: Store) -> None:
    await store.post("first", to=OTHER)
    before = visited()
    copied = NewMessage(b"1", HOUR, copies=(Copy(OTHER, HOUR, 0, 100),))
    for _ in range(MANY // PART):
        await store.post(*[copied] * PART)
    assert visited() - before < FEW


async def test_dead_letters_add_nothing_to_visit(store: Store) -> None:
    await store.post("first", to=OTHER)
    await store.post(*(NewMessage(b"1", 12 * HOUR) for _ in range(MANY)))
    before = visited()
    await store.claim(limit=MANY)
    store.clock.advance(2 * HOUR)

    async def retries_of(_: object) -> RetryPolicy:
        return RetryPolicy(DeadLetter(OTHER, 1, None))

    while (await store.messages.stats(QUEUE)).total:
        await store.messages.sweep(MANY, retries_of)
    assert (await store.messages.stats(OTHER)).total == MANY
    assert visited() - before < FEW


async def test_a_queue_that_is_read_anew_forgets_its_entries(store: Store) -> None:
    """They refer to their page, and it to them: the collector would not find that they are gone."""
    await store.post("a")
    (page,) = store.db.queues.make(QUEUE).pages
    await fail_a_batch(store, by=store.post("refused"))
    assert not page.entries


async def test_a_closed_store_forgets_its_entries(store: Store) -> None:
    await store.post("a")
    (page,) = store.db.queues.make(QUEUE).pages
    await store.restart()
    assert not page.entries

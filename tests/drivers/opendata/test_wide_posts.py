"""A post with copies in thousands of queues does not hold the event loop until it is encoded."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.drivers.opendata.store import HOUR, OTHER, QUEUE, Store, listed
from tests.drivers.opendata.test_shares import until
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import ListQuery, QueueRef
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.storage.opendata import checkpoint, database
from zaqar_lite.storage.opendata.database import MOST_AT_ONCE
from zaqar_lite.storage.opendata.entries import Page
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import State

pytestmark = pytest.mark.anyio
WIDE = 500
TARGETS = [QueueRef("project", f"copies-{number}") for number in range(WIDE)]
COPIED = NewMessage(b'"copied"', HOUR, copies=tuple(Copy(ref, HOUR, 0, 100) for ref in TARGETS))


class Encoded:
    """Counts what is encoded between two turns of the event loop: pages, and queues walked."""

    def __init__(self) -> None:
        self.pages = self.queues = 0
        self.steps: list[int] = []
        self.walks: list[int] = []
        self.fails_at = 0

    def page(self, page: Page) -> bytes:
        self.pages += 1
        if self.fails_at and sum(self.steps) + self.pages >= self.fails_at:
            raise ValueError("no record can hold this")
        return _encode_page(page)

    def queue(self, db: State, queue: Queue) -> None:
        self.queues += 1
        _encode_changes(db, queue)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(0)
            if self.queues:
                self.walks.append(self.queues)
                self.queues = 0
            if self.pages:
                self.steps.append(self.pages)
                self.pages = 0


_encode_page, _encode_changes = checkpoint.encode_page, checkpoint.encode_changes


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Encoded:
    made = Encoded()
    monkeypatch.setattr(checkpoint, "encode_page", made.page)
    monkeypatch.setattr(database, "encode_changes", made.queue)
    return made


@contextmanager
def watching(encoded: Encoded) -> Iterator[None]:
    task = asyncio.create_task(encoded.watch())
    try:
        yield
    finally:
        task.cancel()


async def test_the_pages_of_many_copies_are_encoded_in_steps(
    store: Store, encoded: Encoded
) -> None:
    with watching(encoded):
        await store.post(COPIED)
    assert sum(encoded.steps) == WIDE + 1
    assert max(encoded.steps) <= MOST_AT_ONCE + 1  # the last step takes the batch
    assert sum(encoded.walks) == WIDE + 1
    assert max(encoded.walks) <= MOST_AT_ONCE + 1
    await store.restart()
    assert [await listed(store, ref) for ref in TARGETS] == [["copied"]] * WIDE


async def test_a_queue_that_changes_between_the_steps_is_encoded_again(
    store: Store, encoded: Encoded
) -> None:
    first, last = TARGETS[0], TARGETS[-1]
    with watching(encoded):
        posting = asyncio.create_task(store.post(COPIED))
        await until(lambda: sum(encoded.steps) >= WIDE // 2)
        assert not posting.done()
        claimed = await store.claim(queue=first)
        (message,) = claimed.messages
        await store.messages.delete(first, [message.id], claim_ids=[str(claimed.claim_id)])
        await store.post("later", to=first)
        await store.post("later", to=last)
        await posting
    await store.restart()
    assert await listed(store, first) == ["later"]
    assert await listed(store, last) == ["copied", "later"]


async def test_what_can_not_be_encoded_leaves_nothing(store: Store, encoded: Encoded) -> None:
    encoded.fails_at = WIDE // 2
    with watching(encoded):
        beside = asyncio.create_task(store.post("beside", to=QUEUE))
        with pytest.raises(Unavailable):
            await store.post(COPIED)
        with pytest.raises(Unavailable):
            await beside
    encoded.fails_at = 0
    await asyncio.sleep(1.1)  # the store refuses writes for a second
    assert [await listed(store, ref) for ref in (QUEUE, *TARGETS)] == [[]] * (WIDE + 1)
    await store.post(COPIED)
    await store.restart()
    assert [await listed(store, ref) for ref in TARGETS] == [["copied"]] * WIDE


async def test_copies_of_a_large_post_come_before_what_is_posted_later(store: Store) -> None:
    """Behind later messages they were not found by their ids: what was deleted came again."""
    copied = NewMessage(b'"copied"', HOUR, copies=(Copy(OTHER, HOUR, 0, 100),))
    large = asyncio.create_task(store.post(*[copied] * 400))
    later = []
    for number in range(50):
        await asyncio.sleep(0)
        later.append(asyncio.create_task(store.post(str(number), to=OTHER)))
    await asyncio.gather(large, *later)
    page = await store.messages.list_messages(OTHER, ListQuery(limit=1_000))
    positions = [message.position for message in page.messages]
    assert len(positions) == 450
    assert positions == sorted(positions)
    assert await store.acknowledge(OTHER, limit=1_000) == 450
    assert not await listed(store, OTHER)

"""Programs beside the server that write to its file for a moment, as Litestream does."""

import asyncio

import apsw
import pytest

from tests.drivers.sql.store import Store
from tests.drivers.store import HOUR, QUEUE
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage
from zaqar_lite.storage.sql import database
from zaqar_lite.storage.sql.batches import Batch

pytestmark = pytest.mark.anyio


async def test_a_post_waits_while_another_program_writes(store: Store) -> None:
    other = apsw.Connection(str(store.place.file))
    for _ in range(5):
        other.execute("BEGIN IMMEDIATE")
        posting = asyncio.create_task(store.post("text"))
        await asyncio.sleep(0.05)
        assert not posting.done()
        other.execute("ROLLBACK")
        await posting
    other.close()
    assert (await store.messages.stats(QUEUE)).total == 5


async def test_posts_that_wait_for_another_program_store_a_key_once(store: Store) -> None:
    def keyed(key: str) -> NewMessage:
        return NewMessage(b"1", HOUR, 0, IdempotencyKey(key, b"x" * 16))

    other = apsw.Connection(str(store.place.file))
    other.execute("BEGIN IMMEDIATE")
    small = asyncio.create_task(store.post(keyed("0")))
    await asyncio.sleep(0.01)
    large = asyncio.create_task(store.post(*map(keyed, map(str, range(300)))))
    await asyncio.sleep(0.05)
    other.execute("ROLLBACK")
    other.close()
    assert (await small)[0] == (await large)[0]
    assert (await store.messages.stats(QUEUE)).total == 300


async def test_a_post_does_not_wait_for_ever(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_LOCKED", 0.1)
    other = apsw.Connection(str(store.place.file))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable):
        await store.post("text")
    other.execute("ROLLBACK")
    other.close()
    await store.post("text")


@pytest.mark.parametrize("lasts", [0.05, 10])
async def test_posts_that_wait_for_room_in_a_batch_wait_for_another_program_too(
    store: Store, monkeypatch: pytest.MonkeyPatch, lasts: float
) -> None:
    """A program that writes when a batch ends keeps the next one from being begun."""
    monkeypatch.setattr(database, "_LOCKED", 2 if lasts < 1 else 0.2)
    queues = [QueueRef("project", f"queue {number}") for number in range(80)]
    other, commit = apsw.Connection(str(store.place.file)), store.db._commit
    loop, lock = asyncio.get_running_loop(), asyncio.Event()

    def commit_and_lock() -> Batch | None:
        batch = commit()
        assert store.db.shares is not None
        if batch is not None and store.db.shares._lines and not lock.is_set():
            lock.set()
            other.execute("BEGIN IMMEDIATE")
            loop.call_later(lasts, other.execute, "ROLLBACK")
        return batch

    setattr(store.db, "_commit", commit_and_lock)  # noqa: B010 - mypy knows it as a method
    posts = [store.post(*["text"] * 90, to=queue) for queue in queues]
    async with asyncio.timeout(8):
        answers = await asyncio.gather(*posts, return_exceptions=True)
    assert lock.is_set()
    assert {type(one) for one in answers} == ({list} if lasts < 1 else {list, Unavailable})
    other.close()
    for queue, answer in zip(queues, answers, strict=True):
        stored = (await store.messages.stats(queue)).total
        assert stored == (0 if isinstance(answer, Unavailable) else 90)
    await store.post("text")

"""The keys of one post's messages are one record, and are remembered and forgotten all the same."""

from dataclasses import replace

import pytest

from tests.drivers.opendata.store import HOUR, QUEUE, Store
from zaqar_lite.domain.errors import KeyReused
from zaqar_lite.domain.posts import NewMessage, Posted, identify
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.bookkeeping import encode_keys
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.idempotency import MESSAGE, TOGETHER, digest_of

pytestmark = pytest.mark.anyio
WINDOW = 600_000


async def names(store: Store) -> list[bytes]:
    """The kinds of the queue's records of keys."""
    prefix = keys.queue_key(RecordType.IDEMPOTENCY, raw(store))
    found = store.db.engine.scan(prefix, prefix + b"\xff")
    return [key[len(prefix) :][:1] async for rows in found for key, _ in rows]


def raw(store: Store) -> bytes:
    queue = store.db.queues.get(QUEUE)
    assert queue is not None
    return queue.raw


async def post(store: Store, *texts: str) -> list[tuple[str, bool]]:
    """Post messages with these keys; tell ids and which were known."""
    new = [NewMessage(b'"x"', HOUR, 0, identify(QUEUE, text, (b'"x"',))) for text in texts]
    posted = await store.messages.post(QUEUE, new, client_id="p", version=None)
    return [(one.id, one.duplicate) for one in posted]


async def test_keys_of_a_post_are_one_record_that_a_restart_reads(store: Store) -> None:
    first = await post(store, "a", "b", "a", "c")
    assert [known for _, known in first] == [False, False, True, False]
    assert first[2][0] == first[0][0]
    assert await names(store) == [TOGETHER]
    await store.restart()
    again = await post(store, "c", "d", "a")
    assert again == [(first[3][0], True), (again[1][0], False), (first[0][0], True)]
    assert await names(store) == [TOGETHER] * 2


async def test_more_keys_than_a_record_takes_are_several(store: Store) -> None:
    texts = [f"key {number}" for number in range(2_500)]
    first = await post(store, *texts)
    assert await names(store) == [TOGETHER] * 3
    await store.restart()
    assert await post(store, *texts) == [(one, True) for one, _ in first]


async def test_a_record_goes_with_its_keys(store: Store) -> None:
    await post(store, "a", "b")
    await post(store, "c")
    queue = store.db.queues.get(QUEUE)
    assert queue is not None
    store.clock.advance(WINDOW + 1)
    queue.keys.forget(store.clock.now_ms(), 1)
    assert len(queue.keys) == 1
    await post(store, "a")  # saves what was forgotten, and is new by now
    await store.restart()
    assert [known for _, known in await post(store, "a", "b")] == [True, False]
    assert await names(store) == [TOGETHER] * 2


async def test_the_sweep_forgets_the_keys_of_a_queue_where_nobody_posts(store: Store) -> None:
    await post(store, "a", "b")
    store.clock.advance(WINDOW - 1_000)
    await store.messages.sweep(100)
    assert await names(store) == [TOGETHER]
    store.clock.advance(1_001)
    await store.messages.sweep(100)
    assert not await names(store)


async def test_a_key_that_comes_again_outlives_its_first_record(store: Store) -> None:
    """Its window is over and nothing has swept: the post itself finds that the key is new."""
    batch = identify(QUEUE, "whole", (b'"x"',))

    async def post_whole() -> Posted:
        new = [NewMessage(b'"x"', HOUR)]
        posted = await store.messages.post(QUEUE, new, client_id="p", batch_key=batch, version=None)
        return posted[0]

    first = await post_whole()
    store.clock.advance(WINDOW + 1)
    second = await post_whole()
    assert not second.duplicate
    assert second.id != first.id
    await store.sweep()
    await store.restart()
    assert await post_whole() == Posted(second.id, True)


async def test_what_was_posted_is_compared_after_a_restart(store: Store) -> None:
    (first, second) = await post(store, "a", "b")
    new, batch = [NewMessage(b'"x"', HOUR)], identify(QUEUE, "whole", (b'"x"',))
    await store.messages.post(QUEUE, new, client_id="p", batch_key=batch, version=None)
    await store.restart()
    for key in ("a", "b"):
        other = NewMessage(b'"y"', HOUR, 0, identify(QUEUE, key, (b'"y"',)))
        with pytest.raises(KeyReused):
            await store.post(other)
    batch = identify(QUEUE, "whole", (b'"y"',))
    with pytest.raises(KeyReused):
        await store.messages.post(QUEUE, new, client_id="p", batch_key=batch, version=None)
    assert await post(store, "a", "b") == [(first[0], True), (second[0], True)]


async def test_records_of_earlier_versions_have_no_digest_of_what_was_posted(store: Store) -> None:
    first, second = await post(store, "a", "b")
    numbers = [int(text[:16], 16) for text, _ in (first, second)]
    prefix = keys.queue_key(RecordType.IDEMPOTENCY, raw(store))
    until = store.clock.now_ms() + WINDOW
    together = encode_keys(until, numbers, digest_of("c") + digest_of("d"))
    store.db.puts[prefix + TOGETHER + bytes(8)] = together
    store.db.puts[prefix + MESSAGE + digest_of("old")] = encode_keys(until, numbers[:1])
    await store.restart()
    assert await post(store, "c", "d", "old") == [
        (first[0], True),
        (second[0], True),
        (first[0], True),
    ]


async def test_keys_of_a_longer_window_are_remembered_to_their_end(store: Store) -> None:
    """A start with a shorter one gives the new keys an end before that of the old ones."""
    await post(store, "a")
    await store.restart()
    store.db.options = replace(store.db.options, idempotency_window_ms=1_000)
    await post(store, "b")
    store.clock.advance(2_000)
    assert (await store.messages.find_idempotency_keys(QUEUE)).are_any
    assert [known for _, known in await post(store, "a", "b")] == [True, False]
    store.clock.advance(WINDOW)
    assert not (await store.messages.find_idempotency_keys(QUEUE)).are_any

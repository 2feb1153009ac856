"""What others do while an operation waits: a failed batch, a purge, a disk that hangs."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from tests.drivers.opendata.store import HOUR, MINUTE, OTHER, QUEUE, Store, listed, texts
from zaqar_lite.domain.errors import NotFound, Unavailable
from zaqar_lite.domain.models import (
    NO_RETRIES,
    Claimed,
    ClaimRequest,
    DelayMode,
    Edit,
    QueueRef,
    RetryPolicy,
)
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.opendata import claiming
from zaqar_lite.storage.opendata.engine import Batch, Stored

pytestmark = pytest.mark.anyio


async def pop(store: Store) -> Claimed:
    return await store.messages.claim(QUEUE, ClaimRequest(20, None, DelayMode.IGNORE, removes=True))


def replace(store: Store, name: str, call: Callable[..., Awaitable[object]]) -> None:
    """Let the engine do something else."""
    setattr(store.db.engine, name, call)


def refuse_commits(store: Store) -> Callable[..., Awaitable[object]]:
    """Let every commit fail; answer what commits."""
    commit = store.db.engine.commit

    async def fail(_: Batch) -> None:
        raise Unavailable("planted")

    replace(store, "commit", fail)
    return commit


async def fail_a_batch(store: Store) -> None:
    """Let a post to the queue fail, as on a full disk; what had changed in memory is undone."""
    commit = refuse_commits(store)
    with pytest.raises(Unavailable, match="planted"):
        await store.post("refused")
    replace(store, "commit", commit)
    store.db.committer._refused = None  # instead of waiting for a second


def while_reading(store: Store, act: Callable[[], Awaitable[object]]) -> None:
    """Do something while the next operation waits for the engine to read."""
    get = store.db.engine.get

    async def slow(wanted: Sequence[bytes]) -> dict[bytes, Stored]:
        replace(store, "get", get)
        found = await get(wanted)
        await act()
        return found

    replace(store, "get", slow)


@pytest.mark.parametrize("by", ["pop", "claim"])
async def test_what_is_handed_out_after_a_recovery_is_so_on_disk(store: Store, by: str) -> None:
    """The queue in memory is another one by then: what is done to the old one is lost."""
    await store.post("a", "b", "c")
    await store.restart()  # so that bodies must be read
    while_reading(store, lambda: fail_a_batch(store))
    handed_out = await (pop(store) if by == "pop" else store.claim())
    assert texts(handed_out) == ["a", "b", "c"]
    assert not (await store.claim()).messages
    await store.restart()
    assert not (await store.claim()).messages
    assert (await store.messages.stats(QUEUE)).total == (0 if by == "pop" else 3)
    if by == "claim":
        await store.messages.release(QUEUE, handed_out.claim_id or "")


async def test_a_sweep_ends_no_lease_of_a_queue_that_was_replaced(store: Store) -> None:
    await store.post("a")
    await store.claim()
    store.clock.advance(2 * MINUTE)

    failed: list[QueueRef] = []

    async def retries_of(ref: QueueRef) -> RetryPolicy:
        if not failed:
            failed.append(ref)
            await fail_a_batch(store)
        return NO_RETRIES

    assert (await store.messages.sweep(100, retries_of)).lapsed == 1
    assert failed
    await store.restart()
    (message,) = (await store.claim()).messages
    assert message.claim_count == 2


@pytest.mark.parametrize("by", ["pop", "claim"])
async def test_what_a_purge_removed_meanwhile_is_not_handed_out(store: Store, by: str) -> None:
    ids = await store.post("a", "b", "c")
    await store.restart()
    while_reading(store, lambda: store.messages.purge(QUEUE))
    handed_out = await (pop(store) if by == "pop" else store.claim())
    assert not handed_out.messages
    stats = await store.messages.stats(QUEUE)
    assert (stats.ready, stats.delayed, stats.claimed) == (0, 0, 0)
    assert not await store.messages.get_messages(QUEUE, ids)
    await store.post("later")
    assert texts(await pop(store)) == ["later"]


async def test_what_is_read_for_a_pop_is_ready_to_others_till_then(store: Store) -> None:
    """They may list and delete it; one that a pop gives up is in its place again."""
    ids = await store.post("a", "b", "c")
    await store.restart()

    async def look_and_delete() -> None:
        await listed(store)
        stats = await store.messages.stats(QUEUE)
        assert stats.total == 3
        await store.messages.delete(QUEUE, ids[1:2], claim_ids=None)
        raise Unavailable("the disk does not answer")

    while_reading(store, look_and_delete)
    with pytest.raises(Unavailable, match="does not answer"):
        await pop(store)
    assert texts(await store.claim()) == ["a", "c"]


async def test_nothing_is_left_in_memory_of_what_is_not_stored(store: Store) -> None:
    """A refused edit showed its body until a restart."""
    (message_id,) = await store.post(NewMessage(b'"first"', HOUR, MINUTE))
    commit = refuse_commits(store)
    with pytest.raises(Unavailable, match="planted"):
        await store.messages.edit(QUEUE, Edit(message_id, body=b'"second"'))
    replace(store, "commit", commit)
    assert await listed(store) == ["first"]


async def test_an_edit_reads_what_it_shows_before_it_changes_anything(store: Store) -> None:
    (message_id,) = await store.post(NewMessage(b'"first"', HOUR, MINUTE))
    await store.restart()

    async def fail() -> None:
        raise Unavailable("the disk does not answer")

    while_reading(store, fail)
    with pytest.raises(Unavailable, match="does not answer"):
        await store.messages.edit(QUEUE, Edit(message_id, delay_ms=2 * MINUTE))
    (found,) = await store.messages.get_messages(QUEUE, [message_id])
    assert (found.delay_expires_at or 0) - found.created_at == MINUTE
    while_reading(store, lambda: store.messages.delete(QUEUE, [message_id], claim_ids=None))
    with pytest.raises(NotFound):
        await store.messages.edit(QUEUE, Edit(message_id, delay_ms=2 * MINUTE))


async def test_a_value_that_no_record_holds_does_not_poison_what_comes_after(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim's record counts its messages in two bytes; those who waited with it are told."""
    monkeypatch.setattr(claiming, "MOST_TAKEN", 1 << 20)
    monkeypatch.setattr(claiming, "_BUDGET", 1 << 20)
    for _ in range(66):
        await store.post(*["many"] * 1_000)
    with pytest.raises(Unavailable, match="can't write this"):
        await store.claim(66_000)
    store.db.committer._refused = None
    await store.post("after", to=OTHER)
    assert (await store.messages.stats(QUEUE)).ready == 66_000
    monkeypatch.undo()
    claimed = await store.claim(66_000)
    assert len(claimed.messages) == claiming.MOST_TAKEN
    assert claimed.more


async def test_a_post_that_no_record_holds_leaves_nothing_behind(store: Store) -> None:
    too_long = NewMessage(b'"x"', HOUR, headers={"name": "x" * 70_000})
    with pytest.raises(ValueError, match="65535"):
        await store.post("with it", too_long)
    await store.post("after")
    await store.restart()
    assert await listed(store) == ["after"]


async def test_garbage_of_a_failed_batch_is_deleted_later(store: Store) -> None:
    await store.post(*["many"] * 500)
    await store.messages.purge(QUEUE)
    before = len(store.db.garbage)
    commit = refuse_commits(store)
    with pytest.raises(Unavailable):
        await store.messages.sweep(1_000)
    replace(store, "commit", commit)
    store.db.committer._refused = None
    assert len(store.db.garbage) == before
    await store.sweep()  # the fixture finds nothing left


def test_the_directories_above_a_new_store_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the loss of power would take the whole new directory with it."""
    synced = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        if place.is_dir():
            synced.append(place)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    path = tmp_path.resolve() / "a" / "b" / "c"

    async def once() -> None:
        store = Store(f"opendata+slatedb://{path}")
        await store.messages.open()
        await store.messages.close()

    asyncio.run(once())
    assert synced == [path.parent.parent.parent, path.parent.parent, path.parent]
    synced.clear()
    asyncio.run(once())
    assert not synced


async def test_a_message_is_edited_whose_body_is_on_disk_only(store: Store) -> None:
    (message_id,) = await store.post(NewMessage(b'"a"', HOUR, HOUR))
    await store.restart()
    message = await store.messages.edit(QUEUE, Edit(message_id, delay_ms=2 * MINUTE))
    assert message.body == b'"a"'

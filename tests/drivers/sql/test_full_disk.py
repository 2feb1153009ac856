"""A disk of 48 MiB that fills up: whoever empties the store goes on, and posts come back.

Needs the right to mount a tmpfs; elsewhere the tests skip.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.drivers.small_disk import fill_up, mounted
from tests.drivers.sql.store import Store
from tests.drivers.sql.tables import broken
from tests.drivers.store import HOUR, OTHER, QUEUE, message, texts
from zaqar_lite.domain.errors import ConfigurationError, Unavailable, ZaqarLiteError
from zaqar_lite.domain.models import Edit, Move, QueueRef
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.sql import place

pytestmark = pytest.mark.anyio
SIZE = 48 << 20


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of its own, of SIZE bytes."""
    with mounted(SIZE) as place:
        yield place


@pytest.fixture
async def store(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """A store on the small disk."""
    monkeypatch.setattr(place, "_ROOM_FOR", 0.0)  # look at each post
    async with Store(small_disk / "data") as opened:
        yield opened
        if opened.db._refused is None:
            await opened.db.pass_gate()
            await opened.db.future()
            assert broken(opened.db.connection, opened.db.clock.now_ms()) == []


async def fill(store: Store, refused: str = "nearly full") -> list[str]:
    """Post until that is refused for want of room; answer the texts of what was stored."""
    stored: list[str] = []
    for number in range(10_000):
        new = [f"{number}-{index}-" + "x" * 5_000 for index in range(20)]
        try:
            await store.post(*new)
        except Unavailable as exc:
            told = exc
            break
        stored += new
    else:
        raise AssertionError("a disk of 48 MiB is never full")
    assert refused in told.shown
    assert told.retry_after
    return stored


async def fill_for_good(store: Store) -> list[str]:
    """Fill, also what room is left when the log has been copied; answer the texts of all."""
    stored: list[str] = []
    refused = 0
    while refused < 2:  # the batch of a refused post may have begun a copy
        more = await fill(store)
        stored += more
        refused = 0 if more else refused + 1
        while tasks := {one for one in (store.db._copying, store.db._task) if one is not None}:
            await asyncio.wait(tasks)
    return stored


def free(place: Path) -> int:
    return shutil.disk_usage(place).free


async def test_who_empties_the_store_goes_on(
    small_disk: Path,
    store: Store,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, "_COPY_AT", 10 << 20)  # as where copying is slower than posts
    (late,) = await store.post(message("late", delay=HOUR), to=OTHER)
    stored = await fill_for_good(store)
    assert len(stored) > 3_000
    assert free(small_disk) > 1 << 20  # the reserve is about there
    with pytest.raises(Unavailable):
        await store.messages.move(QUEUE, ["0" * 32], Move(QueueRef("project", "else"), 1_000))
    with pytest.raises(Unavailable):
        await store.management.create_queue(QueueRef("project", "new"), {}, max_queues=10)
    with pytest.raises(Unavailable):
        await store.messages.edit(OTHER, Edit(late, b'"longer"'))
    for body in (b'"same"', b"1"):  # as long, and shorter
        await store.messages.edit(OTHER, Edit(late, body))
    claimed = await store.claim(20)
    assert texts(claimed) == stored[:20]
    await store.messages.settle(
        QUEUE, claimed.claim_id or "", Settlement("", Act.EXTEND, ttl_ms=90_000, grace_ms=60_000)
    )
    await store.acknowledge(claimed)
    done = 20
    posts_again = None
    while done < len(stored):
        claimed = await store.claim(20)
        await store.acknowledge(claimed)
        done += len(claimed.messages)
        await store.messages.sweep(1_000)
        if posts_again is None:
            with contextlib.suppress(Unavailable):
                await store.post("again")
                posts_again = done
                break
    assert posts_again is not None, "posts did not come back by themselves"
    assert posts_again < len(stored) * 3 / 4
    found = await store.bodies(QUEUE)
    assert found == [*stored[done:], "again"]
    assert "nearly full" in caplog.text
    assert "takes posts again" in caplog.text
    await store.messages.purge(QUEUE)
    again: list[str] = []
    for _ in range(100):  # sweeps give the room back in bounded steps
        await store.sweep()
        again += await fill(store)
    assert again[1_000:], "the room of what was purged is not used again"


async def test_a_disk_that_others_fill_to_the_last_byte(small_disk: Path, store: Store) -> None:
    ids = await store.post(*[message(f"{number} " + "x" * 2_000) for number in range(2_000)])
    filler = fill_up(small_disk)
    assert free(small_disk) == 0
    left = set(ids)
    refusals = set()
    for number in range(60):
        with pytest.raises(Unavailable):
            await store.post("refused")
        try:
            claimed = await store.claim(10)
            await store.acknowledge(claimed)
            left -= {one.id for one in claimed.messages}
            gone = [one for one in ids[-10 * (number + 1) :][:10] if one in left]
            await store.messages.delete(QUEUE, gone, claim_ids=None)
            left -= set(gone)
        except Unavailable as exc:
            refusals.add(exc.shown)
    assert refusals <= {"The store's disk is full.", "The store's disk failed."}
    filler.unlink()
    await store.post("again")
    kept = [one.id for one in await store.messages.get_messages(QUEUE, ids)]
    assert left - set(kept) == set(), "a message is gone that nobody was told of"
    with contextlib.suppress(ZaqarLiteError):  # it is not delayed
        await store.messages.edit(QUEUE, Edit(kept[0], b'"edited"'))
    await store.restart()
    assert (await store.messages.stats(QUEUE)).total == len(kept) + 1


async def test_at_full_speed_the_reserve_is_kept(small_disk: Path) -> None:
    """The look at the disk holds for a moment, in which much can be written."""
    async with Store(small_disk / "data") as store:
        stored = await fill(store, "full")
        async with asyncio.timeout(20):
            for number in range(100):
                claimed = await store.claim(20)
                assert texts(claimed) == stored[20 * number :][:20]
                await store.acknowledge(claimed)


async def test_a_store_starts_on_a_full_disk_or_says_why_not(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_ROOM_FOR", 0.0)
    async with Store(small_disk / "data") as store:
        stored = await fill(store)
    filler = fill_up(small_disk)
    store = Store(small_disk / "data")
    told = ""
    try:
        await store.messages.open()
    except ConfigurationError as exc:
        told = str(exc)
    else:
        await store.messages.close()
    assert not told or "its disk is full: free some space" in told
    filler.unlink()
    async with Store(small_disk / "data") as store:
        assert await store.bodies(QUEUE) == stored

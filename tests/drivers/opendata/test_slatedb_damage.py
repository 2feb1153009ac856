"""Damaged blocks of SlateDB: what is intact is served, what is not is named with its place."""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.drivers.opendata.store import Store, engine_in, flip_in_table, listed
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata.checking import check, dump
from zaqar_lite.storage.opendata.engine import Batch, Damage
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.keys import RecordType

pytestmark = pytest.mark.anyio
BLOCK = 4_096
RANGE = (b"\x01\x02", b"\x01\x03")


def damage(directory: Path, *values: bytes) -> None:
    for value in values:
        flip_in_table(directory, value)


async def stored(directory: Path, records: dict[bytes, bytes]) -> None:
    engine = await engine_in(directory)
    await engine.commit(Batch(records, ()))
    await engine.close()


async def scanned(directory: Path) -> tuple[dict[bytes, bytes], list[Damage]]:
    engine = await engine_in(directory)
    rows = [row async for chunk in engine.scan(*RANGE) for row in chunk]
    await engine.close()
    found = {key: value for key, value in rows if isinstance(value, bytes)}
    assert list(found) == sorted(found)
    return found, [value for _, value in rows if isinstance(value, Damage)]


def rows_of(kind: str) -> dict[bytes, bytes]:
    """Keys as those of small records, of pages, and of pages of queues with names of any length."""
    choose = random.Random(kind)
    if kind == "small":
        return {RANGE[0] + n.to_bytes(8, "big"): choose.randbytes(100) for n in range(3_000)}
    names = [f"project/{'n' * choose.randrange(60)}{n}" for n in range(40)]
    if kind == "one-queue":
        names = names[:1]
    pages: Sequence[int | None] = [None, *range(1, 60 if kind == "one-queue" else 3)]
    return {
        keys.queue_key(RecordType.ACTIVE, name.encode(), page): choose.randbytes(7_000)
        for name in sorted(names)
        for page in pages
    }


@pytest.mark.parametrize("kind", ["small", "one-queue", "queues"])
@pytest.mark.parametrize("places", [(0,), (20, 22), (5, 20, 40, 41, -1)])
async def test_what_is_intact_around_damaged_blocks_is_read(
    kind: str, places: tuple[int, ...], tmp_path: Path
) -> None:
    rows = dict(sorted(rows_of(kind).items()))
    order = list(rows)
    step = 40 if kind == "small" else 1  # so that each place is in a block of its own
    broken = [order[place * step if place >= 0 else place] for place in places]
    await stored(tmp_path / "data", rows)
    damage(tmp_path / "data", *(rows[key] for key in broken))
    found, damages = await scanned(tmp_path / "data")
    assert found.items() <= rows.items()
    lost = [key for key in order if key not in found]
    assert set(broken) <= set(lost)
    most = BLOCK // 100 if kind == "small" else 2  # rows of a block
    # SlateDB looks a row or two ahead; damage that lies close together may be taken as one
    assert len(lost) <= (most + 2) * len(places)
    for key in lost:  # every one is named
        assert any(named.key <= key and (not named.until or key < named.until) for named in damages)
    for named in damages:
        assert "checksum" in named.why
        assert named.until in {b"", *found}


async def test_single_reads_name_what_is_damaged_and_answer_the_rest(tmp_path: Path) -> None:
    rows = rows_of("small")
    order = sorted(rows)
    await stored(tmp_path / "data", rows)
    damage(tmp_path / "data", rows[order[1_000]])
    engine = await engine_in(tmp_path / "data")
    found = await engine.get([order[0], order[1_000], order[2_000], b"absent"])
    await engine.close()
    assert found[order[0]] == rows[order[0]]
    assert found[order[2_000]] == rows[order[2_000]]
    assert isinstance(found[order[1_000]], Damage)
    assert len(found) == 3


async def test_a_store_with_damaged_blocks_serves_what_is_intact(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A root page and a payload are damaged."""
    store = Store(f"opendata+slatedb://{tmp_path / 'data'}")
    queues = [QueueRef("project", f"queue-{number}") for number in range(4)]
    posted: dict[QueueRef, list[str]] = {}
    await store.messages.open()
    for queue in queues:
        posted[queue] = [f"{queue.name}-{number}-{'x' * 500}" for number in range(600)]
        for start in range(0, 600, 100):
            await store.post(*posted[queue][start : start + 100], to=queue)
    pages = await store.records(RecordType.ACTIVE)
    root = keys.queue_key(RecordType.ACTIVE, b"project/queue-1")
    await store.messages.close()
    payload = json.dumps(posted[queues[2]][300]).encode()
    damage(tmp_path / "data", pages[root], payload)
    await store.restart()
    assert await listed(store, queues[0]) == posted[queues[0]]
    assert await listed(store, queues[3]) == posted[queues[3]]
    assert await listed(store, queues[1]) == posted[queues[1]]  # put back from the log
    assert "damaged: everything after active" in caplog.text
    read = await listed(store, queues[2])
    lost = [text for text in posted[queues[2]] if text not in read]
    assert posted[queues[2]][300] in lost
    assert len(lost) <= BLOCK // 500 + 1
    assert [text for text in posted[queues[2]] if text not in lost] == read
    assert caplog.text.count("set aside") == len(lost)
    problems = "\n".join((await check(store.db)).problems)
    assert "everything after active" in problems
    dumped = [line async for line in dump(store.db.engine)]
    assert any(line.startswith("DAMAGED: everything") for line in dumped)
    assert isinstance((await store.db.engine.get([root]))[root], Damage)  # not written over
    await store.post("new", to=queues[1])
    await store.restart()
    assert await listed(store, queues[1]) == [*posted[queues[1]], "new"]
    await store.messages.close()


async def test_a_queue_whose_pages_are_lost_writes_behind_them(tmp_path: Path) -> None:
    """How many pages it had is unknown, so new ones are numbered far above."""
    store = Store(f"opendata+slatedb://{tmp_path / 'data'}")
    queue = QueueRef("project", "queue-1")
    await store.messages.open()
    for start in range(0, 600, 100):
        for ref in (queue, QueueRef("project", "queue-2")):  # the other keeps the marks apart
            await store.post(*[f"{number}" for number in range(start, start + 100)], to=ref)
    root = keys.queue_key(RecordType.ACTIVE, b"project/queue-1")
    pages = await store.records(RecordType.ACTIVE)
    pages = {key: value for key, value in pages.items() if key.startswith(root)}
    await store.messages.close()
    damage(tmp_path / "data", *pages.values())
    await store.restart()
    posted = [f"{number}" for number in range(600)]
    assert await listed(store, queue) == posted  # put back from the log
    for _ in range(2):
        await store.post("new", to=queue)
        await store.restart()
    assert await listed(store, queue) == [*posted, "new", "new"]
    await store.messages.close()


async def test_damage_that_keeps_tables_from_being_compacted_does_not_stop_the_store(
    tmp_path: Path,
) -> None:
    """Every flush leaves a table; SlateDB's own limit is 8 that wait."""
    rows = rows_of("one-queue")
    order = sorted(rows)
    await stored(tmp_path / "data", rows)
    damage(tmp_path / "data", rows[order[20]])
    async with asyncio.timeout(30):
        for number in range(12):
            await stored(tmp_path / "data", {b"\x01\x01%d" % number: bytes(100)})
    tables = list((tmp_path / "data" / "slatedb" / "compacted").glob("*.sst"))
    assert len(tables) > 8
    found, damages = await scanned(tmp_path / "data")
    assert len(found) >= len(rows) - 4
    assert damages

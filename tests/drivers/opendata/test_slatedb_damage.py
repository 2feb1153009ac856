"""Damaged blocks of SlateDB: what is intact is served or salvaged, and what is not is named."""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.drivers.opendata.store import HOUR, Store, engine_in, flip_in_table, listed
from zaqar_lite.cli import main
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata.checking import check, dump
from zaqar_lite.storage.opendata.commands import rows_of_store
from zaqar_lite.storage.opendata.engine import Batch, Damage
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.keys import RecordType

pytestmark = pytest.mark.anyio
BLOCK = 4_096
PREFIX = b"\x01\x02"


def damage(directory: Path, *values: bytes) -> None:
    for value in values:
        flip_in_table(directory, value)


async def stored(directory: Path, records: dict[bytes, bytes]) -> None:
    engine = await engine_in(directory)
    await engine.commit(Batch(records, ()))
    await engine.close()


async def salvaged(directory: Path) -> dict[bytes, bytes]:
    engine = await engine_in(directory)
    rows = [row async for part in rows_of_store(engine) for row in part.items()]
    await engine.close()
    assert [key for key, _ in rows] == sorted(key for key, _ in rows)
    return dict(rows)


def rows_of(kind: str) -> dict[bytes, bytes]:
    """Keys as those of small records, of pages, and of pages of queues with names of any length."""
    choose = random.Random(kind)
    if kind == "small":
        return {PREFIX + n.to_bytes(8, "big"): choose.randbytes(100) for n in range(3_000)}
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
@pytest.mark.parametrize("places", [(0,), (20, 22), (5, 20, -1)])
async def test_what_is_intact_around_damaged_blocks_is_salvaged(
    kind: str, places: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = dict(sorted(rows_of(kind).items()))
    order = list(rows)
    step = 40 if kind == "small" else 1  # so that each place is in a block of its own
    broken = [order[place * step if place >= 0 else place] for place in places]
    await stored(tmp_path / "data", rows)
    damage(tmp_path / "data", *(rows[key] for key in broken))
    found = await salvaged(tmp_path / "data")
    assert found.items() <= rows.items()
    lost = [key for key in order if key not in found]
    assert set(broken) <= set(lost)
    most = BLOCK // 100 if kind == "small" else 2  # rows of a block
    # SlateDB looks a row or two ahead; damage that lies close together may be taken as one
    assert len(lost) <= (most + 2) * len(places)
    named = capsys.readouterr().err
    for key in lost:  # by the last row before it
        before = max((other for other in found if other < key), default=PREFIX)
        assert f"(key {before.hex()})" in named


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


async def filled(tmp_path: Path) -> tuple[Store, dict[QueueRef, list[str]]]:
    """A closed store of four queues with three pages each."""
    store = Store(f"opendata+slatedb://{tmp_path / 'data'}")
    posted: dict[QueueRef, list[str]] = {}
    await store.messages.open()
    for queue in (QueueRef("project", f"queue-{number}") for number in range(4)):
        posted[queue] = [f"{queue.name}-{number}-{'x' * 500}" for number in range(600)]
        for start in range(0, 600, 100):
            await store.post(*posted[queue][start : start + 100], to=queue)
    await store.messages.close()
    return store, posted


async def test_a_store_with_a_damaged_block_of_payloads_serves_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, posted = await filled(tmp_path)
    damaged, *others = posted
    damage(tmp_path / "data", json.dumps(posted[damaged][300]).encode())
    await store.restart()
    for queue in others:
        assert await listed(store, queue) == posted[queue]
    read = await listed(store, damaged)
    lost = [text for text in posted[damaged] if text not in read]
    assert posted[damaged][300] in lost
    assert len(lost) <= BLOCK // 500 + 1
    assert [text for text in posted[damaged] if text not in lost] == read
    assert caplog.text.count("set aside") == len(lost)
    assert "Everything after payload" in "\n".join((await check(store.db)).problems)
    dumped = [line async for line in dump(store.db.engine)]
    assert any(line.startswith("DAMAGED: Everything") for line in dumped)
    assert any(line.startswith("active of queue") for line in dumped)  # what is intact, too
    await store.messages.close()


async def test_a_store_whose_queues_lie_in_a_damaged_block_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the line that refuses it leads to its messages."""
    store, posted = await filled(tmp_path)
    engine = await engine_in(tmp_path / "data")
    root = keys.queue_key(RecordType.ACTIVE, b"project/queue-1")
    page = (await engine.get([root]))[root]
    await engine.close()
    assert isinstance(page, bytes)
    damage(tmp_path / "data", page)
    with pytest.raises(ConfigurationError, match="Everything after active") as refused:
        await store.restart()
    said = f"store import --store embedded:///new/directory opendata+slatedb://{tmp_path / 'data'}"
    assert str(refused.value).endswith(said)
    command = said.replace("/new/directory", str(tmp_path / "new")).split()
    assert await asyncio.to_thread(main, command) == 0, capsys.readouterr().err
    store = Store(f"embedded://{tmp_path / 'new'}")
    await store.messages.open()
    for queue, texts in posted.items():
        assert await listed(store, queue) == texts
    assert not (await check(store.db)).problems
    await store.messages.close()


async def test_a_damaged_list_of_what_no_queue_received_stops_no_sweep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the sweep reads it."""
    store = Store(f"opendata+slatedb://{tmp_path / 'data'}")
    await store.messages.open()
    value = random.Random(1).randbytes(5_000)
    await store.db.engine.commit(Batch({keys.unrouted_key(1, 1): value}, ()))
    await store.messages.close()
    damage(tmp_path / "data", value)
    await store.restart()
    await store.post("one")
    store.clock.advance(2 * HOUR)
    assert (await store.messages.sweep(1_000)).expired == 1
    assert "Everything after unrouted" in caplog.text
    assert any("unrouted" in problem for problem in (await check(store.db)).problems)
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
    assert len(rows) - 4 <= len(await salvaged(tmp_path / "data")) - 12 < len(rows)

"""Damaged blocks of SlateDB: what is intact is served, what is not is named with its place."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from zaqar_lite.storage.opendata import keys, slatedb_salvage
from zaqar_lite.storage.opendata.engine import Batch, Damage
from zaqar_lite.storage.opendata.keys import RecordType
from zaqar_lite.storage.opendata.slatedb_engine import SlateDbEngine

pytestmark = pytest.mark.anyio
BLOCK = 4_096
RANGE = (b"\x01\x02", b"\x01\x03")


def damage(directory: Path, *values: bytes) -> None:
    """Flip a byte inside each of these values, where the tables hold them."""
    for value in values:
        tables = (directory / "slatedb" / "compacted").glob("*.sst")
        (table,) = [file for file in tables if value in file.read_bytes()]
        data = bytearray(table.read_bytes())
        data[data.index(value) + len(value) // 2] ^= 0xFF
        table.write_bytes(data)


async def engine_in(directory: Path) -> SlateDbEngine:
    engine = SlateDbEngine.in_directory(directory)
    await engine.open()
    return engine


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
    assert len(lost) <= most * len(places), (len(lost), len(damages))
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


async def test_a_scan_gives_up_when_it_has_read_as_often_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of("one-queue")
    order = sorted(rows)
    await stored(tmp_path / "data", rows)
    damage(tmp_path / "data", rows[order[20]], rows[order[40]])
    monkeypatch.setattr(slatedb_salvage, "MOST_PROBES", 50)
    found, damages = await scanned(tmp_path / "data")
    assert set(order[:18]) <= found.keys() <= set(order)
    assert damages[-1].until == b""

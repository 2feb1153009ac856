"""Damaged blocks of SlateDB: what is intact is served, and what is not is named."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from tests.drivers.opendata.store import Store, engine_in, flip_in_table, stored
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata.engine import Unreadable
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.keys import RecordType

pytestmark = pytest.mark.anyio
BLOCK = 4_096
PREFIX = b"\x01\x02"


def some_rows() -> tuple[dict[bytes, bytes], list[bytes]]:
    choose = random.Random(1)
    rows = {PREFIX + n.to_bytes(8, "big"): choose.randbytes(100) for n in range(3_000)}
    return rows, list(rows)


async def test_single_reads_name_what_is_damaged_and_answer_the_rest(tmp_path: Path) -> None:
    rows, order = some_rows()
    await stored(tmp_path / "data", rows)
    flip_in_table(tmp_path / "data", rows[order[1_000]])
    engine = await engine_in(tmp_path / "data")
    for key in (order[0], order[2_000], b"absent"):
        assert await engine.get(key) == rows.get(key)
    with pytest.raises(Unreadable, match="active"):
        await engine.get(order[1_000])
    await engine.close()


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
    flip_in_table(tmp_path / "data", json.dumps(posted[damaged][300]).encode())
    await store.restart()
    for queue in others:
        assert await store.bodies(queue) == posted[queue]
    read = await store.bodies(damaged)
    lost = [text for text in posted[damaged] if text not in read]
    assert posted[damaged][300] in lost
    assert len(lost) <= BLOCK // 500 + 1
    assert [text for text in posted[damaged] if text not in lost] == read
    assert caplog.text.count("set aside") == len(lost)
    await store.messages.close()


async def test_a_store_whose_queues_lie_in_a_damaged_block_is_refused(tmp_path: Path) -> None:
    store, _ = await filled(tmp_path)
    engine = await engine_in(tmp_path / "data")
    root = keys.queue_key(RecordType.ACTIVE, b"project/queue-1")
    page = await engine.get(root)
    await engine.close()
    assert isinstance(page, bytes)
    flip_in_table(tmp_path / "data", page)
    with pytest.raises(ConfigurationError, match=r"Everything after active.*from a backup"):
        await store.restart()


async def test_damage_that_keeps_tables_from_being_compacted_does_not_stop_the_store(
    tmp_path: Path,
) -> None:
    """Every flush leaves a table; SlateDB's own limit is 8 that wait."""
    rows, order = some_rows()
    await stored(tmp_path / "data", rows)
    flip_in_table(tmp_path / "data", rows[order[20]])
    async with asyncio.timeout(30):
        for number in range(12):
            await stored(tmp_path / "data", {b"\x01\x01%d" % number: bytes(100)})
    tables = list((tmp_path / "data" / "slatedb" / "compacted").glob("*.sst"))
    assert len(tables) > 8

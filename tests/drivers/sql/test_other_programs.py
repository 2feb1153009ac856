"""Programs beside the server that write to its file for a moment, as Litestream does."""

import asyncio
from pathlib import Path

import apsw
import pytest

from tests.drivers.sql.store import QUEUE, Store
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.sql import database

pytestmark = pytest.mark.anyio


async def test_a_post_waits_while_another_program_writes(tmp_path: Path) -> None:
    async with Store(tmp_path / "data") as store:
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


async def test_a_post_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LOCKED", 0.1)
    async with Store(tmp_path / "data") as store:
        other = apsw.Connection(str(store.place.file))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable):
            await store.post("text")
        other.execute("ROLLBACK")
        other.close()
        await store.post("text")

"""Power is lost at random instants of a load: what was acknowledged is there, and only once.

At such an instant the directory is copied, without what nobody has synced; the copy must open.
"""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.drivers.sql.disk import failing_disk
from tests.drivers.sql.load import Load
from tests.drivers.sql.store import Store
from zaqar_lite.storage.sql import place

pytestmark = pytest.mark.anyio
INSTANTS = 200 if "ZAQAR_TEST_ALL" in os.environ else 20
TASKS = 8
EACH = 20
"""Losses of power of one store; the next one begins empty."""


@pytest.mark.parametrize("seed", range(INSTANTS // EACH))
async def test_what_was_acknowledged_survives(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_COPY_AT", 128 << 10)  # so that the log is copied and begun
    monkeypatch.setattr(place, "_RESTART_AT", 1 << 20)  # anew many times
    chance, load = random.Random(seed), Load()
    copies: list[tuple[Path, Load, str]] = []
    with failing_disk() as disk:
        async with Store(tmp_path / "data") as store:
            async with load.on(store, TASKS, seed * TASKS):
                for number in range(EACH):
                    await asyncio.sleep(chance.uniform(0.02, 0.4))
                    known, copied = load.snapshot(), tmp_path / f"copy-{number}"
                    end = disk.copy(store.place.file, copied, store.place.synced, chance)
                    copies.append((copied, known, end))
    assert not load.refusals
    for copied, known, end in copies:
        async with Store(copied) as left:
            assert await known.violations(left) == [], f"{copied.name}, the log ends with {end}"
    print(Counter(end for _, _, end in copies), len(load.stored), "messages were stored")
    assert load.deleted

"""A clock that was set back between two servers, on the stores of one process."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drivers.opendata.store import Store as OpenDataStore
from tests.drivers.sql.store import Store as SqlStore
from tests.drivers.store import HOUR, MINUTE, BothStores, message, texts
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import DelayMode

STORES: dict[str, Callable[[Path, Clock], BothStores]] = {
    "embedded": lambda path, clock: SqlStore(path, clock=clock),
    "slatedb": lambda path, clock: OpenDataStore(f"opendata+slatedb://{path}", clock),
}


@pytest.mark.anyio
@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
async def test_it_neither_cuts_leases_nor_hands_out_early(
    make: Callable[[Path, Clock], BothStores], tmp_path: Path
) -> None:
    now = time.time()
    async with make(tmp_path / "data", Clock(wall=lambda: now)) as store:
        await store.post("claimed")
        await store.claim(ttl=MINUTE)
        await store.post(message("delayed", ttl=2 * HOUR, delay=5_000))
    async with make(tmp_path / "data", Clock(wall=lambda: now - 3_600)) as store:
        for later, found in ((0, []), (4_000, []), (2_000, ["delayed"]), (55_000, ["claimed"])):
            store.clock.advance(later)
            claimed = await store.claim(ttl=MINUTE, mode=DelayMode.HONOUR)
            assert texts(claimed) == found

"""A store that SlateDB wrote for version 0.2.0 opens, with every message in its state.

`pages1.json` holds its records, key and value in hexadecimal, and the instant it was closed at;
`slatedb_51b3156.tar.xz` a whole directory that SlateDB had written by then.
"""

import json
import tarfile
from pathlib import Path

import pytest

from tests.contract.subject import some
from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.store import Store, stored
from tests.drivers.store import MINUTE, OTHER, QUEUE, THIRD, texts
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import KeyReused
from zaqar_lite.domain.models import HistoryState, Record
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage
from zaqar_lite.domain.settlements import Act, Settlement

pytestmark = pytest.mark.anyio
EARLIER = json.loads((Path(__file__).parent / "pages1.json").read_text(encoding="ascii"))


@pytest.fixture
async def earlier(tmp_path: Path) -> Store:
    """A directory with these records, not opened, and a clock that stands at that instant."""
    records = EARLIER["records"].items()
    await stored(tmp_path / "data", {bytes.fromhex(k): bytes.fromhex(v) for k, v in records})
    return standing(tmp_path, EARLIER["now_ms"] / 1000)


def standing(home: Path, instant: float) -> Store:
    """The store in a directory, whose clock stands."""
    clock = Clock(wall=lambda: instant, monotonic=lambda: 0.0)
    return Store(f"opendata+slatedb://{home / 'data'}", clock)


async def test_an_earlier_store_opens_as_it_was(earlier: Store) -> None:
    async with earlier.messages:
        assert not earlier.db.damages
        stats = await earlier.messages.stats(QUEUE)
        assert (stats.ready, stats.delayed, stats.claimed) == (3, 2, 1)
        assert await earlier.bodies() == ["parked", "held", "first", "delayed", "ready", "keyed"]
        assert await earlier.bodies(OTHER) == ["first"]
        (letter,) = (await earlier.claim(queue=THIRD)).messages
        assert (letter.origin and letter.origin.source, letter.claim_count) == ("queue", 2)
        (done,) = await earlier.history(HistoryState.DONE)
        assert done.attempts == 1
        record = await earlier.management.get_queue(QUEUE)
        assert some(record).metadata == {"_done_retention": 3600, "colour": "red"}
        kept = await earlier.management.get_record("kind", "p", "n")
        assert isinstance(kept, Record)
        assert kept.value == b"{}"
        again = NewMessage(b"1", MINUTE, idempotency_key=IdempotencyKey("k", b"x" * 16))
        with pytest.raises(KeyReused):
            await earlier.messages.post(QUEUE, [again], client_id="p", version=None)
        await check_database(earlier.db)


async def test_an_earlier_store_goes_on(earlier: Store) -> None:
    async with earlier.messages:
        held = await earlier.messages.get_claim(QUEUE, EARLIER["claim"], details=True)
        assert texts(list(held.messages)) == ["held"]
        assert texts(await earlier.claim()) == ["first", "ready", "keyed"]
        earlier.clock.advance(5 * MINUTE)
        assert (await earlier.messages.sweep(100)).lapsed
        assert texts(await earlier.claim(2)) == ["first", "parked"]
        earlier.clock.advance(5 * MINUTE)
        await earlier.sweep()
        assert texts(await earlier.claim()) == [
            "first", "parked", "held", "delayed", "ready", "keyed",
        ]  # fmt: skip
        await check_database(earlier.db)


async def test_an_earlier_directory_of_slatedb_opens(tmp_path: Path) -> None:
    """With SlateDB's own files as they were: manifests, log, tables, and our notes beside them."""
    with tarfile.open(Path(__file__).parent / "slatedb_51b3156.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    store = standing(tmp_path, 1_795_377_600)
    async with store.messages:
        assert not store.db.damages
        assert await store.bodies() == ["first", "second", "delayed"]
        stats = await store.messages.stats(QUEUE)
        assert (stats.ready, stats.delayed, stats.claimed) == (1, 1, 1)
        claim_id = "e3e4c9642539418e88a7406a955ec915"
        held = await store.messages.get_claim(QUEUE, claim_id)
        assert texts(list(held.messages)) == ["first"]
        await store.messages.settle(QUEUE, claim_id, Settlement("", Act.RELEASE))
        assert texts(await store.claim()) == ["first", "second"]
        record = await store.management.get_queue(QUEUE)
        assert some(record).metadata == {"colour": "red"}
        await check_database(store.db)

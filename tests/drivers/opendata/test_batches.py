"""Operations at random that share batches, and records at random that say something else.

What a batch writes says what the tables say, whatever meets in it. Beside that, nobody is handed
what another holds, and what was acknowledged never comes back (`chaos.py`).
"""

import asyncio
import os
import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.drivers.chaos import Chaos
from tests.drivers.opendata.contract_hooks import check_database, snapshot
from tests.drivers.opendata.rfc import encode_metadata, merged_pages
from tests.drivers.opendata.store import Store
from tests.drivers.store import HOUR, MINUTE, OTHER, QUEUE, SECOND, THIRD
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata import recorder
from zaqar_lite.storage.opendata.engine import Batch
from zaqar_lite.storage.opendata.format import keys, records
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.slatedb.binding import slatedb

SEEDS = range(60 if "ZAQAR_TEST_ALL" in os.environ else 4)
QUEUES = (QUEUE, OTHER, THIRD, QueueRef("project", "letters"))


class ChaosInRecords(Chaos):
    """Chaos that other servers and other programs take part in."""

    large, large_share, emptied = 150, 0.1, 2
    lasts = (0, SECOND, 5 * SECOND, MINUTE, 5 * HOUR)
    store: Store

    def __init__(self, store: Store, seed: int) -> None:
        super().__init__(store, QUEUES, random.Random(seed))

    async def restart(self) -> None:
        """Let another server open the store, after another program wrote there, or not."""
        store = self.store
        if self.often(0.3):  # killed: nothing is written at the end
            await store.db.engine.close()
            store._make()
            await store.messages.open()
        elif self.often(0.4):
            await store.put(await self.foreign())
        else:
            await store.restart()

    async def foreign(self) -> Mapping[bytes, bytes]:
        """Messages in the metadata log, and pages that have all of a queue, as others write."""
        store, choose = self.store, self.choose
        puts: dict[bytes, bytes] = {}
        first, now = store.next_id + 5_000, store.clock.now_ms()
        for number in range(first, first + choose.choice([1, 40])):
            own = [("a", "b")] if self.often(0.3) else []
            if self.often(0.8):
                own.append(("queue", keys.queue_id(self.queue()).decode()))
            visible = now + choose.choice([0, 0, SECOND])
            entry = records.Metadata(number, now, now, visible, choose.choice([0, 60]), own)
            body = records.encode_payload(choose.choice([b"1", b"no json"]))
            puts[keys.message_key(RecordType.PAYLOAD, number)] = body
            puts[store.log_key(number)] = encode_metadata(entry)
        return puts

    async def merge_pages(self) -> None:
        """Let each list of a queue be one record, as earlier versions and others have it."""
        for kind in (RecordType.ACTIVE, RecordType.DONE, RecordType.FAILED):
            pages: dict[bytes, dict[bytes, bytes]] = {}
            found = await self.store.records(kind)
            for key, value in found.items():
                pages.setdefault(keys.read_queue_key(key).queue, {})[key] = value
            puts = {
                keys.queue_key(kind, queue): merged_pages(kind, values)
                for queue, values in pages.items()
            }
            if puts:
                await self.store.put(puts, *(found.keys() - puts.keys()))

    async def fail(self) -> None:
        """Let a batch fail: before or after it is stored, or where it is encoded."""
        store, choose = self.store, self.choose
        engine, is_stored, left = store.db.engine, self.often(0.5), choose.randint(1, 40)
        write, put = engine._write, recorder.Encoding.put
        later = store.clock.now_ms() + 24 * HOUR  # when no message waits any more
        before = snapshot(store.db.connection, later)
        error = choose.choice([OSError("planted"), slatedb.InternalError("planted")])

        async def fail(puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
            if is_stored:
                await write(puts, deletes)
            raise error

        def fail_to_encode(self: recorder.Encoding, key: bytes, value: bytes) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise RuntimeError("planted")
            put(self, key, value)

        if self.often(0.4):
            with patch.object(recorder.Encoding, "put", fail_to_encode):
                await self.run()
        else:
            with patch.object(engine, "_write", fail):
                await self.run()
                with suppress(Unavailable):
                    await store.post("last")
            await self.wait()
            assert is_stored or snapshot(store.db.connection, later) == before
        await self.wait()

    async def wait(self) -> None:
        """Wait until the store is open again."""
        while True:
            with suppress(Unavailable):
                await self.store.messages.ping()
                return
            await asyncio.sleep(0.05)


@pytest.fixture(params=SEEDS)
def chaos(tmp_path: Path, request: pytest.FixtureRequest) -> ChaosInRecords:
    return ChaosInRecords(Store(f"opendata+slatedb://{tmp_path / 'data'}"), request.param)


@pytest.mark.anyio
async def test_what_meets_in_a_batch_is_written_as_the_tables_have_it(
    chaos: ChaosInRecords,
) -> None:
    async with chaos.store as store:
        for round_ in range(40):
            await chaos.run()
            await check_database(store.db)
            if round_ % 8 == 7:
                await chaos.choose.choice([chaos.restart, chaos.merge_pages, chaos.fail])()
                await check_database(store.db)


@pytest.mark.anyio
async def test_a_record_that_says_something_else_is_refused_by_name_or_worked_with(
    chaos: ChaosInRecords,
) -> None:
    choose = chaos.choose
    async with chaos.store as store:
        for _ in range(6):
            await chaos.run()
        engine = store.db.engine
        key, value = choose.choice([row async for rows in engine.scan(b"") for row in rows])
        at, cut = choose.randrange(len(value) or 1), choose.randrange(2, len(key) + 1)
        changes = (
            {key: value[:at] + bytes([choose.randrange(256)]) + value[at + 1 :]},
            {key: value[:at]},
            {key: value + b"more"},
            {key[:cut] + choose.randbytes(3): value},
        )
        await engine.commit(Batch(choose.choice(changes), ()))
        try:
            await store.restart()
        except ConfigurationError as exc:
            assert "can't be read" in str(exc) or "its format is" in str(exc)  # noqa: PT017
            return
        for queue in QUEUES:
            with suppress(Unavailable):  # where it says that all messages are elsewhere
                await store.post("new", to=queue)
                await store.claim(50, queue=queue, retries=chaos.retries(queue))
                store.clock.advance(HOUR)
                await store.messages.sweep(1_000, chaos.retries_of)
                await store.messages.purge(queue, forget=True)

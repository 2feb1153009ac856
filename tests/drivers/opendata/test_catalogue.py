"""Records of any kind: over a restart, a failed batch, a damage, and a move to another store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.store import HOUR, MINUTE, Store
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import Record
from zaqar_lite.storage.opendata.engine import Batch
from zaqar_lite.storage.opendata.format import keys

pytestmark = pytest.mark.anyio
VALUE = '{"é": 1.0}'.encode()


@pytest.fixture(params=["opendata+slatedb"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store over each of the engines."""
    opened = Store(f"{request.param}://{tmp_path / 'data'}")
    await opened.messages.open()
    yield opened
    await check_database(opened.db)
    await opened.messages.close()


async def put(
    store: Store, name: str, value: bytes = b"{}", *, expected: int | None = None, ttl: int = 0
) -> Record:
    return await store.management.put_record(
        "kind", "p", name, value, expected=expected, ttl_ms=ttl or None
    )


async def names(store: Store) -> list[str]:
    return [record.name for record in await store.management.list_records("kind", limit=100)]


async def test_records_are_there_after_a_restart(either: Store) -> None:
    stays = await put(either, "a\x00\x01/é", b'{"n": 1}')
    ends = await put(either, "b", ttl=HOUR)
    gone = await put(either, "c")
    await either.management.delete_record("kind", "p", "c", expected=gone.version)
    await either.restart()
    assert await either.management.list_records("kind", limit=9) == [stays, ends]
    newer = await put(either, "b", expected=ends.version, ttl=MINUTE)
    assert newer.version > gone.version
    either.clock.advance(2 * MINUTE)
    assert await either.management.sweep_records(10) == 1
    await either.restart()
    assert await either.management.list_records("kind", limit=9) == [stays]


async def test_what_a_failed_batch_had_changed_is_as_before(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = await put(store, "kept", b"1", ttl=HOUR)
    deleted = await put(store, "deleted", b"2")

    async def fails(_: Batch) -> None:
        raise Unavailable("The disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(store.db.engine, "commit", fails)
        done = await asyncio.gather(
            put(store, "kept", b"3"),
            put(store, "new", b"4"),
            store.management.delete_record("kind", "p", "deleted"),
            store.management.delete_record("kind", "p", "deleted"),  # not False: it is there yet
            return_exceptions=True,
        )
    assert [type(each) for each in done] == [Unavailable] * 4
    assert await store.management.list_records("kind", limit=9) == [deleted, kept]
    await asyncio.sleep(1.1)  # writes are refused for a second after one that failed
    store.clock.advance(2 * HOUR)
    assert await store.management.sweep_records(10) == 1
    assert await names(store) == ["deleted"]


async def test_a_record_that_is_renewed_often_leaves_nothing_behind(store: Store) -> None:
    for _ in range(100):
        await put(store, "often", ttl=HOUR)
    assert len(store.db.catalogue._ends) == 1
    await store.management.delete_record("kind", "p", "often")
    assert not store.db.catalogue._ends
    assert not store.db.catalogue._kinds


async def test_a_damaged_record_is_named_and_the_others_are_served(store: Store) -> None:
    await put(store, "broken")
    await put(store, "sound")
    await store.restart_damaged(keys.record_key("kind", "p", "broken"))
    assert await names(store) == ["sound"]
    assert store.db.damages
    await put(store, "broken", b"1")  # whoever writes it anew has mended it
    assert await names(store) == ["broken", "sound"]
    store.db.damages.clear()


async def test_a_listing_looks_at_about_as_many_records_as_it_answers(store: Store) -> None:
    await asyncio.gather(*[put(store, f"a/{n:04}") for n in range(1_500)])
    await asyncio.gather(*[put(store, f"b/{n:04}", ttl=MINUTE) for n in range(30)])
    await put(store, "c")
    catalogue = store.db.catalogue
    before = catalogue.examined
    found = await store.management.list_records("kind", "p", after=("p", "a/0100"), limit=3)
    assert [record.name for record in found] == ["a/0101", "a/0102", "a/0103"]
    assert catalogue.examined - before <= 16
    store.clock.advance(2 * MINUTE)  # what has expired is passed over, in several steps
    found = await store.management.list_records("kind", "p", after=("p", "a/1498"), limit=3)
    assert [record.name for record in found] == ["a/1499", "c"]
    assert len(await store.management.list_records("kind", limit=2_000)) == 1_501

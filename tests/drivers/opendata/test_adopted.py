"""Messages of another store: their ids outlive a restart and a failed write, and end with them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.store import HOUR, QUEUE, Store
from tests.drivers.opendata.test_recovery import fail_a_batch, refuse_commits, replace
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.ids import new_message_id
from zaqar_lite.domain.models import ListQuery, Message
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.keys import RecordType

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["opendata+slatedb"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made = Store(f"{request.param}://{tmp_path / 'data'}")
    await made.messages.open()
    yield made
    await check_database(made.db)
    await made.messages.close()


def messages(count: int, now: int) -> list[Message]:
    return [
        Message(new_message_id(n), n, b"%d" % n, HOUR, now, now + HOUR, now) for n in range(count)
    ]


async def import_messages(store: Store, number: int, some: list[Message]) -> None:
    await store.messages.import_messages(QUEUE, some, source="pool", number=number)


async def listed(store: Store) -> list[str]:
    page = await store.messages.list_messages(QUEUE, ListQuery(1_000))
    return [one.id for one in page.messages]


async def ids_kept(store: Store) -> int:
    """How many ids of other stores are stored."""
    return len([key async for key, _ in store.db.rows(keys.prefix(RecordType.ADOPTED))])


async def test_ids_and_repeats_are_known_after_a_restart(store: Store) -> None:
    made = messages(300, store.clock.now_ms())
    await import_messages(store, 1, made)
    await store.restart()
    await import_messages(store, 1, made)
    assert await listed(store) == [one.id for one in made]
    claimed = await store.claim(300)
    await store.restart()
    held = [one.id for one in claimed.messages]
    assert claimed.claim_id is not None
    assert not await store.messages.delete(QUEUE, held, claim_ids=[claimed.claim_id])
    assert (await store.messages.stats(QUEUE)).total == 0


async def test_ids_go_with_their_messages(store: Store) -> None:
    made = messages(400, store.clock.now_ms())
    await import_messages(store, 1, made)
    await store.messages.delete(QUEUE, [one.id for one in made[:5]], claim_ids=None)
    assert await ids_kept(store) == 395
    await store.messages.purge(QUEUE)  # so many are deleted by the sweep
    while (await store.messages.sweep(1_000)).total:
        pass
    assert await ids_kept(store) == 0
    assert store.db.id_texts.read(made[-1].id) == ()


async def test_a_failed_write_takes_nothing_in_and_loses_no_id(store: Store) -> None:
    made = messages(3, store.clock.now_ms())
    await import_messages(store, 1, made[:2])
    commit = refuse_commits(store)
    with pytest.raises(Unavailable, match="planted"):
        await import_messages(store, 2, made[2:])
    replace(store, "commit", commit)
    store.db.committer._refused = None  # instead of waiting for a second
    assert await listed(store) == [one.id for one in made[:2]]
    await import_messages(store, 2, made[2:])
    assert await listed(store) == [one.id for one in made]
    await fail_a_batch(store)
    (found,) = await store.messages.get_messages(QUEUE, [made[0].id])
    assert found.body == b"0"

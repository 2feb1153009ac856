"""Damage costs the messages whose payload or metadata it took, or refuses the store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.drivers.opendata.store import Store
from tests.drivers.store import OTHER, QUEUE, texts
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata import database
from zaqar_lite.storage.opendata.engine import Batch
from zaqar_lite.storage.opendata.format import bookkeeping, keys, records
from zaqar_lite.storage.opendata.format.keys import PAYLOAD_PREFIX, RecordType
from zaqar_lite.storage.opendata.slatedb import SlateDbEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
async def filled(tmp_path: Path) -> AsyncIterator[Store]:
    """A queue of three pages, and others."""
    store = Store(f"opendata+slatedb://{tmp_path / 'data'}")
    await store.messages.open()
    await store.post(*map(str, range(100)), to=QueueRef("project", "a"))
    for start in range(0, 700, 100):
        await store.post(*map(str, range(start, start + 100)))
    await store.post("of another queue", to=OTHER)
    yield store
    await store.messages.close()


def numbers(start: int, end: int) -> list[str]:
    return list(map(str, range(start, end)))


async def test_a_message_that_was_unreadable_for_a_while_keeps_its_claim(filled: Store) -> None:
    """As one under a broken page does, which the next start brings back."""
    taken = await filled.claim(20)
    assert taken.claim_id is not None
    body = PAYLOAD_PREFIX + bytes.fromhex(taken.messages[0].id[:16])
    await filled.restart_damaged(body)
    assert await filled.bodies() == numbers(1, 700)  # it is set aside
    claim = await filled.messages.get_claim(QUEUE, taken.claim_id)
    assert texts(list(claim.messages)) == numbers(1, 20)
    await filled.restart_mended()
    assert texts(await filled.claim(10, client="another")) == numbers(20, 30)
    ids = [message.id for message in taken.messages]
    assert not await filled.messages.delete(QUEUE, ids, claim_ids=[taken.claim_id])
    assert await filled.bodies() == numbers(20, 700)


async def test_a_message_set_aside_is_not_ready_when_its_claim_ends(filled: Store) -> None:
    taken = await filled.claim(20)
    body = PAYLOAD_PREFIX + bytes.fromhex(taken.messages[0].id[:16])
    await filled.restart_damaged(body)
    await filled.bodies()
    await filled.release(taken)
    assert (await filled.messages.stats(QUEUE)).ready == 699
    assert texts(await filled.claim(10, removes=True)) == numbers(1, 11)


async def test_what_is_behind_damage_of_both_kinds_is_served(filled: Store) -> None:
    """Neither the log nor the payloads name it then: the pages of its queue do."""
    first, second = [(await filled.all_messages())[at].id[:16] for at in (100, 200)]
    await filled.restart_damaged(
        PAYLOAD_PREFIX + bytes.fromhex(first), filled.log_key(int(second, 16))
    )
    found = numbers(0, 700)
    assert await filled.bodies() == found[:100] + found[101:200] + found[201:]
    assert await filled.bodies(OTHER) == ["of another queue"]
    assert len(filled.db.damages) == 2
    await filled.restart_mended()


async def test_a_post_leaves_what_is_set_aside_in_a_queue_without_a_record(filled: Store) -> None:
    (page,) = [key for key in await filled.records(RecordType.ACTIVE) if b"other" in key]
    (message,) = await filled.all_messages(OTHER)
    await filled.restart_damaged(PAYLOAD_PREFIX + bytes.fromhex(message.id[:16]))
    await filled.post("new", to=OTHER)
    await filled.restart_mended()
    assert await filled.bodies(OTHER) == ["of another queue", "new"]
    assert page in await filled.records(RecordType.ACTIVE)


@pytest.mark.parametrize(
    "lost",
    [
        keys.FORMAT, keys.STATE, keys.ID_BLOCK, keys.log_segment_key(1),
        keys.queue_key(RecordType.ACTIVE, b"project/queue"),
    ],
)  # fmt: skip
async def test_damage_elsewhere_refuses_the_store(filled: Store, lost: bytes) -> None:
    with pytest.raises(ConfigurationError, match=f"{lost.hex()}.*is kept as it is: restore"):
        await filled.restart_damaged(lost)
    await filled.restart_mended()
    assert await filled.bodies() == numbers(0, 700)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (Batch({}, (keys.STATE,)), r"state .* can't be read: it is missing"),
        (Batch({keys.ID_BLOCK: b""}, ()), r"id_block .* can't be read: "),
        (
            Batch({keys.ID_BLOCK: bookkeeping.BLOCK.encode(2**64 - 1, 1)}, ()),
            r"id_block .* can't be read: ",
        ),
        (Batch({keys.FORMAT: b"another/1"}, ()), "its format is b'another/1'"),
    ],
    ids=["missing", "empty", "impossible", "another format"],
)
async def test_a_wrong_record_of_the_store_itself_refuses_it(
    filled: Store, batch: Batch, said: str
) -> None:
    await filled.db.engine.commit(batch)
    with pytest.raises(ConfigurationError, match=said):
        await filled.restart()


async def test_what_a_purge_of_an_earlier_version_left_goes(filled: Store) -> None:
    """It listed what its sweep was to delete, in no queue any more."""
    number = filled.next_id - 1
    puts = {
        keys.message_key(RecordType.GARBAGE, 7): bookkeeping.GARBAGE.encode([number]),
        keys.message_key(RecordType.PAYLOAD, number): records.encode_payload(b'"purged"'),
    }
    page = keys.queue_key(RecordType.ACTIVE, b"project/other")
    await filled.put(puts, page)
    assert await filled.bodies(OTHER) == []
    for key in (*puts, filled.log_key(number)):
        assert await filled.db.engine.get(key) is None
    assert await filled.bodies() == numbers(0, 700)


async def test_a_start_may_take_as_long_as_it_has_to_delete(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier version's purge left of a million takes minutes; the disk answers."""
    commit = SlateDbEngine.commit

    async def commit_slowly(engine: SlateDbEngine, batch: Batch) -> None:
        await asyncio.sleep(0.2)
        await commit(engine, batch)

    monkeypatch.setattr(database, "_PATIENCE", 0.5 / SlateDbEngine.patience)
    monkeypatch.setattr(SlateDbEngine, "commit", commit_slowly)
    purged = range(filled.next_id, filled.next_id + 2_000)
    key = keys.message_key(RecordType.GARBAGE, 7)
    await filled.put({key: bookkeeping.GARBAGE.encode(purged)})
    assert await filled.db.engine.get(key) is None


async def test_only_what_a_loss_of_power_left_is_moved_aside(filled: Store, tmp_path: Path) -> None:
    """Every start adds an empty file to the log, by which SlateDB puts out earlier writers."""
    for _ in range(2):
        await filled.restart()
    log = tmp_path / "data" / "slatedb" / "wal"
    assert not list(log.glob("*.damaged"))
    last = max(log.glob("*.sst"))
    zeros = last.with_name(f"{int(last.stem) + 1:020}.sst")
    await filled.messages.close()
    zeros.write_bytes(bytes(500))
    await filled.messages.open()
    assert [file.name for file in log.glob("*.damaged")] == [f"{zeros.name}.damaged"]
    assert await filled.bodies() == numbers(0, 700)

"""What damage took is put back from records that are intact."""

import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.drivers.opendata.store import Store
from tests.drivers.store import HOUR, MINUTE, OTHER, QUEUE, THIRD, texts
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import ClaimRequest, DeadLetter, DelayMode, QueueRef, RetryPolicy
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.storage.opendata.engine import Batch, Damage
from zaqar_lite.storage.opendata.format import keys, u64s
from zaqar_lite.storage.opendata.format.keys import PAYLOAD_PREFIX, RecordType

pytestmark = pytest.mark.anyio
OTHER_ROOT = keys.queue_key(RecordType.ACTIVE, b"project/other")

FIRST = QueueRef("project", "a")


@pytest.fixture
async def filled(tmp_path: Path) -> AsyncIterator[Store]:
    """A queue of three pages, and others."""
    store = Store(f"opendata+slatedb://{tmp_path / 'data'}")
    await store.messages.open()
    await store.post(*map(str, range(100)), to=FIRST)
    for start in range(0, 700, 100):
        await store.post(*map(str, range(start, start + 100)))
    await store.post("of another queue", to=OTHER)
    yield store
    await store.messages.close()


def numbers(start: int, end: int) -> list[str]:
    return list(map(str, range(start, end)))


def page_key(number: int | None) -> bytes:
    return keys.queue_key(RecordType.ACTIVE, b"project/queue", number)


@pytest.mark.parametrize("lost", [(None,), (1,), (2,), (None, 2), (None, 1, 2)])
async def test_messages_of_a_damaged_page_are_served_in_their_places(
    filled: Store, lost: tuple[int | None, ...], caplog: pytest.LogCaptureFixture
) -> None:
    await filled.restart_damaged(*map(page_key, lost))
    assert await filled.bodies() == numbers(0, 700)
    assert await filled.bodies(OTHER) == ["of another queue"]
    assert "put back from the metadata log" in caplog.text
    await filled.post("new")
    ids = [message.id for message in (await filled.claim(100)).messages]
    await filled.messages.delete(QUEUE, ids, claim_ids=None)
    for _ in range(2):  # nothing that was deleted comes back, nothing is there twice
        assert await filled.bodies() == [*numbers(100, 700), "new"]
        await filled.restart()
    found = await filled.db.engine.get([page_key(number) for number in lost])
    assert all(isinstance(value, Damage) for value in found.values())  # left as they are
    assert len(found) == len(lost)
    await filled.sweep()


async def test_what_was_deleted_or_purged_does_not_come_back(
    filled: Store, caplog: pytest.LogCaptureFixture
) -> None:
    taken = await filled.claim(100)
    ids = [message.id for message in taken.messages]
    await filled.messages.delete(QUEUE, ids[:50], claim_ids=[taken.claim_id or ""])
    await filled.messages.purge(OTHER)
    await filled.post(*numbers(0, 600), to=OTHER)
    await filled.messages.purge(OTHER)  # so many are left to the sweep, which has not come yet
    await filled.post("after", to=OTHER)
    await filled.restart_damaged(page_key(1), OTHER_ROOT)
    assert await filled.bodies() == numbers(50, 700)
    assert await filled.bodies(OTHER) == ["after"]
    assert "list of purged messages" not in caplog.text


@pytest.mark.parametrize("is_lost", [False, True])
async def test_what_a_purge_left_behind_may_come_back_where_its_list_is_lost_too(
    filled: Store, caplog: pytest.LogCaptureFixture, is_lost: bool
) -> None:
    """Earlier versions listed what their sweep was to delete."""
    (purged,) = await filled.post("purged", to=OTHER)
    garbage = keys.message_key(RecordType.GARBAGE, 7)
    await filled.db.engine.commit(Batch({garbage: u64s([int(purged[:16], 16)], "ids")}, ()))
    await filled.restart_damaged(OTHER_ROOT, *([garbage] if is_lost else []))
    assert await filled.bodies(OTHER) == ["of another queue", *(["purged"] if is_lost else [])]
    assert ("the list of purged messages is damaged" in caplog.text) == is_lost
    assert (garbage in await filled.records(RecordType.GARBAGE)) == is_lost


async def test_a_claim_holds_what_it_held(filled: Store) -> None:
    taken = await filled.claim(20)
    assert taken.claim_id is not None
    await filled.restart_damaged(page_key(None))
    claim = await filled.messages.get_claim(QUEUE, taken.claim_id)
    assert texts(list(claim.messages)) == numbers(0, 20)
    assert texts(await filled.claim(10, client="another")) == numbers(20, 30)
    ids = [message.id for message in taken.messages]
    assert not await filled.messages.delete(QUEUE, ids, claim_ids=[taken.claim_id])
    await filled.restart()
    assert await filled.bodies() == numbers(20, 700)
    filled.clock.advance(61_000)
    assert (await filled.claim(10)).messages[0].claim_count == 2


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
    popped = await filled.messages.claim(
        QUEUE, ClaimRequest(limit=10, delay_mode=DelayMode.HONOUR, version=None, removes=True)
    )
    assert texts(popped) == numbers(1, 11)


async def test_attempts_still_count(filled: Store) -> None:
    for _ in range(2):
        taken = await filled.claim(5)
        assert taken.claim_id is not None
        await filled.release(taken)
    await filled.restart_damaged(page_key(None))
    again = await filled.claim(6)
    assert [message.claim_count for message in again.messages] == [3, 3, 3, 3, 3, 1]


async def test_a_delay_is_not_cut(filled: Store) -> None:
    delayed = [NewMessage(b'"later %d"' % n, HOUR, 200_000) for n in range(300)]
    await filled.post(*delayed, to=OTHER)
    await filled.restart_damaged(OTHER_ROOT)

    async def later() -> int:
        found = texts(await filled.claim(301, queue=OTHER))
        return sum(text.startswith("later") for text in found)

    assert await later() == 0
    filled.clock.advance(100_000)
    assert await later() == 0
    filled.clock.advance(101_000)
    assert await later() + await later() + await later() == 300


async def both_in(filled: Store) -> str:
    """Empty the other queue and let it receive what is posted; post a message that both get."""
    await filled.management.create_queue(OTHER, {"_filter": "queue = 'queue'"}, max_queues=9)
    await filled.messages.purge(OTHER)
    await filled.sweep()
    copy = Copy(OTHER, HOUR, 0, 100)  # as the service decides by the filter
    (both,) = await filled.post(NewMessage(b'"both"', HOUR, copies=(copy,)))
    assert await filled.bodies(OTHER) == ["both"]
    return both


async def test_queues_that_lost_nothing_get_nothing(filled: Store) -> None:
    """The message was in both; one has let it go, and the other has lost its page."""
    both = await both_in(filled)
    await filled.messages.delete(QUEUE, [both], claim_ids=None)
    await filled.restart_damaged(OTHER_ROOT)
    assert await filled.bodies(OTHER) == ["both"]
    assert await filled.bodies() == numbers(0, 700)
    await filled.messages.delete(OTHER, [both], claim_ids=None)
    await filled.restart()
    assert not await filled.bodies(OTHER)  # nothing thought that the other one holds it, too


async def test_a_message_of_two_queues_returns_to_the_one_that_lost_it(filled: Store) -> None:
    both = await both_in(filled)
    await filled.restart_damaged(OTHER_ROOT)
    assert await filled.bodies(OTHER) == ["both"]
    assert await filled.bodies() == [*numbers(0, 700), "both"]
    await filled.messages.delete(QUEUE, [both], claim_ids=None)
    await filled.restart()
    assert await filled.bodies(OTHER) == ["both"]  # the body is still there
    await filled.messages.delete(OTHER, [both], claim_ids=None)
    await filled.restart()
    assert not await filled.bodies(OTHER)


async def test_a_dead_letter_of_a_shared_message_does_not_return_to_its_source(
    filled: Store,
) -> None:
    both = await both_in(filled)
    letters = QueueRef("project", "letters")
    for _ in range(2):
        await filled.claim(queue=OTHER, retries=RetryPolicy(DeadLetter(letters, 1)))
        filled.clock.advance(2 * MINUTE)
    assert await filled.bodies(letters) == ["both"]
    await filled.restart_damaged(OTHER_ROOT)
    assert not await filled.bodies(OTHER)
    assert await filled.bodies(letters) == ["both"]
    assert await filled.bodies() == [*numbers(0, 700), "both"]
    await filled.messages.delete(QUEUE, [both], claim_ids=None)
    assert await filled.bodies(letters) == ["both"]


async def test_a_filter_set_later_takes_no_older_message(filled: Store) -> None:
    await filled.management.create_queue(OTHER, {"_filter": "queue = 'queue'"}, max_queues=9)
    await filled.restart_damaged(page_key(None), OTHER_ROOT)
    assert await filled.bodies() == numbers(0, 700)
    assert await filled.bodies(OTHER) == ["of another queue"]


VITAL = (keys.FORMAT, keys.STATE, keys.ID_BLOCK, keys.LOG_BLOCK, keys.log_segment_key(1))


@pytest.mark.parametrize(
    "lost",
    [
        *((key,) for key in VITAL if key != keys.LOG_BLOCK),
        (keys.ID_BLOCK, keys.LOG_BLOCK),
        VITAL,
    ],
)
async def test_a_store_opens_without_the_records_that_open_it(
    filled: Store, lost: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    last = filled.next_id
    await filled.restart_damaged(*lost)
    assert all(key.hex() in caplog.text for key in lost)
    assert await filled.bodies() == numbers(0, 700)
    (new,) = await filled.post("new")
    assert int(new[:16], 16) >= last  # no id is used twice
    caplog.clear()
    await filled.restart()
    for key in lost:  # it was written anew
        assert f"(key {key.hex()}): " not in caplog.text
    assert "is lost" not in caplog.text
    assert await filled.bodies() == [*numbers(0, 700), "new"]
    assert [message.id for message in await filled.messages.get_messages(QUEUE, [new])] == [new]
    taken = await filled.claim(701)
    ids = [message.id for message in taken.messages]
    await filled.messages.delete(QUEUE, ids, claim_ids=None)
    await filled.sweep()
    left = await filled.records(RecordType.PAYLOAD)
    assert len(left) == 101  # those of the other queues: no payloads are left behind


async def test_another_format_is_still_refused(filled: Store) -> None:
    await filled.db.engine.commit(Batch({keys.FORMAT: b"another/1"}, ()))
    with pytest.raises(ConfigurationError, match="its format is b'another/1'"):
        await filled.restart()


Live = dict[QueueRef, dict[str, str]]


async def live_through(store: Store, choose: random.Random, copies: tuple[Copy, ...]) -> Live:
    """Do random things; return what is live in each queue: texts in order, and their ids."""
    live: Live = {QUEUE: {}, OTHER: {}, THIRD: {}}
    for number in range(choose.randrange(30, 60)):
        queue = choose.choice(list(live))
        action = choose.choice(("post", "post", "post", "delete", "release", "purge", "sweep"))
        if action == "post":
            to = copies if queue == QUEUE else ()
            texts_now = [f"{number}-{index}" for index in range(choose.randrange(1, 90))]
            new = [NewMessage(f'"{text}"'.encode(), HOUR, copies=to) for text in texts_now]
            ids = await store.post(*new, to=queue)
            for receiver in (queue, *(copy.queue for copy in to)):
                live[receiver].update(zip(texts_now, ids, strict=True))
        elif action == "purge" and choose.random() < 0.4:
            await store.messages.purge(queue)
            live[queue].clear()
        elif action == "sweep":
            await store.messages.sweep(1_000)
        else:
            taken = await store.claim(choose.randrange(1, 40), queue=queue)
            if taken.claim_id is not None and action == "delete":
                gone = taken.messages[: choose.randrange(1, 40)]
                ids = [message.id for message in gone]
                await store.messages.delete(queue, ids, claim_ids=[taken.claim_id])
                for text in texts(list(gone)):
                    del live[queue][text]
            elif taken.claim_id is not None and choose.random() < 0.5:
                await store.release(taken, queue)
    return live


async def broken_of(store: Store, choose: random.Random) -> set[bytes]:
    """Choose ten records of any type but garbage."""
    stored = [
        key
        async for rows in store.db.engine.scan(b"", b"\xff")
        for key, value in rows
        if value and not key.startswith(keys.prefix(RecordType.GARBAGE))
    ]
    few = [key for key in stored if not key.startswith((PAYLOAD_PREFIX, keys.log_prefix(1)))]
    return {*choose.sample(few, min(len(few), 4)), *choose.sample(stored, 6)}


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("seed", range(12 if "ZAQAR_TEST_ALL" in os.environ else 5))
async def test_of_any_damaged_records_only_bodies_and_metadata_cost_messages(
    seed: int, shares: bool, tmp_path: Path
) -> None:
    """Where one queue gets what another does, nothing tells what it alone had let go."""
    choose = random.Random(seed)
    store = Store(f"opendata+slatedb://{tmp_path / 'data'}")
    await store.messages.open()
    copies = (Copy(OTHER, HOUR, 0, 100),) if shares else ()
    if shares:
        await store.management.create_queue(OTHER, {"_filter": "queue = 'queue'"}, max_queues=9)
    live = await live_through(store, choose, copies)
    broken = await broken_of(store, choose)
    excused = {
        text
        for messages in live.values()
        for text, message_id in messages.items()
        if PAYLOAD_PREFIX + bytes.fromhex(message_id[:16]) in broken
        or store.log_key(int(message_id[:16], 16)) in broken
    }
    if keys.queue_key(RecordType.CONFIG, b"project/other") in broken:
        excused.update(live[OTHER])  # nothing else tells what its filter took
    await store.restart_damaged(*broken)
    for _ in range(2):
        for queue, messages in live.items():
            found = await store.bodies(queue)
            expected = [text for text in messages if text in set(found)]
            assert [text for text in found if text in messages] == expected
            assert set(messages) - set(found) <= excused
            assert shares or found == expected
            assert set(found) <= set().union(*live.values())
        await store.restart()
    await store.messages.close()

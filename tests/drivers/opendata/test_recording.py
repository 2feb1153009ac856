"""What a batch writes: RFC 0001's records, looked at behind the tables.

That the records say all that the tables say is compared after every contract test
(`contract_hooks.py`).
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest.mock import patch

import apsw
import pytest

from tests.contract.subject import some
from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.rfc import decode_active, read_config
from tests.drivers.opendata.store import Store
from tests.drivers.store import HOUR, MINUTE, OTHER, QUEUE
from tests.failing import failing
from tests.waiting import until_available
from zaqar_lite.domain.errors import NotFound, Unavailable
from zaqar_lite.domain.ids import new_claim_id, new_message_id
from zaqar_lite.domain.models import DeadLetter, HistoryState, Message, Move, RetryPolicy
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage
from zaqar_lite.domain.settlements import Act, Outcome, Settlement
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.storage.opendata import recorder
from zaqar_lite.storage.opendata.engine import Batch
from zaqar_lite.storage.opendata.format import bookkeeping, keys, records
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.messages import digest_of
from zaqar_lite.storage.opendata.pages import PAGE_SIZE
from zaqar_lite.storage.opendata.slatedb.binding import slatedb

pytestmark = pytest.mark.anyio
RAW = b"project/queue"
LEFT = (
    RecordType.PAYLOAD, RecordType.ACTIVE, RecordType.DONE, RecordType.FAILED, RecordType.ATTEMPTS,
    RecordType.CONFIG, RecordType.CLAIM, RecordType.IDEMPOTENCY, RecordType.ATTEMPT,
    RecordType.ADOPTED,
)  # fmt: skip


async def test_a_new_queue_has_the_empty_records_of_the_rfc(store: Store) -> None:
    await store.management.create_queue(QUEUE, {}, max_queues=9)
    assert await store.records(RecordType.ACTIVE) == {
        keys.queue_key(RecordType.ACTIVE, RAW): bytes(4)
    }
    for kind in (RecordType.DONE, RecordType.FAILED):
        assert await store.records(kind) == {keys.queue_key(kind, RAW): bytes(2)}
    config = read_config((await store.records(RecordType.CONFIG)).popitem()[1])
    assert config.max_attempts == 0


async def test_a_waiting_message_is_a_literal_record_of_the_rfc(store: Store) -> None:
    (message_id,) = await store.post("hello")
    number = int(message_id[:16], 16)
    (record,) = (await store.records(RecordType.ACTIVE)).values()
    assert len(record) == 2 + 27 + 2
    page = decode_active(record)
    assert (page.available[0].message_id, page.available[0].attempts) == (number, 0)
    assert not page.extras
    key = keys.message_key(RecordType.PAYLOAD, number)
    assert await store.records(RecordType.PAYLOAD) == {key: b"\x01\x07\x00" + b'"hello"'}
    entry = await store.db.engine.get(store.log_key(number))
    assert isinstance(entry, bytes)
    metadata = records.decode_metadata(entry)
    assert metadata.retention_s == 3600
    assert dict(metadata.headers)["queue"] == "project/queue"
    await store.post("x" * 70_000)  # too many bytes for a count of them
    assert (await store.records(RecordType.PAYLOAD)).popitem()[1] == b'\x03"%b"' % (b"x" * 70_000)


async def test_no_id_is_taken_twice_whatever_became_of_its_message(store: Store) -> None:
    """Ids are stored in blocks of 4,096: here they end with one, begin the next, or exceed it."""
    last = 0
    for counts in ((1,), (4_096, 1), (4_097,), (1, 10_000)):
        for count in counts:
            first = await store.db.write(lambda db, most: db.take_positions(most, 0), count)
            assert first > last
            last = first + count - 1
        await store.restart()


async def test_pages_are_cut_where_they_are_full_and_go_with_their_messages(store: Store) -> None:
    count = 2 * PAGE_SIZE + 1
    ids = await store.post(*map(str, range(count)))
    pages = await store.records(RecordType.ACTIVE)
    lengths = [len(decode_active(page).available) for page in pages.values()]
    assert lengths == [PAGE_SIZE, PAGE_SIZE, 1]
    root, first, second = (keys.queue_key(RecordType.ACTIVE, RAW, one) for one in (None, 1, 2))
    assert list(pages) == [root, first, second]
    await store.messages.delete(QUEUE, ids[:PAGE_SIZE], claim_ids=None)
    assert list(await store.records(RecordType.ACTIVE)) == [first, second]
    await store.restart()
    await store.post(*map(str, range(count, count + PAGE_SIZE)))
    assert list(await store.records(RecordType.ACTIVE)) == [
        first, second, keys.queue_key(RecordType.ACTIVE, RAW, 3),
    ]  # fmt: skip
    assert await store.bodies() == [str(one) for one in range(PAGE_SIZE, count + PAGE_SIZE)]


async def test_a_dropped_queue_leaves_no_record(store: Store) -> None:
    metadata = {"_done_retention": 60, "_failed_retention": 60}
    await store.management.create_queue(QUEUE, metadata, max_queues=9)
    await store.post(*["done"] * 300)
    assert await store.acknowledge(limit=300) == 300
    key = IdempotencyKey("k", b"x" * 16)
    await store.post(*[NewMessage(b"1", HOUR, headers={"MessageGroupId": "g"})] * 300)
    await store.post(NewMessage(b"1", HOUR, 0, key))
    await store.claim()
    record = await store.management.get_queue(QUEUE)
    await store.management.delete_queue(QUEUE, version=some(record).version)
    await store.messages.purge(QUEUE, forget=True)
    for kind in LEFT:
        assert not await store.records(kind)
    record, _ = await store.management.create_queue(QUEUE, {}, max_queues=9)
    await store.management.delete_queue(QUEUE, version=record.version)
    await store.restart()  # before it is purged: nobody has a row for it any more
    for kind in LEFT:
        assert not await store.records(kind)
    await store.post("new")
    assert await store.bodies() == ["new"]


@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_queue_that_goes_and_comes_back_in_one_batch_is_there_after_a_restart(
    store: Store, *, is_kept: bool
) -> None:
    """By the sweep, which drops a queue that was made by a post, or by its deletion."""
    if is_kept:
        await store.management.create_queue(QUEUE, {"_done_retention": 60}, max_queues=9)
        record = some(await store.management.get_queue(QUEUE))
        await store.management.delete_queue(QUEUE, version=record.version)
        gone: Coroutine[Any, Any, object] = store.messages.purge(QUEUE, forget=True)
    else:
        ids = await store.post("old")
        await store.messages.delete(QUEUE, ids, claim_ids=None)
        gone = store.messages.sweep(1_000)
    await asyncio.gather(
        gone, store.management.create_queue(QUEUE, {"a": 1}, max_queues=9), store.post("new")
    )
    await store.restart()
    assert await store.bodies() == ["new"]
    assert some(await store.management.get_queue(QUEUE)).metadata == {"a": 1}


async def test_a_purge_takes_all_of_a_large_post_or_nothing(store: Store) -> None:
    posting = asyncio.create_task(store.post(*["x"] * 3_000))
    while (queue := store.db.queue(QUEUE)) is None or not queue.total:  # one of its parts
        await next_turn()
    await store.messages.purge(QUEUE)
    await posting
    assert await store.bodies() == []


async def test_a_drop_ends_while_others_post(store: Store) -> None:
    await store.management.create_queue(QUEUE, {}, max_queues=9)
    await store.post(*["before"] * 1_000)
    is_over = False

    async def produce() -> None:
        while not is_over:
            await store.post(*["meanwhile"] * 100)

    producers = [asyncio.create_task(produce()) for _ in range(8)]
    async with asyncio.timeout(30):
        await store.messages.purge(QUEUE, forget=True)
    assert await store.management.get_queue(QUEUE) is None
    is_over = True
    await asyncio.gather(*producers)
    await check_database(store.db)
    await store.messages.purge(QUEUE, forget=True)
    assert not await store.records(RecordType.ACTIVE)


async def test_a_history_is_paged_and_trimmed(store: Store) -> None:
    await store.management.create_queue(QUEUE, {"_done_retention": 60}, max_queues=9)
    await store.post(*["done"] * (PAGE_SIZE + 1))
    assert await store.acknowledge(limit=PAGE_SIZE) == PAGE_SIZE
    first = await store.messages.history(QUEUE, HistoryState.DONE, marker=None, limit=PAGE_SIZE)
    store.clock.advance(MINUTE)
    assert await store.acknowledge() == 1
    pages = await store.records(RecordType.DONE)
    assert [len(records.ENDED.decode(page)[0]) for page in pages.values()] == [PAGE_SIZE, 1]
    assert len(await store.records(RecordType.ATTEMPTS)) == PAGE_SIZE + 1
    await store.sweep()
    (consumers,) = (await store.records(RecordType.ATTEMPTS)).values()
    assert records.decode_attempts(consumers).consumers == ("worker",)
    await store.restart()
    (entry,) = await store.history(HistoryState.DONE)
    assert list(entry.consumers) == ["worker"]
    rest = await store.messages.history(QUEUE, HistoryState.DONE, marker=first.marker, limit=9)
    assert rest.entries == [entry]


async def test_an_id_of_another_store_stays_in_the_history(store: Store) -> None:
    await store.management.create_queue(QUEUE, {"_done_retention": 60}, max_queues=9)
    own_id, now = new_message_id(store.next_id + 2), store.clock.now_ms()
    message = Message(own_id, 0, b"1", HOUR, now, now + HOUR, now, None, 0, "producer")
    await store.messages.import_messages(QUEUE, [message], source="other", number=1)
    assert await store.acknowledge() == 1
    # One of these has the number with which that id begins.
    ids = await store.post("a", "b", "c", to=OTHER)
    await store.restart()
    assert [one.id for one in await store.all_messages(OTHER)] == ids
    await store.messages.purge(OTHER, forget=True)
    (entry,) = await store.history(HistoryState.DONE)
    assert (entry.id, list(entry.consumers)) == (own_id, ["worker"])
    store.clock.advance(MINUTE)
    await store.sweep()
    assert not await store.records(RecordType.ADOPTED)


async def test_what_was_imported_without_attempts_keeps_its_counts(store: Store) -> None:
    """And becomes a dead letter as all others do; nobody knows who held it last."""
    now, own_ids = store.clock.now_ms(), [new_message_id(store.next_id + n) for n in range(3)]
    messages = [
        Message(
            own_id, 0, b"1", HOUR, 0, now + HOUR * (10**6 if claims else 1), now, None, claims, "p",
            failure_count=failures,
        )
        for own_id, claims, failures in zip(own_ids, (3, 1, 0), (2, 0, 1), strict=True)
    ]  # fmt: skip
    await store.messages.import_messages(QUEUE, messages, source="other", number=1)
    for _ in range(2):
        await store.restart()
        found = await store.all_messages()
        assert [(one.claim_count, one.failure_count) for one in found] == [(3, 2), (1, 0), (0, 1)]
        await check_database(store.db)
    claimed = await store.claim(retries=RetryPolicy(DeadLetter(OTHER, 3)))
    assert [one.id for one in claimed.messages] == own_ids[1:]
    assert not await store.messages.delete(QUEUE, own_ids[1:], claim_ids=None)
    assert [one.id for one in await store.all_messages(OTHER)] == own_ids[:1]
    await store.messages.purge(OTHER)
    assert not await store.records(RecordType.ATTEMPTS)


async def test_a_claim_that_holds_nothing_goes_at_its_end(store: Store) -> None:
    """Earlier versions left such, and so does a page that is lost."""
    await store.post("waits")
    claim_id = new_claim_id()
    empty = records.ClaimRecord(store.clock.now_ms(), 10 * MINUTE, "worker", [])
    key = keys.queue_key(RecordType.CLAIM, RAW) + bytes.fromhex(claim_id)
    await store.put({key: records.encode_claim(empty)})
    with pytest.raises(NotFound):
        await store.messages.get_claim(QUEUE, claim_id)
    assert list(await store.records(RecordType.CLAIM)) == [key]
    store.clock.advance(11 * MINUTE)
    await store.restart()
    assert not await store.records(RecordType.CLAIM)


async def test_keys_of_earlier_versions_are_known_and_go_at_their_end(store: Store) -> None:
    """These had one record for the keys of a post, and no digest of what was posted."""
    first, second = await store.post("first", "second")
    numbers = [int(one[:16], 16) for one in (first, second)]
    prefix = keys.queue_key(RecordType.IDEMPOTENCY, RAW)
    until = store.clock.now_ms() + HOUR
    c, d, e, old = (bytes.fromhex(digest_of(text)) for text in ("c", "d", "e", "old"))
    await store.put({
        prefix + b"t" + bytes(8): bookkeeping.IDEMPOTENCY.encode(until, numbers, c + d),
        prefix + b"t" + b"e": bookkeeping.IDEMPOTENCY.encode(until, numbers[1:], e + bytes(16)),
        prefix + b"m" + old: bookkeeping.IDEMPOTENCY.encode(until, numbers[:1], b""),
    })  # fmt: skip
    texts = ("c", "d", "e", "old")
    new = [NewMessage(b"1", HOUR, 0, IdempotencyKey(key, b"x" * 16)) for key in texts]
    assert await store.post(*new) == [first, second, second, first]
    store.clock.advance(2 * HOUR)
    await store.sweep()
    assert not await store.records(RecordType.IDEMPOTENCY)


async def test_attempts_of_an_earlier_version_read_on(store: Store) -> None:
    """They tell who held a message, and nothing of how that ended."""
    (message_id,) = await store.post("a")
    claimed = await store.claim()
    await store.release(claimed)
    (key,) = await store.records(RecordType.ATTEMPTS)
    (attempt,) = await store.records(RecordType.ATTEMPT)
    await store.put({key: records.encode_attempts(records.Attempts(("worker",)))}, attempt)
    (message,) = await store.all_messages(details=True)
    assert (message.claim_count, message.failure_count, list(message.attempts)) == (1, 0, [])
    for there, back in ((QUEUE, OTHER), (OTHER, QUEUE)):  # where nobody knows who held it last
        moved = await store.messages.move(there, [message_id], Move(back, HOUR, reset=False))
        assert moved == [Outcome.DONE]
    again = await store.claim()
    failed = Settlement(message_id, Act.RELEASE, failed=True)
    done = await store.messages.settle(QUEUE, again.claim_id or "", [failed])
    assert done.outcomes == [Outcome.DONE]
    (message,) = await store.all_messages(details=True)
    assert [one.number for one in message.attempts] == [2]
    assert message.failure_count == 1


async def test_attempts_under_a_number_of_an_earlier_version_get_their_own(
    store: Store,
) -> None:
    (message_id,) = await store.post("a")
    for _ in range(2):
        claimed = await store.claim()
        await store.release(claimed)
    (key, value), *_ = (await store.records(RecordType.ATTEMPTS)).items()
    earlier = records.decode_attempts(value)._replace(history=77)
    moved = {
        keys.attempt_key(77, number): one
        for number, one in enumerate((await store.records(RecordType.ATTEMPT)).values(), 1)
    }
    await store.put(
        {key: records.encode_attempts(earlier), **moved}, *await store.records(RecordType.ATTEMPT)
    )
    claimed = await store.claim()
    await store.release(claimed)
    (message,) = await store.all_messages(details=True)
    assert [one.number for one in message.attempts] == [1, 2, 3]
    own = int(message_id[:16], 16)
    assert list(await store.records(RecordType.ATTEMPT)) == [
        keys.attempt_key(own, number) for number in (1, 2, 3)
    ]
    await store.messages.delete(QUEUE, [message_id], claim_ids=None)
    assert not await store.records(RecordType.ATTEMPT)


@pytest.mark.parametrize("error", [OSError, slatedb.InternalError])
async def test_an_acknowledgement_that_failed_is_not_taken_for_one_that_was_stored(
    store: Store, error: Callable[[str], Exception]
) -> None:
    """The tables are filled anew, so that another try is no try to delete what is not there."""
    (message_id,) = await store.post("a")
    fail = failing(error("planted"))
    with patch.object(store.db.engine, "_write", fail), pytest.raises(Unavailable):
        await store.messages.delete(QUEUE, [message_id], claim_ids=None)
    await until_available(lambda: store.post("b"))
    assert await store.bodies() == ["a", "b"]
    await store.messages.delete(QUEUE, [message_id], claim_ids=None)
    await store.restart()
    assert await store.bodies() == ["b"]


async def test_a_batch_that_failed_is_undone_and_the_store_goes_on(store: Store) -> None:
    """What is read of it meanwhile is refused, too."""
    (message_id,) = await store.post("stored")
    await store.management.put_record("kind", "p", "n", b"1", expected=0)
    reached = asyncio.Event()

    async def fail(_: Batch) -> None:
        reached.set()
        await asyncio.sleep(0.05)
        raise Unavailable("planted")

    with patch.object(store.db.engine, "commit", fail):
        tasks = [
            asyncio.create_task(work)
            for work in (
                store.post("refused"),
                store.messages.delete(QUEUE, [message_id], claim_ids=None),
                store.management.put_record("kind", "p", "n", b"2", expected=None),
            )
        ]
        await reached.wait()
        reader = asyncio.create_task(store.bodies())
        later = asyncio.create_task(store.post("refused as well"))
        results = await asyncio.gather(*tasks, reader, later, return_exceptions=True)
    assert all(isinstance(one, Unavailable) for one in results)
    await until_available(lambda: store.post("after"))
    assert await store.bodies() == ["stored", "after"]
    record = await store.management.get_record("kind", "p", "n")
    assert some(record).value == b"1"
    await check_database(store.db)
    await store.restart()
    assert await store.bodies() == ["stored", "after"]


async def test_tables_that_find_no_room_are_told_and_tried_again(store: Store) -> None:
    """As in a full directory for temporary files."""
    await store.post(*["x" * 1_000] * 100)
    make = store.db.place.open

    def make_small() -> apsw.Connection:
        connection = make()
        connection.pragma("max_page_count", 50)
        return connection

    await store.messages.close()
    with patch.object(store.db.place, "open", make_small):
        with pytest.raises(Unavailable, match=r"TMPDIR.*can't be filled: .*full"):
            await store.messages.open()
    await store.messages.open()
    assert (await store.messages.stats(QUEUE)).total == 100


async def test_a_value_that_no_record_holds_does_not_poison_what_comes_after(store: Store) -> None:
    metadata = {"colour": "\ud800"}
    with pytest.raises(Unavailable, match="can't write this"):
        await store.management.create_queue(OTHER, metadata, max_queues=9)
    assert await store.management.get_queue(OTHER) is None
    await store.post("after")
    assert await store.bodies() == ["after"]


@pytest.mark.parametrize(
    ("module", "name"), [(recorder, "encode_page"), (records, "encode_payload")]
)
async def test_a_batch_that_a_bug_undoes_leaves_the_next_one_recorded(
    store: Store, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    """Before the tables have committed it, or after that, when they are filled anew."""

    def fail(*_: object) -> bytes:
        monkeypatch.undo()
        raise RuntimeError("planted")

    monkeypatch.setattr(module, name, fail)
    with pytest.raises(Unavailable, match="can't write this"):
        await store.post("refused")
    await until_available(lambda: store.post("after"))
    await check_database(store.db)
    await store.restart()
    assert await store.bodies() == ["after"]


async def test_a_purge_deletes_in_bounded_batches(store: Store) -> None:
    await store.post(*["many"] * 1_000)
    commit, sizes = store.db.engine.commit, list[int]()

    async def watch(batch: Batch) -> None:
        sizes.append(len(batch.deletes))
        await commit(batch)

    with patch.object(store.db.engine, "commit", watch):
        await store.messages.purge(QUEUE)
        assert max(sizes) < 600
        await store.post("few")
        sizes.clear()
        await store.messages.purge(QUEUE)
        assert len(sizes) == 1
    assert not await store.records(RecordType.PAYLOAD)
    assert await store.bodies() == []


@contextlib.contextmanager
def watching(store: Store, name: str) -> Iterator[list[float]]:
    """How long each step of a method of the database kept the loop, in seconds of its thread.

    A busy machine takes no part in them, and neither does the garbage collector.
    """
    method, steps = getattr(store.db, name), list[float]()

    async def watch() -> object:
        task = asyncio.ensure_future(method())
        while not task.done():
            begun = time.thread_time()
            await asyncio.sleep(0)
            steps.append(time.thread_time() - begun)
        return await task

    gc.disable()
    try:
        with patch.object(store.db, name, watch):
            yield steps
    finally:
        gc.enable()


async def test_the_loop_runs_while_many_deletes_are_encoded(store: Store) -> None:
    ids = await store.post(*["many"] * 10_000)
    parts = [ids[start : start + 1_000] for start in range(0, len(ids), 1_000)]
    with watching(store, "_prepare") as steps:
        await asyncio.gather(
            *[store.messages.delete(QUEUE, part, claim_ids=None) for part in parts]
        )
    assert max(steps) < sum(steps) / 3


@pytest.mark.parametrize(("count", "size"), [(10_000, 4), (800, 60_000)])
async def test_the_loop_runs_while_a_store_is_opened_anew(
    store: Store, count: int, size: int
) -> None:
    for _ in range(8):
        await store.post(*["x" * size] * (count // 8))
    with watching(store, "_reopen_place") as steps:
        await fail_once(store)
    assert max(steps) < sum(steps) / 8
    assert (await store.messages.stats(QUEUE)).total == count + 1


async def fail_once(store: Store) -> None:
    """Let a commit of the engine fail, and post again until that is taken."""
    fail = failing(Unavailable("planted"))
    with patch.object(store.db.engine, "commit", fail), pytest.raises(Unavailable):
        await store.post("refused")
    await until_available(lambda: store.post("after"))

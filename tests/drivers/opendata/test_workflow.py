"""RFC 0001's workflow on the embedded store, looked at through its records."""

import asyncio

import pytest

from tests.drivers.opendata.profiles import decode_active, encode_metadata, read_config
from tests.drivers.opendata.store import HOUR, MINUTE, OTHER, QUEUE, THIRD, Store, texts
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.histories import HistoryState
from zaqar_lite.domain.models import DeadLetter, ListQuery, QueueRef, RetryPolicy, SweepResult
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.storage.opendata.checkpoint import GARBAGE_STEP
from zaqar_lite.storage.opendata.engine import Batch
from zaqar_lite.storage.opendata.format import keys, records
from zaqar_lite.storage.opendata.format.keys import RecordType

pytestmark = pytest.mark.anyio


async def test_a_new_queue_has_the_empty_records_of_the_rfc(store: Store) -> None:
    await store.management.create_queue(QUEUE, {}, max_queues=9)
    raw = b"project/queue"
    assert await store.records(RecordType.ACTIVE) == {
        keys.queue_key(RecordType.ACTIVE, raw): bytes(4)
    }
    for kind in (RecordType.DONE, RecordType.FAILED):
        assert await store.records(kind) == {keys.queue_key(kind, raw): bytes(2)}
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
    payload = (await store.records(RecordType.PAYLOAD))[
        keys.message_key(RecordType.PAYLOAD, number)
    ]
    assert payload == b"\x01\x07\x00" + b'"hello"'
    stored = await store.db.engine.get([store.db.log_key(number)])
    entry = stored[store.db.log_key(number)]
    assert isinstance(entry, bytes)
    metadata = records.decode_metadata(entry)
    assert metadata.retention_s == 3600
    assert dict(metadata.headers)["queue"] == "project/queue"


async def test_a_large_body_is_stored_raw(store: Store) -> None:
    text = "x" * 70_000
    await store.post(text)
    (payload,) = (await store.records(RecordType.PAYLOAD)).values()
    assert payload[:1] == b"\x03"
    await store.restart()
    assert texts(await store.claim()) == [text]


async def test_copies_share_one_payload_that_goes_with_the_last(store: Store) -> None:
    copies = tuple(Copy(ref, HOUR, 0, 100) for ref in (OTHER, THIRD))
    await store.post(NewMessage(b'"shared"', HOUR, copies=copies))
    assert len(await store.records(RecordType.PAYLOAD)) == 1
    for queue in (QUEUE, OTHER):
        assert await store.acknowledge(queue) == 1
        assert len(await store.records(RecordType.PAYLOAD)) == 1
    await store.restart()
    assert texts(await store.claim(queue=THIRD)) == ["shared"]
    await store.messages.purge(THIRD)
    assert not await store.records(RecordType.PAYLOAD)


async def test_messages_above_the_mark_are_routed_at_opening(store: Store) -> None:
    """Another writer published into the log and stopped before it had filled the queues."""
    await store.management.create_queue(OTHER, {"_filter": "kind = 'order'"}, max_queues=9)
    db = store.db
    message_id, now = db.ids.next + 5, db.clock.now_ms()
    metadata = records.Metadata(
        message_id, now, now, now, 3600, [("queue", "project/queue"), ("kind", "order")]
    )
    puts = {
        keys.message_key(RecordType.PAYLOAD, message_id): records.encode_payload(b'"replayed"'),
        db.log_key(message_id): encode_metadata(metadata),
    }
    await db.engine.commit(Batch(puts, ()))
    await store.restart()
    for queue in (QUEUE, OTHER):
        claimed = await store.claim(queue=queue)
        assert texts(claimed) == ["replayed"]
        assert claimed.messages[0].headers == {"kind": "order"}
    (newer,) = await store.post("newer")
    assert int(newer[:16], 16) > message_id


async def test_replayed_messages_come_as_the_service_would_have_routed_them(store: Store) -> None:
    """Each queue gives its own priority; a receiver its own ttl and delay, else the log's."""
    create = store.management.create_queue
    await create(QUEUE, {"_priority": "RULES(kind = 'order' -> 7)"}, max_queues=9)
    await create(
        OTHER,
        {
            "_filter": "queue = 'queue' AND kind = 'order'",
            "_priority": "RULES(queue = 'queue' -> HEADER, DEFAULT 9)",
            "_default_message_ttl": 60,
            "_default_message_delay": 10,
        },
        max_queues=9,
    )
    await create(THIRD, {"_filter": "queue LIKE 'que%'"}, max_queues=9)
    db = store.db
    message_id, now = db.ids.next + 5, db.clock.now_ms()
    headers = [("queue", "project/queue"), ("kind", "order"), ("priority", "3"), ("queue", "x")]
    metadata = records.Metadata(message_id, now, now, now + 5_000, 3600, headers)
    puts = {
        keys.message_key(RecordType.PAYLOAD, message_id): records.encode_payload(b'"replayed"'),
        db.log_key(message_id): encode_metadata(metadata),
    }
    await db.engine.commit(Batch(puts, ()))
    await store.restart()
    found = {}
    for ref in (QUEUE, OTHER, THIRD):
        queue = store.db.queues.get(ref)
        assert queue is not None
        entry = queue.find(message_id)
        assert entry is not None
        found[ref] = (entry.priority, entry.ttl_ms, entry.visible_at - now if entry.delayed else 0)
    assert found == {
        QUEUE: (7, 3_600_000, 5_000), OTHER: (3, 60_000, 10_000), THIRD: (100, 3_600_000, 0),
    }  # fmt: skip
    assert store.db.shared == {message_id: 3}


async def test_done_messages_are_kept_for_their_retention(store: Store) -> None:
    await store.management.create_queue(QUEUE, {"_done_retention": 60}, max_queues=9)
    first = await store.post("first")
    claimed = await store.claim(client="gave-up")
    await store.messages.release(QUEUE, claimed.claim_id or "")
    await store.acknowledge(client="succeeded")
    await store.restart()
    (entry,) = await store.history(HistoryState.DONE)
    assert (entry.id, entry.attempts) == (first[0], 2)
    assert list(entry.consumers) == ["gave-up", "succeeded"]
    store.clock.advance(61_000)
    assert await store.history(HistoryState.DONE) == []
    await store.sweep()
    assert not await store.records(RecordType.ATTEMPTS)
    assert set((await store.records(RecordType.DONE)).values()) == {bytes(2)}


async def test_a_long_history_is_paged_and_trimmed(store: Store) -> None:
    await store.management.create_queue(QUEUE, {"_done_retention": 600}, max_queues=9)
    ids = []
    for _ in range(30):
        ids += await store.post(*["done"] * 20)
        await store.acknowledge()
    store.clock.advance(500_000)
    late = await store.post("late")
    await store.acknowledge()
    assert [entry.id for entry in await store.history(HistoryState.DONE, 7)] == [*ids, *late]
    await store.restart()
    assert [entry.id for entry in await store.history(HistoryState.DONE)] == [*ids, *late]
    store.clock.advance(200_000)
    assert [entry.id for entry in await store.history(HistoryState.DONE)] == late
    await store.sweep()
    assert [entry.id for entry in await store.history(HistoryState.DONE)] == late
    assert len(await store.records(RecordType.DONE)) == 2


async def test_nothing_is_kept_where_no_retention_is_set(store: Store) -> None:
    await store.management.create_queue(QUEUE, {}, max_queues=9)
    await store.post("gone")
    await store.acknowledge()
    assert await store.history(HistoryState.DONE) == []
    assert not await store.records(RecordType.ATTEMPTS)


async def sweep_by(store: Store, letters: DeadLetter) -> SweepResult:
    """Sweep with this policy for every queue."""

    async def retries_of(_: QueueRef) -> RetryPolicy:
        return RetryPolicy(letters)

    return await store.messages.sweep(100, retries_of)


@pytest.mark.parametrize("by", ["claim", "sweep"])
async def test_an_exhausted_message_goes_at_the_next_claim_or_sweep(store: Store, by: str) -> None:
    await store.management.create_queue(
        QUEUE, {"_max_claim_count": 1, "_failed_retention": 0}, max_queues=9
    )
    (message_id,) = await store.post("poison")
    await store.claim(client="first")
    store.clock.advance(2 * MINUTE)
    if by == "claim":
        assert not (await store.claim(letters=DeadLetter(None, 1, 0))).messages
    else:
        assert (await sweep_by(store, DeadLetter(None, 1, 0))).moved == 1
    (entry,) = await store.history(HistoryState.FAILED)
    assert (entry.id, entry.attempts, list(entry.consumers)) == (message_id, 1, ["first"])
    assert (await store.messages.stats(QUEUE)).total == 0


async def test_a_sweep_moves_exhausted_messages_to_the_dead_letter_queue(store: Store) -> None:
    """One whose last lease lapsed; one that was released waits for the next claim."""
    await store.post("poison")
    released = await store.claim(client="before")
    await store.messages.release(QUEUE, released.claim_id or "")
    assert (await sweep_by(store, DeadLetter(OTHER, 1))).moved == 0
    claimed = await store.claim(client="first")
    store.clock.advance(2 * MINUTE)
    assert (await sweep_by(store, DeadLetter(OTHER, 1))).letters_in == {OTHER}
    letter = (await store.claim(queue=OTHER)).messages[0]
    assert letter.origin is not None
    assert (letter.origin.source, letter.origin.last_client_id) == ("queue", "first")
    assert letter.origin.last_claim_id == claimed.claim_id


async def test_a_purge_of_many_messages_is_deleted_in_steps_that_survive_a_crash(
    store: Store,
) -> None:
    for _ in range(3):
        await store.post(*["many"] * 1_000)
    await store.messages.purge(QUEUE)
    assert 0 <= len(await store.records(RecordType.GARBAGE)) - 3_000 // GARBAGE_STEP <= 2
    assert len(await store.records(RecordType.PAYLOAD)) == 3_000
    assert (await store.messages.sweep(1_000)).deleted == 1_000
    assert len(await store.records(RecordType.PAYLOAD)) == 2_000
    await store.restart()
    assert (await store.messages.stats(QUEUE)).total == 0
    await store.sweep()
    assert not await store.records(RecordType.PAYLOAD)
    assert not await store.records(RecordType.GARBAGE)


async def test_stragglers_do_not_keep_a_page_each(store: Store) -> None:
    kept = []
    for _ in range(30):
        ids = await store.post(*["many"] * 256)
        await store.messages.delete(QUEUE, ids[1:], claim_ids=None)
        kept += ids[:1]
    assert len(await store.records(RecordType.ACTIVE)) > 10
    await store.sweep()
    assert len(await store.records(RecordType.ACTIVE)) < 5
    page = await store.messages.list_messages(QUEUE, ListQuery(limit=100))
    assert [message.id for message in page.messages] == kept


async def examined(store: Store, ready: int, delayed: int) -> int:
    """How many entries a claim of twenty looks at."""
    for count, delay in ((delayed, HOUR // 2), (ready, 0)):
        for start in range(0, count, 1_000):
            new = [NewMessage(b'"x"', HOUR, delay)] * min(1_000, count - start)
            await store.messages.post(QUEUE, new, client_id="p", version=None)
    before = store.messages.examined
    assert len((await store.claim(20)).messages) == 20
    return store.messages.examined - before


@pytest.mark.parametrize(("ready", "delayed"), [(20_000, 0), (1_000, 20_000)])
async def test_a_claim_looks_at_what_it_hands_out(store: Store, ready: int, delayed: int) -> None:
    assert await examined(store, ready, delayed) == 20


async def test_a_caller_that_goes_away_hurts_nobody(store: Store) -> None:
    gone = asyncio.create_task(store.post("gone"))
    stays = asyncio.create_task(store.post("stays"))
    await asyncio.sleep(0)
    gone.cancel()
    await stays
    assert texts(await store.claim()) == ["gone", "stays"]


async def test_a_failed_batch_leaves_nothing_in_memory(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything applied since the last good batch is undone: records, claims and counts."""
    await store.management.create_queue(QUEUE, {"a": 1}, max_queues=9)
    await store.post("kept")
    commit = store.db.engine.commit

    async def fail(_: Batch) -> None:
        raise Unavailable("planted")

    monkeypatch.setattr(store.db.engine, "commit", fail)
    outcomes = await asyncio.gather(
        store.post("lost"),
        store.claim(),
        store.management.create_queue(OTHER, {}, max_queues=9),
        return_exceptions=True,
    )
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
    with pytest.raises(Unavailable, match="planted"):
        await store.post("refused")
    monkeypatch.setattr(store.db.engine, "commit", commit)
    assert await store.management.get_queue(OTHER) is None
    stats = await store.messages.stats(QUEUE)
    assert (stats.ready, stats.claimed) == (1, 0)
    await asyncio.sleep(1.1)
    await store.post("later")
    assert texts(await store.claim()) == ["kept", "later"]


async def test_what_a_reader_sees_is_durable(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = store.db.engine.commit
    release = asyncio.Event()

    async def slow(batch: Batch) -> None:
        await release.wait()
        await commit(batch)

    monkeypatch.setattr(store.db.engine, "commit", slow)
    posting = asyncio.create_task(store.post("slow"))
    await asyncio.sleep(0.02)
    reading = asyncio.create_task(store.messages.list_messages(QUEUE, ListQuery(limit=10)))
    await asyncio.sleep(0.02)
    assert not reading.done()
    release.set()
    await posting
    assert texts(list((await reading).messages)) == ["slow"]

"""What another writer of the RFC's format put into the store, and what it reads there of ours."""

import asyncio
import logging
from collections.abc import Iterable

import pytest

from tests.contract.subject import some
from tests.drivers.opendata.rfc import (
    Config,
    encode_active,
    encode_config,
    encode_metadata,
    encode_uri,
    merged_pages,
    read_config,
)
from tests.drivers.opendata.store import Store
from tests.drivers.store import HOUR, OTHER, QUEUE, texts
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.domain.models import HistoryState, QueueRef
from zaqar_lite.storage.opendata import database
from zaqar_lite.storage.opendata.engine import Batch
from zaqar_lite.storage.opendata.format import array, bookkeeping, keys, records
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.format.records import decode_attempts
from zaqar_lite.storage.opendata.slatedb import SlateDbEngine

pytestmark = pytest.mark.anyio
ELSEWHERE = QueueRef("elsewhere", "queue")
ORDER = ("kind", "order")
OWN = [("queue", "project/queue")]


def logged(
    store: Store,
    number: int,
    headers: list[tuple[str, str]],
    payload: bytes,
    *,
    retention_s: int = 60,
    received: int | None = None,
) -> dict[bytes, bytes]:
    """The records of a message that another program writes into the log."""
    at = store.clock.now_ms() if received is None else received
    metadata = records.Metadata(number, at, at, at, retention_s, headers)
    return {
        keys.message_key(RecordType.PAYLOAD, number): payload,
        store.log_key(number): encode_metadata(metadata),
    }


async def publish(
    store: Store,
    *headers: list[tuple[str, str]],
    retention_s: int = 3600,
    payload: bytes | None = None,
) -> list[int]:
    """Write messages into the log as another program does, and start the server again."""
    first = store.next_id + 5
    puts: dict[bytes, bytes] = {}
    for number, own in enumerate(headers, first):
        body = payload or records.encode_payload(b'"message %d"' % (number - first))
        puts |= logged(store, number, own, body, retention_s=retention_s)
    await store.put(puts)
    return list(range(first, first + len(headers)))


async def test_filters_are_asked_of_a_message_that_names_no_queue(store: Store) -> None:
    """As the RFC has it: whoever's filter matches receives it, and it is stored once."""
    everyone, named = "kind = 'order'", "queue = 'queue'"
    for ref, text in ((QUEUE, everyone), (ELSEWHERE, everyone), (OTHER, named)):
        await store.management.create_queue(ref, {"_filter": text}, max_queues=9)
    (number,) = await publish(store, [ORDER])
    assert store.db.execute("SELECT * FROM body").fetchall() == [(number, 2, b'"message 0"')]
    assert [await store.bodies(ref) for ref in (QUEUE, ELSEWHERE, OTHER)] == [
        ["message 0"], ["message 0"], [],
    ]  # fmt: skip
    assert await store.acknowledge() == 1
    assert len(await store.records(RecordType.PAYLOAD)) == 1
    assert texts(await store.claim(queue=ELSEWHERE)) == ["message 0"]
    await publish(store, [ORDER, *OWN])  # for the filters of its project
    assert [await store.bodies(ref) for ref in (QUEUE, ELSEWHERE, OTHER)] == [
        ["message 0"], ["message 0"], ["message 0"],
    ]  # fmt: skip


async def test_a_ttl_may_count_from_the_end_of_the_delay(store: Store) -> None:
    metadata = {
        "_filter": "kind = 'order'", "_default_message_ttl": 60, "_default_message_delay": 120,
        "_ttl_after_delay": True,
    }  # fmt: skip
    await store.management.create_queue(QUEUE, metadata, max_queues=9)
    await publish(store, [ORDER])
    (message,) = await store.all_messages()
    assert message.ttl_ms == 180_000
    store.clock.advance(121_000)
    assert texts(await store.claim()) == ["message 0"]


async def test_the_queue_s_header_may_stand_anywhere(store: Store) -> None:
    await publish(store, [ORDER, ("sys.client", "foreign"), ("queue", "project/queue")])
    (message,) = (await store.claim()).messages
    assert (message.headers, message.client_id) == ({"kind": "order"}, "foreign")


async def test_what_is_to_be_kept_for_ever_is_there_after_a_restart(store: Store) -> None:
    await publish(store, OWN, retention_s=0)
    claimed = await store.claim()
    assert texts(claimed) == ["message 0"]
    await store.release(claimed)
    await store.restart()
    assert await store.bodies(QUEUE) == ["message 0"]


async def test_what_no_queue_receives_ends_with_its_retention(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await publish(store, [ORDER], [("queue", "no-project"), ORDER], OWN, retention_s=60)
    kept = await publish(store, [("kind", "forever")], retention_s=0)
    assert "routed 1 of 3 messages" in caplog.text
    assert len(await store.records(RecordType.PAYLOAD)) == 4
    await store.sweep()
    await store.restart()
    assert len(await store.records(RecordType.PAYLOAD)) == 4
    store.clock.advance(61_000)
    await store.sweep()
    assert list(await store.records(RecordType.PAYLOAD)) == [
        keys.message_key(RecordType.PAYLOAD, kept[0])
    ]


async def test_many_end_in_steps(store: Store) -> None:
    await publish(store, *[[ORDER]] * 300, retention_s=60)
    store.clock.advance(61_000)
    assert (await store.messages.sweep(1_000)).deleted == 300
    assert not await store.records(RecordType.PAYLOAD)
    assert not await store.records(RecordType.UNROUTED)


@pytest.mark.parametrize("hangs", [False, True])
async def test_what_a_start_has_not_routed_the_next_one_does(
    store: Store, monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    """A start may end before what it has routed is stored."""

    async def fail(_: SlateDbEngine, __: Batch) -> None:
        monkeypatch.undo()
        if hangs:
            await asyncio.sleep(60)
        raise Unavailable("planted")

    monkeypatch.setattr(SlateDbEngine, "commit", fail)
    if hangs:
        monkeypatch.setattr(database, "_PATIENCE", 0.01)
    with pytest.raises(Unavailable, match=r"planted|what the start has to write"):
        await publish(store, *[OWN] * 2_500)
    store._make()
    await store.messages.open()
    assert await store.bodies() == [f"message {number}" for number in range(2_500)]


@pytest.mark.parametrize("metadata", ["[]", "1", "[" * 100_000, "{"])
async def test_metadata_that_is_no_object_refuses_the_store(store: Store, metadata: str) -> None:
    await store.management.create_queue(QUEUE, {}, max_queues=9)
    ((key, value),) = (await store.records(RecordType.CONFIG)).items()
    pieces = [metadata[at : at + 16_000] for at in range(0, len(metadata), 16_000)]
    config = read_config(value)._replace(extensions=[("x-metadata", piece) for piece in pieces])
    with pytest.raises(
        ConfigurationError, match=r"config of queue 'project/queue'.*is kept as it is"
    ):
        await store.put({key: encode_config(config)})


async def test_each_segment_of_the_log_is_routed(store: Store) -> None:
    """Another writer went on in a segment of its own."""
    first = store.next_id + 5
    await store.put(
        {
            keys.log_segment_key(2): bookkeeping.SEGMENT.encode(first + 1, store.clock.now_ms()),
            keys.log_listing_key(2): b"",
            **logged(store, first, OWN, records.encode_payload(b'"sealed"')),
        }
    )
    assert store.log_key(first + 2).startswith(keys.log_prefix(2))
    assert await store.bodies() == ["sealed"]
    await store.post("next")
    await store.restart()
    assert await store.bodies() == ["sealed", "next"]
    assert await store.acknowledge() == 2


NO_JSON = (b"\xff", b"no json", b"[NaN]", '"a"'.encode("utf-16"), b"\xef\xbb\xbf1")


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (encode_uri("s3://bucket/key", 7), "s3://bucket/key"),
        *((records.encode_payload(body), "the payload is no JSON") for body in NO_JSON),
    ],
)
async def test_a_payload_that_can_not_be_served_is_refused_by_name_and_goes(
    store: Store, caplog: pytest.LogCaptureFixture, payload: bytes, why: str
) -> None:
    (number,) = await publish(store, OWN, retention_s=60, payload=payload)
    assert f"message {number} of the metadata log is refused: " in caplog.text
    assert why in caplog.text
    assert (await store.messages.stats(QUEUE)).total == 0
    store.clock.advance(61_000)
    await store.sweep()
    assert not await store.records(RecordType.PAYLOAD)


async def test_queues_of_another_writer_are_named_and_left(store: Store) -> None:
    """Their ids may be no `project/name`, and the RFC's attempts are of no queue."""
    (own,) = await store.post("own")
    number = int(own[:16], 16)
    foreign = {
        keys.queue_key(RecordType.CONFIG, b"orders"): encode_config(Config(b"", 3, 0)),
        keys.queue_key(RecordType.ACTIVE, b"orders"): encode_active([(number, 1, 0, 0, 0)]),
        keys.message_key(RecordType.ATTEMPTS, number): array(records.CONSUMER).encode(["a"]),
    }
    await store.put(foreign)
    assert len(store.db.damages) == 2
    assert all("queue id without a project" in damage for damage in store.db.damages)
    assert await store.bodies() == ["own"]
    for key, value in foreign.items():
        assert await store.db.engine.get(key) == value
    await store.put({}, *foreign)


@pytest.mark.parametrize(("done", "count"), [(8, 9), (20, 2), (80, 2), (80, 9)])
async def test_what_is_in_a_long_page_is_nowhere_else(store: Store, done: int, count: int) -> None:
    """The RFC has one page of a queue, and 0.2.0 had pages of up to 128 messages."""
    await store.management.create_queue(QUEUE, {"_done_retention": 60}, max_queues=9)
    ids = await store.post(*map(str, range(101)))
    early = done // 8
    for number in (early, done - early):
        assert await store.acknowledge(limit=number) == number
        store.clock.advance(25_000)
    for kind in (RecordType.ACTIVE, RecordType.DONE):
        pages = await store.records(kind)
        first, *second = list(pages)[:count]
        merged = merged_pages(kind, {key: pages[key] for key in (first, *second)})
        await store.put({first: merged}, *second)
    assert await store.bodies() == texts_of(range(done, 101))
    assert not await store.messages.delete(QUEUE, [ids[-1]], claim_ids=None)
    claimed = await store.claim(10)
    await store.restart()
    assert await store.bodies() == texts_of(range(done, 100))
    assert not store.db.execute("SELECT * FROM aside").fetchall()
    assert texts(claimed) == texts_of(range(done, done + 10))
    assert texts(await store.claim(100)) == texts_of(range(done + 10, 100))
    assert await store.acknowledge(queue=OTHER) == 0
    assert [entry.id for entry in await store.history(HistoryState.DONE)] == ids[:done]
    store.clock.advance(20_000)
    await store.sweep()
    await store.restart()
    assert [entry.id for entry in await store.history(HistoryState.DONE)] == ids[early:done]


def texts_of(numbers: Iterable[int]) -> list[str]:
    return list(map(str, numbers))


async def test_what_is_in_two_pages_is_there_once(store: Store) -> None:
    await store.post("a", "b")
    ((root, page),) = (await store.records(RecordType.ACTIVE)).items()
    await store.post("c")
    longer = (await store.records(RecordType.ACTIVE))[root]
    await store.put({root: page, keys.queue_key(RecordType.ACTIVE, b"project/queue", 7): longer})
    assert await store.bodies() == ["a", "b", "c"]
    assert await store.records(RecordType.ACTIVE) == {root: longer}


async def test_payloads_of_no_message_are_named_and_left(store: Store) -> None:
    """One has no number, one has more, and another one is before the log."""
    (own,) = await store.post("own")
    short = keys.PAYLOAD_PREFIX + b"short"
    longer = keys.PAYLOAD_PREFIX + bytes.fromhex(own[:16]) + b"x"
    early = keys.message_key(RecordType.PAYLOAD, 7)
    await store.put(dict.fromkeys((short, longer, early), b"\x031"))
    for key, damage in zip((longer, short), store.db.damages, strict=True):
        assert key.hex() in damage
    assert await store.post("next")
    assert await store.bodies() == ["own", "next"]
    await store.put({}, short, longer, early)


@pytest.mark.parametrize("received", [-(2**63), -1, 2**63 - 1])
async def test_an_instant_that_no_clock_shows_stops_no_start(store: Store, received: int) -> None:
    for own in ([ORDER], OWN):
        number, payload = store.next_id + 5, records.encode_payload(b"1")
        await store.put(logged(store, number, own, payload, received=received))
    assert await store.post("next")
    await store.sweep()
    await store.restart()


async def test_an_entry_that_is_not_at_its_message_s_place_is_named(store: Store) -> None:
    number = store.next_id + 5
    entry = logged(store, number, OWN, b"")[store.log_key(number)]
    await store.put({store.log_key(number + 1): entry})
    (damage,) = store.db.damages
    assert f"message {number}" in damage
    assert (await store.messages.stats(QUEUE)).total == 0
    await store.put({}, store.log_key(number + 1))


@pytest.mark.parametrize(
    ("metadata", "retention"),
    [({}, 1), ({"_done_retention": 0}, 0), ({"_done_retention": 60}, 60)],
)
async def test_no_history_and_for_ever_differ_in_the_configuration(
    store: Store, metadata: dict[str, int], retention: int
) -> None:
    """0 is for ever, as the RFC says; none is the shortest that its field can say."""
    await store.management.create_queue(QUEUE, metadata, max_queues=9)
    ((key, value),) = (await store.records(RecordType.CONFIG)).items()
    ours = read_config(value)
    assert ours.done_retention_s == retention
    earlier = ours._replace(done_retention_s=metadata.get("_done_retention", 0))
    for config in (earlier, ours._replace(extensions=())):  # of ours before, and of others
        await store.put({key: encode_config(config)})
        record = await store.management.get_queue(QUEUE)
        assert some(record).metadata == metadata


async def consumers(store: Store) -> list[list[str]]:
    """Who held each message, by a reader that knows only the RFC's record of attempts."""
    values = (await store.records(RecordType.ATTEMPTS)).values()
    return [list(array(records.CONSUMER).read(value, 0)[0]) for value in values]


async def test_who_holds_a_message_now_is_in_the_rfc_s_attempts(store: Store) -> None:
    ids = await store.post("first", "second")
    await store.claim(1, client="before")
    store.clock.advance(HOUR // 10)
    claimed = await store.claim(client="now")
    assert await consumers(store) == [["before", "now"], ["now"]]
    values = (await store.records(RecordType.ATTEMPTS)).values()
    assert [decode_attempts(value).consumers for value in values] == [("before",), ()]
    await store.restart()
    held = await store.messages.get_claim(QUEUE, claimed.claim_id or "", details=True)
    assert [[one.client_id for one in m.attempts] for m in held.messages] == [["before"], []]
    await store.release(claimed)
    assert await consumers(store) == [["before", "now"], ["now"]]
    await store.claim(client="last")
    await store.restart()
    assert [held_by[-1] for held_by in await consumers(store)] == ["last", "last"]
    await store.messages.delete(QUEUE, ids, claim_ids=None)
    assert not await store.records(RecordType.ATTEMPTS)

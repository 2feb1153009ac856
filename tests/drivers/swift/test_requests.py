"""What operations cost, in requests that a proxy in front of Swift has seen."""

import asyncio
from urllib.parse import parse_qs

import pytest

from tests.contract.subject import (
    MINUTE,
    QueueUnderTest,
    ids,
    texts,
)
from tests.drivers.costs import costs
from tests.drivers.swift.conftest import a_queue
from tests.drivers.swift.faulty_proxy import FaultyProxy
from tests.drivers.swift.together import OpenSwift
from zaqar_lite.domain.errors import LimitReached, QueueChanged
from zaqar_lite.domain.models import DelayMode, QueueRecord, StoreOptions
from zaqar_lite.service.metrics import queue_depths as census
from zaqar_lite.service.metrics.shared_counters import SharedCounters
from zaqar_lite.storage.swift import claiming, objects, sweeping

pytestmark = pytest.mark.anyio


async def warm(queue: QueueUnderTest, proxy: FaultyProxy) -> None:
    """The first post of a process reads where the queue ends."""
    await queue.delete(*await queue.post("first"))
    proxy.kinds()


async def test_what_each_operation_takes(queue: QueueUnderTest, proxy: FaultyProxy) -> None:
    """Attempts are read only by who asks, and only where there are some."""

    def taken() -> str:
        kinds = proxy.kinds().items()
        return ", ".join(sorted(f"{count} {kind.removesuffix(' object')}" for kind, count in kinds))

    assert await costs(queue, taken) == {
        "post of one": "1 PUT",
        "post": "20 PUT",
        "page": "1 LIST, 20 GET",
        "get": "20 GET",
        "get with attempts": "20 GET",
        "stats": "1 LIST, 2 GET",
        "claim": "1 LIST, 1 PUT, 20 GET, 20 POST",
        "get_claim": "21 GET",
        "renew": "1 GET, 20 HEAD, 21 POST",
        "release": "1 DELETE, 1 GET, 20 HEAD, 20 POST, 20 PUT",
        "second claim": "1 LIST, 1 PUT, 20 GET, 20 POST",
        "get with an attempt each": "40 GET",
        "delete by a claim": "20 HEAD, 41 DELETE",  # the messages, their attempts, the claim
        "delete of one": "1 DELETE",
        "post with keys": "1 POST, 21 GET, 42 PUT",  # the intent is written, and done
        "the same post again": "21 GET",
        "pop": "1 LIST, 20 DELETE, 20 GET",
        "edit of a ttl": "1 GET, 1 POST",
        "edit of a body": "1 GET, 1 PUT",
        "claim of what is due": "1 LIST, 1 PUT, 20 GET, 20 POST",
        "acknowledge ten": "10 DELETE, 10 HEAD",
        "extend five": "1 GET, 5 HEAD, 6 POST",
        "fail ten": "1 DELETE, 10 HEAD, 10 POST, 10 PUT",
        "claim of ten that lapsed": "1 LIST, 10 POST, 11 PUT, 20 GET",
        "purge": "1 LIST, 1 POST",
    }


@pytest.mark.parametrize(("each", "pages"), [(3, 2), (13, 5)])
async def test_what_is_not_ready_costs_listing_pages_alone(
    open_swift: OpenSwift,
    proxy: FaultyProxy,
    monkeypatch: pytest.MonkeyPatch,
    each: int,
    pages: int,
) -> None:
    """Before the two ready messages are `each` that are delayed, claimed and expired."""
    monkeypatch.setattr(objects, "PAGE", 10)
    queue = a_queue(await open_swift(proxy.url))
    await queue.post(*map(str, range(each)), delay=30 * MINUTE)
    await queue.post(*map(str, range(each)))
    await queue.claim(each)
    await queue.post(*map(str, range(each)), ttl=MINUTE)
    queue.advance(2 * MINUTE)
    await warm(queue, proxy)
    await queue.post("a", "b")
    assert proxy.kinds() == {"PUT object": 2}
    assert await queue.counts() == (2, each, each)
    assert proxy.kinds() == {"LIST": pages, "GET object": 2}
    assert texts((await queue.page(limit=2, claimed=False, delayed=False)).messages) == ["a", "b"]
    assert proxy.kinds() == {"LIST": pages, "GET object": 2}
    claimed = await queue.claim(2, mode=DelayMode.HONOUR)
    assert texts(claimed.messages) == ["a", "b"]
    assert proxy.kinds() == {"LIST": pages, "GET object": 2, "POST object": 2, "PUT object": 1}
    await queue.renew(claimed.claim_id or "")
    assert proxy.kinds() == {"GET object": 1, "HEAD object": 2, "POST object": 3}
    await queue.delete(*ids(claimed.messages), claims=[claimed.claim_id or ""])
    assert proxy.kinds() == {"HEAD object": 2, "DELETE object": 2 + 1}
    assert (await queue.claim(2, mode=DelayMode.HONOUR)).claim_id is None
    assert proxy.kinds() == {"LIST": pages - 1}


async def test_sharing_the_store_costs_one_small_read(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str
) -> None:
    """The tail, which another process may have changed: it tells the record's version too."""
    stores = await open_swift(proxy.url, coordination_url=locks)
    queue = a_queue(stores)
    record, _ = await stores.management.create_queue(queue.ref, {}, max_queues=10)
    await queue.post("first", version=record.version)
    proxy.kinds()
    await queue.post(*map(str, range(4)), version=record.version)
    assert proxy.kinds() == {"PUT object": 4, "HEAD object": 1, "POST object": 1}
    claim_id = (await queue.claim(5, version=record.version)).claim_id or ""
    assert proxy.kinds() == {
        "LIST": 1,
        "HEAD object": 1,  # the tail: a crashed post is finished first
        "GET object": 5,
        "POST object": 5,
        "PUT object": 1,
    }
    await queue.page(limit=5, version=record.version)
    assert proxy.kinds() == {"LIST": 1, "HEAD object": 1, "GET object": 5}
    held = ids((await queue.get_claim(claim_id)).messages)
    assert proxy.kinds() == {"HEAD object": 1, "GET object": 1 + 5}
    await queue.delete(*held[1:], claims=[claim_id])
    assert proxy.kinds() == {"HEAD object": 1 + 4, "DELETE object": 4}
    await queue.delete(held[0])
    assert proxy.kinds() == {"HEAD object": 1, "DELETE object": 1}


async def test_a_changed_record_is_read_once_more(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str
) -> None:
    """Where a crash left the tail without the record's version, the record decides."""
    stores = await open_swift(proxy.url, coordination_url=locks, options="&timeout=1&patience=0.2")
    queue = a_queue(stores)
    record, _ = await stores.management.create_queue(queue.ref, {}, max_queues=10)
    await queue.post("a", version=record.version)
    proxy.fault("POST", "/l/tail", skip=1, status=503, times=9)
    changed = await stores.management.update_queue(QueueRecord(queue.ref, {"k": 1}, record.version))
    proxy.heal()
    with pytest.raises(QueueChanged):
        await queue.post("b", version=record.version)
    proxy.kinds()
    await queue.post("b", version=changed.version)
    assert proxy.kinds() == {"PUT object": 1, "HEAD object": 1, "GET object": 1, "POST object": 1}
    await queue.post("c", version=changed.version)
    assert proxy.kinds() == {"PUT object": 1, "HEAD object": 1, "POST object": 1}
    with pytest.raises(QueueChanged):
        await queue.post("d", version=record.version)


def limits(proxy: FaultyProxy) -> list[int]:
    """The lengths of the pages that were asked for since the last time."""
    found = [parse_qs(seen.query) for seen in proxy.seen if seen.kind == "LIST"]
    proxy.kinds()
    return [int(query["limit"][0]) for query in found if "limit" in query]


async def test_pages_grow_by_four(queue: QueueUnderTest, proxy: FaultyProxy) -> None:
    await queue.post(*map(str, range(90)), delay=30 * MINUTE)
    assert proxy.kinds()["PUT container"] == 1  # before all messages
    await queue.post("ready")
    limits(proxy)
    assert texts((await queue.claim(1, mode=DelayMode.HONOUR)).messages) == ["ready"]
    assert limits(proxy) == [21, 84]


async def test_a_claim_goes_on_where_the_last_one_ended(
    queue: QueueUnderTest, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim examines so much and no more; what it passed over is due at a known instant."""
    monkeypatch.setattr(claiming, "MOST_EXAMINED", 20)
    await queue.post(*map(str, range(60)), delay=30 * MINUTE)
    await queue.post("ready")
    limits(proxy)
    for _ in range(2):
        claimed = await queue.claim(1, mode=DelayMode.HONOUR)
        assert (claimed.claim_id, claimed.more) == (None, True)
    claimed = await queue.claim(1, mode=DelayMode.HONOUR)
    assert texts(claimed.messages) == ["ready"]
    assert limits(proxy) == [21, 21, 21]
    await queue.release(claimed.claim_id or "")
    queue.advance(31 * MINUTE)
    assert texts((await queue.claim(1, mode=DelayMode.HONOUR)).messages) == ["0"]
    assert limits(proxy) == [21]


async def test_what_a_claim_was_given_comes_back_though_it_ended_early(
    queue: QueueUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "MOST_EXAMINED", 20)
    await queue.post("a")
    await queue.post(*map(str, range(30)), delay=30 * MINUTE)
    for _ in range(2):
        claimed = await queue.claim(5, ttl=MINUTE, mode=DelayMode.HONOUR)
        assert (texts(claimed.messages), claimed.more) == (["a"], True)
        queue.advance(2 * MINUTE)


async def test_a_full_queue_is_known_to_be_full_without_counting(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    backend = queue.stores.messages._connection  # type: ignore[attr-defined]
    backend.limits = StoreOptions(max_messages=3)
    await queue.post("a", "b")
    proxy.kinds()
    for expected in ({"HEAD container": 1, "LIST": 1}, {}):
        with pytest.raises(LimitReached):
            await queue.post("c", "d")
        assert proxy.kinds() == expected
    await queue.post("c")


async def test_claims_come_to_the_end_of_what_is_not_ready_however_long_that_takes(
    open_swift: OpenSwift, locks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others may have released some of it, too; that is found after the end was seen."""
    monkeypatch.setattr(claiming, "MOST_EXAMINED", 20)
    queue = a_queue(await open_swift(coordination_url=locks))
    delayed = await queue.post(*map(str, range(160)), delay=30 * MINUTE)
    await queue.post("ready")
    found: list[str] = []
    for _ in range(10):
        found += texts((await queue.claim(1, mode=DelayMode.HONOUR)).messages)
        queue.advance(3_000)
    assert found == ["ready"]
    await queue.at(await open_swift(coordination_url=locks)).edit(delayed[0], delay=0)
    queue.advance(10_000)
    assert texts((await queue.claim(1, mode=DelayMode.HONOUR)).messages) == ["0"]


async def test_a_claim_that_goes_on_hands_out_nothing_that_another_process_purged(
    open_swift: OpenSwift, locks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "MOST_EXAMINED", 20)
    queue = a_queue(await open_swift(coordination_url=locks))
    await queue.post(*map(str, range(30)), delay=30 * MINUTE)
    await queue.post("purged")
    assert (await queue.claim(1, mode=DelayMode.HONOUR)).more
    await queue.at(await open_swift(coordination_url=locks)).purge()
    assert not (await queue.claim(1, mode=DelayMode.HONOUR)).messages


async def test_idle_queues_are_looked_at_once_a_minute(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    await queue.post("a")
    store = queue.stores
    proxy.kinds()
    for _ in range(3):
        assert not (await store.messages.sweep(1_000)).total
        assert not await store.management.exposing_queues(limit=10)
    assert proxy.kinds() == {"GET account": 1, "LIST": 1 + 1}
    queue.advance(MINUTE)
    await store.messages.sweep(1_000)
    assert proxy.kinds() == {"GET account": 1, "LIST": 1}


async def test_a_sweep_ends_all_lapses_of_a_page_a_few_under_each_lock(
    queue: QueueUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "_LAPSED", 2)
    message_ids = await queue.post(*"abcde")
    await queue.claim(5, ttl=MINUTE)
    queue.advance(2 * MINUTE)
    assert (await queue.stores.messages.sweep(100)).lapsed == 5
    assert [message.failure_count for message in await queue.get(*message_ids)] == [1] * 5


async def test_counting_all_queues_is_a_listing_each(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its first and last message; the first pass also reads each tail and record."""
    monkeypatch.setattr(census, "_SHARE", 0)  # it need not rest here
    monkeypatch.setattr(census, "_FRESH", 0)
    stores = await open_swift(proxy.url, coordination_url=locks)
    queues = [a_queue(stores, f"queue-{number}") for number in range(18)]

    async def fill(queue: QueueUnderTest) -> None:
        await stores.management.create_queue(queue.ref, {}, max_queues=len(queues))
        await queue.post("a", "b")

    await asyncio.gather(*map(fill, queues))
    letters = queues[0]
    await queues[1].claim(1)
    await queues[1].release((await queues[1].claim(1)).claim_id or "")
    assert (await queues[1].claim(1, dead_letter=letters.as_dead_letter_queue(1))).moved == 1
    await letters.delete(*ids((await letters.page()).messages)[:2])
    board = SharedCounters(None)
    counting = census.QueueDepths(stores.messages, stores.management, board)
    for first in (True, False):
        proxy.kinds()
        before = board.read().get("at", 0)
        while board.read().get("at", 0) == before:
            await counting.latest()
            await asyncio.sleep(0.01)
        kinds = proxy.kinds()
        found = board.read()
        assert found["totals"] == [2 * 16 + 1, 0, 1]
        assert [(one[1], one[-1]) for one in found["shown"] if one[-1]] == [("queue-0", True)]
        others = {kind: count for kind, count in kinds.items() if kind != "GET account"}
        ends = 2 * 16 + 1 + 1
        assert others == {"LIST": 18 + 1, "GET object": ends} | (
            {"HEAD object": 18, "GET object": 18 + ends} if first else {}
        )
    await counting.stop()

"""What operations cost, in requests that a proxy in front of Swift has seen."""

import json

import pytest

from tests.contract.subject import MINUTE, QueueUnderTest, ids, texts
from tests.drivers.swift.conftest import OpenSwift, a_queue
from tests.drivers.swift.faulty_proxy import FaultyProxy
from zaqar_lite.domain.models import DelayMode

pytestmark = pytest.mark.anyio


async def warm(queue: QueueUnderTest, proxy: FaultyProxy) -> None:
    """The first post of a process reads where the queue ends."""
    await queue.delete(*await queue.post("first"))
    proxy.kinds()


async def test_a_post_is_one_put_a_message_and_a_mark_of_the_tail(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    await warm(queue, proxy)
    await queue.post(*map(str, range(20)))
    assert proxy.kinds() == {"PUT object": 20, "POST object": 1}


async def test_a_post_with_keys_reads_and_writes_each_key_once(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    await warm(queue, proxy)
    await queue.post(*map(str, range(5)), batch_key="k")
    assert proxy.kinds() == {
        "GET object": 1,  # the key
        "HEAD container": 1,  # how many keys there can be
        "PUT object": 5 + 1 + 1,  # the messages, the key, the intent
        "POST object": 1,  # the intent is done
    }


async def test_a_list_is_one_listing_and_one_get_a_message(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    await queue.post(*map(str, range(20)))
    proxy.kinds()
    assert len((await queue.page(limit=20)).messages) == 20
    assert proxy.kinds() == {"LIST": 1, "GET object": 20}


async def test_a_claim_is_one_listing_and_a_get_and_a_post_a_message(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    await queue.post(*map(str, range(21)))
    proxy.kinds()
    claimed = await queue.claim(20)
    assert len(claimed.messages) == 20
    assert proxy.kinds() == {
        "LIST": 1,
        "GET object": 20,
        "POST object": 20,
        "PUT object": 1,  # the claim
    }
    await queue.delete(*ids(claimed.messages), claims=[claimed.claim_id or ""])
    assert proxy.kinds() == {"HEAD object": 20, "DELETE object": 20}


async def test_counts_come_from_listings(queue: QueueUnderTest, proxy: FaultyProxy) -> None:
    await queue.post(*map(str, range(20)))
    proxy.kinds()
    assert await queue.counts() == (20, 0, 0)
    assert proxy.kinds() == {"LIST": 1, "GET object": 2}


async def test_what_is_not_ready_costs_listing_pages_alone(
    open_swift: OpenSwift, proxy: FaultyProxy
) -> None:
    """A Swift that lists 10 at a time, as the real one lists 10,000."""

    def lower(info: bytes) -> bytes:
        found = json.loads(info)
        found["swift"]["container_listing_limit"] = 10
        return json.dumps(found).encode()

    limit = proxy.fault("GET", "^/info$", edit=lower)
    queue = a_queue(await open_swift(proxy.url))
    assert limit.hits == 1, proxy.seen
    await queue.post(*map(str, range(10)), delay=30 * MINUTE)
    await queue.post(*map(str, range(8)))
    await queue.claim(8)
    await queue.post(*map(str, range(7)), ttl=MINUTE)
    queue.advance(2 * MINUTE)
    await queue.post("a", "b")
    proxy.kinds()
    claimed = await queue.claim(2, mode=DelayMode.HONOUR)
    assert texts(claimed.messages) == ["a", "b"]
    # 1 of the tail, 25 that are not ready, 2 that are: 3 pages of 10
    assert proxy.kinds() == {"LIST": 3, "GET object": 2, "POST object": 2, "PUT object": 1}
    assert not (await queue.page(limit=2, claimed=False, delayed=False)).messages
    assert proxy.kinds() == {"LIST": 3}


async def test_sharing_the_store_costs_two_small_reads(
    open_swift: OpenSwift, proxy: FaultyProxy, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The record and the tail, which another process may have changed."""
    locks = f"file://{tmp_path_factory.mktemp('locks')}"
    stores = await open_swift(proxy.url, coordination_url=locks)
    queue = a_queue(stores)
    record, _ = await stores.management.create_queue(queue.ref, {}, max_queues=10)
    await queue.post("first", version=record.version)
    proxy.kinds()
    await queue.post(*map(str, range(4)), version=record.version)
    assert proxy.kinds() == {
        "GET object": 1,  # the record
        "HEAD object": 1,  # the tail
        "LIST": 1,  # the last name
        "HEAD container": 1,  # how many messages there can be
        "PUT object": 4 + 1,  # the tail, with what is meant
        "POST object": 1,  # the tail again
    }
    await queue.claim(5, version=record.version)
    assert proxy.kinds() == {
        "LIST": 1,
        "GET object": 5 + 1,  # the record
        "POST object": 5,
        "PUT object": 1,
    }
    await queue.page(limit=5, version=record.version)
    assert proxy.kinds() == {"LIST": 1, "HEAD object": 1, "GET object": 5 + 1}

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


async def test_a_post_is_one_put_a_message(queue: QueueUnderTest, proxy: FaultyProxy) -> None:
    """The tail is written ahead: a post of the next minute writes it again, beside the messages."""
    await warm(queue, proxy)
    await queue.post(*map(str, range(20)))
    assert proxy.kinds() == {"PUT object": 20}
    queue.advance(2 * MINUTE)
    await queue.post("a", "b")
    assert proxy.kinds() == {"PUT object": 2, "POST object": 1}
    await queue.post("c")
    assert proxy.kinds() == {"PUT object": 1}


async def test_a_post_with_keys_reads_and_writes_each_key_once(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    await warm(queue, proxy)
    await queue.post(*map(str, range(5)), batch_key="k")
    assert proxy.kinds() == {
        "GET object": 1,  # the key
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


async def test_what_is_done_by_id_touches_the_objects_alone(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    posted = await queue.post(*map(str, range(6)), delay=MINUTE)
    proxy.kinds()
    assert len(await queue.get(*posted)) == 6
    assert proxy.kinds() == {"GET object": 6}
    await queue.edit(posted[0], ttl=30 * MINUTE)
    assert proxy.kinds() == {"GET object": 1, "POST object": 1}
    await queue.edit(posted[0], "other")
    assert proxy.kinds() == {"GET object": 1, "PUT object": 1}
    await queue.delete(*posted)
    assert proxy.kinds() == {"DELETE object": 6}


async def test_a_claim_is_renewed_shown_and_released_by_what_it_holds(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    await queue.post(*map(str, range(20)))
    claim_id = await queue.claim_id(20)
    proxy.kinds()
    assert len((await queue.get_claim(claim_id)).messages) == 20
    assert proxy.kinds() == {"GET object": 1 + 20}  # the claim, and what it holds
    await queue.renew(claim_id)
    assert proxy.kinds() == {"GET object": 1, "HEAD object": 20, "POST object": 20 + 1}
    await queue.release(claim_id)
    assert proxy.kinds() == {
        "GET object": 1,
        "HEAD object": 20,
        "POST object": 20,
        "DELETE object": 1,
    }


async def test_a_pop_is_one_listing_and_a_get_and_a_delete_a_message(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    await queue.post(*map(str, range(21)))
    proxy.kinds()
    assert len((await queue.pop(20)).messages) == 20
    assert proxy.kinds() == {"LIST": 1, "GET object": 20, "DELETE object": 20}


async def test_a_purge_is_two_listings_a_kind_and_a_delete_an_object(
    queue: QueueUnderTest, proxy: FaultyProxy
) -> None:
    """Messages and claims; nothing was ever moved here, so the third kind ends at its first."""
    await queue.post(*map(str, range(6)))
    await queue.claim(2)
    proxy.kinds()
    await queue.purge()
    assert proxy.kinds() == {"LIST": 2 + 2 + 1, "DELETE object": 6 + 1}


async def test_counts_come_from_listings(queue: QueueUnderTest, proxy: FaultyProxy) -> None:
    await queue.post(*map(str, range(20)))
    proxy.kinds()
    assert await queue.counts() == (20, 0, 0)
    assert proxy.kinds() == {"LIST": 1, "GET object": 2}


@pytest.mark.parametrize(("each", "pages"), [(3, 2), (13, 5)])
async def test_what_is_not_ready_costs_listing_pages_alone(
    open_swift: OpenSwift, proxy: FaultyProxy, each: int, pages: int
) -> None:
    """A Swift that lists 10 at a time, as the real one lists 10,000.

    Before the two ready messages are `each` that are delayed, claimed and expired.
    """

    def lower(info: bytes) -> bytes:
        found = json.loads(info)
        found["swift"]["container_listing_limit"] = 10
        return json.dumps(found).encode()

    limit = proxy.fault("GET", "^/info$", edit=lower)
    queue = a_queue(await open_swift(proxy.url))
    assert limit.hits == 1, proxy.seen
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
    assert proxy.kinds() == {"HEAD object": 2, "DELETE object": 2}
    assert (await queue.claim(2, mode=DelayMode.HONOUR)).claim_id is None
    assert proxy.kinds() == {"LIST": pages - 1}


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
        "GET object": 5 + 1 + 1,  # the record, the tail: a crashed post is finished first
        "POST object": 5,
        "PUT object": 1,
    }
    await queue.page(limit=5, version=record.version)
    assert proxy.kinds() == {"LIST": 1, "HEAD object": 1, "GET object": 5 + 1}
    await queue.delete(*ids((await queue.page(limit=1, claimed=True)).messages))
    assert proxy.kinds() == {
        "LIST": 1,
        "HEAD object": 1,
        "GET object": 1 + 1,  # the tail again
        "DELETE object": 1,
    }

"""What earlier versions left behind: messages without an index entry, keys without a digest."""

from typing import Any

import pytest

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, new
from tests.drivers.redis.inspection import check_queue, keys_by_tag
from tests.drivers.redis.test_letters import swept
from zaqar_lite.domain.models import DelayMode, Posted
from zaqar_lite.storage.redis.keys import keys_of

pytestmark = pytest.mark.anyio


def orphan(client: Any, queue: QueueUnderTest, message_ids: list[str], *kinds: str) -> None:
    """Take messages out of these indexes, as a post that was cut after a thousand did."""
    positions = [bytes.fromhex(message_id)[:8] for message_id in message_ids]
    for kind in kinds:
        client.zrem(keys_of(queue.ref).key(kind), *positions)


@pytest.mark.parametrize("touch", ["post", "claim", "pop"])
async def test_orphans_are_found_by_a_call_and_mended_by_the_sweep(
    queue: QueueUnderTest, client: Any, touch: str
) -> None:
    ready = await queue.post(*map(str, range(700)))
    waiting = await queue.post(*"ab", delay=10 * MINUTE)
    gone = await queue.post(*"xy", ttl=2 * MINUTE)
    orphan(client, queue, ready[:300], "ready", "expiry")
    orphan(client, queue, ready[300:], "ready")
    orphan(client, queue, waiting, "due", "waiting", "expiry")
    orphan(client, queue, gone, "ready", "expiry")
    queue.advance(5 * MINUTE)
    assert await queue.bodies() == []
    if touch == "post":
        await queue.post("new")
    else:
        assert not (await (queue.claim() if touch == "claim" else queue.pop())).messages
    await swept(queue)
    listed = [message.id for message in await queue.listed(limit=500)]
    assert listed[:702] == [*ready, *waiting]
    assert (await queue.counts())[1] == 2
    queue.advance(6 * MINUTE)
    claimed = [
        message.id
        for _ in range(2)
        for message in (await queue.claim(500, mode=DelayMode.HONOUR)).messages
    ]
    assert claimed[:702] == [*ready, *waiting]
    tag = keys_of(queue.ref).tag
    check_queue(client, tag, keys_by_tag(client)[tag], queue.stores.clock.offset_ms)


async def test_a_held_message_without_a_deadline_stays_held(
    queue: QueueUnderTest, client: Any
) -> None:
    ids = await queue.post("held", "ready")
    claim_id = await queue.claim_id(1)
    orphan(client, queue, ids, "expiry")
    await queue.post("new")
    await swept(queue)
    assert [m.id for m in (await queue.get_claim(claim_id)).messages] == ids[:1]
    assert await queue.counts() == (2, 0, 1)
    tag = keys_of(queue.ref).tag
    check_queue(client, tag, keys_by_tag(client)[tag], queue.stores.clock.offset_ms)


async def test_a_key_that_was_stored_without_a_digest_matches_any_message(
    queue: QueueUnderTest, client: Any
) -> None:
    (first,) = await queue.post(new("a", key="one"))
    batch = await queue.post("b", "c", batch_key="all")
    for key, entry in client.hgetall(keys_of(queue.ref).key("keys")).items():
        client.hset(keys_of(queue.ref).key("keys"), key, entry[:6] + entry[23:])
    assert list(await queue.post_all([new("x", key="one")])) == [Posted(first, True)]
    assert await queue.post("y", batch_key="all") == batch
    assert await queue.bodies() == ["a", "b", "c"]


async def test_claims_that_are_deleted_with_their_messages_leave_nothing(
    queue: QueueUnderTest, client: Any
) -> None:
    await queue.post(*map(str, range(200)), ttl=HOUR)
    for _ in range(100):
        claimed = await queue.claim(2)
        for message in claimed.messages:
            await queue.delete(message.id, claims=[claimed.claim_id or ""])
    keys = keys_by_tag(client)[keys_of(queue.ref).tag]
    assert not {"claims", "leases", "held", "tracks", "messages"} & set(keys)

"""Expiry: by the deadline alone, whether or not anything has swept."""

import pytest

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, texts
from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.models import DelayMode

pytestmark = pytest.mark.anyio


async def test_an_expired_message_is_gone_for_every_reader_without_a_sweep(
    queue: QueueUnderTest,
) -> None:
    (message_id,) = await queue.post("gone", ttl=5 * MINUTE)
    await queue.post("here", ttl=HOUR)
    queue.advance(6 * MINUTE)
    assert await queue.bodies() == ["here"]
    assert not await queue.get(message_id)
    assert await queue.counts() == (1, 0, 0)
    stats = await queue.stats()
    assert stats.oldest is not None
    assert texts([stats.oldest]) == ["here"]
    assert len(await queue.stores.messages.partition(queue.ref, 5)) == 1
    assert not await queue.delete(message_id, claims=["0" * 32])
    assert texts((await queue.claim()).messages) == ["here"]


async def test_a_message_lives_to_the_end_of_its_ttl(queue: QueueUnderTest) -> None:
    await queue.post("a", ttl=10 * MINUTE)
    queue.advance(9 * MINUTE)
    await queue.sweep()
    assert await queue.bodies() == ["a"]
    queue.advance(MINUTE)
    assert await queue.bodies() == []


async def test_many_expired_messages_do_not_hide_a_live_one(queue: QueueUnderTest) -> None:
    await queue.post(*map(str, range(25)), ttl=5 * MINUTE)
    await queue.post("here")
    queue.advance(6 * MINUTE)
    assert texts((await queue.page(limit=1)).messages) == ["here"]
    assert texts((await queue.claim(1)).messages) == ["here"]


async def test_an_expired_message_is_no_dead_letter(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post("a", ttl=20 * MINUTE)
    await queue.release(await queue.claim_id(ttl=MINUTE))
    queue.advance(21 * MINUTE)
    assert (await queue.claim(dead_letter=other.as_dead_letter_queue(1))).moved == 0
    assert await other.bodies() == []


async def test_a_marker_stays_good_when_its_message_has_expired(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("gone", ttl=5 * MINUTE)
    await queue.post("here")
    page = await queue.page(limit=1)
    queue.advance(6 * MINUTE)
    assert texts((await queue.page(after=page.marker)).messages) == ["here"]
    by_id = Marker(int(message_id[:16], 16), message_id)
    assert texts((await queue.page(after=by_id)).messages) == ["here"]


async def test_messages_of_every_state_expire(queue: QueueUnderTest) -> None:
    await queue.post("lapses, then expires", ttl=8 * MINUTE)
    await queue.claim(ttl=4 * MINUTE)
    await queue.post("delayed", ttl=8 * MINUTE, delay=7 * MINUTE)
    await queue.post("ready", ttl=8 * MINUTE)
    queue.advance(5 * MINUTE)
    assert await queue.counts() == (2, 1, 0)
    queue.advance(4 * MINUTE)
    assert await queue.counts() == (0, 0, 0)
    assert (await queue.claim(mode=DelayMode.HONOUR)).claim_id is None
    await queue.sweep()
    assert await queue.counts() == (0, 0, 0)

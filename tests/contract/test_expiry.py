"""Expiry, by the deadline alone whether or not anything has swept; and the sweep."""

import asyncio

import pytest

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, some, texts
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
    assert texts([some(stats.oldest)]) == ["here"]
    assert len(await queue.cuts(5)) == 1
    assert not await queue.delete(message_id, claims=["0" * 32])
    assert texts((await queue.claim()).messages) == ["here"]


async def test_a_message_lives_to_the_end_of_its_ttl_and_then_hides_nothing(
    queue: QueueUnderTest,
) -> None:
    message_id, *_ = await queue.post(*map(str, range(25)), ttl=10 * MINUTE)
    await queue.post("here")
    page = await queue.page(limit=1)
    queue.advance(9 * MINUTE)
    await queue.sweep()
    assert len(await queue.bodies()) == 26
    queue.advance(MINUTE)
    assert texts((await queue.page(limit=1)).messages) == ["here"]
    for marker in (page.marker, Marker(int(message_id[:16], 16), message_id)):
        assert texts((await queue.page(after=marker)).messages) == ["here"]
    assert texts((await queue.claim(1)).messages) == ["here"]


async def test_an_expired_message_is_no_dead_letter(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post("a", ttl=20 * MINUTE)
    await queue.release(await queue.claim_id(ttl=MINUTE))
    queue.advance(21 * MINUTE)
    assert (await queue.claim(dead_letter=other.as_dead_letter_queue(1))).moved == 0
    assert await other.bodies() == []


# Sweeping: bounded, repeatable, and never seen by a reader.


async def test_one_sweep_touches_about_as_much_as_it_is_told_and_idle_ones_nothing(
    queue: QueueUnderTest,
) -> None:
    await queue.sweep()
    await queue.post(*map(str, range(24)), ttl=5 * MINUTE)
    await queue.post("here")
    await queue.post("delayed", delay=10 * MINUTE)
    queue.advance(6 * MINUTE)
    swept = await queue.stores.messages.sweep(6)
    assert swept.total <= 12
    await queue.sweep()
    assert await queue.bodies() == ["here", "delayed"]
    assert (await queue.stores.messages.sweep(1_000)).total == 0
    assert await queue.counts() == (1, 1, 0)


async def test_sweeps_race_with_each_other_and_with_claims(queue: QueueUnderTest) -> None:
    await queue.post(*"abcdef", delay=5 * MINUTE)
    await queue.post(*"uvw", ttl=5 * MINUTE)
    await queue.post(*"xyz")
    await queue.claim(3)  # uvw, the oldest ready ones; they live on with their claim
    queue.advance(6 * MINUTE)
    peers = await queue.stores.peers(2)
    answers = await asyncio.gather(
        *[peer.messages.sweep(100) for peer in peers],
        *[queue.at(peer).claim(3, mode=DelayMode.HONOUR) for peer in peers],
        *[peer.messages.sweep(100) for peer in peers],
    )
    assert len(answers) == 6
    rest = await queue.claim(20, mode=DelayMode.HONOUR)
    assert await queue.counts() == (0, 0, 12)
    assert len(rest.messages) == 3

"""Popping: removed and handed out in one step."""

import pytest

from tests.contract.subject import MINUTE, QueueUnderTest, new, texts
from zaqar_lite.domain.models import Capability, DelayMode

pytestmark = pytest.mark.anyio


async def test_popped_messages_are_gone(queue: QueueUnderTest) -> None:
    message_ids = await queue.post(*"abc")
    popped = await queue.pop(2)
    assert texts(popped.messages) == ["a", "b"]
    assert popped.claim_id is None
    assert await queue.bodies() == ["c"]
    assert not await queue.get(*message_ids[:2])
    assert await queue.counts() == (1, 0, 0)


async def test_popped_messages_carry_no_claim_and_no_further_count(queue: QueueUnderTest) -> None:
    await queue.post("fresh", "claimed before")
    message_id = (await queue.listed())[1].id
    first = await queue.claim_id(1)
    second = await queue.claim_id(1)
    await queue.release(first)
    await queue.release(second)
    popped = await queue.pop()
    assert [(message.claim_id, message.claim_count) for message in popped.messages] == [
        (None, 1),
        (None, 1),
    ]
    assert popped.messages[1].id == message_id


async def test_popping_leaves_held_and_delayed_messages(queue: QueueUnderTest) -> None:
    await queue.post("held")
    await queue.claim()
    await queue.post("delayed", delay=10 * MINUTE)
    await queue.post("ready")
    assert texts((await queue.pop(mode=DelayMode.HONOUR)).messages) == ["ready"]
    assert not (await queue.pop(mode=DelayMode.HONOUR)).messages
    assert await queue.bodies() == ["held", "delayed"]
    queue.advance(11 * MINUTE)
    assert texts((await queue.pop(mode=DelayMode.HONOUR)).messages) == ["held", "delayed"]


async def test_popping_an_exposing_queue_takes_what_is_delayed(queue: QueueUnderTest) -> None:
    await queue.post(*"ab", delay=10 * MINUTE)
    assert sorted(texts((await queue.pop(exposing=True)).messages)) == ["a", "b"]
    assert await queue.bodies() == []


async def test_popping_follows_the_priorities(queue: QueueUnderTest) -> None:
    queue.stores.need(Capability.FAN_OUT)
    await queue.post(new("b", priority=100), new("a", priority=1))
    assert texts((await queue.pop(1)).messages) == ["a"]


async def test_exhausted_messages_are_moved_not_popped(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post("exhausted")
    await queue.release(await queue.claim_id())
    await queue.post("fresh")
    popped = await queue.pop(1, dead_letter=other.as_dead_letter_queue(1))
    assert texts(popped.messages) == ["fresh"]
    assert popped.moved == 1
    assert await queue.bodies() == []
    assert await other.bodies() == ["exhausted"]


async def test_an_empty_queue_pops_nothing(queue: QueueUnderTest) -> None:
    popped = await queue.pop()
    assert (popped.claim_id, list(popped.messages), popped.moved) == (None, [], 0)

"""Popping: removed and handed out in one step."""

import pytest

from tests.contract.subject import MINUTE, QueueUnderTest, texts
from zaqar_lite.domain.models import DelayMode

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

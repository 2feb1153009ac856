"""An audit trail in a queue that takes longer than the acts that are told."""

import asyncio
import json
import logging
from typing import Any

import pytest

from tests.service.composed import Composed
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import ListQuery, QueueRef
from zaqar_lite.service import audit

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("audit", "log")


async def test_an_event_is_stored_or_told_to_be_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Events come during a post, and more than may wait."""
    monkeypatch.setattr(audit, "_MOST_WAITING", 4)
    monkeypatch.setattr(audit, "_BATCH", 2)
    monkeypatch.setattr(audit, "_LAST_WORDS", 30.0)
    one = Composed()
    store, messages = one.store, one.messages
    begun, gate, post = asyncio.Event(), asyncio.Event(), store.post

    async def slowly(*args: Any, **more: Any) -> Any:
        begun.set()
        await gate.wait()
        await asyncio.sleep(0.01)  # to stop lasts until it is stored
        return await post(*args, **more)

    monkeypatch.setattr(store, "post", slowly)
    trail = audit.QueueTrail(messages, QUEUE, Limits(max_message_ttl=300))
    for number in range(4):
        trail.add({"number": number})
    trail.start()
    await begun.wait()
    for number in range(4, 9):
        trail.add({"number": number})
    gate.set()
    with caplog.at_level(logging.ERROR):
        await trail.stop()
    page = await store.list_messages(QUEUE, ListQuery(100))
    assert [json.loads(message.body)["number"] for message in page.messages] == [0, 1, 5, 6, 7, 8]
    lost = [number for number in range(9) if f'is lost: {{"number": {number}}}' in caplog.text]
    assert lost == [2, 3, 4]
    assert {message.ttl_ms for message in page.messages} == {300_000}

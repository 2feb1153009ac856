"""Counting the queues for metrics leaves the loop to requests."""

import asyncio

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.domain.subscriptions import KIND
from zaqar_lite.service.metrics import queue_depths as module
from zaqar_lite.service.metrics.queue_depths import QueueDepths
from zaqar_lite.service.metrics.shared_counters import SharedCounters
from zaqar_lite.storage.registry import create_stores

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("share", [0, 1e9])
async def test_counting_subscriptions_rests_as_counting_messages_does(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(module, "_STEP", 0.0)  # each record is long work
    monkeypatch.setattr(module, "_SHARE", share)
    messages, management = create_stores("memory://", clock=Clock(), options=StoreOptions())
    for number in range(50):
        await management.put_record(KIND, "p", f"{number:02}", b"{}", expected=0)
    depths = QueueDepths(messages, management, SharedCounters(None), interval=3_600)
    for _ in range(200):
        found = await depths.latest()
        await asyncio.sleep(0)
    await depths.stop()
    assert found.get("subscriptions") == (None if share else 50)

"""Expiry: by the stored deadline at once, by Swift's expirer some time after it."""

import asyncio
import time

import pytest

from tests.contract.subject import MINUTE, QueueUnderTest
from tests.drivers.swift.conftest import a_queue
from tests.drivers.swift.together import OpenSwift
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.messages import SwiftMessageStore

pytestmark = pytest.mark.anyio


async def listed(queue: QueueUnderTest, prefix: str) -> int:
    """How many objects the container still lists."""
    store = queue.stores.messages
    assert isinstance(store, SwiftMessageStore)
    container = store._backend.containers.queue(queue.ref)
    return len(await store._backend.objects.list(container, prefix=prefix))


async def test_the_broom_removes_messages_claims_and_keys(
    open_swift: OpenSwift, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expirer is a process of Swift's own; in production it comes five minutes late."""
    monkeypatch.setattr(layout, "BROOM_SLACK_S", 1)
    queue = a_queue(await open_swift())
    await queue.post("a", "b", ttl=1_000)
    await queue.claim(1, ttl=1_000, grace=0)
    await queue.post("stays")
    give_up = time.monotonic() + 90
    while await listed(queue, layout.MESSAGES) > 1 or await listed(queue, layout.CLAIMS):
        assert time.monotonic() < give_up, "the expirer does not come"
        await asyncio.sleep(0.2)
    assert await queue.bodies() == ["stays"]


async def test_what_has_expired_and_is_still_listed_is_passed_over(open_swift: OpenSwift) -> None:
    queue = a_queue(await open_swift())
    await queue.post(*"abc", ttl=MINUTE)
    await queue.post("d")
    queue.advance(2 * MINUTE)
    assert await listed(queue, layout.MESSAGES) == 4
    assert await queue.bodies() == ["d"]
    assert await queue.counts() == (1, 0, 0)
    assert len((await queue.claim()).messages) == 1
    await queue.sweep()
    assert await listed(queue, layout.MESSAGES) == 1

"""A worker of deliveries goes on after a mistake of its store."""

import asyncio
from typing import Any

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import Message, QueueRef, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.service.delivery import outbox
from zaqar_lite.service.delivery.outbox import QueueWorker
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.storage.sql import create

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("p", "~internal")


async def test_what_was_delivered_is_deleted_after_a_deletion_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "_PAUSE", 0.01)
    messages, _ = create("memory://", clock=Clock(), options=StoreOptions())
    new = [NewMessage(b"1", 60_000) for _ in range(3)]
    await messages.post(QUEUE, new, client_id="c", version=None)
    delete, failed = messages.delete, asyncio.Event()

    async def fail_once(*args: Any, **more: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a mistake")
        return await delete(*args, **more)

    async def act(_: Message) -> None:
        return

    monkeypatch.setattr(messages, "delete", fail_once)
    waiting = LongPolling(messages, most=10, most_per_project=10)
    worker = QueueWorker(QUEUE, act, messages=messages, long_polling=waiting)
    worker.start()
    async with asyncio.timeout(10):
        await failed.wait()
        while (await messages.stats(QUEUE)).total:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await worker.stop()

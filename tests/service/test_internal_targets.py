"""Letters for connections: sent here, handed to another process, refused where nobody listens."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import ListQuery, StoreOptions
from zaqar_lite.service.delivery.attempt import Notification
from zaqar_lite.service.delivery.internal_targets import ConnectedSubscribers, process_queue
from zaqar_lite.service.encryption import EncryptionKeys
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.sql import create

pytestmark = pytest.mark.anyio
BODY = b'{"body": "a secret of some length", "ttl": 60}'


class Processes(NamedTuple):
    """Two processes on one store; the near one has the connection."""

    messages: MessageStore
    near: ConnectedSubscribers
    far: ConnectedSubscribers


@pytest.fixture(params=[False, True], ids=["clear", "sealed"])
async def processes(request: pytest.FixtureRequest) -> AsyncIterator[Processes]:
    messages, management = create("memory://", clock=Clock(), options=StoreOptions())
    encryption_keys = (
        EncryptionKeys(management, {"first": b"1" * 32}, Clock()) if request.param else None
    )
    made = [
        ConnectedSubscribers(
            messages, LongPolling(messages, most=10, most_per_project=10), encryption_keys
        )
        for _ in range(2)
    ]
    yield Processes(messages, *made)
    for one in made:
        await one.stop()


def notification(subscriber: str) -> Notification:
    return Notification(subscriber, {}, BODY, {})


async def test_a_letter_is_sent_by_the_process_that_has_the_connection(
    processes: Processes,
) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    def push(body: bytes) -> bool:
        heard.put_nowait(body)
        return True

    subscriber = processes.near.add(push)
    assert (await processes.near.send(notification(subscriber))).status == 200
    assert (await processes.far.send(notification(subscriber))).status == 202
    async with asyncio.timeout(20):
        assert [await heard.get(), await heard.get()] == [BODY, BODY]


async def test_a_connection_that_has_ended_is_gone(processes: Processes) -> None:
    subscriber = processes.near.add(lambda _: True)
    processes.near.remove(subscriber)
    assert (await processes.near.send(notification(subscriber))).status == 410
    slow = processes.near.add(lambda _: False)
    assert (await processes.near.send(notification(slow))).status == 410


async def test_what_waits_for_another_process_is_not_in_the_clear(
    processes: Processes, request: pytest.FixtureRequest
) -> None:
    answer = await processes.far.send(notification("websocket:elsewhere/listener"))
    assert answer.status == 202
    page = await processes.messages.list_messages(process_queue("elsewhere"), ListQuery(10))
    (kept,) = page.messages
    assert (b"a secret" in kept.body) == ("[clear]" in request.node.name)
    assert kept.ttl_ms <= 60_000

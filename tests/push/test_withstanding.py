"""What deliveries must withstand: receivers that break off, and a store that is away."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import pytest
from aiohttp import web

from tests.api.conftest import Api, MakeApi
from tests.push.conftest import LOOPBACK
from tests.push.receiver import Receiver, serving
from tests.push.test_delivering import attempts_of, subscribe
from tests.services import start_redis
from tests.waiting import until
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.push.webhook import Webhooks
from zaqar_lite.service.delivery.outbox import RETRY_QUEUES
from zaqar_lite.storage.sql.messages import SqlMessageStore

pytestmark = pytest.mark.anyio
AT_ONCE = {"retries_with_no_delay": 10, "minimum_delay": 0, "maximum_delay": 10}
TIME_OUT = 0.5
AWAY = 30 if "ZAQAR_TEST_ALL" in os.environ else 3
"""Seconds for which a store is away."""


@pytest.fixture
async def impatient(make_api: MakeApi) -> AsyncIterator[Api]:
    """A server that waits half a second for a receiver: too short for many on a busy machine."""
    assert Webhooks.__init__.__kwdefaults__ is not None
    with patch.dict(Webhooks.__init__.__kwdefaults__, total=TIME_OUT):
        async with make_api(delivery_allowed=LOOPBACK) as made:
            yield made


BROKEN: dict[str, tuple[float, bytes]] = {
    "reset": (0, b""),
    "half": (0, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"),
    "half a head": (0, b"HTTP/1.1 2"),
    "nonsense": (0, b"\x16\x03\x01 220 mail ready\r\n\r\n"),
    "when nobody waits any more": (2 * TIME_OUT, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
}
"""Ways to break off: after how many seconds, and what is said before the connection ends."""


@asynccontextmanager
async def breaking(way: str, times: int) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A receiver that answers so for some times, then 204; its URL, and the ids that came."""
    came: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                came.append(head.split(b"webhook-id:")[1].split(b"\r\n")[0].strip())
                if len(came) <= times:
                    pause, said = BROKEN[way]
                    await asyncio.sleep(pause)
                    writer.write(said)
                    if not said:
                        writer.transport.abort()
                    return
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            writer.close()

    async with serving(answer) as url:
        yield url, came


async def test_a_silent_receiver_of_many_messages_costs_little(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those without a place do not go through their queue again and again."""
    post, silent, put = SqlMessageStore.post, asyncio.Event(), 0

    async def counted(self: Any, queue: QueueRef, new: Any, **more: Any) -> Any:
        nonlocal put
        put += len(new) if queue in RETRY_QUEUES else 0
        return await post(self, queue, new, **more)

    async def never(*_: Any) -> web.Response:
        await silent.wait()
        return web.Response()

    monkeypatch.setattr(SqlMessageStore, "post", counted)
    async with Receiver(answer=never) as receiver:
        await subscribe(api, receiver.url)
        begun = time.monotonic()
        for _ in range(3):
            await api.post(*({"body": n} for n in range(1_000)))
        await until(lambda: put >= 2_900)
        await asyncio.sleep(4)
        assert put < 3_000 + (time.monotonic() - begun) * 600  # they come back 500 a second
        silent.set()


@pytest.mark.parametrize("way", BROKEN)
async def test_a_receiver_that_breaks_off_gets_it_again(impatient: Api, way: str) -> None:
    async with breaking(way, 2) as (url, came):
        made, _ = await subscribe(impatient, url, options={"_retry_policy": AT_ONCE})
        (posted,) = await impatient.post({"body": 1})
        attempts = await attempts_of(impatient, made, 3)
        assert set(came) == {f"msg_{posted}".encode()}
        assert [one["outcome"] for one in attempts] == ["delivered", "failed", "failed"]
        assert all(one["error"] for one in attempts[1:])


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_deliveries_go_on_after_redis_was_away(make_api: MakeApi, how: str) -> None:
    async def slowly(*_: Any) -> web.Response:
        await asyncio.sleep(0.05)
        return web.Response(status=204)

    with start_redis(appendfsync="always") as redis:
        (process,) = redis.processes
        async with (
            make_api(store=redis.url, delivery_allowed=LOOPBACK) as api,
            Receiver(answer=slowly) as receiver,
        ):
            await subscribe(api, receiver.url)
            await api.post(*({"body": n} for n in range(100)))
            await receiver.wait(5)
            if how == "killed":
                process.kill()
            else:
                os.kill(process.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(AWAY)
            finally:
                if how == "killed":
                    await asyncio.to_thread(redis.start)
                else:
                    os.kill(process.pid, signal.SIGCONT)

            async def is_posted() -> bool:
                document = {"messages": [{"body": 100}]}
                return (await api.call("POST", "messages", document)).status_code == 201

            await until(is_posted, seconds=60)
            api.advance(61)  # leases of claims whose answer was lost
            await receiver.wait_for(*range(101))


async def test_a_slow_ordered_receiver_holds_up_no_other(api: Api) -> None:
    gate = asyncio.Event()

    async def slowly(_: web.Request, __: int) -> web.Response:
        await gate.wait()
        return web.Response(status=204)

    async with Receiver(answer=slowly) as slow, Receiver() as other:
        await subscribe(api, slow.url, options={"ordered": True})
        await subscribe(api, other.url)
        await api.post({"body": 1})
        await slow.wait(1)
        await other.wait(1, seconds=15)
        gate.set()

"""What the tests of this driver do most: to a queue, to calls on their way, and to the server."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from tests.contract.subject import HOUR, QueueUnderTest, bury, new
from tests.services import RedisServer
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import RetryPolicy
from zaqar_lite.storage.redis.faults import ConnectionLost
from zaqar_lite.storage.redis.keys import keys_of
from zaqar_lite.storage.redis.messages import RedisMessageStore
from zaqar_lite.storage.redis.router import Router

BULK = 1_000


async def fill(queue: QueueUnderTest, count: int, *, delay: int = 0, ttl: int = HOUR) -> None:
    """Post that many messages, BULK at a time."""
    for _ in range(count // BULK):
        await queue.post(*[new("x", ttl=ttl, delay=delay)] * BULK)


def examined(queue: QueueUnderTest) -> int:
    """How many entries the scripts of this process have looked at."""
    store = queue.stores.messages
    assert isinstance(store, RedisMessageStore)
    return store.examined


async def exhaust(queue: QueueUnderTest, *texts: str) -> list[str]:
    """Post messages and use up their one claim."""
    ids = await queue.post(*texts)
    await queue.release(await queue.claim_id(len(texts)))
    return ids


async def reject(queue: QueueUnderTest, target: QueueUnderTest, *texts: str) -> list[str]:
    """Post messages, claim them and send them to the dead letters in one settlement."""
    policy = RetryPolicy(target.as_dead_letter_queue())
    ids = await queue.post(*texts)
    claim_id = await queue.claim_id(len(texts))
    settled = await queue.stores.messages.settle(
        queue.ref, claim_id, [*map(bury, ids)], retries=policy
    )
    assert settled.moved == len(texts)
    return ids


def queues_on_every_node(queue: QueueUnderTest) -> list[QueueUnderTest]:
    """Queues of one project whose slots lie in each third of the cluster."""
    found: dict[int, QueueUnderTest] = {}
    while len(found) < 3:
        other = queue.named(f"queue-{uuid4().hex}")
        found[keys_of(other.ref).slot * 3 // 16_384] = other
    return [found[third] for third in range(3)]


def crash_before(script: str) -> Any:
    """Let every call of a script fail before it is sent, as if the process had ended there."""
    run = Router.run

    async def crashing(self: Router, called: Any, *args: Any, **options: Any) -> Any:
        if called == script:
            raise Unavailable("crash")
        return await run(self, called, *args, **options)

    return patch.object(Router, "run", crashing)


def watching(see: Callable[[str, Any], None]) -> Any:
    """Let `see` be told the name and the reply of each call that Redis answers."""
    run = Router.run

    async def watched(self: Router, called: Any, *args: Any, **options: Any) -> Any:
        reply = await run(self, called, *args, **options)
        see(called, reply)
        return reply

    return patch.object(Router, "run", watched)


def lost(answer: asyncio.Future[Any]) -> asyncio.Future[Any]:
    """What a caller gets in place of an answer that is lost behind the call."""
    instead, loss = answer.get_loop().create_future(), ConnectionLost("after the call", sent=True)
    answer.add_done_callback(lambda _: instead.set_exception(loss))
    return instead


@contextmanager
def standing_still(server: RedisServer) -> Iterator[None]:
    """Stop the server's process while the context lasts: it is there, and does not answer."""
    pid = server.processes[0].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def full(client: Any) -> Iterator[None]:
    """Let the server have no memory for anything more while the context lasts."""
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


@asynccontextmanager
async def forwarding(
    port: int, passes: Callable[[asyncio.StreamWriter, bytes], bool]
) -> AsyncIterator[int]:
    """A proxy before a server on this machine; yields its port.

    `passes` is asked of whatever comes by a connection: it gets what a client has sent, and nothing
    where the server has answered.
    """
    served: set[asyncio.Task[object] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.current_task())
        there, back = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 20):
                if passes(writer, data if source is reader else b""):
                    sink.write(data)
            sink.close()
            with suppress(ConnectionError):
                await sink.wait_closed()

        await asyncio.gather(pass_on(reader, back), pass_on(there, writer), return_exceptions=True)

    async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*filter(None, served))

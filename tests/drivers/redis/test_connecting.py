"""Connections to Redis that nobody waits for any more end with their owner, without a word."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.redis import create
from zaqar_lite.storage.redis.address import parse
from zaqar_lite.storage.redis.router import Router, make_router

pytestmark = pytest.mark.anyio


class Silent:
    """A server that takes connections and never answers."""

    def __init__(self) -> None:
        self.port = 0
        self.met = asyncio.Event()
        self.ended = asyncio.Event()
        self.hang_up = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read until the client goes, or hang up when told."""
        await reader.read(1)
        self.met.set()
        reading = asyncio.ensure_future(reader.read())
        telling = asyncio.ensure_future(self.hang_up.wait())
        await asyncio.wait({reading, telling}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            self.ended.set()
        telling.cancel()
        writer.close()
        await asyncio.gather(reading, telling, return_exceptions=True)


@pytest.fixture
async def silent() -> AsyncIterator[Silent]:
    """A silent server."""
    server = Silent()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield server


@pytest.fixture
def complaints() -> list[dict[str, Any]]:
    """What the event loop complains about."""
    found: list[dict[str, Any]] = []
    asyncio.get_event_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


def test_the_database_is_the_first_unless_the_uri_names_one() -> None:
    uris = "redis://h", "rediss://h:1/", "redis://h/7", "redis+sentinel://h,i/s"
    found = [parse(uri).database for uri in (*uris, "redis+sentinel://h/s/3")]
    assert found == [0, 0, 7, 0, 3]


async def test_an_opening_that_is_given_up_leaves_no_connection(silent: Silent) -> None:
    store, _ = create(f"redis://127.0.0.1:{silent.port}/0", clock=Clock(), options=StoreOptions())
    opening = asyncio.ensure_future(store.open())
    await silent.met.wait()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    async with asyncio.timeout(2):  # the driver's own patience is 5 s
        await silent.ended.wait()


async def abandoned(silent: Silent, kind: str) -> Router:
    """A router whose first call was given up while it connected."""
    path = "/mymaster" if kind == "redis+sentinel" else ""
    router = make_router(parse(f"{kind}://127.0.0.1:{silent.port}{path}"), Clock())
    calling = asyncio.ensure_future(router.command(0, "PING"))
    await silent.met.wait()
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    return router


KINDS = ["redis", "redis+cluster", "redis+sentinel"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_connection_that_fails_when_its_caller_has_gone_is_no_complaint(
    silent: Silent, complaints: list[dict[str, Any]], kind: str
) -> None:
    before = asyncio.all_tasks()
    router = await abandoned(silent, kind)
    left = asyncio.all_tasks() - before
    silent.hang_up.set()
    await asyncio.wait(left, timeout=10)
    await router.close()
    del router, left
    gc.collect()
    assert complaints == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_router_that_is_closed_connects_no_more(silent: Silent, kind: str) -> None:
    await (await abandoned(silent, kind)).close()
    async with asyncio.timeout(2):
        await silent.ended.wait()


async def test_the_map_of_a_cluster_is_asked_from_nodes_that_are_not_cut_off() -> None:
    """A node that lost the others knows an old map, and refuses what it had."""

    served: list[asyncio.Task[Any] | None] = []

    async def serve(
        answers: dict[bytes, bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        served.append(asyncio.current_task())
        with suppress(ConnectionError):
            while line := await reader.readline():
                lines = [await reader.readline() for _ in range(2 * int(line[1:]))]
                writer.write(answers.get(lines[1].strip(), b"+OK\r\n"))
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async with AsyncExitStack() as stack:
        ports = []
        for answer in (b"-CLUSTERDOWN\r\n", b"+here\r\n"):
            answers = {b"ECHO": answer}
            server = await asyncio.start_server(partial(serve, answers), "127.0.0.1", 0)
            await stack.enter_async_context(server)
            ports.append(server.sockets[0].getsockname()[1])
            answers[b"CLUSTER"] = (
                b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % ports[-1]
            )
        uri = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        router = make_router(parse(uri), Clock())
        with pytest.raises(Unavailable):
            await router.command(0, "ECHO", "a")
        assert await router.command(0, "ECHO", "a") == b"here"
        await router.close()
        await asyncio.gather(*filter(None, served))

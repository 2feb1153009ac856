"""Server processes over one Redis, through HTTP: what one changes, and what an outage tells."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests import services
from tests.server import ServerProcess

pytestmark = pytest.mark.anyio

HEADERS = {"Client-ID": str(uuid4()), "X-Project-ID": "races"}
PATCH = {"Content-Type": "application/openstack-messaging-v2.0-json-patch"}
Pair = tuple[httpx.AsyncClient, httpx.AsyncClient]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def servers(redis_server: services.RedisServer) -> AsyncIterator[Pair]:
    """A client of each server."""
    processes = [ServerProcess(redis_server.url) for _ in range(2)]
    try:
        await asyncio.gather(*[asyncio.to_thread(process.start) for process in processes])
        async with AsyncExitStack() as stack:
            first, second = [
                await stack.enter_async_context(
                    httpx.AsyncClient(base_url=process.url, headers=HEADERS, timeout=30)
                )
                for process in processes
            ]
            yield first, second
    finally:
        for process in processes:
            process.close()


@pytest.fixture
def path() -> str:
    """The path of a new queue."""
    return f"/v2/queues/race-{uuid4().hex[:12]}"


async def post(http: httpx.AsyncClient, path: str, *bodies: Any, **fields: Any) -> list[str]:
    document = {"messages": [{"body": body, **fields} for body in bodies]}
    answer = await http.post(f"{path}/messages", json=document)
    assert answer.status_code == 201, answer.text
    return [href.rsplit("/", 1)[1] for href in answer.json()["resources"]]


async def test_a_change_of_metadata_holds_for_the_next_request_to_any_server(
    servers: Pair, path: str
) -> None:
    """Each server has the queue's policy in its cache: the store must refuse the old one."""
    await servers[0].put(path, json={"_default_message_ttl": 60})
    for server in servers:
        await post(server, path, "warm")
    for ttl in range(61, 71):
        changing, posting = servers if ttl % 2 else servers[::-1]
        operation = {"op": "replace", "path": "/metadata/_default_message_ttl", "value": ttl}
        assert (await changing.patch(path, json=[operation], headers=PATCH)).status_code == 200
        (message_id,) = await post(posting, path, ttl)
        assert (await changing.get(f"{path}/messages/{message_id}")).json()["ttl"] == ttl


async def test_an_outage_tells_clients_nothing_about_the_inside() -> None:
    """Who runs the server finds in its log where Redis should be; a client does not."""
    with services.start_redis() as redis, ServerProcess(redis.url) as server:
        redis.kill()
        async with httpx.AsyncClient(base_url=server.url, headers=HEADERS) as http:
            answer = await http.get("/v2/queues")
            ready = await http.get("/readyz")
        assert (answer.status_code, ready.status_code) == (503, 503)
        assert "No connection to Redis" in ready.text
        assert str(redis.port) not in ready.text
        assert int(answer.headers["Retry-After"]) >= 1
        assert "No connection to Redis" in answer.json()["description"]
        assert answer.json()["description"].endswith("Please try again in a few seconds.")
        assert str(redis.port) not in answer.text
        for _ in range(100):
            if f":{redis.port}" in server.log().partition("sweep: ")[2]:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(server.log())

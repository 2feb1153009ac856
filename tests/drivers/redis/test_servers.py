"""Two server processes over one Redis, raced through HTTP: who holds what is counted."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests import services
from tests.server import ServerProcess

pytestmark = pytest.mark.anyio

POSTS, BATCH = 12, 10
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


async def claim_all(http: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    """Claim until nothing is left; answer every message that was handed out."""
    found: list[dict[str, Any]] = []
    while True:
        answer = await http.post(f"{path}/claims?limit=7&details=true", json={"ttl": 300})
        if answer.status_code == 204:
            return found
        assert answer.status_code == 201, answer.text
        found += answer.json()["messages"]


async def race_for(servers: Pair, path: str) -> list[dict[str, Any]]:
    """Let four clients of each server claim at the same time until nothing is left."""
    parts = await asyncio.gather(*[claim_all(server, path) for server in servers * 4])
    return [message for part in parts for message in part]


async def test_no_message_has_two_holders_and_none_is_left(servers: Pair, path: str) -> None:
    posted = await asyncio.gather(
        *[post(servers[n % 2], path, *range(BATCH)) for n in range(POSTS)]
    )
    held = await race_for(servers, path)

    assert Counter(message["id"] for message in held) == Counter(
        message_id for batch in posted for message_id in batch
    )
    assert {message["claim_count"] for message in held} == {1}
    # What one server handed out is held for the other one too, and only by its own claim.
    claims = Counter(message["href"].rsplit("=", 1)[1] for message in held)
    for claim_id, size in claims.items():
        for server in servers:
            shown = (await server.get(f"{path}/claims/{claim_id}")).json()
            assert len(shown["messages"]) == size
    for number, message in enumerate(held):
        other = held[number - 1]["href"].rsplit("=", 1)[1]
        bare = message["href"].partition("?")[0]
        if other not in message["href"]:
            answer = await servers[number % 2].delete(f"{bare}?claim_id={other}")
            # 400: that claim is over, with the last message that it held.
            assert answer.status_code in {400, 403}
        assert (await servers[number % 2].delete(message["href"])).status_code == 204
    stats = (await servers[0].get(f"{path}/stats")).json()["messages"]
    assert stats == {"claimed": 0, "free": 0, "total": 0}


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
            if f":{redis.port}" in server.log().partition("sweep put off")[2]:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(server.log())

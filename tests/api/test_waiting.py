"""Requests that wait: woken by what happens, in their turn, never for a client that has gone."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from tests.api.conftest import CLIENT_ID, Api
from tests.api.sockets import Raw, request
from tests.conftest import StartServer
from tests.server import ServerProcess

pytestmark = pytest.mark.anyio
HEADERS = {"Client-ID": CLIENT_ID, "X-Project-ID": "p"}


async def test_a_wait_ends_with_the_empty_answers_of_ever(api: Api) -> None:
    for seconds in (0, 1):
        await api.expect(204, "POST", f"claims?wait={seconds}")
    listed = await api.call("GET", "messages?wait=1")
    assert listed.json() == {"messages": [], "links": []}
    popped = await api.call("DELETE", "messages?pop=1&wait=1")
    assert popped.json() == {"messages": []}


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("POST", "claims?limit=21&wait=30", None),
        ("POST", "claims?wait=30", {"ttl": 59}),
        ("DELETE", "messages?pop=21&wait=30", None),
    ],
)
async def test_a_wrong_request_is_refused_before_it_waits_behind_others(
    api: Api, method: str, path: str, document: Any
) -> None:
    first = asyncio.create_task(api.claim(1, "&wait=30"))
    await api.until("/v2/quota", lambda shown: shown["usage"]["waiters"] == 1)
    async with asyncio.timeout(10):
        await api.expect(400, method, path, document)
    await api.post({"body": 1})
    assert [one["body"] for one in await asyncio.wait_for(first, 20)] == [1]


def waiting_claim(server: ServerProcess, wait: int) -> Raw:
    """Send a waiting claim over a connection of its own."""
    raw = Raw(server)
    raw.send(request("POST", f"/v2/queues/q/claims?wait={wait}", length=0, headers=HEADERS))
    return raw


def test_nothing_is_claimed_for_a_client_that_has_gone(server_process: StartServer) -> None:
    server = server_process()
    with httpx.Client(base_url=server.url, headers=HEADERS) as http:
        for _ in range(20):
            with waiting_claim(server, 30):
                time.sleep(0.02)
        document = {"messages": [{"body": 1}]}
        assert http.post("/v2/queues/q/messages", json=document).status_code == 201
        claimed = http.post("/v2/queues/q/claims?wait=5")
        assert claimed.status_code == 201
        (message,) = claimed.json()["messages"]
        shown = http.get(message["href"].partition("?")[0] + "?details=true").json()
        assert shown["claim_count"] == 1, "it went to somebody who was not there any more"


def test_a_client_that_leaves_gives_up_its_place_at_once(server_process: StartServer) -> None:
    server = server_process(env={"ZAQAR_LITE_MAX_WAITERS_PER_PROJECT": "1"})

    def until(status: int) -> None:
        deadline = time.monotonic() + 20  # far less than the wait of who leaves
        while (answer := http.post("/v2/queues/q/claims?wait=1").status_code) != status:
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)

    with httpx.Client(base_url=server.url, headers=HEADERS) as http:
        with waiting_claim(server, 60):
            until(429)
        until(204)
        document = {"messages": [{"body": 1}]}
        assert http.post("/v2/queues/q/messages", json=document).status_code == 201
        (message,) = http.get("/v2/queues/q/messages?echo=true&details=true").json()["messages"]
        assert message["claim_count"] == 0


def test_a_stop_answers_all_who_wait(server_process: StartServer) -> None:
    server = server_process()
    connections = [waiting_claim(server, 60) for _ in range(5)]
    usage = httpx.get(f"{server.url}/v2/quota", headers=HEADERS)
    while usage.json()["usage"]["waiters"] < len(connections):
        usage = httpx.get(f"{server.url}/v2/quota", headers=HEADERS)
    assert server.terminate() == 0
    for connection in connections:
        with connection:
            assert connection.answer().status == 204

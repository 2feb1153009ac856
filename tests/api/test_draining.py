"""Draining pools: queues move to other pools, and are frozen meanwhile."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Api, MakeApi, claim_id_of
from tests.waiting import until

pytestmark = pytest.mark.anyio
_HELD = "Messages of frozen queues are held by claims: they move when these end, or in a minute."


class Drained:
    """A server with an embedded pool, whose queues can go to the server's own store in memory."""

    def __init__(self, api: Api, directory: Path) -> None:
        self.api = api
        self._uri = f"embedded:{directory}/old"

    async def make(self) -> None:
        await self.api.expect(201, "PUT", "/v2/pools/old", {"uri": self._uri, "weight": 1})

    async def drain(self) -> None:
        """Begin to drain the pool."""
        await self.api.call("PATCH", "/v2/pools/old", {"weight": 0})
        await self.api.expect(202, "POST", "/v2/pools/old/drain")

    async def state(self) -> dict[str, Any]:
        document: dict[str, Any] = (await self.api.call("GET", "/v2/pools/old/drain")).json()
        return document

    async def until(self, **wanted: Any) -> dict[str, Any]:
        """Wait until the drain says this of itself."""
        return await until(self.state, lambda found: wanted.items() <= found.items(), seconds=60)


@pytest.fixture
async def drained(make_api: MakeApi, tmp_path: Path) -> AsyncIterator[Drained]:
    async with make_api(admin_mode=True, pooling=True, drain_wait=0.1) as api:
        made = Drained(api, tmp_path)
        await made.make()
        yield made


async def test_a_pool_that_gets_new_queues_is_not_drained(drained: Drained) -> None:
    await drained.api.expect(409, "POST", "/v2/pools/old/drain", says="set its weight to 0")
    await drained.api.expect(404, "POST", "/v2/pools/none/drain")
    await drained.api.expect(404, "GET", "/v2/pools/old/drain")


async def test_a_queue_is_frozen_while_a_message_of_it_is_held(drained: Drained) -> None:
    api = drained.api
    await api.post({"body": "held"}, {"body": "lapses"}, {"body": "ready"})
    held, lapses = await api.claim(2, ttl=60, grace=60)
    await drained.drain()
    await drained.until(messages_moved=1)
    for method, path, document in (
        ("POST", "messages", {"messages": [{"body": "new"}]}),
        ("POST", "claims", {}),
        ("GET", "messages", None),
    ):
        refused = await api.call(method, path, document)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    await api.expect(200, "GET", f"claims/{claim_id_of(held)}")
    await api.expect(204, "DELETE", held["href"])
    await drained.until(state="running", problem=_HELD)
    api.advance(61)
    await drained.until(state="completed")
    found = {one["body"]: one for one in await api.claim(10, "&details=true")}
    assert sorted(found) == ["lapses", "ready"]
    assert (found["lapses"]["id"], found["lapses"]["claim_count"]) == (lapses["id"], 2)


async def test_a_pool_whose_queues_can_go_nowhere_says_so(drained: Drained) -> None:
    api = drained.api
    await api.expect(201, "PUT", "/v2/flavors/f", {"pool_list": ["old"]})
    await api.expect(201, "PUT", "", {"_flavor": "f"})
    await api.post({"body": 1})
    await drained.drain()
    await drained.until(problem="No pool of the flavor f takes new queues.")
    assert [one["body"] for one in await api.claim(1)] == [1]

"""Draining pools: queues move to other pools, and are frozen meanwhile."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Api, MakeApi, claim_id_of

pytestmark = pytest.mark.anyio
_HELD = "Messages of frozen queues are held by claims: they move when these end, or in a minute."


DRAIN = "/v2/pools/old/drain"


@pytest.fixture
async def api(make_api: MakeApi, tmp_path: Path) -> AsyncIterator[Api]:
    """A server with an embedded pool, whose queues can go to the server's own store in memory."""
    async with make_api(admin_mode=True, pooling=True, drain_wait=0.1) as made:
        pool = {"uri": f"embedded:{tmp_path}/old", "weight": 1}
        await made.expect(201, "PUT", "/v2/pools/old", pool)
        yield made


async def until(api: Api, **wanted: Any) -> None:
    """Wait until the drain says this of itself."""
    await api.until(DRAIN, lambda found: wanted.items() <= found.items())


async def test_a_queue_is_frozen_while_a_message_of_it_is_held(api: Api) -> None:
    await api.expect(409, "POST", DRAIN, says="set its weight to 0")
    await api.expect(404, "POST", "/v2/pools/none/drain")
    await api.expect(404, "GET", DRAIN)
    await api.post({"body": "held"}, {"body": "lapses"}, {"body": "ready"})
    held, lapses = await api.claim(2, ttl=60, grace=60)
    await api.call("PATCH", "/v2/pools/old", {"weight": 0})
    await api.expect(202, "POST", DRAIN)
    await until(api, messages_moved=1)
    for method, path, document in (
        ("POST", "messages", {"messages": [{"body": "new"}]}),
        ("POST", "claims", {}),
        ("GET", "messages", None),
    ):
        refused = await api.expect(503, method, path, document)
        assert refused.headers["Retry-After"] == "5"
    await api.expect(200, "GET", f"claims/{claim_id_of(held)}")
    await api.expect(204, "DELETE", held["href"])
    await until(api, state="running", problem=_HELD)
    api.advance(61)
    await until(api, state="completed")
    found = {one["body"]: one for one in await api.claim(10, "&details=true")}
    assert sorted(found) == ["lapses", "ready"]
    assert (found["lapses"]["id"], found["lapses"]["claim_count"]) == (lapses["id"], 2)


async def test_a_pool_whose_queues_can_go_nowhere_says_so(api: Api) -> None:
    await api.expect(201, "PUT", "/v2/flavors/f", {"pool_list": ["old"]})
    await api.expect(201, "PUT", "", {"_flavor": "f"})
    await api.post({"body": 1})
    await api.call("PATCH", "/v2/pools/old", {"weight": 0})
    await api.expect(202, "POST", DRAIN)
    await until(api, problem="No pool of the flavor f takes new queues.")
    assert [one["body"] for one in await api.claim(1)] == [1]

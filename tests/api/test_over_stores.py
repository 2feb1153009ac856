"""On every store: events are streamed, and a pool is drained into it and out of it again."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Api, MakeApi, claim_id_of
from tests.api.test_events import listening, told
from tests.contract.conftest import case, store_uri  # noqa: F401 - fixtures
from tests.contract.stores import DriverCase
from tests.services import start_redis
from tests.services.mongodb import own_database

pytestmark = pytest.mark.anyio


@pytest.fixture
async def on_store(
    make_api: MakeApi,
    case: DriverCase,  # noqa: F811
    store_uri: str,  # noqa: F811
    tmp_path: Path,
) -> AsyncIterator[Api]:
    options = dict(case.make_extra(tmp_path))
    async with make_api(store=store_uri, store_options=options) as api:
        yield api


async def test_tells_what_is_there_what_comes_and_what_becomes_due(on_store: Api) -> None:
    api = on_store
    await api.call("PUT", "", {"_default_message_delay": 60})
    await api.post({"body": "first", "delay": 0}, {"body": "late", "delay": 60})
    async with listening(api) as listener:
        assert await listener.bodies(1, 30) == ["first"]
        await api.post({"body": "second", "delay": 0})
        assert await listener.bodies(1, 30) == ["second"]
        cut = listener.last_id
    await api.post({"body": "third", "delay": 0})
    assert await told(api, cut) == ["third"]
    api.advance(61)
    assert sorted(await told(api, cut)) == ["late", "third"]
    assert len(await api.claim(10)) == 4


async def drain(api: Api, pool: str) -> dict[str, Any]:
    """Empty a pool, and delete it."""
    await api.call("PATCH", f"/v2/pools/{pool}", {"weight": 0})
    await api.expect(202, "POST", f"/v2/pools/{pool}/drain")
    state: dict[str, Any] = await api.until(
        f"/v2/pools/{pool}/drain", lambda state: state["state"] == "completed"
    )
    await api.expect(204, "DELETE", f"/v2/pools/{pool}")
    return state


async def everything(api: Api) -> dict[str, Any]:
    path = "include_claimed=true&include_delayed=true&echo=true&details=true"
    found = {one["id"]: one for one in await api.browse(path)}
    for one in found.values():
        del one["age"]
    return found


@pytest.fixture
def pool_uri(case: DriverCase, store_uri: str) -> Iterator[str]:  # noqa: F811
    """A store that no other test uses: a drain waits for the notes that others left in it."""
    if case.package == "redis":
        with start_redis() as redis:
            yield redis.url
    else:
        yield own_database(store_uri) if case.package == "mongodb" else store_uri


async def test_messages_move_into_a_pool_of_it_and_out_again(
    make_api: MakeApi,
    case: DriverCase,  # noqa: F811
    pool_uri: str,
    tmp_path: Path,
) -> None:
    async with make_api(admin_mode=True, pooling=True, drain_wait=0.1) as api:
        old = {"uri": f"embedded:{tmp_path}/old", "weight": 1}
        await api.expect(201, "PUT", "/v2/pools/old", old)
        metadata = {"_default_message_delay": 1, "_max_failures": 5}
        await api.call("PUT", "", {**metadata, "_dead_letter_queue": f"{api.queue}-dead"})
        await api.post(*({"body": n, "delay": 0, "headers": {"n": str(n)}} for n in range(5)))
        await api.post({"body": "later", "delay": 600})
        (held,) = await api.claim(1, ttl=60, grace=60)
        claim_id = claim_id_of(held)
        failed = {"release": [{"id": held["id"], "failed": True, "reason": "http_503"}]}
        await api.expect(200, "POST", f"claims/{claim_id}/settle", failed)
        before = await everything(api)
        assert len(before) == 6
        extra = dict(case.make_extra(tmp_path))
        new = {"uri": pool_uri, "weight": 1, **({"options": extra} if extra else {})}
        await api.expect(201, "PUT", "/v2/pools/new", new)
        assert (await drain(api, "old"))["messages_moved"] == 6
        assert await everything(api) == before
        claimed = await api.claim(10)
        assert sorted(one["body"] for one in claimed) == [0, 1, 2, 3, 4]
        for one in claimed[1:]:
            await api.expect(204, "DELETE", one["href"])
        href = claimed[0]["href"].partition("?")[0]
        claim_id = claimed[0]["href"].rpartition("=")[2]
        dead = {"dead": [{"id": claimed[0]["id"], "reason": "wrong"}]}
        await api.expect(200, "POST", f"claims/{claim_id}/settle", dead)
        await api.expect(404, "GET", href)
        assert (await drain(api, "new"))["messages_moved"] == 2
        (letter,) = (
            await api.call("GET", f"/v2/queues/{api.queue}-dead/messages?echo=true")
        ).json()["messages"]
        assert letter["id"] == claimed[0]["id"]
        api.advance(600)
        (late,) = await api.claim(10)
        assert (late["body"], before[late["id"]]["body"]) == ("later", "later")

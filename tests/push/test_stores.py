"""Pools: queues lie, move and are delivered from there."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import MakeApi
from tests.contract.conftest import case, store_uri  # noqa: F401 - fixtures
from tests.contract.stores import DriverCase
from tests.push.conftest import LOOPBACK
from tests.push.receiver import Receiver
from tests.push.test_delivering import subscribe
from tests.waiting import until

pytestmark = pytest.mark.anyio

POLICY = {"minimum_delay": 0, "maximum_delay": 10}


@pytest.fixture
def settings(case: DriverCase, store_uri: str, tmp_path: Path) -> dict[str, Any]:  # noqa: F811
    """The settings of a server that delivers, over each store."""
    options = dict(case.make_extra(tmp_path))
    return {"store": store_uri, "store_options": options, "delivery_allowed": LOOPBACK}


async def test_delivers_tries_again_and_waits_until_a_message_is_due(
    make_api: MakeApi, settings: dict[str, Any]
) -> None:
    async with (
        make_api(**settings) as api,
        Receiver(503, 204) as receiver,
        Receiver(503, 204) as orderly,
    ):
        await api.call("PUT", "", {"_default_message_delay": 600})
        await subscribe(api, receiver.url, options={"_retry_policy": POLICY})
        await subscribe(api, orderly.url, options={"_retry_policy": POLICY, "ordered": True})
        _, late = await api.post({"body": "now", "delay": 0}, {"body": "late"})
        came = await receiver.wait(2, seconds=60)
        assert [one.document["body"] for one in came] == ["now", "now"]
        assert came[0].headers["webhook-id"] == came[1].headers["webhook-id"]
        # The first may come again: its lease ends before its delivery was written down.
        api.advance(600)
        await receiver.wait_for("late")
        assert f"msg_{late}" in {one.headers["webhook-id"] for one in receiver.received}
        await orderly.wait_for("late")
        assert orderly.bodies == sorted(orderly.bodies, reverse=True)


async def test_a_queue_in_a_pool_delivers_and_goes_on_when_it_has_moved(
    make_api: MakeApi,
    tmp_path: Path,
) -> None:
    settings = {"admin_mode": True, "pooling": True, "drain_wait": 0.1}
    async with (
        make_api(delivery_allowed="127.0.0.0/8", **settings) as api,
        Receiver() as receiver,
        Receiver() as orderly,
    ):
        pool = {"uri": f"embedded:{tmp_path}/pool", "weight": 1}
        await api.call("PUT", "/v2/pools/one", pool)
        for url, options in ((receiver.url, {}), (orderly.url, {"ordered": True})):
            document = {"subscriber": url, "options": options}
            await api.expect(201, "POST", "subscriptions", document)
        await api.post({"body": "in the pool"})
        for each in (receiver, orderly):
            await each.wait_for("in the pool")
        await api.call("PATCH", "/v2/pools/one", {"weight": 0})
        await api.call("POST", "/v2/pools/one/drain")
        late = {"messages": [{"body": "on the way"}]}

        async def is_posted() -> bool:  # it is frozen while it moves
            return (await api.call("POST", "messages", late)).status_code == 201

        async def is_drained() -> bool:
            drain = await api.call("GET", "/v2/pools/one/drain")
            return bool(drain.json()["state"] == "completed")

        await until(is_posted, seconds=60)
        for each in (receiver, orderly):
            await each.wait_for("on the way")
        await until(is_drained, seconds=60)
        await api.expect(204, "DELETE", "/v2/pools/one")
        await api.post({"body": "elsewhere"})
        for each in (receiver, orderly):
            await each.wait_for("elsewhere")
        assert list(dict.fromkeys(orderly.bodies)) == ["in the pool", "on the way", "elsewhere"]

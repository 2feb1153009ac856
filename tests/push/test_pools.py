"""Queues in pools deliver, also while their pool is drained and when it is gone."""

from pathlib import Path

import pytest

from tests.api.conftest import MakeApi
from tests.push.conftest import until
from tests.push.receiver import Receiver

pytestmark = pytest.mark.anyio


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

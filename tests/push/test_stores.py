"""Every store delivers: notes and retries are messages in queues of our own."""

from pathlib import Path

import pytest

from tests.api.conftest import MakeApi, make_api  # noqa: F401 - a fixture
from tests.contract.conftest import case, store_uri  # noqa: F401 - fixtures
from tests.contract.stores import DriverCase
from tests.push.receiver import Receiver

pytestmark = pytest.mark.anyio
POLICY = {"minimum_delay": 0, "maximum_delay": 10}


async def test_delivers_tries_again_and_waits_until_a_message_is_due(
    make_api: MakeApi,  # noqa: F811
    case: DriverCase,  # noqa: F811
    store_uri: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = {
        "store": store_uri,
        "store_options": dict(case.make_extra(tmp_path)),
        "delivery_allowed": "127.0.0.0/8",
    }
    async with (
        make_api(**settings) as api,
        Receiver(503, 204) as receiver,
        Receiver(503, 204) as orderly,
    ):
        await api.call("PUT", "", {"_default_message_delay": 600})
        made = await api.call(
            "POST",
            "subscriptions",
            {"subscriber": receiver.url, "options": {"_retry_policy": POLICY}},
        )
        assert made.status_code == 201
        options = {"_retry_policy": POLICY, "ordered": True}
        answer = await api.call(
            "POST", "subscriptions", {"subscriber": orderly.url, "options": options}
        )
        assert answer.status_code == 201
        _, late = await api.post({"body": "now", "delay": 0}, {"body": "late"})
        came = await receiver.wait(2, seconds=60)
        assert [one.document["body"] for one in came] == ["now", "now"]
        assert came[0].headers["webhook-id"] == came[1].headers["webhook-id"]
        # The first may come again: its lease ends before its delivery was written down.
        api.advance(600)
        count = 3
        while (await receiver.wait(count, seconds=60))[-1].document["body"] == "now":
            count = len(receiver.received) + 1
        assert receiver.received[-1].document["body"] == "late"
        assert receiver.received[-1].headers["webhook-id"] == f"msg_{late}"
        while orderly.received[-1].document["body"] != "late":
            await orderly.wait(len(orderly.received) + 1, seconds=60)
        bodies = [one.document["body"] for one in orderly.received]
        assert bodies == sorted(bodies, reverse=True)

"""A subscription that the server disables, and says so: 410, or nothing but failures for days."""

import asyncio
from typing import Any

import pytest

from tests.api.conftest import Api
from tests.push.receiver import Receiver
from tests.push.test_delivering import subscribe

pytestmark = pytest.mark.anyio


async def test_410_disables_and_a_patch_enables(api: Api) -> None:
    async with Receiver(410, 204) as receiver:
        events = f"{api.queue}-events"
        made, _ = await subscribe(api, receiver.url, options={"events_queue": events})
        await api.post({"body": 1})
        await receiver.wait(1)
        path = f"subscriptions/{made}?details=true"
        for _ in range(100):
            shown = (await api.call("GET", path)).json()
            told = (await api.call("GET", f"/v2/queues/{events}/messages?echo=true")).json()
            if shown["disabled"] and told["messages"]:
                break
            await asyncio.sleep(0.05)
        assert shown["disabled"]["reason"] == "the receiver answered 410"
        assert told["messages"][0]["body"]["event"] == "subscription.disabled"
        await api.post({"body": 2})
        await asyncio.sleep(0.3)
        assert len(receiver.received) == 1
        deliveries = f"subscriptions/{made}/deliveries"
        (failed,) = (await api.call("GET", f"{deliveries}?state=failed")).json()["deliveries"]
        for again in (f"{deliveries}/{failed['id']}/retry", f"subscriptions/{made}/replay"):
            assert (await api.call("POST", again)).status_code == 400
        shown = (await api.call("GET", f"{deliveries}?state=failed")).json()["deliveries"]
        assert shown == [failed]
        enabled = await api.call("PATCH", f"subscriptions/{made}", {"disabled": False})
        assert enabled.status_code == 204
        await api.post({"body": 3})
        assert (await receiver.wait(2))[1].document["body"] == 3


@pytest.mark.parametrize("status", [503, 404])
async def test_what_has_only_failed_for_days_is_disabled_loudly(
    api: Api, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with Receiver(status) as receiver:
        events, days = f"{api.queue}-events", 86_400
        made, _ = await subscribe(
            api, receiver.url, ttl=10 * days, options={"events_queue": events}
        )
        await api.post({"body": 1, "ttl": 10 * days})
        await receiver.wait(1)
        await attempts_of(api, made, 1)
        api.advance(5 * days)
        await api.post({"body": 2, "ttl": days})
        for _ in range(200):
            shown = (await api.call("GET", f"subscriptions/{made}?details=true")).json()
            told = (await api.call("GET", f"/v2/queues/{events}/messages?echo=true")).json()
            if shown["disabled"] and told["messages"]:
                break
            await asyncio.sleep(0.05)
        assert shown["disabled"]["reason"] == "nothing but failures for 5 days"
        assert told["messages"][0]["body"]["reason"] == "nothing but failures for 5 days"
        assert f"subscription {made} of queue '{api.queue}' is disabled" in caplog.text
        metrics = (await api.call("GET", "/metrics")).text
        assert "zaqar_lite_disabled_subscriptions_total 1\n" in metrics


async def test_one_success_in_between_disables_nothing(api: Api) -> None:
    async with Receiver(503, 204, 503) as receiver:
        days = 86_400
        made, _ = await subscribe(api, receiver.url, ttl=10 * days)
        await api.post({"body": 1, "ttl": 10 * days})
        await attempts_of(api, made, 1)
        api.advance(5 * days)
        await attempts_of(api, made, 2)
        await api.post({"body": 2, "ttl": days})
        await attempts_of(api, made, 3)
        await asyncio.sleep(0.2)
        shown = (await api.call("GET", f"subscriptions/{made}?details=true")).json()
        assert shown["disabled"] is None


async def attempts_of(api: Api, made: str, count: int) -> list[dict[str, Any]]:
    """The attempts of a subscription, once there are so many."""
    async with asyncio.timeout(20):
        while True:
            answer = await api.call("GET", f"subscriptions/{made}/deliveries")
            found: list[dict[str, Any]] = answer.json()["deliveries"]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.05)

"""A subscription that the server disables, and says so: 410, or nothing but failures for days."""

import asyncio

import pytest

from tests.api.conftest import Api
from tests.push.receiver import Receiver
from tests.push.test_delivering import attempts_of, dead_letter, deliveries, subscribe

pytestmark = pytest.mark.anyio


async def test_410_disables_and_a_patch_enables(api: Api) -> None:
    async with Receiver(410, 204) as receiver:
        events = f"{api.queue}-events"
        made, _ = await subscribe(api, receiver.url, options={"events_queue": events})
        await api.post({"body": 1})
        await receiver.wait(1)
        event = await dead_letter(api, events)
        assert event["event"] == "subscription.disabled"
        shown = (await api.call("GET", f"subscriptions/{made}?details=true")).json()
        assert shown["disabled"]["reason"] == event["reason"] == "the receiver answered 410"
        await api.post({"body": 2})
        await asyncio.sleep(0.3)
        assert len(receiver.received) == 1
        (failed,) = await deliveries(api, made)
        for again in (f"deliveries/{failed['id']}/retry", "replay"):
            await api.expect(400, "POST", f"subscriptions/{made}/{again}")
        assert await deliveries(api, made) == [failed]
        await api.expect(204, "PATCH", f"subscriptions/{made}", {"disabled": False})
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
        reason = (await dead_letter(api, events))["reason"]
        shown = (await api.call("GET", f"subscriptions/{made}?details=true")).json()
        assert shown["disabled"]["reason"] == reason == "nothing but failures for 5 days"
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

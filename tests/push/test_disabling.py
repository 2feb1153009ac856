"""Subscriptions that the server disables: when, who is told, and what becomes of what waits."""

import asyncio
from typing import Any

import pytest

from tests.api.conftest import Api
from tests.push.receiver import Receiver
from tests.push.test_delivering import attempts_of, dead_letter, deliveries, policy, subscribe
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.sql.records import SqlManagementStore

pytestmark = pytest.mark.anyio


async def test_a_message_that_ends_its_subscription_is_kept_whatever_fails_meanwhile(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten, delete = asyncio.Event(), SqlManagementStore.delete_record

    async def fail_once(self: Any, kind: str, *args: Any, **more: Any) -> bool:
        if kind == "deliveries" and not forgotten.is_set():
            forgotten.set()
            raise Unavailable("The store is away.")
        return await delete(self, kind, *args, **more)

    monkeypatch.setattr(SqlManagementStore, "delete_record", fail_once)
    async with Receiver(410) as receiver:
        made, _ = await subscribe(api, receiver.url)
        await api.post({"body": 1})
        await forgotten.wait()
        api.advance(61)
        (one,) = await deliveries(api, made)
        assert one["reason"] == "the receiver answered 410"


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_waits_for_a_subscription_that_is_disabled_is_kept(
    api: Api, ordered: bool
) -> None:
    async with Receiver(503, 410) as receiver:
        options = {"_retry_policy": policy(minimum=3, delay=60), "ordered": ordered}
        made, _ = await subscribe(api, receiver.url, options=options)
        await api.post({"body": "waits"})
        await receiver.wait(1)
        if ordered:
            await api.post({"body": "behind"})
        else:
            await api.post({"body": "gone"})
            await receiver.wait(2)
        await asyncio.sleep(0.2)
        api.advance(61)
        path = f"subscriptions/{made}/deliveries?state=failed"
        await api.until(path, lambda page: len(page["deliveries"]) == 2)
        await api.post({"body": "posted since"})
        api.advance(61)
        await asyncio.sleep(1)
        listed = (await api.call("GET", path)).json()["deliveries"]
        kept = {one["message"]["body"]: one["reason"] for one in listed}
        last, refused = ("behind", "waits") if ordered else ("waits", "gone")
        disabled = "the subscription is disabled"
        assert kept == {refused: "the receiver answered 410", last: disabled}


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

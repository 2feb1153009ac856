"""Delivery to subscribers: what is sent, tried again, told, and ended."""

import asyncio
import base64
import json
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from aiohttp import web
from standardwebhooks.webhooks import Webhook

from tests.api.conftest import Api, MakeApi
from tests.api.test_encryption import write
from tests.push.conftest import LOOPBACK
from tests.push.receiver import Receiver
from tests.waiting import until
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.sql.messages import SqlMessageStore
from zaqar_lite.webhooks import InvalidSignature, verify

pytestmark = pytest.mark.anyio


def policy(at_once: int = 0, minimum: int = 0, delay: int = 0, **rest: Any) -> dict[str, Any]:
    """A retry policy of tries at once, then of some after the minimum delay, and no others."""
    return {
        "retries_with_no_delay": at_once,
        "minimum_delay_retries": minimum,
        "maximum_delay_retries": 0,
        "minimum_delay": delay,
        "maximum_delay": delay + 10,
        "retry_backoff_function": "geometric",
        **rest,
    }


async def deliveries(api: Api, made: str, query: str = "") -> list[Any]:
    """The failed deliveries of a subscription, once there are some."""
    path = f"subscriptions/{made}/deliveries?state=failed{query}"

    found: dict[str, list[Any]] = await api.until(path, lambda page: page["deliveries"])
    return found["deliveries"]


async def attempts_of(api: Api, made: str, count: int) -> list[Any]:
    """The last attempts of a subscription, the newest first, once there are so many."""
    path = f"subscriptions/{made}/deliveries"
    found: dict[str, list[Any]] = await api.until(
        path, lambda page: len(page["deliveries"]) >= count
    )
    return found["deliveries"]


async def dead_letter(api: Api, queue: str) -> Any:
    """The only message of a dead-letter queue, once it is there."""

    async def look() -> list[Any]:
        listed = await api.call("GET", f"/v2/queues/{queue}/messages?echo=true")
        found: list[Any] = listed.json()["messages"]
        return found

    (letter,) = await until(look)
    return letter["body"]


async def subscribe(api: Api, url: str, **fields: Any) -> tuple[str, str]:
    answer = await api.expect(201, "POST", "subscriptions", {"subscriber": url, **fields})
    return answer.json()["subscription_id"], answer.json().get("secret", "")


async def test_sends_upstreams_document_signed_anew_for_each_try(api: Api) -> None:
    later = policy(minimum=2, delay=2, retry_backoff_function="linear")
    options = {"post_headers": {"Authorization": "Bearer 7"}, "_retry_policy": later}
    async with Receiver(500, 204) as receiver:
        _, secret = await subscribe(api, f"{receiver.url}/hook", options=options)
        (posted,) = await api.post({"body": {"order": 7}, "ttl": 300})
        both = await receiver.wait(2, seconds=20)
    for came in both:
        assert came.document == {
            "body": {"order": 7},
            "ttl": 300,
            "queue_name": api.queue,
            "Message_Type": "Notification",
        }
        assert came.path == "/hook"
        assert came.headers["authorization"] == "Bearer 7"
        assert came.headers["content-type"] == "application/json"
        assert verify(came.headers, came.body, secret) == f"msg_{posted}"
        assert Webhook(secret).verify(came.body, dict(came.headers))["body"] == {"order": 7}
        with pytest.raises(InvalidSignature):
            verify(came.headers, came.body + b" ", secret)
    for name in ("webhook-timestamp", "webhook-signature"):
        assert len({came.headers[name] for came in both}) == 2


async def test_who_subscribed_to_a_queue_gets_the_copies_in_it(api: Api) -> None:
    filtered = {"_filter": "colour = 'red'", "_default_message_ttl": 120}
    await api.call("PUT", "/v2/queues/red", filtered)
    async with Receiver() as receiver:
        document = {"subscriber": receiver.url}
        await api.expect(201, "POST", "/v2/queues/red/subscriptions", document)
        await api.post({"body": "other"}, {"body": "red", "headers": {"colour": "red"}})
        (came,) = await receiver.wait(1)
    told = (came.document["body"], came.document["queue_name"], came.document["ttl"])
    assert told == ("red", "red", 120)


async def test_an_encrypted_queue_delivers_what_was_posted_and_keeps_it_sealed(
    make_api: MakeApi,
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys"
    write(keys, "one:" + base64.b64encode(b"1" * 32).decode())
    settings = {"encryption_key_file": keys, "store": f"embedded://{tmp_path}/data"}
    async with make_api(delivery_allowed=LOOPBACK, **settings) as api:
        await api.call("PUT", "", {"_enable_encrypt_messages": True})
        async with Receiver(500, 400) as receiver:
            made, _ = await subscribe(api, receiver.url, options={"_retry_policy": policy(2)})
            await api.post({"body": {"card": "4111-1111"}})
            first, again = await receiver.wait(2)
            assert first.document["body"] == again.document["body"] == {"card": "4111-1111"}
            assert "4111-1111" in json.dumps(await deliveries(api, made))
        options = {"dead_letter_queue": "dead"}
        async with Receiver(404) as refuses:
            await subscribe(api, refuses.url, options=options)
            await api.post({"body": {"card": "4111-1111"}})
            letter = await dead_letter(api, "dead")
            assert letter["message"]["body"] == {"card": "4111-1111"}
    stored = b"".join(one.read_bytes() for one in (tmp_path / "data").rglob("*") if one.is_file())
    assert b"sealed:1:" in stored
    assert b"4111-1111" not in stored


async def test_the_context_of_a_message_travels_to_its_receivers(api: Api) -> None:
    traced = {"TraceParent": f"00-{'a1' * 16}-{'b2' * 8}-01", "tracestate": "shop=1"}
    bad = {"traceparent": "00-zz\r\nx: y", "tracestate": "shop=1"}
    odd = {"traceparent": f"00-{'a1' * 16}-{'b2' * 8}-00", "tracestate": "a\nb: c"}
    async with Receiver(500, 204) as receiver:
        await subscribe(api, receiver.url, options={"_retry_policy": policy(3)})
        await api.post({"body": 1, "headers": traced})
        for one in await receiver.wait(2):  # the second is the retry, from its own record
            assert one.headers["traceparent"] == traced["TraceParent"]
            assert one.headers["tracestate"] == "shop=1"
        await api.post({"body": 2, "headers": bad})
        assert "traceparent" not in (await receiver.wait(3))[2].headers
        await api.post({"body": 3, "headers": odd})
        last = (await receiver.wait(4))[3].headers
        assert (last["traceparent"], "tracestate" in last) == (odd["traceparent"], False)


async def test_post_data_takes_the_notification_in_and_makes_no_large_one_larger(api: Api) -> None:
    places = ",".join(['"$zaqar_message$"'] * 1_600)
    async with Receiver() as receiver:
        data = {"post_data": '{"a": [%s], "b": 1}' % places}  # noqa: UP031 - it has braces
        made, _ = await subscribe(api, receiver.url, options=data)
        await api.post({"body": "x" * 250_000})
        (tried,) = await attempts_of(api, made, 1)
        assert (tried["outcome"], tried["milliseconds"] < 1_000) == ("undeliverable", True)
        (failed,) = await deliveries(api, made)
        assert "post_data" in failed["reason"]
        await api.post({"body": "small"})
        (came,) = await receiver.wait(1)
        assert came.document["b"] == 1
        assert [one["body"] for one in came.document["a"]] == ["small"] * 1_600


@pytest.mark.filterwarnings("ignore:Sending a large body directly")  # aiohttp's own
@pytest.mark.parametrize(
    ("places", "size", "is_sent"),
    [(2, 1 << 19, True), (2, (1 << 19) + 1, False), (1, (1 << 20) + 40, True)],
)
async def test_several_places_in_post_data_make_no_more_than_a_mebibyte(
    make_api: MakeApi, places: int, size: int, is_sent: bool
) -> None:
    settings = {"delivery_allowed": LOOPBACK, "max_messages_post_size": 1 << 20}
    frame = {"post_data": "[" + ",".join(['"$zaqar_message$"'] * places) + "]"}
    async with Receiver() as receiver, make_api(**settings) as api:
        made, _ = await subscribe(api, receiver.url, options=frame)
        empty = {"body": "", "ttl": 3600, "queue_name": api.queue, "Message_Type": "Notification"}
        around = len(json.dumps(empty, separators=(",", ":")))
        await api.post({"body": "x" * (size - around)})
        (tried,) = await attempts_of(api, made, 1)
    assert tried["outcome"] == ("delivered" if is_sent else "undeliverable")
    assert [len(one.body) for one in receiver.received] == [places * (size + 1) + 1] * is_sent


async def test_reaches_each_subscription_of_the_post_once_whatever_becomes_of_the_message(
    api: Api,
) -> None:
    async with Receiver() as receiver:
        await subscribe(api, f"{receiver.url}/1")
        await subscribe(api, f"{receiver.url}/2")
        for _ in range(3):
            await api.post({"body": 1}, idempotency_key="k")
            await api.post({"body": 2, "idempotency_key": "m"})
            await api.call("POST", "purge", {"resource_types": ["messages"]})
        await receiver.wait(4)
        await asyncio.sleep(0.3)
        came = sorted((one.path, one.document["body"]) for one in receiver.received)
    assert came == [("/1", 1), ("/1", 2), ("/2", 1), ("/2", 2)]


async def test_nothing_is_sent_after_the_end_of_a_subscription(api: Api) -> None:
    """Neither what waits for its place, nor what is posted then."""
    answered = asyncio.Event()

    async def late(*_: Any) -> web.Response:
        await answered.wait()
        return web.Response(status=204)

    async with Receiver(answer=late) as receiver:
        made, _ = await subscribe(api, receiver.url)
        await api.post(*({"body": n} for n in range(10)))
        await receiver.wait(2)  # as many as are called at a time at first
        await api.expect(204, "DELETE", f"subscriptions/{made}")
        answered.set()
        await api.post({"body": "later"})
        await asyncio.sleep(0.5)
        assert len(receiver.received) == 2
        assert "~subscribed" not in (await api.call("GET", "")).json()


@pytest.mark.parametrize("refused", ["404", "307", "by the guard"])
async def test_what_can_not_be_delivered_goes_to_the_dead_letters(
    make_api: MakeApi, refused: str
) -> None:
    """An error of the client is final, a redirect is not followed, and loopback must be allowed."""
    by_guard = refused == "by the guard"
    reason = "refused: the target is in a network that may not be called"
    async with (
        make_api(**({} if by_guard else {"delivery_allowed": LOOPBACK})) as api,
        Receiver() as inner,
    ):

        async def answer(*_: Any) -> web.Response:
            return web.Response(status=int(refused), headers={"Location": inner.url})

        async with Receiver(answer=answer) as receiver:
            dead = f"{api.queue}-dead"
            made, _ = await subscribe(api, receiver.url, options={"dead_letter_queue": dead})
            (posted,) = await api.post({"body": 1})
            letter = await dead_letter(api, dead)
            assert letter["message"]["body"] == 1
            assert (letter["message_id"], letter["subscription_id"]) == (posted, made)
            assert letter["reason"] == (reason if by_guard else f"the receiver answered {refused}")
            assert (len(receiver.received), len(inner.received)) == (0 if by_guard else 1, 0)


async def test_a_full_dead_letter_queue_repeats_nothing(make_api: MakeApi) -> None:
    async with (
        make_api(delivery_allowed=LOOPBACK, max_messages_per_queue=1) as api,
        Receiver() as good,
        Receiver(404) as bad,
    ):
        full = f"{api.queue}-full"
        await api.call("POST", f"/v2/queues/{full}/messages", {"messages": [{"body": 1}]})
        await subscribe(api, good.url)
        made, _ = await subscribe(api, bad.url, options={"dead_letter_queue": full})
        await api.post({"body": 2})
        failed = await deliveries(api, made)
        assert f"404; the queue '{full}' did not take it" in failed[0]["reason"]
        api.advance(61)
        await asyncio.sleep(0.5)
        assert (len(good.received), len(bad.received)) == (1, 1)


async def test_a_delayed_message_is_delivered_when_it_is_due(api: Api) -> None:
    """In upstream's way it is announced when it is posted."""
    at_once = f"/v2/queues/{api.queue}-at-once"
    await api.call("PUT", at_once, {"_default_message_delay": 600, "_notify_on_post": True})
    async with Receiver() as receiver:
        await api.expect(201, "POST", f"{at_once}/subscriptions", {"subscriber": receiver.url})
        await api.expect(201, "POST", f"{at_once}/messages", {"messages": [{"body": "a"}]})
        (came,) = await receiver.wait(1)
    assert came.document["delay"] == 600
    await api.call("PUT", "", {"_default_message_delay": 600})
    async with Receiver() as receiver:
        await subscribe(api, receiver.url)
        _, edited, deleted = await api.post({"body": "a"}, {"body": "b"}, {"body": "c"})
        await asyncio.sleep(0.3)
        assert receiver.received == []
        await api.expect(204, "DELETE", f"messages/{deleted}")
        await api.expect(200, "PATCH", f"messages/{edited}", {"body": "B"})
        api.advance(599.0)  # it is looked at half a second before it is due
        await api.post({"body": "d"})  # and those who wait look when that is, by the moved clock
        await receiver.wait(2)
        await asyncio.sleep(0.8)
    assert sorted(receiver.bodies) == ["B", "a"]
    assert receiver.received[0].document["delay"] == 600


@pytest.mark.parametrize("made_again", [False, True])
async def test_a_delayed_message_that_is_deleted_with_its_queue_is_not_delivered(
    api: Api, made_again: bool
) -> None:
    async with Receiver() as receiver:
        await api.expect(201, "PUT", "", {"_default_message_delay": 60})
        await subscribe(api, receiver.url)
        await api.post({"body": "deleted"})
        await api.expect(204, "DELETE", "")
        if made_again:
            await api.expect(201, "PUT", "", {"_default_message_delay": 60})
        api.advance(57.0)  # it is looked at half a second before it is due
        await asyncio.sleep(4)
        assert receiver.received == []


async def test_confirms_before_it_delivers(make_api: MakeApi) -> None:
    async with (
        make_api(
            delivery_allowed=LOOPBACK, require_confirmation=True, signed_url_secret_key="k" * 32
        ) as api,
        Receiver() as receiver,
    ):
        made, _ = await subscribe(api, receiver.url)
        await api.post({"body": 1})
        (asked,) = await receiver.wait(1)
        document = asked.document
        assert document["Message_Type"] == "SubscriptionConfirmation"
        assert document["UnsubscribeBody"] == {**document["SubscribeBody"], "confirmed": False}
        names = ("URL-Signature", "URL-Methods", "URL-Paths", "URL-Expires")
        headers = {name: document[name] for name in names}
        path = document["URL-Paths"]
        assert path.endswith(f"/subscriptions/{made}/confirm")
        await api.expect(400, "PUT", path, {"confirmed": True}, **headers)
        for status in (204, 404):  # the token is good once
            answer = await api.call("PUT", path, document["SubscribeBody"], **headers)
            assert answer.status_code == status
        await asyncio.sleep(0.2)
        assert len(receiver.received) == 1
        await api.post({"body": 2})
        came = await receiver.wait(2)
        assert came[1].document["body"] == 2
        await api.expect(409, "POST", "subscriptions", {"subscriber": receiver.url})
        await api.expect(204, "PUT", path, {"confirmed": False})
        assert (await receiver.wait(3))[2].document["Message_Type"] == "UnsubscribeConfirmation"
        await api.expect(204, "PUT", path, {"confirmed": False})
        await api.post({"body": 3})
        await asyncio.sleep(0.3)
        assert len(receiver.received) == 3


def away_once(name: str, put_into: str = "") -> Any:
    """A store that is away for the first call of an operation, on queues of such a name."""
    real, failed = getattr(SqlMessageStore, name), asyncio.Event()

    async def fail_once(self: Any, queue: QueueRef, *args: Any, **more: Any) -> Any:
        if queue.name.startswith(put_into) and not failed.is_set():
            failed.set()
            raise Unavailable("The store is away.")
        return await real(self, queue, *args, **more)

    return patch.object(SqlMessageStore, name, fail_once)


async def test_who_is_not_asked_for_want_of_a_store_is_asked_by_the_next_try(
    make_api: MakeApi,
) -> None:
    confirms = {"require_confirmation": True, "signed_url_secret_key": "k" * 32}
    async with (
        make_api(delivery_allowed=LOOPBACK, **confirms) as api,
        Receiver(503) as earlier,
        Receiver() as receiver,
    ):
        made, _ = await subscribe(api, earlier.url)
        path = f"subscriptions/{made}"
        await earlier.wait(1)
        with away_once("post", "~again"):
            await api.expect(503, "PATCH", path, {"subscriber": receiver.url})
        await api.expect(204, "PATCH", path, {"subscriber": receiver.url})
        (asked,) = await receiver.wait(1)
        assert asked.document["Message_Type"] == "SubscriptionConfirmation"
        api.advance(10)
        await asyncio.sleep(1.5)
        assert len(receiver.received) == 1  # and not what the earlier one was to be asked again
        names = ("URL-Signature", "URL-Methods", "URL-Paths", "URL-Expires")
        signed = {name: asked.document[name] for name in names}
        answer = asked.document["SubscribeBody"]
        await api.expect(204, "PUT", asked.document["URL-Paths"], answer, **signed)
        with away_once("post", "~again"):
            await api.expect(204, "PUT", f"{path}/confirm", {"confirmed": False})


async def test_a_retry_delivers_no_message_before_it_is_due(api: Api) -> None:
    async with Receiver() as receiver:
        await api.expect(201, "PUT", "", {"_default_message_delay": 60})
        made, _ = await subscribe(api, receiver.url)
        (posted,) = await api.post({"body": 1})
        path = f"subscriptions/{made}/deliveries/{posted}/retry"
        await api.expect(400, "POST", path)
        api.advance(60)
        await receiver.wait(1)
        await api.expect(204, "POST", path)
        await receiver.wait(2)


async def test_a_retry_is_made_though_its_failure_stays_listed(api: Api) -> None:
    async with Receiver(404, 204) as receiver:
        made, _ = await subscribe(api, receiver.url)
        await api.post({"body": 1})
        (one,) = await deliveries(api, made)
        with away_once("delete", "~failed"):
            path = f"subscriptions/{made}/deliveries/{one['id']}/retry"
            await api.expect(204, "POST", path)
        await receiver.wait(2)


async def test_shows_attempts_and_what_failed_and_delivers_again(api: Api) -> None:
    async with Receiver(404, 204) as receiver:
        made, _ = await subscribe(api, receiver.url)
        (posted,) = await api.post({"body": 1})
        await receiver.wait(1)
        path = f"subscriptions/{made}/deliveries"
        (one,) = await deliveries(api, made, "&limit=1")
        await api.expect(400, "GET", f"{path}?state=failed&limit=0")
        assert (one["message_id"], one["attempts"]) == (posted, 1)
        assert one["reason"] == "the receiver answered 404"
        assert one["message"]["body"] == 1
        (attempt,) = (await api.call("GET", path)).json()["deliveries"]
        assert (attempt["status"], attempt["outcome"]) == (404, "undeliverable")
        assert (attempt["answer"], attempt["next"]) == ("answer 0", None)
        await api.expect(204, "POST", f"{path}/{one['id']}/retry")
        again = (await receiver.wait(2))[1]
        assert again.headers["webhook-id"] == f"msg_{posted}"
        assert (await api.call("GET", f"{path}?state=failed")).json()["deliveries"] == []
        await api.expect(404, "POST", f"{path}/{one['id']}/retry")
        assert (await api.call("POST", f"{path}/{posted}/retry")).status_code == 204  # a replay
        first, *others = (one.document for one in await receiver.wait(3))
        assert others == [first, first]
        await api.expect(400, "GET", f"{path}?state=other")
        pinged = (await api.call("POST", f"subscriptions/{made}/ping")).json()
        assert (pinged["outcome"], pinged["status"]) == ("delivered", 204)
        assert receiver.received[-1].document["Message_Type"] == "Ping"


async def test_what_is_retried_by_hand_is_tried_for_an_hour_as_its_policy_says(api: Api) -> None:
    options = {"_retry_policy": policy(at_once=1, minimum=1, delay=3_000)}
    async with Receiver(404, 503, 503, 204) as receiver:
        made, _ = await subscribe(api, receiver.url, options=options)
        await api.post({"body": 1, "ttl": 60})
        (failed,) = await deliveries(api, made)
        api.advance(61)
        await api.expect(204, "POST", f"subscriptions/{made}/deliveries/{failed['id']}/retry")
        await receiver.wait(3)
        await attempts_of(api, made, 3)
        api.advance(3_001)
        await receiver.wait(4)


async def test_dead_endpoints_delay_nobody(api: Api) -> None:
    """Half of the endpoints never answer: the others get all before one of those times out."""
    silent = asyncio.Event()

    async def never(*_: Any) -> web.Response:
        await silent.wait()
        return web.Response()

    async with AsyncExitStack() as stack:
        dead = [await stack.enter_async_context(Receiver(answer=never)) for _ in range(50)]
        good = [await stack.enter_async_context(Receiver()) for _ in range(50)]
        for receiver in (*dead, *good):
            await subscribe(api, receiver.url)
        for _ in range(2):
            await api.post(*({"body": n} for n in range(3)))
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(receiver.wait(6, seconds=19) for receiver in good))
        assert asyncio.get_running_loop().time() - began < 19  # before the 20 s of a time-out
        assert all(len(receiver.received) <= 2 for receiver in dead)
        silent.set()


async def test_a_span_of_time_is_delivered_again(api: Api) -> None:
    async with Receiver() as receiver:
        made, _ = await subscribe(api, receiver.url)
        path = f"subscriptions/{made}/replay"
        ids = [await api.post({"body": n}) for n in range(2)]
        api.advance(60)
        at = datetime.now(UTC) + timedelta(seconds=30)
        middle, elsewhere = at.isoformat(), at.astimezone(timezone(timedelta(hours=5))).isoformat()
        ids.append(await api.post({"body": 2}))
        await api.call("POST", "claims", {})
        await receiver.wait(3)
        for body, expected in (
            ({"until": middle}, {0, 1}),
            ({"from": middle}, {2}),
            ({"until": elsewhere}, {0, 1}),
            ({"from": at.replace(tzinfo=None).isoformat()}, {2}),
            ({}, {0, 1, 2}),
            ({"from": middle, "until": middle}, set()),
        ):
            before = len(receiver.received)
            answer = await api.call("POST", path, body)
            assert answer.json() == {"replayed": len(expected), "marker": None}
            came = await receiver.wait(before + len(expected))
            assert {one.document["body"] for one in came[before:]} == expected
        assert {one.headers["webhook-id"] for one in receiver.received} == {
            f"msg_{one}" for one, *_ in ids
        }
        wrong: tuple[Any, ...] = (
            {"from": "soon"},
            {"until": 7},
            {"marker": "?"},
            {"marker": 1},
            [],
        )
        for bad in wrong:
            await api.expect(400, "POST", path, bad)


async def test_a_large_replay_goes_in_steps_and_passes_over_what_is_delayed(api: Api) -> None:
    await api.call("PUT", "", {"_default_message_delay": 600})
    await api.post({"body": "first", "delay": 0})
    for delay in [600] * 15 + [0] * 6:
        await api.post(*({"body": n, "delay": delay} for n in range(100)))
    async with Receiver() as receiver:
        made, _ = await subscribe(api, receiver.url)
        first = (await api.call("POST", f"subscriptions/{made}/replay")).json()
        assert first["replayed"] == 501  # the page of the first is short
        rest = await api.call("POST", f"subscriptions/{made}/replay", {"marker": first["marker"]})
        assert rest.json() == {"replayed": 100, "marker": None}
        await receiver.wait(601, seconds=60)


async def test_strict_order_waits_for_the_message_before(api: Api) -> None:
    """Others are not held up, and an end without success lets the next one through."""
    soon = {"minimum_delay": 0, "maximum_delay": 10}
    async with Receiver(503, 503, 404, 204) as receiver, Receiver() as other:
        made, _ = await subscribe(
            api, receiver.url, options={"ordered": True, "_retry_policy": soon}
        )
        await subscribe(api, other.url)
        for n in range(0, 10, 2):
            await api.post({"body": n}, {"body": n + 1})
        await other.wait(10)
        came = await receiver.wait(12, seconds=60)
        assert [one.document["body"] for one in came] == [0, 0, 0, *range(1, 10)]
        failed = await api.call("GET", f"subscriptions/{made}/deliveries?state=failed")
        assert [one["message"]["body"] for one in failed.json()["deliveries"]] == [0]
        assert "~ordered" not in (await api.call("GET", "")).json()
        off = await api.call("PATCH", f"subscriptions/{made}", {"options": {"ordered": False}})
        assert off.status_code == 204
        await api.post({"body": 10})
        assert (await receiver.wait(13))[-1].document["body"] == 10
        await api.expect(204, "DELETE", f"subscriptions/{made}")
        await api.post({"body": 11})
        await other.wait(12)
        assert len(receiver.received) == 13


async def test_a_queue_has_few_ordered_subscriptions(api: Api) -> None:
    for n in range(10):
        await subscribe(api, f"http://receiver.example/{n}", options={"ordered": True})
    made, _ = await subscribe(api, "http://receiver.example/10")
    options = {"options": {"ordered": True}}
    more = await api.call("POST", "subscriptions", {"subscriber": "http://r.example/", **options})
    assert more.status_code == 400, more.text
    await api.expect(400, "PATCH", f"subscriptions/{made}", options)
    await api.expect(400, "PATCH", f"subscriptions/{made}", {"options": {"ordered": 1}})

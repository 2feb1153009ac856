"""Topics: to the status code as upstream's, and what is posted goes to the subscriptions alone."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.api.conftest import Api, MakeApi, signed_by
from tests.push.receiver import Receiver
from tests.waiting import until

pytestmark = pytest.mark.anyio
TOPIC = "/v2/topics/news"
OTHER = "5a5b1d5e-6b5c-4e53-9d0b-5b7b1f0f2a11"


async def subscribe(api: Api, subscriber: str, **more: Any) -> str:
    document = {"subscriber": subscriber, "ttl": 3600, **more}
    answer = await api.expect(201, "POST", f"{TOPIC}/subscriptions", document)
    made: str = answer.json()["subscription_id"]
    return made


async def post(api: Api, *messages: dict[str, Any], **headers: str) -> list[str]:
    answer = await api.call("POST", f"{TOPIC}/messages", {"messages": list(messages)}, **headers)
    assert answer.status_code == 201, answer.text
    resources: list[str] = answer.json()["resources"]
    assert all(one.startswith(f"{TOPIC}/messages/") for one in resources)
    return [one.rpartition("/")[2] for one in resources]


async def messages(api: Api, queue: str, query: str = "echo=true") -> list[dict[str, Any]]:
    answer = await api.call("GET", f"/v2/queues/{queue}/messages?{query}")
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


async def in_queue(api: Api, queue: str, count: int) -> list[dict[str, Any]]:
    async def ask() -> list[dict[str, Any]]:
        found = await messages(api, queue)
        return found if len(found) >= count else []

    found: list[dict[str, Any]] = await until(ask)
    assert len(found) == count
    return found


async def test_is_made_once_and_shown_with_the_defaults(api: Api) -> None:
    made = await api.call("PUT", TOPIC, {"colour": "red", "_default_message_ttl": 300})
    assert (made.status_code, made.content) == (201, b"")
    assert made.headers["location"] == TOPIC
    await api.expect(204, "PUT", TOPIC, {"colour": "blue"})
    assert (await api.call("GET", TOPIC)).json() == {
        "colour": "red",
        "_default_message_ttl": 300,
        "_max_messages_post_size": 262_144,
        "_default_message_delay": 0,
    }
    await api.expect(204, "DELETE", TOPIC)
    absent = await api.expect(200, "GET", TOPIC)
    assert absent.json()["_default_message_ttl"] == 3600


async def test_a_wrong_name_is_refused(api: Api) -> None:
    for method, name in (("PUT", "a b"), ("GET", "a$"), ("PUT", "x" * 65)):
        refused = await api.expect(400, method, f"/v2/topics/{name}")
        assert refused.json()["title"] == "Invalid topic identification"


async def test_lists_and_filters(api: Api) -> None:
    for number in range(5):
        await api.call("PUT", f"/v2/topics/t{number}", {"even": int(number % 2 == 0)})
    even = (await api.call("GET", "/v2/topics?even=1")).json()
    assert [topic["name"] for topic in even["topics"]] == ["t0", "t2", "t4"]
    for other in ("even=true", "odd=null"):  # as with queues, a value is another one by its type
        assert (await api.call("GET", f"/v2/topics?{other}")).json()["topics"] == []
    named = (await api.call("GET", "/v2/topics?name=3")).json()
    assert [topic["name"] for topic in named["topics"]] == ["t3"]
    queues = (await api.call("GET", "/v2/queues")).json()
    assert queues["queues"] == []


async def test_keeps_no_message(api: Api) -> None:
    stats = await api.call("GET", f"{TOPIC}/stats")
    assert stats.json() == {"messages": {"claimed": 0, "free": 0, "total": 0}}
    (message,) = await post(api, {"body": 1})
    assert (await api.call("GET", f"{TOPIC}/stats")).json() == {"messages": {"total": 0}}
    assert (await api.call("GET", f"{TOPIC}/messages")).json() == {"messages": [], "links": []}
    for place in (TOPIC, f"/v2/queues/{api.queue}"):
        for limit in ("0", "21", "-1", "some"):
            await api.expect(400, "GET", f"{place}/messages?limit={limit}")
        await api.expect(200, "GET", f"{place}/messages?limit=20")
    await api.expect(404, "GET", f"{TOPIC}/messages/{message}")
    await api.expect(404, "GET", f"{TOPIC}/messages?ids={message}")
    await api.expect(204, "DELETE", f"{TOPIC}/messages/{message}")
    await api.expect(204, "DELETE", f"{TOPIC}/messages?ids={message}")
    assert (await api.call("DELETE", f"{TOPIC}/messages?pop=1")).json() == {"messages": []}
    for query in ("", "?pop=0", "?pop=99999", "?pop=x", "?ids=a&pop=1", f"?ids={'a,' * 21}"):
        await api.expect(400, "DELETE", f"{TOPIC}/messages{query}")
    for place in (TOPIC, f"/v2/queues/{api.queue}"):
        for wrong_flag in ("echo=x", "details=x", "wait=-1", "wait=61", f"ids={'a,' * 21}"):
            await api.expect(400, "GET", f"{place}/messages?{wrong_flag}")
    listed = (await api.call("GET", "/v2/topics")).json()
    assert [topic["name"] for topic in listed["topics"]] == ["news"]


async def test_refuses_a_post_that_is_too_large_for_it(api: Api) -> None:
    await api.call("PUT", TOPIC, {"_max_messages_post_size": 100})
    await api.expect(400, "POST", f"{TOPIC}/messages", {"messages": [{"body": "x" * 100}]})


async def test_one_post_reaches_all_queues_that_subscribe(api: Api) -> None:
    await api.call("PUT", "/v2/queues/slow", {"_default_message_delay": 30})
    for queue in ("plain", "slow", "other"):
        await subscribe(api, f"queue:{queue}")
    await post(api, {"body": {"n": 1}, "ttl": 120}, Client_ID=OTHER)
    (plain,) = await in_queue(api, "plain", 1)
    assert (plain["body"], plain["ttl"]) == ({"n": 1}, 120)
    await in_queue(api, "other", 1)

    async def delayed() -> list[dict[str, Any]]:
        return await messages(api, "slow", "echo=true&include_delayed=true")

    (slow,) = await until(delayed)
    assert slow["body"] == {"n": 1}
    assert await messages(api, "slow") == []
    api.advance(31)
    assert len(await messages(api, "slow")) == 1
    # Whoever posted it is the client that posted it there.
    assert await messages(api, "plain", "") != []
    hidden = await api.call("GET", "/v2/queues/plain/messages", Client_ID=OTHER)
    assert hidden.json()["messages"] == []


async def test_a_delay_is_honoured_by_the_queues_that_delay(api: Api) -> None:
    await api.call("PUT", "/v2/queues/slow", {"_default_message_delay": 600})
    await subscribe(api, "queue:slow")
    await subscribe(api, "queue:plain")
    await post(api, {"body": 1, "delay": 5})
    await in_queue(api, "plain", 1)
    assert await messages(api, "slow") == []
    api.advance(6)
    await in_queue(api, "slow", 1)


async def test_the_topics_defaults_hold_for_messages_without_their_own(api: Api) -> None:
    await api.call("PUT", TOPIC, {"_default_message_ttl": 77})
    await api.call("PUT", "/v2/queues/plain", {"_default_message_ttl": 99})
    await subscribe(api, "queue:plain")
    await post(api, {"body": 1}, {"body": 2, "ttl": 88})
    found = await in_queue(api, "plain", 2)
    assert {message["body"]: message["ttl"] for message in found} == {1: 77, 2: 88}


async def test_a_key_makes_a_post_repeatable(api: Api) -> None:
    await subscribe(api, "queue:plain")
    first = await post(api, {"body": 1}, Idempotency_Key="k")
    again = await api.call(
        "POST", f"{TOPIC}/messages", {"messages": [{"body": 1}]}, Idempotency_Key="k"
    )
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["duplicates"] == first
    await api.expect(
        409, "POST", f"{TOPIC}/messages", {"messages": [{"body": 2}]}, Idempotency_Key="k"
    )
    elsewhere = await api.call(
        "POST", "/v2/topics/weather/messages", {"messages": [{"body": 2}]}, Idempotency_Key="k"
    )
    assert elsewhere.status_code == 201
    await post(api, {"body": "last"})
    found = await in_queue(api, "plain", 2)
    assert {message["body"] for message in found} == {1, "last"}


async def test_headers_and_groups_come_along(api: Api) -> None:
    await subscribe(api, "queue:plain")
    await post(api, {"body": 1, "headers": {"kind": "a"}, "group": "g"})
    await in_queue(api, "plain", 1)
    (found,) = await messages(api, "plain", "echo=true&details=true")
    assert (found["headers"], found["group"]) == ({"kind": "a"}, "g")


async def test_its_subscriptions_are_its_own(api: Api) -> None:
    made = await subscribe(api, "queue:plain")
    await api.expect(409, "POST", f"{TOPIC}/subscriptions", {"subscriber": "queue:plain"})
    listed = (await api.call("GET", f"{TOPIC}/subscriptions")).json()["subscriptions"]
    assert [(one["id"], one["source"]) for one in listed] == [(made, "news")]
    path = f"{TOPIC}/subscriptions/{made}"
    assert (await api.call("GET", path)).json()["subscriber"] == "queue:plain"
    await api.expect(404, "GET", f"/v2/queues/news/subscriptions/{made}")
    assert (await api.call("GET", "/v2/queues/news/subscriptions")).json()["subscriptions"] == []
    await api.expect(204, "PATCH", path, {"subscriber": "queue:other"})
    await post(api, {"body": 1})
    await in_queue(api, "other", 1)
    await api.expect(204, "PUT", f"{path}/confirm", {"confirmed": True})
    await api.expect(204, "DELETE", path)
    await api.expect(404, "GET", path)
    await subscribe(api, "queue:last")
    await post(api, {"body": 2})
    await in_queue(api, "last", 1)
    assert len(await messages(api, "other")) == 1


async def test_a_purge_ends_its_subscriptions(api: Api) -> None:
    await subscribe(api, "queue:plain")
    only = {"resource_types": ["messages"]}
    await api.expect(204, "POST", f"{TOPIC}/purge", only)
    assert (await api.call("GET", f"{TOPIC}/subscriptions")).json()["subscriptions"]
    wrong = {"resource_types": ["claims"]}
    await api.expect(400, "POST", f"{TOPIC}/purge", wrong)
    await api.expect(204, "POST", f"{TOPIC}/purge")
    assert (await api.call("GET", f"{TOPIC}/subscriptions")).json()["subscriptions"] == []


async def test_a_queue_that_is_full_gets_it_once_there_is_room(make_api: MakeApi) -> None:
    async with make_api(max_messages_per_queue=1) as api:
        policy = {"retries_with_no_delay": 0, "minimum_delay": 1, "minimum_delay_retries": 30}
        await api.post({"body": "there"})
        await subscribe(api, f"queue:{api.queue}", options={"_retry_policy": policy})
        await subscribe(api, "queue:last")
        await post(api, {"body": "later"})
        await in_queue(api, "last", 1)
        assert len(await messages(api, api.queue)) == 1
        await api.expect(200, "DELETE", "messages?pop=1")

        async def arrived() -> Sequence[Any]:
            api.advance(5)
            return await messages(api, api.queue)

        (found,) = await until(arrived, seconds=60)
        assert found["body"] == "later"


async def test_webhooks_get_what_queues_send_them(make_api: MakeApi) -> None:
    async with make_api(delivery_allowed="127.0.0.1") as api:
        async with Receiver() as receiver:
            await subscribe(api, receiver.url)
            await post(api, {"body": {"a": 1}, "ttl": 100})
            (sent,) = await receiver.wait(1)
            assert sent.document == {
                "body": {"a": 1},
                "ttl": 100,
                "Message_Type": "Notification",
                "queue_name": "news",
            }


async def test_a_signed_url_of_a_topic_lets_others_post(make_api: MakeApi) -> None:
    secret = "a key for the tests, which nobody guesses"
    async with make_api(signed_url_secret_key=secret) as api:
        document = {"paths": ["messages"], "methods": ["POST"]}
        permit = (await api.call("POST", f"{TOPIC}/share", document)).json()
        assert permit["paths"] == [f"{TOPIC}/messages"]
        headers = signed_by(permit)
        await post(api, {"body": 1}, **headers)
        await api.expect(404, "POST", "/v2/queues/news/messages", {"messages": []}, **headers)
        await api.expect(204, "DELETE", f"{TOPIC}/share")
        await api.expect(404, "POST", f"{TOPIC}/messages", {"messages": []}, **headers)

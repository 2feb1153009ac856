"""Topics: to the status code as upstream's, and what is posted goes to the subscriptions alone."""

from typing import Any

import pytest

from tests.api.conftest import Api
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


async def test_is_shown_with_its_defaults_which_bound_its_posts(api: Api) -> None:
    metadata = {"colour": "red", "_default_message_ttl": 300, "_max_messages_post_size": 100}
    made = await api.call("PUT", TOPIC, metadata)
    assert (made.status_code, made.content) == (201, b"")
    assert made.headers["location"] == TOPIC
    shown = (await api.call("GET", TOPIC)).json()
    assert shown == {**metadata, "_default_message_delay": 0}
    await api.expect(400, "POST", f"{TOPIC}/messages", {"messages": [{"body": "x" * 100}]})
    await api.expect(204, "DELETE", TOPIC)
    absent = await api.expect(200, "GET", TOPIC)
    assert absent.json()["_default_message_ttl"] == 3600
    for method, name in (("PUT", "a b"), ("GET", "a$"), ("PUT", "x" * 65)):
        title = "Invalid topic identification"
        await api.expect(400, method, f"/v2/topics/{name}", title=title)


async def test_keeps_no_message(api: Api) -> None:
    stats = await api.call("GET", f"{TOPIC}/stats")
    assert stats.json() == {"messages": {"claimed": 0, "free": 0, "total": 0}}
    (message,) = await post(api, {"body": 1})
    assert (await api.call("GET", f"{TOPIC}/stats")).json() == {"messages": {"total": 0}}
    assert (await api.call("GET", f"{TOPIC}/messages")).json() == {"messages": [], "links": []}
    await api.expect(404, "GET", f"{TOPIC}/messages/{message}")
    await api.expect(404, "GET", f"{TOPIC}/messages?ids={message}")
    await api.expect(204, "DELETE", f"{TOPIC}/messages/{message}")
    await api.expect(204, "DELETE", f"{TOPIC}/messages?ids={message}")
    assert (await api.call("DELETE", f"{TOPIC}/messages?pop=1")).json() == {"messages": []}
    listed = (await api.call("GET", "/v2/topics")).json()
    assert [topic["name"] for topic in listed["topics"]] == ["news"]


async def test_one_post_reaches_all_queues_that_subscribe(api: Api) -> None:
    """Each as a message of the queue, which delays it where it delays."""
    await api.call("PUT", TOPIC, {"_default_message_ttl": 77})
    await api.call("PUT", "/v2/queues/slow", {"_default_message_delay": 600})
    await api.call("PUT", "/v2/queues/plain", {"_default_message_ttl": 99})
    for queue in ("plain", "slow"):
        await subscribe(api, f"queue:{queue}")
    headed = {"headers": {"kind": "a"}, "group": "g"}
    await post(
        api,
        {"body": 1, "delay": 5, **headed},
        {"body": {"n": 2}, "ttl": 120},
        {"body": 3, "ttl": 60, "delay": 700},
        Client_ID=OTHER,
    )
    await in_queue(api, "plain", 3)
    first, second, _ = await messages(api, "plain", "echo=true&details=true")
    assert (first["body"], first["ttl"], second["body"], second["ttl"]) == (1, 77, {"n": 2}, 120)
    assert (first["headers"], first["group"]) == (headed["headers"], "g")
    # Whoever posted it is the client that posted it there.
    assert await messages(api, "plain", "") != []
    hidden = await api.call("GET", "/v2/queues/plain/messages", Client_ID=OTHER)
    assert hidden.json()["messages"] == []
    query = "echo=true&include_delayed=true"
    await until(lambda: messages(api, "slow", query), lambda found: len(found) == 3)
    assert await messages(api, "slow") == []
    api.advance(6)
    (due,) = await messages(api, "slow")
    assert due["body"] == 1


async def test_a_key_makes_a_post_repeatable(api: Api) -> None:
    await subscribe(api, "queue:plain")
    key, other = {"Idempotency_Key": "k"}, {"messages": [{"body": 2}]}
    first = await post(api, {"body": 1}, **key)
    same = {"messages": [{"body": 1}]}
    again = await api.expect(201, "POST", f"{TOPIC}/messages", same, **key)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["duplicates"] == first
    await api.expect(409, "POST", f"{TOPIC}/messages", other, **key)
    await api.expect(201, "POST", "/v2/topics/weather/messages", other, **key)
    await post(api, {"body": "last"})
    found = await in_queue(api, "plain", 2)
    assert {message["body"] for message in found} == {1, "last"}


async def test_its_subscriptions_are_its_own_and_end_with_a_purge(api: Api) -> None:
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
    for _ in range(2):
        await api.expect(200, "POST", f"{path}/ping")
    assert [one["body"] for one in await messages(api, "other")] == [1, None, None]
    await api.expect(204, "DELETE", path)
    await api.expect(404, "GET", path)
    await subscribe(api, "queue:last")
    await post(api, {"body": 2})
    await in_queue(api, "last", 1)
    assert len(await messages(api, "other")) == 3
    await api.expect(400, "POST", f"{TOPIC}/purge", {"resource_types": ["claims"]})
    for document, left in (({"resource_types": ["messages"]}, 1), (None, 0)):
        await api.expect(204, "POST", f"{TOPIC}/purge", document)
        listed = (await api.call("GET", f"{TOPIC}/subscriptions")).json()["subscriptions"]
        assert len(listed) == left

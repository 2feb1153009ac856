"""The subscription API, to the status code."""

from typing import Any

import pytest

from tests.api.conftest import Api, MakeApi
from zaqar_lite.domain.models import Record
from zaqar_lite.domain.subscriptions import Subscription

pytestmark = pytest.mark.anyio
URL = "http://receiver.example:8080/hook"


async def subscribe(api: Api, subscriber: str = URL, **fields: Any) -> str:
    answer = await api.call("POST", "subscriptions", {"subscriber": subscriber, **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["subscription_id"])


async def listed(api: Api, query: str = "") -> list[dict[str, Any]]:
    answer = await api.expect(200, "GET", f"subscriptions{query}")
    found: list[dict[str, Any]] = answer.json()["subscriptions"]
    return found


async def test_makes_one_and_shows_it_without_its_secret(api: Api) -> None:
    options = {"post_headers": {"Authorization": "Bearer hush"}}
    answer = await api.call("POST", "subscriptions", {"subscriber": URL, "options": options})
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v2/queues/{api.queue}/subscriptions"
    made, first = answer.json()["subscription_id"], answer.json()["secret"]
    assert first.startswith("whsec_")
    shown = await api.call("GET", f"subscriptions/{made}")
    assert shown.json() == {
        "id": made,
        "source": api.queue,
        "subscriber": URL,
        "ttl": 3600,
        "age": 0,
        "options": {"post_headers": {"Authorization": "******"}},
        "confirmed": False,
    }
    text = (await api.call("GET", "subscriptions?details=true")).text
    assert first not in text
    assert "hush" not in text
    rotated = await api.expect(200, "POST", f"subscriptions/{made}/secret")
    assert rotated.json()["secret"].startswith("whsec_")
    assert rotated.json()["secret"] != first
    await api.expect(404, "POST", "subscriptions/123/secret")
    await api.expect(204, "PATCH", f"subscriptions/{made}", {"options": []})
    assert (await api.call("GET", f"subscriptions/{made}")).json()["options"] == {}


async def test_the_servers_own_mark_is_not_the_users(api: Api) -> None:
    await api.expect(400, "PUT", "", {"~subscribed": 3})
    await subscribe(api)
    mark = "/metadata/~0subscribed"
    await api.expect(400, "PATCH", "", [{"op": "add", "path": mark, "value": 1}])
    await api.expect(409, "PATCH", "", [{"op": "remove", "path": mark}])
    assert "~subscribed" not in (await api.set("a", 1)).text
    for path in ("", "/v2/queues?detailed=true"):
        assert "~subscribed" not in (await api.call("GET", path)).text


async def test_making_one_does_not_read_the_others(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 10,000 read all of its queue, and once more to send what asks the subscriber."""
    for number in range(40):
        await subscribe(api, f"{URL}/{number}")
    read: list[str] = []
    decode = Subscription.decode

    def counted(record: Record) -> Subscription:
        read.append(record.name)
        return decode(record)

    monkeypatch.setattr(Subscription, "decode", counted)
    for number in range(40, 45):
        await subscribe(api, f"{URL}/{number}")
    assert len(read) <= 45


async def test_a_subscriber_is_there_once(api: Api) -> None:
    first = await subscribe(api)
    api.advance(3_500)
    again = await api.call("POST", "subscriptions", {"subscriber": URL, "ttl": 9999})
    assert (again.status_code, again.json()) == (201, {"subscription_id": first})
    assert (await listed(api))[0]["ttl"] == 3600
    path = f"subscriptions/{first}/confirm"
    confirmed = await api.call("PUT", path, {"confirmed": True})
    assert (confirmed.status_code, confirmed.content) == (204, b"")
    assert confirmed.headers["location"] == f"/v2/queues/{api.queue}/{path}"
    refused = await api.call("POST", "subscriptions", {"subscriber": URL})
    assert (refused.status_code, refused.json()["title"]) == (409, "Resource conflict")
    assert refused.headers["location"] == f"/v2/queues/{api.queue}/subscriptions"
    await api.expect(204, "DELETE", f"subscriptions/{first}")
    assert await subscribe(api) != first


async def test_changes_one(api: Api) -> None:
    made = await subscribe(api, options={"post_headers": {"Authorization": "Bearer secret"}})
    path = f"subscriptions/{made}"
    hidden = {"options": {"post_headers": {"Authorization": "******"}}}
    await api.expect(204, "PATCH", path, hidden)  # as it was read: what is hidden stays
    api.advance(100)
    changed = await api.call("PATCH", path, {"ttl": 600, "options": {"test": "updated"}})
    assert changed.status_code == 204
    assert changed.headers["location"] == f"/v2/queues/{api.queue}/{path}"
    shown = (await api.call("GET", path)).json()
    assert (shown["ttl"], shown["options"]) == (600, {"test": "updated"})
    assert shown["age"] < 100
    await api.expect(400, "PATCH", path, hidden)
    for document, title in (
        (None, "Invalid API request"),
        ({}, "Invalid API request"),
        ({"project": "x"}, "Unable to update subscription"),
        ({"subscriber": ""}, "Invalid API request"),
        ({"ttl": "1000"}, "Invalid API request"),
        ({"disabled": True}, "Invalid API request"),
    ):
        answer = await api.expect(400, "PATCH", path, document, title=title)
        assert "{subscription_id}" not in answer.text
    await api.expect(201, "POST", "/v2/queues/other/subscriptions", {"subscriber": URL})
    for unknown in ("subscriptions/123", f"/v2/queues/other/subscriptions/{made}"):
        await api.expect(404, "PATCH", unknown, {"ttl": 60})
        await api.expect(404, "GET", unknown)
        await api.expect(204, "DELETE", unknown)
    assert [one["id"] for one in await listed(api)] == [made]


async def test_another_address_is_asked_anew_and_is_free_afterwards(api: Api) -> None:
    first, second = await subscribe(api), await subscribe(api, f"{URL}/2")
    path = f"subscriptions/{first}"
    await api.call("PUT", f"{path}/confirm", {"confirmed": True})
    await api.expect(409, "PATCH", path, {"subscriber": f"{URL}/2"}, title="Resource conflict")
    await api.expect(204, "PATCH", path, {"subscriber": URL})
    assert (await api.call("GET", path)).json()["confirmed"] is True
    await api.expect(204, "PATCH", path, {"subscriber": f"{URL}/3"})
    assert (await api.call("GET", path)).json()["confirmed"] is False
    assert await subscribe(api) not in (first, second)
    again = await api.call("POST", "subscriptions", {"subscriber": f"{URL}/3"})
    assert again.json() == {"subscription_id": first}


async def test_confirms_strictly(api: Api) -> None:
    made = await subscribe(api)
    path = f"subscriptions/{made}/confirm"
    for document in ({"confirmed": "true"}, {"confirmed": 1}, {}):
        answer = await api.expect(400, "PUT", path, document)
        assert answer.json()["description"] == "The 'confirmed' should be boolean."
    await api.expect(400, "PUT", path, [], title="Unable to confirm subscription")
    unknown = "subscriptions/123/confirm"
    await api.expect(404, "PUT", unknown, {"confirmed": True})
    await api.expect(405, "GET", path)


async def test_a_queue_has_so_many(make_api: MakeApi) -> None:
    async with make_api(max_subscriptions_per_queue=2) as api:
        await subscribe(api)
        await subscribe(api, f"{URL}/2")
        await api.expect(503, "POST", "subscriptions", {"subscriber": f"{URL}/3"})
        assert await subscribe(api)  # that one is there

"""Filters, priorities and copies over HTTP (RFC 0001), on a store that has the capability."""

import pytest

from tests.api.conftest import Api, MakeApi

pytestmark = pytest.mark.anyio


async def bodies(api: Api, queue: str) -> list[object]:
    answer = await api.call("GET", f"/v2/queues/{queue}/messages?echo=true&include_delayed=true")
    return [message["body"] for message in answer.json()["messages"]]


async def test_copies_a_message_into_every_queue_whose_filter_matches(api: Api) -> None:
    await api.call("PUT", "/v2/queues/red", {"_filter": "colour = 'red'"})
    await api.call("PUT", "/v2/queues/here", {"_filter": f"queue = '{api.queue}'"})
    await api.post({"body": 1, "headers": {"colour": "red", "queue": "forged"}}, {"body": 2})
    assert await bodies(api, api.queue) == [1, 2]
    assert await bodies(api, "red") == [1]
    assert await bodies(api, "here") == [1, 2]


async def test_a_copy_is_an_entry_of_its_own(api: Api) -> None:
    await api.call(
        "PUT",
        "/v2/queues/copy",
        {"_filter": "TRUE", "_default_message_ttl": 100, "_default_message_delay": 50},
    )
    (message_id,) = await api.post({"body": 1, "ttl": 200})
    await api.call("DELETE", f"messages/{message_id}")
    query = "echo=true&include_delayed=true&details=true"
    (copy,) = (await api.call("GET", f"/v2/queues/copy/messages?{query}")).json()["messages"]
    assert (copy["ttl"], copy["delay_expires"] is not None) == (100, True)
    assert (await api.call("POST", "/v2/queues/copy/claims")).status_code == 204
    api.advance(51)
    assert (await api.call("POST", "/v2/queues/copy/claims")).status_code == 201


async def test_a_filter_does_not_reach_older_messages_nor_other_projects(api: Api) -> None:
    await api.post({"body": "old"})
    await api.call("PUT", "/v2/queues/all", {"_filter": "TRUE"})
    await api.call("POST", "/v2/queues/x/messages", {"messages": [{"body": 1}]}, X_Project_ID="b")
    assert await bodies(api, "all") == []


async def test_serves_lower_priority_numbers_first_and_ties_in_order(api: Api) -> None:
    rules = "RULES (level = 'high' -> 1, level = 'low' -> 200)"
    assert (await api.call("PUT", "", {"_priority": rules})).status_code == 201
    await api.post(
        {"body": "low", "headers": {"level": "low"}},
        {"body": "none"},
        {"body": "high 1", "headers": {"level": "high"}},
        {"body": "high 2", "headers": {"level": "high"}},
    )
    assert [m["body"] for m in await api.claim()] == ["high 1", "high 2", "none", "low"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"_filter": "colour = "},
        {"_filter": 3},
        {"_priority": "TRUE"},
        {"_priority": "RULES ("},
        {"_filter": "a.b(c)"},
    ],
)
async def test_refuses_a_filter_with_the_position_of_the_error(
    api: Api, metadata: dict[str, object]
) -> None:
    answer = await api.call("PUT", "", metadata)
    assert answer.status_code == 400
    if metadata["_filter" if "_filter" in metadata else "_priority"] != 3:
        assert "position" in answer.json()["description"]


async def test_limits_the_filters_of_a_project(make_api: MakeApi) -> None:
    async with make_api(max_filters_per_project=1) as api:
        assert (await api.call("PUT", "/v2/queues/a", {"_filter": "TRUE"})).status_code == 201
        assert (await api.call("PUT", "/v2/queues/b", {"_filter": "TRUE"})).status_code == 400


async def test_keeps_no_history_in_memory(api: Api) -> None:
    assert (await api.call("PUT", "", {"_done_retention": 60})).status_code == 400
    answer = await api.call("GET", "history?state=done")
    assert (answer.status_code, answer.json()["title"]) == (400, "Invalid API request")
    assert (await api.call("GET", "history?state=x")).status_code == 400

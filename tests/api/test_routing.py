"""Filters, priorities and copies over HTTP (RFC 0001), on a store that has the capability."""

import asyncio
import uuid
from pathlib import Path

import pytest

from tests.api.conftest import Api, MakeApi
from tests.service.composed import Composed
from zaqar_lite.domain.models import ListQuery, QueueRef
from zaqar_lite.service.post_validation import Draft

pytestmark = pytest.mark.anyio


async def test_copies_a_message_into_every_queue_whose_filter_matches(api: Api) -> None:
    await api.call("PUT", "/v2/queues/red", {"_filter": "colour = 'red'"})
    await api.call("PUT", "/v2/queues/here", {"_filter": f"queue = '{api.queue}'"})
    await api.post({"body": 1, "headers": {"colour": "red", "queue": "forged"}}, {"body": 2})
    assert await api.bodies() == [1, 2]
    assert await api.bodies("red") == [1]
    assert await api.bodies("here") == [1, 2]


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
    await api.expect(204, "POST", "/v2/queues/copy/claims")
    api.advance(51)
    await api.expect(201, "POST", "/v2/queues/copy/claims")


async def test_a_copys_ttl_counts_from_the_end_of_its_delay_where_its_queue_says_so(
    api: Api,
) -> None:
    delayed = {"_filter": "TRUE", "_default_message_ttl": 60, "_default_message_delay": 90}
    await api.call("PUT", "/v2/queues/copy", {**delayed, "_ttl_after_delay": True})
    await api.post({"body": 1})
    api.advance(91)
    await api.expect(201, "POST", "/v2/queues/copy/claims")


async def test_a_copy_has_the_default_ttl_that_holds_now() -> None:
    """SIGHUP may change it."""
    it = Composed()
    copies, queue = QueueRef("p", "copies"), QueueRef("p", "q")
    await it.queues.create(copies, {"_filter": "TRUE"})
    for ttl in (100, 200):
        it.limits.default_message_ttl = ttl
        it.policies.forget_all()
        await it.messages.post(queue, [Draft(b"1")], size=1, client_id="c")
    page = await it.store.list_messages(copies, ListQuery(9))
    assert [one.ttl_ms for one in page.messages] == [100_000, 200_000]


async def test_a_filter_does_not_reach_older_messages_nor_other_projects(api: Api) -> None:
    await api.post({"body": "old"})
    await api.call("PUT", "/v2/queues/all", {"_filter": "TRUE"})
    await api.call("POST", "/v2/queues/x/messages", {"messages": [{"body": 1}]}, X_Project_ID="b")
    assert await api.bodies("all") == []


async def test_serves_lower_priority_numbers_first_and_ties_in_order(api: Api) -> None:
    rules = "RULES (level = 'high' -> 1, level = 'low' -> 200)"
    await api.expect(201, "PUT", "", {"_priority": rules})
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
    answer = await api.expect(400, "PUT", "", metadata)
    if metadata["_filter" if "_filter" in metadata else "_priority"] != 3:
        assert "position" in answer.json()["description"]


async def test_a_queue_without_a_filter_does_not_count_for_the_limit(make_api: MakeApi) -> None:
    rules = "RULES (TRUE -> 1)"
    async with make_api(max_filters_per_project=0) as api:
        await api.expect(400, "PUT", "/v2/queues/a", {"_filter": "TRUE"})
        await api.expect(201, "PUT", "/v2/queues/p", {"_priority": rules})
        await api.set("note", 1, "/v2/queues/p")
        await api.set("_filter", "TRUE", "/v2/queues/p", status=400)


async def test_a_queue_that_has_a_filter_can_be_changed_at_the_limit(
    make_api: MakeApi, tmp_path: Path
) -> None:
    """Also where the operator has lowered the limit since."""
    store = f"embedded://{tmp_path / 'store'}"
    async with make_api(store=store) as api:
        for name in ("a", "b"):
            assert (await api.call("PUT", f"/v2/queues/{name}", {"_filter": "TRUE"})).is_success
    async with make_api(store=store, max_filters_per_project=1) as api:
        await api.set("note", 1, "/v2/queues/b")
        await api.set("_filter", "FALSE", "/v2/queues/b")
        await api.expect(400, "PUT", "/v2/queues/c", {"_filter": "TRUE"})


@pytest.mark.parametrize(
    "marker", ["9" * 5_000 + "-1", "1-" + "9" * 5_000, "9" * 30 + "-1", "x", "-", "%D9%A1-1"]
)
async def test_a_history_marker_that_is_none_gives_an_empty_page(api: Api, marker: str) -> None:
    await api.call("PUT", "", {"_done_retention": 60})
    await api.post({"body": 1})
    (message,) = await api.claim()
    await api.call("DELETE", message["href"])
    answer = await api.call("GET", "history?state=done")
    assert len(answer.json()["messages"]) == 1
    answer = await api.call("GET", f"history?state=done&marker={marker}")
    assert (answer.status_code, answer.json()["messages"]) == (200, [])
    await api.expect(400, "GET", "history?state=x")


async def test_a_history_names_the_last_clients_only(api: Api) -> None:
    await api.call("PUT", "", {"_done_retention": 60})
    await api.post({"body": 1})
    clients = [str(uuid.UUID(int=number)) for number in range(1, 68)]
    for client in clients:
        claim = await api.call("POST", "claims", Client_ID=client)
        (message,) = claim.json()["messages"]
        if client != clients[-1]:
            await api.call("DELETE", claim.headers["location"])
    await api.call("DELETE", message["href"], Client_ID=clients[-1])
    (line,) = (await api.call("GET", "history?state=done")).json()["messages"]
    assert line["attempts"] == 67
    assert line["consumers"] == [client.replace("-", "") for client in clients[-65:]]


async def test_a_post_makes_no_more_copies_than_is_allowed(make_api: MakeApi) -> None:
    async with make_api(max_copies_per_post=10) as api:
        for number in range(5):
            await api.call("PUT", f"/v2/queues/copy-{number}", {"_filter": "TRUE"})
        await api.post({"body": 1}, {"body": 2})
        messages = {"messages": [{"body": number} for number in range(3, 6)]}
        answer = await api.expect(400, "POST", "messages", messages, says="Message 2: ")
        assert "copies" in answer.json()["description"]
        assert await api.bodies() == [1, 2]
        assert await api.bodies("copy-0") == [1, 2]


async def test_a_message_whose_filters_cost_too_much_is_refused(api: Api) -> None:
    conditions = " OR ".join(f"text LIKE '%{number}'" for number in range(20))
    await api.call("PUT", "/v2/queues/costly", {"_filter": conditions})
    await api.post({"body": 1, "headers": {"text": "x" * 1_000}})
    messages = {"messages": [{"body": 2}, {"body": 3, "headers": {"text": "x" * 8_000}}]}
    answer = await api.expect(400, "POST", "messages", messages)
    assert answer.json()["description"].startswith("Message 1: The filters take more than")
    assert await api.bodies() == [1]


async def test_others_have_their_turns_while_a_post_goes_through_many_filters(api: Api) -> None:
    """Each message costs each filter about a millisecond here: forty of them about 400 ms."""
    for number in range(10):
        conditions = f"text LIKE '%{number}'"
        await api.call("PUT", f"/v2/queues/slow-{number}", {"_filter": conditions})
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(take_turns())
    await asyncio.sleep(0)
    before = turns
    await api.post(*[{"body": 1, "headers": {"text": "x" * 6_000}} for _ in range(40)])
    other.cancel()
    assert turns - before > 10


async def test_a_stored_filter_that_is_refused_now_is_passed_over(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("zaqar_lite.domain.filters.MAX_PATTERN", 1_000)
        filters = {"_filter": "a LIKE '" + "x" * 257 + "'"}
        await api.expect(201, "PUT", "/v2/queues/old", filters)
    await api.call("PUT", "/v2/queues/new", {"_filter": "TRUE"})
    await api.post({"body": 1})
    assert (await api.bodies("new"), await api.bodies("old")) == ([1], [])
    assert (await api.call("GET", "/v2/queues/old")).json()["_filter"] == filters["_filter"]

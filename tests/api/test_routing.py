"""Filters, priorities and copies over HTTP (RFC 0001), on a store that has the capability."""

import uuid
from pathlib import Path

import pytest

from tests.api.conftest import Api, MakeApi
from tests.service.composed import Composed
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.post_validation import Draft

pytestmark = pytest.mark.anyio


async def test_copies_a_message_into_every_queue_whose_filter_matches(api: Api) -> None:
    """Each copy is an entry of its own, by its queue's defaults."""
    await api.call("POST", "/v2/queues/x/messages", {"messages": [{"body": 1}]}, X_Project_ID="b")
    await api.post({"body": "old"})
    delays = {"_default_message_ttl": 60, "_default_message_delay": 90, "_ttl_after_delay": True}
    await api.call("PUT", "/v2/queues/red", {"_filter": "colour = 'red'", **delays})
    await api.call("PUT", "/v2/queues/here", {"_filter": f"queue = '{api.queue}'"})
    forged = {"colour": "red", "queue": "forged"}
    most = {f"{number:02}": "v" * 254 for number in range(32)}  # 8,192 bytes
    second = {"body": 2, "headers": most}
    first, _ = await api.post({"body": 1, "headers": forged, "ttl": 200}, second)
    assert await api.bodies() == ["old", 1, 2]
    assert await api.bodies("here") == [1, 2]
    await api.expect(204, "DELETE", f"messages/{first}")
    query = "echo=true&include_delayed=true&details=true"
    (copy,) = (await api.call("GET", f"/v2/queues/red/messages?{query}")).json()["messages"]
    assert (copy["body"], copy["delay_expires"] is not None) == (1, True)
    await api.expect(204, "POST", "/v2/queues/red/claims")
    api.advance(91)
    await api.expect(201, "POST", "/v2/queues/red/claims")


async def test_a_filter_that_another_process_has_changed_decides() -> None:
    one, source, target = Composed(), QueueRef("p", "source"), QueueRef("p", "target")
    other = Composed(one.clock, (one.store, one.management))
    await other.queues.create(target, {})
    for kind in "aba":
        changed = {"_filter": f"kind = '{kind}'"}
        await other.queues.change(target, lambda _, changed=changed: changed)  # type: ignore[misc]
        drafts = [Draft(b"1", headers={"kind": kind})]
        await one.messages.post(source, drafts, size=1, client_id="c")
    assert (await one.store.stats(target)).total == 3


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
    nines = "9" * 5_000
    for marker in (f"{nines}-1", f"1-{nines}", "9" * 30 + "-1", "x", "-", "%D9%A1-1"):
        answer = await api.expect(200, "GET", f"history?state=done&marker={marker}")
        assert answer.json()["messages"] == []


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

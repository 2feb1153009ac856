"""Queues over HTTP (zaqar-behaviour 2)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import PATCH, Api, MakeApi
from tests.contract.pausing import pause_before
from tests.services import RedisServer
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.storage.redis.management import RedisManagementStore
from zaqar_lite.storage.sql.records import SqlManagementStore

pytestmark = pytest.mark.anyio
DEFAULTS = {
    "_max_messages_post_size": 262144,
    "_default_message_ttl": 3600,
    "_default_message_delay": 0,
    "_dead_letter_queue": None,
    "_dead_letter_queue_messages_ttl": None,
    "_max_claim_count": None,
    "_enable_encrypt_messages": False,
}


async def patch(api: Api, *operations: Any) -> Any:
    return await api.call("PATCH", "", list(operations))


async def test_creates_a_queue_once_and_keeps_its_metadata(api: Api) -> None:
    metadata = {"a": 1, "_ttl": 60, "_max_claim_count": None, "x": {"\u00fc": [1]}}
    first = await api.call("PUT", "", metadata)
    assert (first.status_code, first.content) == (201, b"")
    assert first.headers["location"] == f"/v2/queues/{api.queue}"
    second = await api.call("PUT", "", {"a": 2})
    assert (second.status_code, second.headers["location"]) == (204, first.headers["location"])
    assert (await api.call("GET", "")).json() == {**DEFAULTS, **metadata}


BOUNDS = {
    "_default_message_ttl": (60, 1_209_600),
    "_max_messages_post_size": (1, 262_144),
    "_default_message_delay": (0, 900),
    "_max_claim_count": (1, 65_535),
    "_max_failures": (1, 65_535),
    "_max_redrives": (1, 255),
    "_done_retention": (0, (1 << 32) - 1),
    "_failed_retention": (0, (1 << 32) - 1),
    "_dead_letter_queue_messages_ttl": (60, 1_209_600),
}
"""The least and the most of each key that is a number; test_refusals has what is beyond."""


async def test_a_number_may_be_either_of_its_bounds(api: Api) -> None:
    for least_or_most in (0, 1):
        metadata = {name: bounds[least_or_most] for name, bounds in BOUNDS.items()}
        await api.expect(201, "PUT", f"/v2/queues/q{least_or_most}", metadata)
        shown = (await api.expect(200, "GET", f"/v2/queues/q{least_or_most}")).json()
        assert metadata.items() <= shown.items()


async def test_shows_the_defaults_of_a_queue_that_is_not_there(api: Api) -> None:
    answer = await api.call("GET", "")
    assert (answer.status_code, answer.json()) == (200, DEFAULTS)
    assert (await api.call("GET", "stats")).json() == {
        "messages": {"claimed": 0, "free": 0, "total": 0}
    }
    await api.expect(204, "POST", "purge")
    await api.expect(204, "DELETE", "")


@pytest.mark.parametrize("path", ["", "/v2/topics/news"])
async def test_metadata_can_not_grow_above_the_limit_by_patches(
    make_api: MakeApi, path: str
) -> None:
    async with make_api(max_queue_metadata=1_000) as api:
        await api.call("PUT", path)
        left = 1_000 - len('{"a":"","b":""}') - 600
        for key, size, status in (
            ("a", 600, 200), ("b", left + 1, 400), ("b", left, 200), ("a", 600, 200)
        ):  # fmt: skip
            step = {"op": "add", "path": f"/metadata/{key}", "value": "x" * size}
            answer = await api.call("PATCH", path, [step], Content_Type=PATCH)
            assert answer.status_code == status


async def test_patches_metadata(api: Api) -> None:
    await api.call("PUT", "", {"a": 1, "b": 2})
    answer = await patch(
        api,
        {"op": "add", "path": "/metadata/c", "value": 3},
        {"op": "replace", "path": "/Metadata/a", "value": [1]},
        {"op": "remove", "path": "/metadata/b"},
        {"op": "remove", "path": "/metadata/_max_claim_count"},
        {"op": "replace", "path": "/metadata/_default_message_ttl", "value": 300},
        {"op": "add", "path": "/metadata/x~1y~0z", "value": 0},
    )
    expected = {**DEFAULTS, "a": [1], "c": 3, "_default_message_ttl": 300, "x/y~z": 0}
    assert (answer.status_code, answer.json()) == (200, expected)
    assert (await api.call("GET", "")).json() == expected
    assert (await patch(api)).json() == expected


async def test_a_patch_of_another_type_is_told_which_is_taken(api: Api) -> None:
    await api.call("PUT", "")
    for content_type in ("application/json", PATCH + "; charset=UTF-8"):
        answer = await api.expect(415, "PATCH", "", [], Content_Type=content_type)
        assert answer.headers["accept-patch"] == PATCH


async def test_filters_and_counts_queues_and_topics(api: Api) -> None:
    assert "count" not in (await api.call("GET", "/v2/queues?with_count=true")).json()
    named = {"one": {"k": 30}, "two": {"k": 31}, "three": {"k": "30x"}, "four": {"k": None}}
    for noun in ("queues", "topics"):
        for name, metadata in named.items():
            await api.call("PUT", f"/v2/{noun}/{name}", metadata)
        for query, found in (
            ("name=t", ["three", "two"]),
            ("name=(", []),
            ("k=30", ["one"]),
            ("k=30.0", []),  # a value is another one by its type
            ("name=o&k=31", ["two"]),
        ):
            answer = (await api.call("GET", f"/v2/{noun}?{query}")).json()
            assert [one["name"] for one in answer[noun]] == found, query
    detailed = (await api.call("GET", "/v2/queues?name=one&detailed=true")).json()["queues"]
    one = {"name": "one", "href": "/v2/queues/one", "metadata": {**DEFAULTS, "k": 30}}
    assert detailed == [one]
    answer = (await api.call("GET", "/v2/queues?with_count=true&k=30&limit=1")).json()
    assert answer["count"] == 4
    assert answer["links"][0]["href"].endswith("?with_count=true&k=30&limit=1&marker=one")
    await api.expect(400, "GET", "/v2/queues?k=1,2")


async def test_counts_messages_with_their_ends_and_purges_those_of_every_state(api: Api) -> None:
    await api.call("PUT", "", {"_default_message_delay": 60, "keep": 1})
    ids = await api.post({"body": 1, "delay": 0}, {"body": 2, "delay": 0}, {"body": 3})
    await api.claim(1)
    api.advance(5)
    stats = (await api.call("GET", "stats")).json()["messages"]
    assert (stats["claimed"], stats["free"], stats["total"]) == (1, 2, 3)
    assert stats["oldest"]["href"] == f"/v2/queues/{api.queue}/messages/{ids[0]}"
    assert stats["newest"]["href"].endswith(ids[2])
    assert set(stats["oldest"]) == {"href", "age", "created"}
    assert stats["oldest"]["age"] >= 5
    details = (await api.call("GET", "stats?details=true")).json()["messages"]
    assert (details["ready"], details["delayed"]) == (1, 1)
    for types, left in (("subscriptions", 3), ("messages", 0)):
        await api.expect(204, "POST", "purge", {"resource_types": [types]})
        assert (await api.call("GET", "stats")).json()["messages"]["total"] == left
    assert (await api.call("GET", "")).json()["keep"] == 1


async def test_a_post_while_its_queue_is_deleted_outlives_it_in_no_store(
    make_api: MakeApi, tmp_path: Path
) -> None:
    """Where records and messages are in two stores, the deletion takes a step in each."""
    stores = {"store": f"embedded://{tmp_path}/messages", "management_store": "memory://"}
    async with make_api(**stores) as api:
        await api.call("PUT", "")
        with pause_before(SqlManagementStore, "delete_queue") as pause:
            deleting = asyncio.create_task(api.call("DELETE", ""))
            await pause.reached()  # the messages are gone, the record is still there
            await api.post({"body": "in between"})
            pause.go()
            assert (await deleting).status_code == 204
        assert (await api.call("GET", "/v2/queues")).json()["queues"] == []
        assert await api.browse() == []


@pytest.mark.parametrize("key", ["_done_retention", "_failed_retention"])
async def test_refuses_a_history_that_the_message_store_could_not_keep(
    make_api: MakeApi, tmp_path: Path, key: str
) -> None:
    """It would look for the retention in a record that is in the other store."""
    stores = {"store": f"embedded://{tmp_path}/messages", "management_store": "memory://"}
    async with make_api(**stores) as api:
        await api.expect(400, "PUT", "", {key: 0}, says="management_store")


async def test_limits_the_queues_of_a_project(make_api: MakeApi) -> None:
    async with make_api(max_queues_per_project=2) as api:
        await api.expect(201, "PUT", "/v2/queues/a")
        await api.expect(201, "PUT", "/v2/queues/b")
        answer = await api.call("PUT", "/v2/queues/c")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        answer = await api.call("POST", "/v2/queues/d/messages", {"messages": [{"body": 1}]})
        assert answer.status_code == 503
        await api.expect(204, "PUT", "/v2/queues/b")


async def test_without_a_limit_there_are_as_many_as_the_operator_allows(make_api: MakeApi) -> None:
    most = ("queues_per_page", "messages_per_page", "messages_per_claim_or_pop")
    few = {f"max_{name}": 3 for name in (*most, "subscriptions_per_page", "pools_per_page")}
    async with make_api(**few, admin_mode=True, pooling=True) as api:
        for name in "abcd":
            subscription = {"subscriber": f"http://127.0.0.1/{name}"}
            await api.expect(201, "PUT", f"/v2/queues/{name}")
            await api.expect(201, "PUT", f"/v2/topics/{name}")
            await api.expect(201, "POST", "subscriptions", subscription)
        await api.post(*({"body": number} for number in range(4)))
        for path in (
            "/v2/queues",
            "/v2/topics",
            "/v2/pools",
            "messages?echo=true",
            "subscriptions",
        ):
            shown = (await api.call("GET", path)).json()
            assert len(shown[path.rpartition("/")[2].partition("?")[0]]) <= 3
        await api.expect(200, "GET", "history")
        assert len((await api.call("POST", "claims")).json()["messages"]) == 3


async def test_warns_of_what_is_stored_and_is_no_option(api: Api) -> None:
    answer = await api.expect(201, "PUT", "", {"_max_claims": 3, "team": "a"})
    warning = "Stored, but not options of a queue: '_max_claims' (did you mean _max_claim_count?)."
    assert answer.headers["Zaqar-Lite-Warning"] == warning
    assert (await api.call("GET", "")).json()["_max_claims"] == 3
    many = {f"_ü\n{number}": 1 for number in range(5)} | {"_" + "x" * 5000: 1}
    told = (await api.call("PUT", "", many)).headers["Zaqar-Lite-Warning"]
    assert "'_\\xfc\\n0'" in told
    assert "and 3 more" in told
    assert len(told) < 300
    longest = {"type": "list", "delays": [43_200] * 100}, {"type": "linear", "min": 1, "max": 100}
    for known in ({"_flavor": "x", "_retry_backoff": delays} for delays in longest):
        assert "Zaqar-Lite-Warning" not in (await api.expect(204, "PUT", "", known)).headers
    answer = await api.set("_dead_leter_queue", "d")
    assert "did you mean _dead_letter_queue?" in answer.headers["Zaqar-Lite-Warning"]


@pytest.mark.parametrize("limit", ["_max_claim_count", "_max_failures"])
async def test_warns_of_a_limit_without_a_place_for_dead_letters(api: Api, limit: str) -> None:
    warning = (
        f"{limit} has no effect: the queue has no _dead_letter_queue (and no _failed_retention)."
    )
    place = "/metadata/_dead_letter_queue"
    made = await api.call("PUT", "", {limit: 3})
    again = await api.call("PUT", "", {limit: 3})  # this one changes nothing, whatever it says
    added = await patch(api, {"op": "add", "path": place, "value": "letters"})
    removed = await patch(api, {"op": "remove", "path": place})
    told = [one.headers.get("Zaqar-Lite-Warning") for one in (made, again, added, removed)]
    assert told == [warning, None, None, warning]


@pytest.mark.parametrize(("is_apart", "most"), [(False, 0), (True, 1)])
async def test_a_request_reads_its_queues_record_once_at_most(
    make_api: MakeApi,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    is_apart: bool,
    most: int,
) -> None:
    """It is kept by its version, unless the records are in a store of their own."""
    asked, read = list[str](), RedisManagementStore.get_queue

    async def count(store: RedisManagementStore, ref: QueueRef) -> QueueRecord | None:
        asked.append(ref.name)
        return await read(store, ref)

    monkeypatch.setattr(RedisManagementStore, "get_queue", count)
    apart = {"store": "memory://", "management_store": redis_server.url}
    async with make_api(**(apart if is_apart else {"store": redis_server.url})) as api:
        for asks, reads in (
            ("POST messages", 1),  # which makes the queue
            ("POST messages", 1),
            ("GET messages", most),
            ("POST claims", most),
            ("DELETE messages?pop=1", most),
        ):
            asked.clear()
            post = {"messages": [{"body": 1}] * 30} if asks == "POST messages" else None
            method, _, path = asks.partition(" ")
            assert (await api.call(method, path, post)).is_success
            assert asked.count(api.queue) <= reads, asks

"""Pools and flavors to the status code, and where queues lie."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.api.conftest import EVERY_ROUTE, Api, MakeApi

pytestmark = pytest.mark.anyio
ADMIN = {"admin_mode": True, "pooling": True}


class Pools:
    """A server with pools, each in a directory of its own."""

    def __init__(self, api: Api, directory: Path) -> None:
        self.api = api
        self._directory = directory

    def uri(self, name: str) -> str:
        return f"embedded:{self._directory}/{name}"

    async def make(self, name: str, weight: int = 100, **more: Any) -> None:
        document = {"uri": self.uri(name), "weight": weight, **more}
        await self.api.expect(201, "PUT", f"/v2/pools/{name}", document)

    async def drain_until_it_waits(self, name: str) -> Any:
        """Begin to drain a pool, and wait for what holds it up; answer the drain."""
        await self.api.call("PATCH", f"/v2/pools/{name}", {"weight": 0})
        await self.api.expect(202, "POST", f"/v2/pools/{name}/drain")
        return await self.api.until(f"/v2/pools/{name}/drain", lambda found: found["problem"])

    async def holds(self, pool: str, queue: str) -> bool:
        """Whether deleting a pool is refused because a queue lies in it."""
        answer = await self.api.call("DELETE", f"/v2/pools/{pool}")
        if answer.status_code == 204:
            await self.make(pool)
            return False
        assert answer.status_code == 403
        assert repr(queue) in answer.json()["description"]
        return True


@pytest.fixture
async def pools(make_api: MakeApi, tmp_path: Path) -> AsyncIterator[Pools]:
    async with make_api(**ADMIN) as api:
        yield Pools(api, tmp_path)


@pytest.mark.parametrize("settings", [{}, {"pooling": True}, {"admin_mode": True}], ids=",".join)
async def test_the_routes_are_there_in_admin_mode_with_pooling_only(
    make_api: MakeApi, settings: dict[str, bool]
) -> None:
    async with make_api(**settings) as api:
        await api.expect(404, "GET", "/v2/pools")
        await api.expect(404, "GET", "/v2/flavors")


async def test_credentials_are_shown_to_nobody_and_what_was_read_can_be_sent_back(
    make_api: MakeApi,
) -> None:
    """Of a server's own options a pool gets those that its driver has."""
    async with make_api(**ADMIN, store_options={"coordination_url": "file:///tmp"}) as api:
        refused = await api.call(
            "PUT", "/v2/pools/one", {"uri": "kafka://me:hush@h/x", "weight": 1}
        )
        assert (refused.status_code, "hush" in refused.text) == (400, False)
        assert "cannot connect to kafka://***@h/x" in refused.json()["description"]
        uri = "redis://user:hush@localhost:1/3"
        secrets = {"password": "hush", "api_key": "hush", "mirror": "redis://me:hush@host/1"}
        pool = {"uri": uri, "weight": 1, "options": {**secrets, "n": 3}}
        await api.expect(201, "PUT", "/v2/pools/one", pool)
        shown = await api.call("GET", "/v2/pools/one?detailed=true")
        masked = {"password": "***", "api_key": "***", "mirror": "redis://***@host/1", "n": 3}
        assert shown.json()["options"] == masked
        assert shown.json()["uri"] == "redis://***@localhost:1/3"
        change = {"uri": shown.json()["uri"], "weight": 2, "options": {**masked, "n": 4}}
        changed = await api.expect(200, "PATCH", "/v2/pools/one", change)
        assert changed.json()["weight"] == 2
        assert "hush" not in (await api.call("GET", "/v2/pools?detailed=true")).text
        # So the first still has its own.
        says = "The pool 'one' has this URI already."
        await api.expect(409, "PUT", "/v2/pools/two", {"uri": uri, "weight": 1}, says=says)
        other = {"uri": "mongodb://localhost:1/a", "weight": 1}
        await api.expect(201, "PUT", "/v2/pools/two", other)


async def test_options_that_no_driver_has_are_kept_shown_and_warned_of(
    pools: Pools, tmp_path: Path
) -> None:
    api = pools.api
    known = {"database": "z", "create_indexes": False}
    for name, uri, unknown in (
        ("one", "mongodb://localhost:1/a", {"a": 1, "b\nc": None}),
        ("two", f"embedded:{tmp_path}/two", {"a": 1, "database": "z"}),
        ("three", "redis://localhost:1/3", {"a": [1]}),
    ):
        document = {"uri": uri, "weight": 1, "options": {**known, **unknown}}
        made = await api.expect(201, "PUT", f"/v2/pools/{name}", document)
        assert "'a'" in made.headers["zaqar-lite-warning"]
        assert ("'database'" in made.headers["zaqar-lite-warning"]) is (name != "one")
        changed = await api.call("PATCH", f"/v2/pools/{name}", {"options": {"a": 2, **known}})
        assert changed.status_code == 200
        assert "'a'" in changed.headers["zaqar-lite-warning"]
        shown = (await api.call("GET", f"/v2/pools/{name}?detailed=true")).json()
        assert shown["options"] == {"a": 2, **known}
    listed = (await api.call("GET", "/v2/pools?detailed=true")).json()["pools"]
    assert [one["options"] for one in listed] == [{"a": 2, **known}] * 3
    quiet = await api.call("PATCH", "/v2/pools/one", {"options": known})
    assert "zaqar-lite-warning" not in quiet.headers


async def test_a_pool_does_not_become_one_of_another_drivers_capabilities(pools: Pools) -> None:
    api = pools.api
    await pools.make("one")
    await api.expect(201, "PUT", "/v2/flavors/fast", {"pool_list": ["one"]})
    other = {"uri": "redis://localhost:1/0", "weight": 1, "flavor": "fast"}
    for method, name, document in (
        ("PUT", "two", other),
        ("PUT", "one", other),
        ("PATCH", "one", {"uri": other["uri"]}),
    ):
        refused = await api.call(method, f"/v2/pools/{name}", document)
        assert refused.status_code == 400
        assert "redis has other capabilities than embedded" in refused.json()["description"]
    assert (await api.call("GET", "/v2/pools/one")).json()["uri"] == pools.uri("one")
    await pools.make("two", flavor="fast")


async def test_a_flavor_shows_what_its_pools_can_and_they_show_it(pools: Pools) -> None:
    api = pools.api
    await pools.make("one")
    await pools.make("two")

    async def flavor_of(pool: str) -> str | None:
        found: str | None = (await api.call("GET", f"/v2/pools/{pool}")).json()["flavor"]
        return found

    await api.expect(201, "PUT", "/v2/flavors/fast", {"pool_list": ["one"], "capabilities": {}})
    shown = {
        "href": "/v2/flavors/fast",
        "name": "fast",
        "pool_list": ["one"],
        "capabilities": ["FIFO", "CLAIMS", "DURABILITY", "HIGH_THROUGHPUT"],
    }
    assert (await api.call("GET", "/v2/flavors/fast")).json() == shown
    assert await flavor_of("one") == "fast"
    await api.expect(200, "PATCH", "/v2/flavors/fast", {"pool_list": ["two"]})
    assert (await flavor_of("one"), await flavor_of("two")) == (None, "fast")
    await api.call("PATCH", "/v2/pools/two", {"weight": 3})
    assert await flavor_of("two") == "fast"
    await api.expect(200, "PATCH", "/v2/flavors/fast", {"pool_list": ["one", "two"]})
    await api.expect(204, "DELETE", "/v2/pools/one")
    await api.expect(403, "DELETE", "/v2/pools/two", title="Unable to delete")
    assert (await api.call("GET", "/v2/flavors/fast")).json()["pool_list"] == ["two"]
    await api.expect(204, "DELETE", "/v2/flavors/fast")
    assert await flavor_of("two") is None


async def test_a_flavor_of_another_project_keeps_its_pools(pools: Pools) -> None:
    api, flavor, theirs = pools.api, "/v2/flavors/fast", {"X_Project_ID": "theirs"}
    for name in ("one", "two", "three"):
        await pools.make(name)
    await api.expect(201, "PUT", flavor, {"pool_list": ["one"]})
    await api.expect(204, "DELETE", flavor, **theirs)
    assert (await api.call("GET", "/v2/pools/one")).json()["flavor"] == "fast"
    await api.expect(201, "PUT", flavor, {"pool_list": ["two", "three"]}, **theirs)
    assert (await api.call("GET", "/v2/pools/one")).json()["flavor"] == "fast"
    await api.expect(200, "PATCH", flavor, {"pool_list": ["two"]}, **theirs)
    assert (await api.call("GET", "/v2/pools/three")).json()["flavor"] is None
    await api.expect(204, "DELETE", flavor)
    assert (await api.call("GET", "/v2/pools/one")).json()["flavor"] is None
    assert (await api.call("GET", "/v2/pools/two")).json()["flavor"] == "fast"


async def test_a_queue_lies_in_a_pool_and_its_messages_with_it(pools: Pools) -> None:
    """It stays where it was put first, until it is deleted."""
    api = pools.api
    await pools.make("one")
    await api.post({"body": 1}, {"body": 2})
    assert await pools.holds("one", api.queue)
    await api.call("PATCH", "/v2/pools/one", {"weight": 0})
    await pools.make("two")
    assert [one["body"] for one in await api.claim()] == [1, 2]
    await api.post({"body": 3})
    assert await pools.holds("one", api.queue)
    await api.expect(204, "DELETE", "")
    assert not await pools.holds("one", api.queue)
    await api.post({"body": 4})
    assert [one["body"] for one in await api.browse()] == [4]


async def test_without_a_pool_that_fits_the_servers_own_store_serves(pools: Pools) -> None:
    api = pools.api
    await api.post({"body": "before there was a pool"})
    await pools.make("full", weight=0)
    await pools.make("one")
    await api.post({"body": "after"})
    bodies = [one["body"] for one in await api.browse()]
    assert bodies == ["before there was a pool", "after"]
    assert not await pools.holds("one", api.queue)
    await api.call("PATCH", "/v2/pools/one", {"weight": 0})
    await api.call("PUT", "/v2/queues/other")
    assert not await pools.holds("one", "other")


async def test_a_flavor_says_in_which_pools_a_queue_may_lie(pools: Pools) -> None:
    api = pools.api
    await pools.make("one")
    await pools.make("two")
    await api.call("PUT", "/v2/flavors/fast", {"pool_list": ["two"]})
    refused = await api.call("PUT", "", {"_flavor": "none"})
    assert refused.status_code == 400
    assert "Flavor none does not exist" in refused.json()["description"]
    await api.expect(201, "PUT", "", {"_flavor": "fast"})
    assert await pools.holds("two", api.queue)
    await api.expect(201, "PUT", "/v2/queues/plain", {"_flavor": ""})
    assert await pools.holds("one", "plain")  # two serves its flavor only
    says = "lies in the pool 'one'"
    await api.set("_flavor", "fast", "/v2/queues/plain", status=400, says=says)
    await api.call("PATCH", "/v2/pools/two", {"weight": 0})
    await api.expect(503, "PUT", "/v2/queues/late", {"_flavor": "fast"})


async def test_a_dead_letter_queue_in_another_pool_is_refused(pools: Pools) -> None:
    api = pools.api
    await pools.make("one")
    await pools.make("two")
    for name in ("one", "two"):
        await api.call("PUT", f"/v2/flavors/{name}", {"pool_list": [name]})
        await api.call("PUT", f"/v2/queues/in-{name}", {"_flavor": name})
    policy = {"_dead_letter_queue": "in-two", "_max_claim_count": 1}
    await api.expect(400, "PUT", "/v2/queues/new", {**policy, "_flavor": "one"})
    says = "must lie in the same pool"
    await api.set("_dead_letter_queue", "in-two", "/v2/queues/in-one", status=400, says=says)
    await api.expect(201, "PUT", "/v2/queues/new", policy)
    assert await pools.holds("two", "in-two")


async def test_a_pool_that_is_away_is_503_and_the_others_serve(pools: Pools) -> None:
    api = pools.api
    away = {"uri": "redis://127.0.0.1:1/0", "weight": 1}
    await api.call("PUT", "/v2/pools/away", away)
    messages = {"messages": [{"body": 1}]}
    await api.expect(503, "POST", "messages", messages)
    await api.call("PATCH", "/v2/pools/away", {"weight": 0})
    await api.expect(201, "POST", "/v2/queues/b/messages", messages)
    health = await api.call("GET", "/v2/health")
    assert health.json()["away"] == {"storage_reachable": False}
    assert health.json()["storage_reachable"]


async def test_health_looks_at_each_pool(pools: Pools) -> None:
    await pools.make("one")
    health = (await pools.api.call("GET", "/v2/health")).json()
    assert health["catalog_reachable"] is True
    for report in (health, health["one"]):
        assert {one["succeeded"] for one in report["operation_status"].values()} == {True}
    assert "durable" in health["one"]["capabilities"]


async def test_a_pool_is_drained_while_its_queues_are_frozen(
    make_api: MakeApi, tmp_path: Path
) -> None:
    drain = "/v2/pools/one/drain"
    async with make_api(**ADMIN, drain_wait=0.1) as api:
        pools = Pools(api, tmp_path)
        await pools.make("one")
        await api.post({"body": "held"}, {"body": "ready"})
        (held,) = await api.claim(1, ttl=60, grace=60)
        await api.expect(409, "POST", drain, says="set its weight to 0")
        for method, path in (("POST", "/v2/pools/none/drain"), ("GET", drain)):
            await api.expect(404, method, path)
        found = await pools.drain_until_it_waits("one")
        assert (found["state"], found["messages_moved"]) == ("running", 1)
        assert found["problem"].startswith("Messages of frozen queues are held by claims")
        refused = await api.expect(503, "POST", "messages", {"messages": [{"body": "new"}]})
        assert refused.headers["Retry-After"] == "5"
        await api.expect(204, "DELETE", held["href"])
        await api.until(drain, lambda found: found["state"] == "completed")
        assert [one["body"] for one in await api.claim()] == ["ready"]


async def test_a_pool_whose_queues_can_go_nowhere_says_so(
    make_api: MakeApi, tmp_path: Path
) -> None:
    async with make_api(**ADMIN, drain_wait=0.1) as api:
        pools = Pools(api, tmp_path)
        await pools.make("one")
        await api.expect(201, "PUT", "/v2/flavors/f", {"pool_list": ["one"]})
        await api.expect(201, "PUT", "", {"_flavor": "f"})
        await api.post({"body": 1})
        found = await pools.drain_until_it_waits("one")
        assert found["problem"] == "No pool of the flavor f takes new queues."
        assert [one["body"] for one in await api.claim()] == [1]


async def test_a_queue_with_a_history_lies_in_the_servers_own_store(
    make_api: MakeApi, tmp_path: Path
) -> None:
    async with make_api(**ADMIN, store=f"embedded:{tmp_path}/home") as api:
        pools = Pools(api, tmp_path)
        await pools.make("one")
        await api.expect(201, "PUT", "", {"_done_retention": 60})
        assert not await pools.holds("one", api.queue)
        (posted,) = await api.post({"body": 1})
        (message,) = await api.claim()
        await api.expect(204, "DELETE", message["href"])
        ended = (await api.call("GET", "history?state=done")).json()["messages"]
        assert [one["id"] for one in ended] == [posted]
        in_pool = f"/v2/queues/{api.queue}-in-pool"
        await api.expect(201, "PUT", in_pool)
        says = "_done_retention can't be set"
        await api.set("_done_retention", 60, in_pool, status=400, says=says)
    async with make_api(**ADMIN, management_store=f"embedded:{tmp_path}/records") as api:
        await Pools(api, tmp_path).make("two")
        says = "_done_retention can't be set: no pool that fits"
        await api.expect(400, "PUT", "", {"_done_retention": 60}, says=says)


async def test_filters_and_priorities_work_within_a_pool(pools: Pools) -> None:
    api = pools.api
    for name in ("one", "two"):
        await pools.make(name)
    urgent = {"_filter": "kind = 'urgent'", "_priority": "RULES (n = '2' -> 5)"}
    await api.expect(201, "PUT", f"/v2/queues/{api.queue}-urgent", urgent)
    for number in range(8):  # all queues of the project lie in the pool of the first
        path = f"/v2/queues/{api.queue}-{number}/messages"
        headers = {"kind": "urgent", "n": str(number)}
        posted = await api.call(
            "POST", path, {"messages": [{"body": number, "headers": headers}, {"body": "plain"}]}
        )
        assert posted.status_code == 201
    claimed = await api.call("POST", f"/v2/queues/{api.queue}-urgent/claims?limit=20", {})
    bodies = [one["body"] for one in claimed.json()["messages"]]
    assert bodies == [2, 0, 1, 3, 4, 5, 6, 7]


async def test_what_a_pool_can_not_do_is_refused(pools: Pools) -> None:
    api = pools.api
    pool = {"uri": "redis://localhost:1/0", "weight": 1}
    await api.expect(201, "PUT", "/v2/pools/plain", pool)
    await api.call("PUT", "/v2/flavors/f", {"pool_list": ["plain"]})
    refused = await api.call("PUT", "", {"_flavor": "f", "_priority": "RULES (a = 'b' -> 5)"})
    assert refused.json()["description"] == "No pool of the flavor f can do what is asked for."
    await api.expect(201, "PUT", "", {"_flavor": "f"})
    for key, value in (("_filter", "a = 'b'"), ("_priority", "RULES (a = 'b' -> 5)")):
        await api.set(key, value, status=400, says=f"{key} can't be set")
    other = f"/v2/queues/{api.queue}-other"
    await api.expect(201, "PUT", other)
    refused = await api.call("PUT", f"{other}-filtered", {"_filter": "a = 'b'"})
    assert "they lie in several" in refused.json()["description"]


@pytest.mark.parametrize("is_sealed", [False, True], ids=["clear", "sealed"])
async def test_a_name_may_have_any_characters(
    make_api: MakeApi, tmp_path: Path, is_sealed: bool
) -> None:
    """Also a line break, which no header may hold, and what a sealed record is made of."""
    key = {"encryption_key_file": EVERY_ROUTE["encryption_key_file"]} if is_sealed else {}
    names = ["a b", "é", "a\r\nX-Evil: 1", "50%", "a?b#c", "a:b", "\0", 'a"b']
    async with make_api(**ADMIN, **key) as api:
        for number, name in enumerate(names):
            path = f"/v2/pools/{quote(name, safe='')}"
            pool = {"uri": f"embedded:{tmp_path}/{number}", "weight": 1}
            made = await api.expect(201, "PUT", path, pool)
            assert made.headers["Location"] == path
            assert "X-Evil" not in made.headers
            shown = (await api.call("GET", made.headers["Location"])).json()
            assert (shown["name"], shown["href"]) == (name, path)
            flavor = path.replace("pools", "flavors")
            made = await api.expect(201, "PUT", flavor, {"pool_list": [name]})
            assert made.headers["Location"] == flavor
            assert (await api.call("GET", flavor)).json()["href"] == flavor

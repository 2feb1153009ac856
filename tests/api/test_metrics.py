"""What a scrape shows: each family after what it counts, and the depth of queues."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Api, MakeApi, claim_id_of
from tests.waiting import until
from zaqar_lite.service.metrics import queue_depths as census
from zaqar_lite.service.metrics.shared_counters import LATENESS

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _counted_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "_FRESH", 0.1)


LINE = re.compile(r"(\w+)(?:{(.*)})? (\S+)")


async def scrape(api: Api, path: str = "/metrics") -> dict[str, float]:
    """All samples by name and labels."""
    answer = await api.http.get(path)
    assert answer.status_code == 200, answer.text
    found = {}
    for line in answer.text.splitlines():
        if not line.startswith("#"):
            sample = LINE.fullmatch(line)
            assert sample is not None, line
            assert sample[1].startswith(("zaqar_lite_", "process_"))
            key = sample[1] if sample[2] is None else f"{sample[1]}{{{sample[2]}}}"
            assert key not in found, key
            found[key] = float(sample[3])
    return found


async def counted(api: Api, **wanted: float) -> dict[str, float]:
    """Scrape until a count of the queues shows what is wanted."""
    samples = {f'zaqar_lite_{name}{{store="memory"}}': value for name, value in wanted.items()}
    return await until(lambda: scrape(api), lambda found: samples.items() <= found.items())


async def settle(api: Api, message: dict[str, Any], document: dict[str, Any]) -> None:
    await api.expect(204, "PATCH", message["href"], {"claim": document})


async def test_tells_what_its_process_uses(make_api: MakeApi) -> None:
    async with make_api() as api:
        before = time.process_time()
        found = await scrape(api)
        assert before - 0.1 <= found["process_cpu_seconds_total"] <= time.process_time() + 0.1
        status = await asyncio.to_thread(Path("/proc/self/status").read_text)
        resident = int(*re.findall(r"VmRSS:\s+(\d+) kB", status)) << 10
        assert found["process_resident_memory_bytes"] == pytest.approx(resident, rel=0.3)


async def test_counts_what_happens_to_messages(make_api: MakeApi) -> None:
    async with make_api() as api:
        await api.call("PUT", "", {"_dead_letter_queue": "letters", "_max_claim_count": 9})
        await api.post({"body": 1}, {"body": 2}, {"body": 3}, {"body": 4}, Idempotency_Key="k")
        await api.post({"body": 1}, {"body": 2}, {"body": 3}, {"body": 4}, Idempotency_Key="k")
        api.advance(7)
        found = await counted(api, ready_messages=4)
        assert 7 <= found['zaqar_lite_oldest_ready_message_age_seconds{store="memory"}'] < 30
        one, two, three, four = await api.claim()
        await settle(api, one, {"release_in": 0, "failed": True})
        await settle(api, two, {"dead": True, "reason": "spoilt"})
        await settle(api, three, {"release_in": 0})
        await api.expect(204, "DELETE", four["href"])
        await api.expect(200, "DELETE", "messages?pop=1")
        found = await scrape(api)
        for name, count in {
            "posted": 4,
            "duplicate": 4,
            "handed_out": 4,
            "failed": 1,
            "released": 1,
            "deleted": 1,
            "popped": 1,
            "redriven": 0,
        }.items():
            assert found[f"zaqar_lite_{name}_messages_total"] == count, name
        assert found['zaqar_lite_dead_lettered_messages_total{reason="rejected"}'] == 1
        # The first message of a claim counts, and not that of the pop, which was handed out before.
        assert found["zaqar_lite_pickup_seconds_count"] == 1
        waited = found["zaqar_lite_pickup_seconds_sum"]
        assert 7 <= waited < 30
        for bound in LATENESS:
            within = found[f'zaqar_lite_pickup_seconds_bucket{{le="{bound!r}"}}']
            assert within == (waited <= bound)
        route = "POST /v2/queues/{queue_name}/messages"
        assert found[f'zaqar_lite_http_requests_total{{route="{route}",status="201"}}'] == 2
        assert found[f'zaqar_lite_http_request_seconds_count{{route="{route}"}}'] == 2
        assert found['zaqar_lite_store_operation_seconds_count{operation="settle"}'] == 3
        subscription = {"subscriber": "http://receiver.example/", "ttl": 600}
        await api.expect(201, "POST", "subscriptions", subscription)
        await counted(api, ready_messages=2, counted_queues=2, subscriptions=1)
        found = await scrape(api)
        assert found['zaqar_lite_dead_letters{project="demo",queue="letters"}'] == 1
        await api.expect(200, "POST", "/v2/queues/letters/redrives", {"ids": [two["id"]]})
        await api.expect(404, "GET", "/none")
        await api.expect(400, "DELETE", "messages?pop=x")
        found = await scrape(api)
        assert found["zaqar_lite_redriven_messages_total"] == 1
        assert found['zaqar_lite_http_requests_total{route="none",status="404"}'] == 1
        route = "DELETE /v2/queues/{queue_name}/messages"
        assert found[f'zaqar_lite_http_requests_total{{route="{route}",status="400"}}'] == 1


async def test_counts_what_lies_in_several_pools_once(make_api: MakeApi, tmp_path: Path) -> None:
    async with make_api(admin_mode=True, pooling=True) as api:
        for pool in ("one", "two"):
            document = {"uri": f"embedded:{tmp_path}/{pool}", "weight": 100}
            await api.expect(201, "PUT", f"/v2/pools/{pool}", document)
        for name in "abcdef":
            await api.call("PUT", f"/v2/queues/{name}", {"_default_message_delay": 600})
            subscription = {"subscriber": "http://receiver.example/", "ttl": 3600}
            path = f"/v2/queues/{name}/subscriptions"
            await api.expect(201, "POST", path, subscription)
            document = {"messages": [{"body": 1}]}
            path = f"/v2/queues/{name}/messages"
            await api.expect(201, "POST", path, document)
        found = await counted(api, delayed_messages=6, counted_queues=6, pending_deliveries=6)
        assert not [name for name in found if "~" in name], "the server's own queues"


async def test_tells_how_late_each_delayed_message_of_a_claim_and_of_a_pop_is(api: Api) -> None:
    await api.call("PUT", "", {"_default_message_delay": 10})
    await api.post({"body": 1, "delay": 0}, {"body": 2}, {"body": 3}, {"body": 4, "delay": 11})
    api.advance(13)
    assert len(await api.claim(limit=2)) == 2
    await api.expect(200, "DELETE", "messages?pop=2")
    found = await scrape(api)
    late = "zaqar_lite_delay_lateness_seconds"
    assert found[f"{late}_count"] == 3
    assert 7.9 <= found[f"{late}_sum"] < 20
    assert found[f'{late}_bucket{{le="1.0"}}'] == 0
    assert found[f'{late}_bucket{{le="+Inf"}}'] == 3
    # The first message of each: one was ready at once, the other after ten seconds.
    assert found["zaqar_lite_pickup_seconds_count"] == 2
    assert 15.9 <= found["zaqar_lite_pickup_seconds_sum"] < 30


async def test_shows_few_queues_by_name_and_those_that_ask_for_it(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census, "MOST_SHOWN", 2)
    monkeypatch.setattr(census, "MOST_MONITORED", 1)
    async with make_api() as api:
        for name in ("a", "b", "c", "d", "e"):
            metadata = {"_monitor": name in {"d", "e"}}
            await api.call("PUT", f"/v2/queues/{name}", metadata)
            await api.call("POST", f"/v2/queues/{name}/messages", {"messages": [{"body": 1}]})
            api.advance(10)
        await api.call("PUT", "", {"_dead_letter_queue": "letters"})
        await api.post({"body": 1})
        (message,) = await api.claim()
        await settle(api, message, {"dead": True})

        async def shown() -> set[str]:
            found = await scrape(api)
            return {name for name in ("a", "b", "c", "d", "e", "letters") if _of(name) in found}

        await until(shown, {"a", "b", "d", "letters"}.__eq__)
        one = await scrape(api, "/metrics/queues?project=demo&name=c")
        assert one[_of("c")] == 1
        assert 30 <= one[_of("c", "oldest_ready_message_age_seconds", "")] < 60
        assert (await api.http.get("/metrics/queues?name=c")).status_code == 400


def _of(name: str, metric: str = "messages", state: str = ',state="ready"') -> str:
    return f'zaqar_lite_queue_{metric}{{project="demo",queue="{name}"{state}}}'


async def test_says_what_the_page_is(api: Api) -> None:
    page = await api.http.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# TYPE zaqar_lite_posted_messages_total counter\n" in page.text
    heads = re.findall(r"# HELP (\w+) \S.*\n# TYPE (\w+) (?:counter|gauge|histogram)\n", page.text)
    assert all(one == other for one, other in heads)
    families = {one for one, _ in heads}
    assert len(families) == len(heads)
    for line in page.text.splitlines():
        name = re.split(r"[{ ]", line)[0]
        assert name == "#" or families & {name, re.sub("_(bucket|sum|count)$", "", name)}, line


async def test_tells_the_depth_of_a_queue_to_who_has_one_header(api: Api) -> None:
    await api.call("PUT", "", {"_default_message_delay": 60})
    await api.post({"body": 1}, {"body": 2, "delay": 0}, {"body": 3, "delay": 0})
    (claimed,) = await api.claim(1)
    assert claim_id_of(claimed)
    del api.http.headers["Client-ID"]
    answer = await api.expect(200, "GET", "depth")
    counts = answer.json()
    assert counts.pop("oldest_ready_seconds") < 30
    assert counts == {"depth": 1, "ready": 1, "delayed": 1, "claimed": 1}
    for states, depth in (("ready,claimed", b"2\n"), ("ready,delayed,claimed", b"3\n")):
        number = await api.call("GET", f"depth?state={states}", Accept="text/plain")
        assert number.content == depth
        assert number.headers["content-type"] == "text/plain; charset=utf-8"
    await api.expect(400, "GET", "depth?state=lost")
    assert (await api.call("GET", "/v2/queues/none/depth", Accept="text/plain")).content == b"0\n"
    del api.http.headers["X-Project-ID"]
    await api.expect(400, "GET", "depth")


async def test_tells_how_fast_a_queue_was_that_was_looked_at(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.call("PUT", "", {})
    assert "recent" not in (await api.call("GET", "stats")).json()
    first = (await api.call("GET", "stats?recent=true")).json()
    assert (first["recent"], "rates" in first) == ([[0, 0, 0, 0]], False)
    monkeypatch.setattr(census, "_LEAST", 0)
    await api.post({"body": 1}, {"body": 2})
    (held,) = await api.claim(limit=1)
    await api.expect(204, "DELETE", held["href"])
    rates = (await api.call("GET", "stats?recent=true")).json()["rates"]
    assert 0 < rates["seconds"] < 60
    counts = [round(rates[one] * rates["seconds"] / 60) for one in ("posted", "claimed", "deleted")]
    assert counts == [2, 1, 1]

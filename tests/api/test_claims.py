"""Claims, delays and dead letters over HTTP."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Api, MakeApi, claim_id_of
from zaqar_lite.service import policy

pytestmark = pytest.mark.anyio


async def test_claims_the_oldest_messages_with_the_claim_in_every_href(api: Api) -> None:
    ids = await api.post({"body": 1}, {"body": 2}, {"body": 3})
    answer = await api.expect(201, "POST", "claims?limit=2", {"ttl": 100, "grace": 100})
    messages = answer.json()["messages"]
    assert set(answer.json()) == {"messages"}
    assert [message["id"] for message in messages] == ids[:2]
    claim_id = claim_id_of(messages[0])
    assert answer.headers["location"] == f"/v2/queues/{api.queue}/claims/{claim_id}"
    assert all(message["href"].endswith(f"?claim_id={claim_id}") for message in messages)
    assert set(messages[0]) == {"id", "href", "ttl", "age", "body"}
    await api.expect(204, "DELETE", messages[0]["href"])


async def test_answers_204_when_there_is_nothing_to_claim(api: Api) -> None:
    answer = await api.call("POST", "claims")
    assert (answer.status_code, answer.content) == (204, b"")
    assert "location" not in answer.headers
    assert (await api.call("GET", "/v2/queues")).json()["queues"] == []


@pytest.mark.parametrize("document", [None, {}, {"ttl": None, "grace": None}, {"other": 1}])
async def test_claims_ten_for_the_default_times(api: Api, document: Any) -> None:
    await api.post(*({"body": n} for n in range(40)))
    answer = await api.expect(201, "POST", "claims?unknown=1", document)
    messages = answer.json()["messages"]
    assert len(messages) == 10
    assert (await api.call("GET", f"claims/{claim_id_of(messages[0])}")).json()["ttl"] == 300
    assert len(await api.claim(20)) == 20


async def test_shows_renews_and_releases_a_claim(api: Api) -> None:
    await api.post({"body": 1}, {"body": 2})
    held = await api.claim(2, ttl=100, grace=60)
    path = f"claims/{claim_id_of(held[0])}"
    api.advance(50)
    shown = (await api.call("GET", path)).json()
    assert shown == {
        "age": shown["age"],
        "ttl": 100,
        "href": f"/v2/queues/{api.queue}/{path}",
        "messages": shown["messages"],
    }
    assert 50 <= shown["age"] < 100
    assert [message["href"] for message in shown["messages"]] == [m["href"] for m in held]
    await api.expect(204, "PATCH", path, {"ttl": 20_000, "grace": 5})
    shown = (await api.call("GET", path)).json()
    assert shown["age"] < 50
    assert shown["ttl"] == 20_000
    await api.expect(204, "PATCH", path, {})
    assert (await api.call("GET", path)).json()["ttl"] == 300
    for _ in range(2):
        await api.expect(204, "DELETE", path)
        for method in ("GET", "PATCH"):
            await api.expect(404, method, path, {} if method == "PATCH" else None)


@pytest.mark.parametrize("grace", [-1, 0, 43_200, 43_201])
async def test_a_grace_out_of_range_is_bounded_when_a_claim_is_renewed(
    api: Api, grace: int
) -> None:
    await api.post({"body": 1, "ttl": 60})
    (held,) = await api.claim()
    path = f"claims/{claim_id_of(held)}"
    await api.expect(204, "PATCH", path, {"ttl": 600, "grace": grace})
    (message,) = (await api.call("GET", path)).json()["messages"]
    assert message["ttl"] == 600 + min(max(grace, 0), 43_200)


@pytest.mark.parametrize("delay", [900, 901, -1])
async def test_a_normal_queue_has_no_delay(api: Api, delay: int) -> None:
    await api.post({"body": 1, "delay": delay})
    assert len(await api.browse()) == 1
    assert len(await api.claim()) == 1


async def test_the_sweep_creates_the_dead_letter_queue_too(
    make_api: MakeApi, tmp_path: Path
) -> None:
    async with make_api(store=f"embedded://{tmp_path}/store") as api:
        await api.call("PUT", "", {"_max_claim_count": 1, "_dead_letter_queue": "dead"})
        await api.post({"body": "bad"})
        await api.claim()
        api.advance(301)  # the claim lapses: the sweep meets it first
        await api.until("/v2/queues?name=dead", lambda page: page["queues"])
        letters = (await api.call("GET", "/v2/queues/dead/messages?echo=true")).json()
        assert [letter["body"] for letter in letters["messages"]] == ["bad"]


@pytest.mark.parametrize("room", [1, 2])
@pytest.mark.parametrize("way", ["claim", "pop"])
async def test_dead_letters_make_their_queue_where_the_project_has_room(
    make_api: MakeApi, way: str, room: int
) -> None:
    """The letter has moved by then: to refuse would only hide what was handed out."""
    async with make_api(max_queues_per_project=room) as api:
        await api.call("PUT", "", {"_max_claim_count": 1, "_dead_letter_queue": "dead"})
        await api.post({"body": "bad"})
        (held,) = await api.claim()
        await api.call("DELETE", f"claims/{claim_id_of(held)}")
        await api.post({"body": "good"})
        taken = ("POST", "claims") if way == "claim" else ("DELETE", "messages?pop=5")
        found = (await api.call(*taken)).json()["messages"]
        assert [message["body"] for message in found] == ["good"]
        assert await api.bodies("dead") == ["bad"]
        assert len((await api.call("GET", "/v2/queues")).json()["queues"]) == room


async def test_letters_live_as_long_as_their_queue_says_and_make_it_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zaqar_lite.service.queues._SEEN_FOR", 3_600.0)
    letters = f"/v2/queues/{api.queue[:50]}-dead"
    metadata = {"_dead_letter_queue": letters.rpartition("/")[2]}
    await api.call("PUT", "", {**metadata, "_dead_letter_queue_messages_ttl": 1_000})
    for _ in range(2):
        await api.post({"body": 1})
        (held,) = await api.claim(1)
        api.advance(200)
        await api.expect(204, "PATCH", held["href"], {"claim": {"dead": True}})
        (letter,) = (await api.call("GET", f"{letters}/messages?echo=true")).json()["messages"]
        await api.expect(200, "GET", letters)
        api.advance(990)  # its ttl counts from the move
        await api.expect(200, "GET", letter["href"])
        api.advance(11)
        await api.expect(404, "GET", letter["href"])
        await api.expect(204, "DELETE", letters)  # this server knows it at once


async def test_refuses_chains_of_dead_letter_queues(api: Api) -> None:
    async def put(name: str, target: str) -> int:
        metadata = {"_max_claim_count": 1, "_dead_letter_queue": target}
        return (await api.call("PUT", f"/v2/queues/{name}", metadata)).status_code

    assert await put("a", "a") == 400
    assert await put("a", "b") == 201
    assert await put("b", "c") == 400
    assert await put("z", "a") == 400
    assert await put("also", "b") == 201
    await api.call("PUT", "/v2/queues/b")
    chained = ("_dead_letter_queue", "c", "/v2/queues/b")
    await api.set(*chained, status=400, title="Invalid request body")
    await api.call("DELETE", "/v2/queues/a")
    await api.call("DELETE", "/v2/queues/also")
    await api.set(*chained)


async def test_dead_letters_before_the_ready_messages_do_not_look_like_an_empty_queue(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "_LONGEST_SEARCH", 60.0)  # a second, however busy the machine is
    for first in range(0, 2_000, 100):
        await api.post(*({"body": number} for number in range(first, first + 100)))
    for held in [await api.claim(20) for _ in range(100)]:
        await api.call("DELETE", f"claims/{claim_id_of(held[0])}")
    await api.set("_dead_letter_queue", f"{api.queue}-letters")
    await api.set("_max_claim_count", 1)
    await api.post({"body": "ready"})
    assert [message["body"] for message in await api.claim(1)] == ["ready"]


YEAR = 31_536_000


def at(seconds: int) -> str:
    """The instant in so many seconds, by the server's clock, which nobody has moved."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def refused(api: Api, **message: Any) -> str:
    answer = await api.expect(400, "POST", "messages", {"messages": [{"body": 1, **message}]})
    text: str = answer.json()["description"]
    return text


async def test_a_message_waits_until_its_instant_and_lives_from_then(make_api: MakeApi) -> None:
    async with make_api(max_message_delay=2 * YEAR, max_message_ttl=3 * YEAR) as api:
        await api.call("PUT", "", {"_default_message_delay": 600, "_ttl_after_delay": True})
        await api.post(
            {"body": "far", "deliver_at": at(YEAR), "ttl": 300},
            {"body": "over", "deliver_at": "2001-01-01T00:00:00Z"},
            {"body": "delayed", "ttl": 60},
            {"body": "lapsed", "ttl": 60, "delay": 30},
        )
        popped = (await api.call("DELETE", "messages?pop=2")).json()["messages"]
        assert [message["body"] for message in popped] == ["over"]
        api.advance(630)
        assert [message["body"] for message in await api.claim()] == ["delayed"]
        api.advance(YEAR - 690)
        assert await api.claim(2) == []
        api.advance(120)
        (message,) = await api.claim(ttl=60, grace=60)
        assert message["body"] == "far"
        assert YEAR + 290 < message["ttl"] <= YEAR + 300


async def test_what_a_deliver_at_may_not_be(api: Api) -> None:
    assert "normal queue" in await refused(api, deliver_at=at(60))
    await api.call("PUT", "", {"_default_message_delay": 10})
    assert "give one" in await refused(api, deliver_at=at(60), delay=60)
    assert "RFC 3339" in await refused(api, deliver_at="tomorrow")
    assert "RFC 3339" in await refused(api, deliver_at="2030-01-01T00:00:00")
    assert "900 seconds" in await refused(api, deliver_at=at(1_000))
    assert "expire before" in await refused(api, deliver_at=at(600), ttl=300)
    assert "messages[0].deliver_at" in await refused(api, deliver_at=7)
    assert (await api.call("GET", "stats")).json()["messages"]["total"] == 0

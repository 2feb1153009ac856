"""Settling single messages of a claim over HTTP: back-off, heartbeats, dead letters, reasons."""

from typing import Any

import pytest

from tests.api.conftest import Api, claim_id_of

pytestmark = pytest.mark.anyio
FAILED = {"release_in": 0, "failed": True}


async def one_claimed(api: Api, **metadata: Any) -> dict[str, Any]:
    """Post a message to a queue with these attributes, and claim it."""
    await api.call("PUT", "", metadata)
    await api.post({"body": "work"})
    (message,) = await api.claim(1, ttl=100, grace=60)
    return message


async def details(api: Api, message: dict[str, Any], queue: str = "") -> dict[str, Any]:
    path = f"/v2/queues/{queue or api.queue}/messages/{message['id']}?details=true"
    answer = await api.expect(200, "GET", path)
    shown: dict[str, Any] = answer.json()
    return shown


async def test_a_failure_comes_back_after_its_delay_and_says_why(api: Api) -> None:
    message = await one_claimed(api)
    act = {"release_in": 30, "failed": True, "reason": "http_503", "detail": "upstream is down"}
    await api.expect(204, "PATCH", message["href"], {"claim": act})
    assert await api.claim(1) == []
    stats = (await api.call("GET", "stats")).json()["messages"]
    assert (stats["free"], stats["claimed"]) == (1, 0)
    shown = await details(api, message)
    assert shown["failure_count"] == shown["claim_count"] == 1
    assert shown["parked_until"] is not None
    (attempt,) = shown["attempts"]
    assert (attempt["number"], attempt["outcome"], attempt["delay"]) == (1, "failed", 30)
    assert (attempt["reason"], attempt["detail"]) == ("http_503", "upstream is down")
    api.advance(31)
    (again,) = await api.claim(1, "&details=true")
    assert again["id"] == message["id"]
    assert [one["reason"] for one in again["attempts"]] == ["http_503"]


async def test_repeating_an_act_is_no_error_and_another_one_is(api: Api) -> None:
    message = await one_claimed(api)
    for _ in range(2):
        await api.expect(204, "PATCH", message["href"], {"claim": {"release_in": 0}})
    await api.expect(409, "PATCH", message["href"], {"claim": {"ttl": 100}})
    assert (await details(api, message))["failure_count"] == 0


async def test_a_message_of_another_claim_is_not_settled(api: Api) -> None:
    await api.post({"body": 1}, {"body": 2})
    mine = (await api.claim(1))[0]
    theirs = (await api.claim(1))[0]
    href = f"messages/{theirs['id']}?claim_id={claim_id_of(mine)}"
    for act in ({"ttl": 100}, {"release_in": 0}, {"dead": True}):
        await api.expect(403, "PATCH", href, {"claim": act}, title="Unable to settle")
    assert (await details(api, theirs))["claim_count"] == 1


async def test_one_message_of_a_claim_is_held_for_longer(api: Api) -> None:
    await api.post({"body": 1}, {"body": 2})
    first, second = await api.claim(2, ttl=100, grace=60)
    await api.expect(204, "PATCH", first["href"], {"claim": {"ttl": 600}})
    api.advance(101)
    (free,) = await api.claim(2)
    assert free["id"] == second["id"]
    await api.expect(204, "DELETE", first["href"])


async def test_a_dead_message_is_a_letter_with_its_reason(api: Api) -> None:
    message = await one_claimed(api, _dead_letter_queue="letters")
    act = {"dead": True, "reason": "bad_format", "detail": "line 3"}
    await api.expect(204, "PATCH", message["href"], {"claim": act})
    letter = await details(api, message, "letters")
    assert letter["dead_letter"]["reason"] == "bad_format"
    assert letter["attempts"][0]["outcome"] == "dead"


async def test_the_back_off_of_the_queue_holds_for_a_failure_without_a_delay(api: Api) -> None:
    backoff = {"type": "exponential", "min": 10, "max": 60}
    message = await one_claimed(api, _retry_backoff=backoff)
    path = f"claims/{claim_id_of(message)}/settle"
    release = {"release": [{"id": message["id"], "failed": True}]}
    assert (await api.call("POST", path, release)).json()["results"][0]["status"] == 204
    api.advance(5)
    assert await api.claim(1) == []
    api.advance(6)
    (again,) = await api.claim(1)
    failed = {"claim": {"failed": True, "reason": "http_503"}}
    await api.expect(204, "PATCH", again["href"], failed)
    api.advance(10)
    assert await api.claim(1) == []
    api.advance(11)
    (again,) = await api.claim(1, "&details=true")
    assert [(one["delay"], one["reason"]) for one in again["attempts"]] == [
        (10, None),
        (20, "http_503"),
    ]


async def test_a_claim_is_settled_in_one_request(api: Api) -> None:
    await api.call("PUT", "", {"_dead_letter_queue": "letters"})
    await api.post(*({"body": number} for number in range(5)))
    held = await api.claim(5, ttl=100, grace=60)
    ids = [message["id"] for message in held]
    answer = await api.call(
        "POST",
        f"claims/{claim_id_of(held[0])}/settle",
        {
            "delete": [ids[0], "0" * 32],
            "release": [{"id": ids[1], "delay": 20, "reason": "busy"}],
            "extend": [{"id": ids[2], "ttl": 500}],
            "dead": [{"id": ids[3], "reason": "poison"}],
        },
    )
    assert answer.status_code == 200
    results = {one["id"]: one["status"] for one in answer.json()["results"]}
    assert results == {**dict.fromkeys(ids[:4], 204), "0" * 32: 204}
    stats = (await api.call("GET", "stats")).json()["messages"]
    assert (stats["claimed"], stats["free"]) == (2, 1)


async def test_results_say_what_was_not_done(api: Api) -> None:
    await api.post({"body": 1}, {"body": 2}, {"body": 3})
    mine = await api.claim(1)
    theirs = await api.claim(1)
    (free,) = [m for m in await api.browse() if m["id"] not in {mine[0]["id"], theirs[0]["id"]}]
    document = {
        "release": [{"id": theirs[0]["id"]}, {"id": free["id"]}, {"id": "0" * 32}],
        "dead": [{"id": mine[0]["id"]}],
    }
    answer = await api.call("POST", f"claims/{claim_id_of(mine[0])}/settle", document)
    assert [one["status"] for one in answer.json()["results"]] == [403, 409, 404, 409]
    outcomes = [one["outcome"] for one in answer.json()["results"]]
    assert outcomes == ["held", "lapsed", "not_found", "no_target"]
    assert all(one["description"] for one in answer.json()["results"])


async def test_a_claim_is_released_with_a_delay(api: Api) -> None:
    message = await one_claimed(api)
    path = f"claims/{claim_id_of(message)}"
    await api.expect(400, "DELETE", f"{path}?delay=43201")
    await api.expect(204, "DELETE", f"{path}?delay=43200")
    assert await api.claim(1) == []
    api.advance(43_201)
    assert len(await api.claim(1)) == 1


async def test_a_dead_letter_without_a_place_to_go_changes_nothing(api: Api) -> None:
    message = await one_claimed(api)
    await api.expect(409, "PATCH", message["href"], {"claim": {"dead": True}})
    await api.expect(204, "DELETE", message["href"])

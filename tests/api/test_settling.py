"""Settling single messages of a claim over HTTP: back-off, heartbeats, dead letters, reasons."""

from typing import Any

import pytest

from tests.api.conftest import CLIENT_ID, Api, claim_id_of

pytestmark = pytest.mark.anyio


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


async def test_failures_wait_for_their_delay_or_the_queues_back_off_and_say_why(api: Api) -> None:
    message = await one_claimed(api, _retry_backoff={"type": "exponential", "min": 10, "max": 60})
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
    (again,) = await api.claim(1)
    failed = {"claim": {"failed": True, "reason": "busy"}}
    await api.expect(204, "PATCH", again["href"], failed)
    api.advance(15)
    assert await api.claim(1) == []
    api.advance(6)
    (again,) = await api.claim(1, "&details=true")
    delays = [(one["delay"], one["reason"]) for one in again["attempts"]]
    assert delays == [(30, "http_503"), (20, "busy")]


async def test_an_act_is_of_one_message_of_ones_own_claim(api: Api) -> None:
    await api.post({"body": 1}, {"body": 2}, {"body": 3})
    first, second = await api.claim(2, ttl=100, grace=60)
    (theirs,) = await api.claim(1)
    for act in ({"ttl": 100}, {"release_in": 0}, {"dead": True}):
        href = f"messages/{theirs['id']}?claim_id={claim_id_of(first)}"
        await api.expect(403, "PATCH", href, {"claim": act}, title="Unable to settle")
    assert (await details(api, theirs))["claim_count"] == 1
    for _ in range(2):  # a repetition is no error
        await api.expect(204, "PATCH", theirs["href"], {"claim": {"release_in": 0}})
    await api.expect(409, "PATCH", theirs["href"], {"claim": {"ttl": 100}})
    assert (await details(api, theirs))["failure_count"] == 0
    await api.expect(409, "PATCH", first["href"], {"claim": {"dead": True}})  # it has no place
    for ttl in (60, 43_200, 600):  # from the shortest to the longest
        await api.expect(204, "PATCH", first["href"], {"claim": {"ttl": ttl}})
    await api.set("_dead_letter_queue", f"{api.queue}-letters")
    dead = {"dead": True, "reason": "b" * 128, "detail": "\u00fc" * 1_024}
    await api.expect(204, "PATCH", second["href"], {"claim": dead})
    letter = await details(api, second, f"{api.queue}-letters")
    moved = letter["dead_letter"].pop("moved_at")
    assert moved >= letter["created"]
    assert letter["dead_letter"] == {
        "source": api.queue,
        "claim_count": 1,
        "last_claim_id": claim_id_of(second),
        "last_client_id": CLIENT_ID.replace("-", ""),
        "reason": "b" * 128,
        "redriven": 0,
    }
    assert letter["attempts"][0]["outcome"] == "dead"
    api.advance(101)
    assert [one["id"] for one in await api.claim(3)] == [theirs["id"]]
    await api.expect(204, "DELETE", first["href"])


async def test_a_claim_is_settled_in_one_request_that_says_what_was_not_done(api: Api) -> None:
    await api.post(*({"body": number} for number in range(7)))
    held = await api.claim(5, ttl=100, grace=60)
    ids = [message["id"] for message in held]
    (theirs,) = await api.claim(1)
    (free,) = await api.browse()
    path = f"claims/{claim_id_of(held[0])}/settle"

    async def settle(document: Any) -> list[tuple[int, str]]:
        answer = await api.expect(200, "POST", path, document)
        assert all("description" in one for one in answer.json()["results"] if one["status"] > 299)
        return [(one["status"], one.get("outcome", "")) for one in answer.json()["results"]]

    nobodys = "0" * 32
    released = [{"id": one} for one in (theirs["id"], free["id"], nobodys)]
    assert await settle({"release": released, "dead": [{"id": ids[0]}]}) == [
        (403, "held"),
        (409, "lapsed"),
        (404, "not_found"),
        (409, "no_target"),
    ]
    await api.set("_dead_letter_queue", "letters")
    done = await settle(
        {
            "delete": [ids[0], nobodys],
            "release": [{"id": ids[1], "delay": 20, "reason": "busy"}],
            "extend": [{"id": ids[2], "ttl": 500}],
            "dead": [{"id": ids[3], "reason": "poison"}],
        },
    )
    assert [status for status, _ in done] == [204] * 5
    stats = (await api.call("GET", "stats")).json()["messages"]
    assert (stats["claimed"], stats["free"]) == (3, 2)


async def test_a_claim_is_released_with_a_delay(api: Api) -> None:
    message = await one_claimed(api)
    path = f"claims/{claim_id_of(message)}"
    await api.expect(400, "DELETE", f"{path}?delay=43201")
    await api.expect(204, "DELETE", f"{path}?delay=43200")
    assert await api.claim(1) == []
    api.advance(43_201)
    assert len(await api.claim(1)) == 1

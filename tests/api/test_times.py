"""What is given in seconds is kept to the second, however many they are."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.api.conftest import Api, MakeApi, claim_id_of

pytestmark = pytest.mark.anyio
YEARS = 300_000_000
LONGEST = {f"max_{name}": YEARS for name in ("message_ttl", "message_delay", "claim_ttl")}


class Times:
    """The times of messages, so long that a thousandth of one is many minutes."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._now = datetime.now(UTC)

    def pass_by(self, seconds: int) -> None:
        self.api.advance(seconds)
        self._now += timedelta(seconds=seconds)

    def until(self, instant: str) -> int:
        """The seconds that are left, in hundreds: the test itself takes some."""
        return round((datetime.fromisoformat(instant) - self._now).total_seconds() / 100) * 100

    async def of(self, message: str, at: str = "delay_expires", queue: str = "") -> tuple[int, int]:
        """A message's ttl, and the seconds until it is due, in hundreds."""
        path = f"/v2/queues/{queue or self.api.queue}/messages/{message}?details=true"
        shown = (await self.api.expect(200, "GET", path)).json()
        return round(shown["ttl"], -2), self.until(shown[at])


@pytest.fixture
async def times(make_api: MakeApi) -> Any:
    async with make_api(**LONGEST, max_claim_grace=YEARS) as api:
        yield Times(api)


async def test_those_of_a_delayed_message(times: Times) -> None:
    api = times.api
    defaults = {"_default_message_ttl": 3_000_000, "_default_message_delay": 2_000_000}
    await api.call("PUT", "", defaults)
    first, second = await api.post({"body": 1}, {"body": 2, "ttl": 4_000_000, "delay": 1_000_000})
    assert await times.of(first) == (3_000_000, 2_000_000)
    assert await times.of(second) == (4_000_000, 1_000_000)
    edit = {"ttl": 6_000_000, "delay": 5_000_000}
    await api.expect(200, "PATCH", f"messages/{second}", edit)
    assert await times.of(second) == (6_000_000, 5_000_000)
    await api.expect(200, "POST", "delayed/move", {"ids": [second], "by": 2_000_000})
    assert await times.of(second) == (8_000_000, 7_000_000)


async def test_those_of_a_claim(times: Times) -> None:
    api = times.api
    await api.post({"body": "short"})
    (held,) = await api.claim(1, ttl=7_000_000, grace=1_000_000)
    claim = (await api.call("GET", f"claims/{claim_id_of(held)}")).json()
    assert (claim["ttl"], claim["messages"][0]["ttl"]) == (7_000_000, 8_000_000)
    times.pass_by(6_000_000)
    claim = (await api.call("GET", f"claims/{claim_id_of(held)}")).json()
    assert round(claim["age"], -2) == 6_000_000
    await api.expect(204, "PATCH", held["href"], {"claim": {"ttl": 9_000_000}})
    times.pass_by(8_999_000)
    assert (await api.call("GET", f"claims/{claim_id_of(held)}")).status_code == 200
    times.pass_by(1_100)
    assert (await api.call("GET", f"claims/{claim_id_of(held)}")).status_code == 404


async def test_those_of_a_message_that_is_given_back(times: Times) -> None:
    api = times.api
    (message,) = await api.post({"body": 1, "ttl": 200_000_000})
    (held,) = await api.claim()
    act = {"claim": {"release_in": 5_000_000, "failed": True}}
    await api.expect(204, "PATCH", held["href"], act)
    assert await times.of(message, "parked_until") == (200_000_000, 5_000_000)
    shown = (await api.call("GET", f"messages/{message}?details=true")).json()
    assert shown["attempts"][0]["delay"] == 5_000_000
    times.pass_by(5_000_000)
    (held,) = await api.claim()
    await api.expect(204, "DELETE", f"claims/{claim_id_of(held)}?delay=3000000")
    assert (await times.of(message, "parked_until"))[1] == 3_000_000


async def test_those_of_a_letter_that_is_put_back(times: Times) -> None:
    api = times.api
    await api.call("PUT", "/v2/queues/repair", {"_default_message_delay": 1})
    (letter,) = await api.post({"body": 1})
    order = {"ids": [letter], "to": "repair", "delay": 5_000_000, "ttl": 9_000_000}
    redriven = await api.expect(200, "POST", "redrives", order)
    assert redriven.json()["done"] == 1
    assert await times.of(letter, queue="repair") == (9_000_000, 5_000_000)


async def test_that_of_a_subscription(times: Times) -> None:
    api = times.api
    document = {"subscriber": "http://receiver.example/", "ttl": 5_000_000}
    made = (await api.expect(201, "POST", "subscriptions", document)).json()["subscription_id"]
    times.pass_by(4_999_000)
    await api.expect(200, "GET", f"subscriptions/{made}")
    times.pass_by(1_100)
    await api.expect(404, "GET", f"subscriptions/{made}")

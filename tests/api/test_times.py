"""What is given in seconds is kept to the second: here a thousandth of each is many minutes."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.api.conftest import Api, MakeApi, claim_id_of

pytestmark = pytest.mark.anyio
YEARS = 300_000_000
LONGEST = ("max_message_ttl", "max_message_delay", "max_claim_ttl", "max_claim_grace")


async def times_of(api: Api, message: str, at: str = "delay_expires") -> tuple[int, int]:
    """A message's ttl, and the seconds until an instant, in hundreds: the test takes some."""
    shown = (await api.expect(200, "GET", f"{message}?details=true")).json()
    left = datetime.fromisoformat(shown[at]) - datetime.now(UTC)
    return round(shown["ttl"], -2), round(left / timedelta(seconds=100)) * 100


async def test_times_of_a_message(make_api: MakeApi) -> None:
    async with make_api(**dict.fromkeys(LONGEST, YEARS)) as api:
        defaults = {"_default_message_ttl": 3_000_000, "_default_message_delay": 2_000_000}
        await api.call("PUT", "", defaults)
        own = {"body": 2, "ttl": 4_000_000, "delay": 1_000_000}
        first, second = await api.post({"body": 1}, own)
        assert await times_of(api, f"messages/{first}") == (3_000_000, 2_000_000)
        assert await times_of(api, f"messages/{second}") == (4_000_000, 1_000_000)
        edit = {"ttl": 6_000_000, "delay": 5_000_000}
        await api.expect(200, "PATCH", f"messages/{second}", edit)
        assert await times_of(api, f"messages/{second}") == (6_000_000, 5_000_000)
        await api.expect(200, "POST", "delayed/move", {"ids": [second], "by": 2_000_000})
        assert await times_of(api, f"messages/{second}") == (8_000_000, 7_000_000)
        await api.call("PUT", "/v2/queues/other", defaults)
        order = {"ids": [first], "to": "other", "delay": 5_000_000, "ttl": 9_000_000}
        await api.expect(200, "POST", "delayed/fire", {"ids": [first]})
        await api.expect(200, "POST", "redrives", order)
        there = await times_of(api, f"/v2/queues/other/messages/{first}")
        assert there == (9_000_000, 5_000_000)


async def test_times_of_a_claim_and_of_what_is_given_back(make_api: MakeApi) -> None:
    async with make_api(**dict.fromkeys(LONGEST, YEARS)) as api:
        await api.post({"body": "short"}, {"body": "long", "ttl": 200_000_000})
        _, held = await api.claim(2, ttl=7_000_000, grace=1_000_000)
        path, one = f"claims/{claim_id_of(held)}", f"messages/{held['id']}"
        claim = (await api.call("GET", path)).json()
        assert (claim["ttl"], claim["messages"][0]["ttl"]) == (7_000_000, 8_000_000)
        await api.expect(204, "PATCH", held["href"], {"claim": {"ttl": 9_000_000}})
        api.advance(8_999_000)
        claim = (await api.call("GET", path)).json()
        assert round(claim["age"], -2) == 8_999_000
        stats = (await api.call("GET", "stats")).json()["messages"]
        assert round(stats["oldest"]["age"], -2) == 8_999_000
        api.advance(1_100)
        (held,) = await api.claim(ttl=20_000_000)
        await api.expect(204, "DELETE", f"claims/{claim_id_of(held)}?delay=3000000")
        given_back = 9_000_100 + 3_000_000
        assert (await times_of(api, one, "parked_until"))[1] == given_back
        api.advance(3_000_000)
        (held,) = await api.claim()
        act = {"claim": {"release_in": 5_000_000, "failed": True}}
        await api.expect(204, "PATCH", held["href"], act)
        assert (await times_of(api, one, "parked_until"))[1] == given_back + 5_000_000
        shown = (await api.call("GET", f"{one}?details=true")).json()
        assert shown["attempts"][-1]["delay"] == 5_000_000


async def test_that_of_a_subscription(api: Api) -> None:
    document = {"subscriber": "http://receiver.example/", "ttl": 5_000_000}
    made = (await api.expect(201, "POST", "subscriptions", document)).json()["subscription_id"]
    for seconds, status in ((4_999_000, 200), (1_100, 404)):
        api.advance(seconds)
        await api.expect(status, "GET", f"subscriptions/{made}")

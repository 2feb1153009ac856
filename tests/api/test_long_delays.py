"""Messages that wait until an instant, also for years, and ttls that count from its end."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.api.conftest import Api, MakeApi

pytestmark = pytest.mark.anyio
YEAR = 31_536_000


def at(seconds: int) -> str:
    """The instant in so many seconds, by the server's clock, which nobody has moved."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def refused(api: Api, **message: Any) -> str:
    answer = await api.expect(400, "POST", "messages", {"messages": [{"body": 1, **message}]})
    text: str = answer.json()["description"]
    return text


async def test_a_message_waits_until_its_instant(make_api: MakeApi) -> None:
    async with make_api(max_message_delay=2 * YEAR, max_message_ttl=3 * YEAR) as api:
        await api.call("PUT", "", {"_default_message_delay": 1, "_ttl_after_delay": True})
        await api.post({"body": "far", "deliver_at": at(YEAR), "ttl": 300})
        api.advance(YEAR - 60)
        assert await api.claim() == []
        api.advance(120)
        (message,) = await api.claim(ttl=60, grace=60)
        assert message["body"] == "far"
        assert YEAR + 290 < message["ttl"] <= YEAR + 300


async def test_an_instant_that_is_over_delays_nothing(api: Api) -> None:
    await api.call("PUT", "", {"_default_message_delay": 600})
    await api.post({"body": "now", "deliver_at": "2001-01-01T00:00:00Z"})
    assert len(await api.claim()) == 1


async def test_what_a_deliver_at_may_not_be(api: Api) -> None:
    assert "normal queue" in await refused(api, deliver_at=at(60))
    await api.call("PUT", "", {"_default_message_delay": 10})
    assert "give one" in await refused(api, deliver_at=at(60), delay=60)
    assert "RFC 3339" in await refused(api, deliver_at="tomorrow")
    assert "RFC 3339" in await refused(api, deliver_at="2030-01-01T00:00:00")
    assert "900 seconds" in await refused(api, deliver_at=at(1_000))
    assert "expire before" in await refused(api, deliver_at=at(600), ttl=300)
    assert "string" in await refused(api, deliver_at=7)
    assert (await api.call("GET", "stats")).json()["messages"]["total"] == 0


async def test_a_ttl_counts_from_the_end_of_the_delay_where_the_queue_says_so(api: Api) -> None:
    await api.call("PUT", "", {"_default_message_delay": 600, "_ttl_after_delay": True})
    await api.post({"body": 1, "ttl": 60}, {"body": 2, "ttl": 60, "delay": 30})
    api.advance(630)
    assert [message["body"] for message in await api.claim()] == [1]
    await api.expect(400, "PUT", "/v2/queues/x", {"_ttl_after_delay": 1})

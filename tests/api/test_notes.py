"""Notes for subscribers: what a post answers when they can't be stored."""

import pytest

from tests.api.conftest import MakeApi

pytestmark = pytest.mark.anyio


async def test_a_post_whose_notes_do_not_fit_is_503_and_not_a_refusal(make_api: MakeApi) -> None:
    async with make_api(max_messages_per_queue=3) as api:
        await api.call("PUT", "", {"_default_message_delay": 60})
        subscriber = {"subscriber": "http://receiver.example/", "ttl": 3_600}
        answer = await api.call("POST", "subscriptions", subscriber)
        assert answer.status_code == 201, answer.text
        await api.post({"body": 1}, {"body": 2}, {"body": 3})
        other = "/v2/queues/other"
        await api.call("PUT", other, {"_default_message_delay": 60})
        await api.call("POST", f"{other}/subscriptions", subscriber)
        posted = await api.call("POST", f"{other}/messages", {"messages": [{"body": 4}]})
        assert posted.status_code == 503, posted.text
        assert int(posted.headers["Retry-After"]) > 0
        assert "are stored" in posted.text
        stats = (await api.call("GET", f"{other}/stats")).json()["messages"]
        assert stats["total"] == 1

"""Notes for subscribers: stored with their messages, and in no tenant's way."""

import pytest

from tests.api.conftest import MakeApi
from zaqar_lite.service.delivery.outbox import OUTBOX_QUEUES, outbox_queue

pytestmark = pytest.mark.anyio


async def test_notes_that_pile_up_stop_no_post(make_api: MakeApi) -> None:
    async with make_api(max_messages_per_queue=3) as api:
        for queue in (api.queue, "other"):
            path = f"/v2/queues/{queue}"
            await api.call("PUT", path, {"_default_message_delay": 60})
            subscriber = {"subscriber": "http://receiver.example/", "ttl": 3_600}
            await api.expect(201, "POST", f"{path}/subscriptions", subscriber)
            messages = {"messages": [{"body": n} for n in range(3)]}
            await api.expect(201, "POST", f"{path}/messages", messages)
            refused = await api.call("POST", f"{path}/messages", messages)
            assert refused.status_code in (403, 503), refused.text


def test_projects_are_spread_over_the_lanes() -> None:
    assert {outbox_queue(f"project-{n}") for n in range(50)} == set(OUTBOX_QUEUES)

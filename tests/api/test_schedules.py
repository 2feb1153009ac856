"""Schedules over HTTP."""

from typing import Any

import pytest

from tests.api.conftest import Api
from tests.waiting import until

pytestmark = pytest.mark.anyio
PATH = "/v2/schedules/nightly"


async def put(api: Api, status: int = 201, **fields: Any) -> dict[str, Any]:
    document = {"queue": api.queue, "body": {"report": 1}, **fields}
    answer = await api.call("PUT", PATH, document)
    assert answer.status_code == status, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def bodies(api: Api, count: int) -> list[Any]:
    """The bodies of the queue, once there are so many."""
    found = await until(api.browse, lambda found: len(found) >= count)
    return [message["body"] for message in found]


async def test_it_fires_by_the_clock_and_by_hand(api: Api) -> None:
    await api.expect(404, "POST", PATH + "/fire")
    made = await put(api, cron="30 2 * * *", time_zone="Europe/Berlin")
    assert (made["name"], made["queue"], made["body"]) == ("nightly", api.queue, {"report": 1})
    assert len(made["next"]) == 5
    shown = (await api.call("GET", PATH)).json()
    assert shown["next"] == made["next"]
    kinds = ("fired", "missed", "uncertain", "overlapped", "failed")
    assert shown["counts"] == dict.fromkeys(kinds, 0)
    changed = await api.expect(200, "PATCH", PATH, {"cron": None, "every": "1h", "paused": True})
    assert "cron" not in changed.json()
    assert (changed.json()["every"], changed.json()["next"]) == ("1h", [])
    assert (await put(api, 200, every="1h", group="reports", ttl=86_400))["paused"] is False
    await api.expect(201, "POST", PATH + "/fire")
    assert await bodies(api, 1) == [{"report": 1}]
    api.advance(3_600)
    # It wakes the server, which looks at its clock once a second.
    waker = {"queue": "elsewhere", "body": 1, "at": "2099-01-01T00:00:00Z"}
    await api.expect(201, "PUT", "/v2/schedules/waker", waker)
    assert await bodies(api, 2) == [{"report": 1}] * 2
    assert (await api.call("GET", PATH)).json()["counts"]["fired"] == 1
    over = await api.expect(200, "PATCH", PATH, {"end": "2020-01-01T00:00:00Z"})
    assert "Zaqar-Lite-Warning" not in over.headers  # it has done something


async def test_null_takes_a_field_away(api: Api) -> None:
    fields: dict[str, Any] = {
        "jitter": "10m", "missed": "all", "time_zone": "Europe/Berlin", "paused": True,
        "headers": {"kind": "x"}, "end": "2099-01-01T00:00:00Z",
    }  # fmt: skip
    await put(api, every="1h", **fields)
    changed = await api.expect(200, "PATCH", PATH, {"body": None, **dict.fromkeys(fields)})
    shown = changed.json()
    assert (shown["body"], shown["missed"], shown["time_zone"]) == (None, "one", "UTC")
    assert (shown["paused"], len(shown["next"])) == (False, 5)
    assert not {"jitter", "headers", "end"} & shown.keys()
    for name in ("queue", "every"):
        await api.expect(400, "PATCH", PATH, {name: None})


@pytest.mark.parametrize(
    "fields",
    [
        {"cron": "0 0 * * *", "start": "9999-12-31T23:59:59Z", "time_zone": "Asia/Tokyo"},
        {"cron": "0 0 * * *", "start": "9999-12-29T23:59:59Z"},
        {"every": "3650d", "start": "9999-01-01T00:00:00Z"},
        {"at": "9999-12-31T23:59:59Z"},
    ],
)
async def test_a_schedule_ends_with_the_calendar(api: Api, fields: dict[str, Any]) -> None:
    assert len((await put(api, **fields))["next"]) <= 1
    await api.expect(200, "GET", "/v2/schedules")


async def test_a_schedule_whose_instants_have_passed_is_told(api: Api) -> None:
    past = "2020-01-01T00:00:00Z"
    for method, change, is_told in (
        ("PUT", {"queue": api.queue, "body": 1, "at": past}, True),
        ("PATCH", {"at": None, "every": "1h"}, False),
        ("PATCH", {"end": past}, True),
        ("PATCH", {"paused": True}, False),
    ):
        headers = (await api.call(method, PATH, change)).headers
        assert ("still to come" in headers.get("Zaqar-Lite-Warning", "")) == is_told

"""The access log: which requests are a line of it, and what a line says."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.api.conftest import CLIENT_ID, PROJECT, Api, MakeApi
from zaqar_lite.api import application

pytestmark = pytest.mark.anyio
CALLER = "req-0c0ff1c8-6f0c-4f7e-a1d2-9f1f3b1d2c55"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
LINES = [
    ("PUT /v2/queues/{queue_name}", "create_queue", "orders", 201),
    ("GET /v2/queues/{queue_name}/messages", "list_messages", "none", 400),
    ("GET /v2/topics/{topic_name}", "show_topic", "", 200),
    ("GET unknown", "unknown", "", 404),
]
"""Method and path template, route, queue and status."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is slow, however busy the machine is."""
    monkeypatch.setattr(application, "_SLOW", 60.0)


def lines(caplog: pytest.LogCaptureFixture, level: str) -> list[dict[str, Any]]:
    found = [one for one in caplog.records if one.name == "zaqar_lite.access"]
    return [vars(one)["fields"] for one in found if one.levelname == level]


async def call_all(api: Api) -> list[str]:
    """Send a request for each of LINES; answer their ids."""
    paths = (
        "/v2/queues/orders",
        "/v2/queues/none/messages?limit=x",
        "/v2/topics/news",
        "/v9/secret",
    )
    await api.expect(201, "PUT", "/v2/topics/news")
    answers = [
        await api.call(line[0].split()[0], at) for line, at in zip(LINES, paths, strict=True)
    ]
    return [one.headers["x-openstack-request-id"] for one in answers]


def shown(line: dict[str, Any]) -> tuple[str, str, str, int]:
    return f"{line['method']} {line['path']}", line["route"], line["queue"], line["status"]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("access_log", "level", "expected"),
    [
        (True, "INFO", LINES),
        (True, "DEBUG", LINES),
        (False, "DEBUG", [line for line in LINES if line[-1] >= 400]),
        (False, "INFO", []),
    ],
)
async def test_each_request_is_a_line_or_only_those_that_fail(
    make_api: MakeApi,
    caplog: pytest.LogCaptureFixture,
    access_log: bool,
    level: str,
    expected: list[Any],
) -> None:
    caplog.set_level(level, "zaqar_lite.access")
    async with make_api(access_log=access_log) as api:
        ids = await call_all(api)
    own = "INFO" if access_log else "DEBUG"
    found = [line for line in lines(caplog, own) if line["request_id"] in ids]
    assert [shown(line) for line in found] == expected
    for line in found:
        assert 0 <= line["milliseconds"] < 60_000
        if line["route"] != "unknown":
            assert (line["project"], line["client"]) == (PROJECT, CLIENT_ID.replace("-", ""))
        assert "caller_request_id" not in line
        assert "trace_id" not in line
    assert not lines(caplog, "DEBUG" if access_log else "INFO")


@pytest.mark.usefixtures("patient")
async def test_a_line_names_the_callers_request_and_trace(
    make_api: MakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "zaqar_lite.access")
    named = {"X_OpenStack_Request_ID": CALLER, "traceparent": f"00-{TRACE}-{PARENT}-00"}
    async with make_api(access_log=True) as api:
        await api.call("GET", "/v2/queues", **named)
        await api.call("GET", "/v2/queues", X_OpenStack_Request_ID="x", traceparent="00-1-2-00")
    known, other = lines(caplog, "INFO")[-2:]
    names = ("caller_request_id", "trace_id", "span_id")
    assert [known[name] for name in names] == [CALLER, TRACE, PARENT]
    assert not set(names) & set(other)


async def test_a_request_that_works_for_long_is_told_and_one_that_waits_is_not(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"messages": '
        await asyncio.sleep(0.6)
        yield b'[{"body": 1}]}'

    caplog.set_level(logging.DEBUG, "zaqar_lite.access")
    waited = [await api.expect(200, "GET", "messages?wait=1") for _ in range(2)]
    assert len(lines(caplog, "WARNING") + lines(caplog, "DEBUG")) < len(waited)
    caplog.clear()
    await api.http.post(f"/v2/queues/{api.queue}/messages", content=body())
    (line,) = lines(caplog, "WARNING")
    assert (line["route"], line["status"]) == ("post_messages", 201)
    assert line["milliseconds"] >= 500

"""The access log: which requests are a line of it, and what a line says."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.api.conftest import CLIENT_ID, PROJECT, Api, MakeApi
from tests.waiting import until
from zaqar_lite.api import application

pytestmark = pytest.mark.anyio
ACCESS = "zaqar_lite.access"
CALLER = "req-0c0ff1c8-6f0c-4f7e-a1d2-9f1f3b1d2c55"
TRACE = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
NAMED = {"X_OpenStack_Request_ID": CALLER, "traceparent": "00-{}-{}-00".format(*TRACE)}
REQUESTS = [
    ("/v2/queues/orders", "create_queue", "/v2/queues/{queue_name}", "PUT", "orders", 201),
    ("/v2/topics/news", "show_topic", "/v2/topics/{topic_name}", "GET", "", 200),
    ("messages?limit=x", "list_messages", "/v2/queues/{queue_name}/messages", "GET", None, 400),
    ("/v9/secret", "unknown", "unknown", "GET", "", 404),
]
"""What is sent, and what a line says: route, path, method, queue (the test's own), status."""


def lines(caplog: pytest.LogCaptureFixture, *levels: str) -> list[dict[str, Any]]:
    found = [one for one in caplog.records if one.name == ACCESS]
    return [vars(one)["fields"] for one in found if one.levelname in levels]


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
@pytest.mark.parametrize("access_log", [True, False])
async def test_each_request_is_a_line_or_only_those_that_fail(
    make_api: MakeApi,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    access_log: bool,
    level: str,
) -> None:
    monkeypatch.setattr(application, "_SLOW", 60.0)  # however busy the machine is
    async with make_api(access_log=access_log) as api:
        await api.expect(201, "PUT", "/v2/topics/news")
        caplog.set_level(level, ACCESS)
        for path, _, _, method, _, _ in REQUESTS:
            named = {"X_OpenStack_Request_ID": "x", "traceparent": "00-1-2-00"}
            await api.call(method, path, **(NAMED if "?" in path else named))
    least = 0 if access_log else 400 if level == "DEBUG" else 600
    found = lines(caplog, "INFO" if access_log else "DEBUG")
    fields = ("route", "path", "method", "queue", "status")
    assert [tuple(line[name] for name in fields) for line in found] == [
        (*said, api.queue if queue is None else queue, status)
        for _, *said, queue, status in REQUESTS
        if status >= least
    ]
    for line in found:
        own = [line[name] for name in ("caller_request_id", "trace_id", "span_id") if name in line]
        assert own == ([CALLER, *TRACE] if line["status"] == 400 else [])
        sender = (PROJECT, CLIENT_ID.replace("-", "")) if line["route"] != "unknown" else ("", "")
        assert (line["project"], line["client"]) == sender
        assert 0 <= line["milliseconds"] < 60_000
    assert not lines(caplog, "DEBUG" if access_log else "INFO")


async def test_a_request_that_works_for_long_is_told_and_one_that_waits_is_not(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"messages": '
        await asyncio.sleep(0.6)
        yield b'[{"body": 1}]}'

    caplog.set_level("DEBUG", ACCESS)

    async def told_of_a_wait() -> list[dict[str, Any]]:
        caplog.clear()
        await api.expect(200, "GET", "messages?wait=1")
        return lines(caplog, "WARNING", "DEBUG")

    await until(told_of_a_wait, lambda told: not told)  # a busy machine may make some slow
    await api.http.post(f"/v2/queues/{api.queue}/messages", content=body())
    (line,) = lines(caplog, "WARNING")
    assert (line["route"], line["milliseconds"] >= 500) == ("post_messages", True)

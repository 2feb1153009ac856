"""The audit trail: each managing act is told, in CADF's fields, and never a body or a secret."""

import json
import os
import re
import signal
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import CLIENT_ID, Api, MakeApi, bearer
from tests.api.websocket.talk import Talk
from tests.server import ServerProcess
from zaqar_lite.api.auditing import Auditor
from zaqar_lite.api.request import Response, request_of
from zaqar_lite.client import Client
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load
from zaqar_lite.service.audit import FileTrail

FULL = Path("/dev/full")
pytestmark = pytest.mark.anyio


def events(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def told(event: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """What an event says was done: action, kind and name of the target, outcome and status."""
    target = event["target"]
    kind = target["typeURI"].rpartition("/")[2]
    status = event["reason"]["reasonCode"]
    return event["action"], kind, target["id"], event["outcome"], status


async def test_an_event_says_who_did_it_from_where(make_api: MakeApi, tmp_path: Path) -> None:
    file = tmp_path / "audit"
    async with make_api(audit=str(file)) as api:
        headers = {"X_User_Id": "alice", "User_Agent": "test/1"}
        made = await api.call("PUT", "/v2/queues/orders", {"a": 1}, **headers)
    (event,) = events(file)
    assert event["typeURI"] == "http://schemas.dmtf.org/cloud/audit/1.0/event"
    assert event["eventType"] == "activity"
    assert event["initiator"] == {
        "typeURI": "service/security/account/user",
        "id": "alice",
        "project_id": "demo",
        "credential": {"type": "headers"},
        "host": {"id": CLIENT_ID.replace("-", ""), "address": "127.0.0.1", "agent": "test/1"},
    }
    assert event["requestPath"] == "/v2/queues/orders"
    request_id = made.headers["x-openstack-request-id"]
    assert event["tags"] == [f"correlation_id?value={request_id}"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_event_has_the_fields_of_the_sample_and_no_more(tmp_path: Path) -> None:
    """A program's name is cut, and it is unknown whether a fault of the server left it undone."""
    settings = load(environment={}, overrides={"store": "memory://"})
    (route,) = (one for one in create_app(settings).routes if one.name == "delete_queue")
    trail = FileTrail(tmp_path / "audit")
    statuses = {204: "success", 399: "success", 400: "failure", 499: "failure", 500: "unknown"}
    for status in statuses:
        request = request_of("DELETE", b"/v2/queues/orders", b"", ((b"user-agent", b"x" * 300),))
        request.route, request.path_values = route, ("orders",)
        Auditor(trail, (route,)).record(request, Response(status))
    found = events(tmp_path / "audit")
    sample = json.loads(Path("api-ref/source/samples/audit-event.json").read_text())
    assert {event["reason"]["reasonCode"]: event["outcome"] for event in found} == {
        str(status): outcome for status, outcome in statuses.items()
    }
    assert len({event["id"] for event in found}) == len(statuses)
    event = found[0]
    assert shape(event) == shape(sample)
    assert event["observer"] == {**sample["observer"], "id": socket.gethostname()}
    assert event["initiator"]["host"]["agent"] == "x" * 256
    assert event["initiator"]["id"] == "unknown"
    assert (event["action"], event["target"]) == (sample["action"], sample["target"])
    age = datetime.now(UTC) - datetime.fromisoformat(event["eventTime"])
    assert timedelta(milliseconds=-1) < age < timedelta(minutes=1)


def shape(value: Any) -> Any:
    """The fields of a document, and how long an instant is written."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    return len(value) if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\dT", value) else None


QUEUE, TOPIC = "/v2/queues/orders", "/v2/topics/news"
SUBSCRIPTION = {"subscriber": "http://MARK.example.org/x", "ttl": 300}
ONE = f"{TOPIC}/subscriptions/{{subscription_id}}"
ACTS: list[tuple[str, Any, str]] = [
    (f"PUT {QUEUE}?MARK=MARK", {"MARK": "MARK"}, "create queue orders success 201"),
    (f"PUT {QUEUE}", {"_max_messages_post_size": "x"}, "create queue orders failure 400"),
    (f"POST {QUEUE}/messages", {"messages": [{"body": "MARK"}]}, ""),
    (f"GET {QUEUE}", None, ""),
    (f"POST {QUEUE}/claims", None, ""),
    (f"POST {QUEUE}/share", {}, "allow queue orders success 200"),
    (
        f"POST {QUEUE}/purge",
        {"resource_types": ["messages"]},
        "update/purge queue orders success 204",
    ),
    (f"POST {QUEUE}/redrives", {"nonsense": 1}, "start redrive orders failure 400"),
    ("PUT /v2/quotas/shop", {"queues": 1}, "update quota shop success 200"),
    ("GET /v2/quotas/shop", None, ""),
    (f"DELETE {QUEUE}/messages?ids=x", None, ""),
    ("GET /v2/keys", None, ""),
    (f"DELETE {QUEUE}", None, "delete queue orders success 204"),
    (f"PUT {TOPIC}", None, "create topic news success 201"),
    (f"POST {TOPIC}/subscriptions", SUBSCRIPTION, "create subscription news success 201"),
    (f"PATCH {ONE}", {"ttl": 600}, "update subscription news/{subscription_id} success 204"),
    (f"POST {ONE}/secret", None, "update/rotate subscription news/{subscription_id} success 200"),
    (f"POST {TOPIC}/messages", {"messages": [{"body": 1}]}, ""),
    (f"GET {TOPIC}/subscriptions", None, ""),
    (f"DELETE {ONE}", None, "delete subscription news/{subscription_id} success 204"),
    (f"POST {TOPIC}/purge", None, "update/purge topic news success 204"),
    (f"DELETE {TOPIC}", None, "delete topic news success 204"),
    (
        "PUT /v2/schedules/nightly",
        {"queue": "orders", "every": 60, "body": {}},
        "create schedule nightly success 201",
    ),
    ("DELETE /v2/schedules/nightly", None, "delete schedule nightly success 204"),
    ("POST /v2/keys", {"project": "demo", "grants": ["*:*"]}, "create key {id} success 201"),
    ("POST /v2/keys/{id}/rotate", {}, "update/rotate key {before}/{id} success 201"),
]
"""What an operator does, and what the trail says of it: action, kind, name, outcome, status."""


async def test_each_managing_act_is_told_without_bodies_and_secrets(
    make_api: MakeApi, tmp_path: Path
) -> None:
    file, secret, expected = tmp_path / "audit", "not to be seen in any trail, at all", []
    settings = {"auth": "keys", "signed_url_secret_key": secret, "admin_mode": True}
    known: dict[str, str] = {}
    hidden = {"MARK", secret}
    async with make_api(audit=str(file), **settings) as api:
        own = bearer(api.operator)
        for asked, document, line in ACTS:
            method, path = asked.format_map(known).split(" ")
            answer = await api.call(method, path, document, **own)
            if method == "POST" and answer.content:
                shown = answer.json()
                known["before"] = known.get("id", "")
                known |= {name: shown[name] for name in ("subscription_id", "id") if name in shown}
                told_once = ("secret", "signature", "key")
                hidden |= {shown[one].rpartition("_")[2] for one in told_once if one in shown}
            if line:
                expected.append(line.format_map(known))
        hidden.add(api.operator.rpartition("_")[2])
        denied = await api.make_key("read:*")
        await api.call("PUT", "/v2/quotas/demo", {"queues": 1}, **bearer(denied))
    found = events(file)
    assert [" ".join(told(event)) for event in found[:-2]] == expected
    assert told(found[-1]) == ("update", "quota", "demo", "failure", "403")
    initiator = found[-1]["initiator"]
    assert (initiator["id"], initiator["credential"]) == (denied.split("_")[1], {"type": "key"})
    text = file.read_text()
    assert [one for one in hidden if one in text] == []


def test_frames_are_told_as_requests_are(tmp_path: Path) -> None:
    file, admin = tmp_path / "audit", tmp_path / "admin.key"
    options = ("--audit", str(file), "--auth", "keys", "--admin-key-file", str(admin))
    with ServerProcess("memory://", *options).start(ready=401) as server:
        document: dict[str, Any] = {"project": "p", "grants": ["manage:*", "send:*", "read:o*"]}
        operator = {**bearer(admin.read_text().strip()), "Client-ID": CLIENT_ID}
        key = httpx.post(f"{server.url}/v2/keys", json=document, headers=operator).json()
        with Talk(server, project="p") as talk:
            talk.send({"action": "authenticate", "headers": bearer(key["key"])})
            assert talk.answer().status == 200
            talk.ask("queue_create", queue_name="orders", metadata={"MARK": "MARK"})
            talk.ask("message_post", queue_name="orders", messages=[{"body": "MARK"}])
            talk.ask("queue_purge", queue_name="orders", resource_types=["messages"])
            for queue in ("orders", "secret"):
                hook: dict[str, Any] = {"subscriber": "http://MARK.example.org", "ttl": 300}
                talk.ask("subscription_create", queue_name=queue, **hook)
            talk.ask("queue_delete", queue_name="orders")
    text, found = file.read_text(), events(file)[1:]
    assert [told(event)[:4] for event in found] == [
        ("create", "queue", "orders", "success"),
        ("update/purge", "queue", "orders", "success"),
        ("create", "subscription", "orders", "success"),
        ("create", "subscription", "secret", "failure"),
        ("delete", "queue", "orders", "success"),
    ]
    initiator = found[0]["initiator"]
    assert (initiator["id"], initiator["project_id"]) == (key["id"], "p")
    assert initiator["host"]["address"] == "127.0.0.1"
    assert initiator["credential"] == {"type": "key"}
    assert "MARK" not in text
    assert key["key"].rpartition("_")[2] not in text


async def read(api: Api, path: str, count: int, project: str) -> list[dict[str, Any]]:
    """The events of a queue, once there are so many."""
    found = await api.until(
        f"{path}?echo=true", lambda page: len(page["messages"]) >= count, X_Project_ID=project
    )
    return [message["body"] for message in found["messages"]]


async def test_what_still_waits_at_a_stop_is_stored(make_api: MakeApi, tmp_path: Path) -> None:
    for where, project in (("queue:log", "audit"), ("queue:p/log", "p")):
        settings = {"store": f"embedded:{tmp_path}/{project}", "audit": where}
        async with make_api(**settings) as api:
            for name in "abcde":
                await api.call("PUT", f"/v2/queues/{name}")
        async with make_api(**settings) as api:
            found = await read(api, "/v2/queues/log/messages", 5, project)
        assert [told(event)[:3] for event in found] == [("create", "queue", one) for one in "abcde"]


def test_a_file_that_was_moved_away_is_followed_by_a_new_one(tmp_path: Path) -> None:
    file, old = tmp_path / "audit", tmp_path / "audit.1"
    with ServerProcess("memory://", "--audit", str(file)) as server, Client(server.url) as client:
        client.create_queue("a")
        file.rename(old)
        client.create_queue("b")
        os.kill(server.pid, signal.SIGHUP)
        server.wait_for(file.exists)
        client.create_queue("c")
        assert [told(event)[2] for event in events(old)] == ["a", "b"]
        assert [told(event)[2] for event in events(file)] == ["c"]


@pytest.mark.parametrize("where", ["no-such-directory/audit", "queue:", "queue:a b", "queue:p/"])
def test_a_trail_that_can_not_be_written_is_told_at_the_start(where: str) -> None:
    settings = load(environment={}, overrides={"store": "memory://", "audit": where})
    with pytest.raises(ConfigurationError, match="audit"):
        create_app(settings)


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
async def test_a_trail_that_fails_fails_no_request(
    make_api: MakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_api(audit=str(FULL)) as api:
        await api.expect(201, "PUT", "/v2/queues/a")
    assert "audit trail /dev/full can't be written" in caplog.text

"""The audit trail: each managing act is told, in CADF's fields, and never a body or a secret."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import CLIENT_ID, Api, MakeApi
from tests.api.websocket.talk import Talk
from tests.server import ServerProcess
from zaqar_lite.client import Client
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load

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


async def test_who_did_what_from_where_with_which_outcome(
    make_api: MakeApi, tmp_path: Path
) -> None:
    file = tmp_path / "audit"
    async with make_api(audit=str(file), admin_mode=True) as api:
        headers = {"X_User_Id": "alice", "User_Agent": "test/1"}
        made = await api.call("PUT", "/v2/queues/orders", {"a": 1}, **headers)
        await api.call("PUT", "/v2/queues/orders", {"_max_messages_post_size": "x"})
        await api.call("POST", "/v2/queues/orders/messages", {"messages": [{"body": 1}]})
        await api.call("GET", "/v2/queues/orders")
        await api.call("GET", "/v2/queues")
        await api.call("POST", "/v2/queues/orders/claims")
        document = {"subscriber": "http://example.org/x", "ttl": 300}
        await api.call("POST", "/v2/queues/orders/subscriptions", document)
        await api.call("POST", "/v2/queues/orders/purge", {"resource_types": ["messages"]})
        await api.call("PUT", "/v2/quotas/shop", {"queues": 1})
        await api.call("DELETE", "/v2/queues/orders")
    found = events(file)
    assert [told(event) for event in found] == [
        ("create", "queue", "orders", "success", "201"),
        ("create", "queue", "orders", "failure", "400"),
        ("create", "subscription", "orders", "success", "201"),
        ("update/purge", "queue", "orders", "success", "204"),
        ("update", "quota", "shop", "success", "200"),
        ("delete", "queue", "orders", "success", "204"),
    ]
    first = found[0]
    assert first["typeURI"] == "http://schemas.dmtf.org/cloud/audit/1.0/event"
    assert first["eventType"] == "activity"
    assert first["initiator"] == {
        "typeURI": "service/security/account/user",
        "id": "alice",
        "project_id": "demo",
        "credential": {"type": "headers"},
        "host": {"id": CLIENT_ID.replace("-", ""), "address": "127.0.0.1", "agent": "test/1"},
    }
    assert first["requestPath"] == "/v2/queues/orders"
    request_id = made.headers["x-openstack-request-id"]
    assert first["tags"] == [f"correlation_id?value={request_id}"]
    assert file.stat().st_mode & 0o777 == 0o600


async def test_topics_redrives_and_schedules_are_told_as_queues_are(
    make_api: MakeApi, tmp_path: Path
) -> None:
    file, topic, queue = tmp_path / "audit", "/v2/topics/news", "/v2/queues/orders"
    document: dict[str, Any] = {"subscriber": "http://example.org/x", "ttl": 300}
    async with make_api(audit=str(file)) as api:
        await api.call("PUT", topic)
        made = (await api.call("POST", f"{topic}/subscriptions", document)).json()
        path = f"{topic}/subscriptions/{made['subscription_id']}"
        await api.call("PATCH", path, {"ttl": 600})
        await api.call("POST", f"{path}/secret")
        await api.call("POST", f"{topic}/messages", {"messages": [{"body": 1}]})
        await api.call("GET", f"{topic}/subscriptions")
        await api.call("DELETE", path)
        await api.call("POST", f"{topic}/purge", {"resource_types": ["subscriptions"]})
        await api.call("DELETE", topic)
        await api.call("POST", f"{queue}/redrives", {"nonsense": 1})
        schedule = {"queue": "orders", "every": 60, "body": {}}
        await api.call("PUT", "/v2/schedules/nightly", schedule)
        await api.call("DELETE", "/v2/schedules/nightly")
    name = f"news/{made['subscription_id']}"
    told_of = [told(event)[:4] for event in events(file)]
    assert told_of[:7] == [
        ("create", "topic", "news", "success"),
        ("create", "subscription", "news", "success"),
        ("update", "subscription", name, "success"),
        ("update/rotate", "subscription", name, "success"),
        ("delete", "subscription", name, "success"),
        ("update/purge", "topic", "news", "success"),
        ("delete", "topic", "news", "success"),
    ]
    assert told_of[7] == ("start", "redrive", "orders", "failure")
    assert [one[:3] for one in told_of[8:]] == [
        ("create", "schedule", "nightly"),
        ("delete", "schedule", "nightly"),
    ]


def test_frames_are_told_as_requests_are(tmp_path: Path) -> None:
    file, admin = tmp_path / "audit", tmp_path / "admin.key"
    options = ("--audit", str(file), "--auth", "keys", "--admin-key-file", str(admin))
    with ServerProcess("memory://", *options).start(ready=401) as server:
        operator = {"Authorization": f"Bearer {admin.read_text().strip()}", "Client-ID": CLIENT_ID}
        document: dict[str, Any] = {"project": "p", "grants": ["manage:*", "send:*", "read:o*"]}
        key = httpx.post(f"{server.url}/v2/keys", json=document, headers=operator).json()
        with Talk(server, project="p") as talk:
            proof = {"Authorization": f"Bearer {key['key']}"}
            talk.send({"action": "authenticate", "headers": proof})
            assert talk.answer().status == 200
            talk.ask("queue_create", queue_name="orders", metadata={"MARK": "MARK"})
            talk.ask("message_post", queue_name="orders", messages=[{"body": "MARK"}])
            talk.ask("queue_purge", queue_name="orders", resource_types=["messages"])
            document = {"subscriber": "http://MARK.example.org", "ttl": 300}
            talk.ask("subscription_create", queue_name="orders", **document)
            talk.ask("subscription_create", queue_name="secret", **document)
            talk.ask("queue_delete", queue_name="orders")
    text, found = file.read_text(), events(file)
    assert [told(event)[:4] for event in found] == [
        ("create", "key", key["id"], "success"),
        ("create", "queue", "orders", "success"),
        ("update/purge", "queue", "orders", "success"),
        ("create", "subscription", "orders", "success"),
        ("create", "subscription", "secret", "failure"),
        ("delete", "queue", "orders", "success"),
    ]
    initiator = found[1]["initiator"]
    assert (initiator["id"], initiator["project_id"]) == (key["id"], "p")
    assert initiator["host"]["address"] == "127.0.0.1"
    assert initiator["credential"] == {"type": "key"}
    assert "MARK" not in text
    assert key["key"].rpartition("_")[2] not in text


async def test_no_body_and_no_secret_is_in_the_trail(make_api: MakeApi, tmp_path: Path) -> None:
    file, admin = tmp_path / "audit", tmp_path / "admin.key"
    secret = "not to be seen in any trail, at all"
    settings = {"auth": "keys", "admin_key_file": admin, "signed_url_secret_key": secret}
    async with make_api(audit=str(file), **settings) as api:
        operator = {"Authorization": f"Bearer {admin.read_text().strip()}"}
        document: dict[str, Any] = {"project": "demo", "grants": ["*:*"], "description": "MARK"}
        key = (await api.call("POST", "/v2/keys", document, **operator)).json()
        own = {"Authorization": f"Bearer {key['key']}"}
        path = "/v2/queues/orders"
        await api.call("PUT", path, {"MARK": "MARK"}, **own)
        await api.call("PUT", f"{path}?MARK=MARK", {}, **own)
        document = {"subscriber": "http://MARK.example.org", "ttl": 300}
        made = (await api.call("POST", f"{path}/subscriptions", document, **own)).json()
        shared = (await api.call("POST", f"{path}/share", {}, **own)).json()
        await api.call("PUT", "/v2/quotas/demo", {"queues": 1}, **own)
        rotated = (await api.call("POST", f"/v2/keys/{key['id']}/rotate", {}, **own)).json()
    text = file.read_text()
    texts = (operator["Authorization"], key["key"], rotated["key"])
    hidden = [word.rpartition("_")[2] for word in texts]
    for word in ("MARK", secret, made["secret"], shared["signature"], *hidden):
        assert word not in text
    found = events(file)
    assert told(found[0]) == ("create", "key", key["id"], "success", "201")
    assert told(found[-2]) == ("update", "quota", "demo", "failure", "403")
    assert told(found[-1])[:2] == ("update/rotate", "key")
    initiator = found[1]["initiator"]
    assert (initiator["id"], initiator["credential"]) == (key["id"], {"type": "key"})


async def read(api: Api, path: str, count: int, project: str) -> list[dict[str, Any]]:
    """The events of a queue, once there are so many."""
    found = await api.until(
        f"{path}?echo=true", lambda page: len(page["messages"]) >= count, X_Project_ID=project
    )
    return [message["body"] for message in found["messages"]]


@pytest.mark.parametrize(("where", "project"), [("queue:log", "audit"), ("queue:p/log", "p")])
async def test_a_queue_holds_the_trail(make_api: MakeApi, where: str, project: str) -> None:
    async with make_api(audit=where) as api:
        for name in ("a", "b", "c"):
            await api.call("PUT", f"/v2/queues/{name}")
        found = await read(api, "/v2/queues/log/messages", 3, project)
    assert [told(event)[:3] for event in found] == [("create", "queue", name) for name in "abc"]


async def test_what_still_waits_at_a_stop_is_stored(make_api: MakeApi, tmp_path: Path) -> None:
    settings = {"store": f"embedded:{tmp_path}/data", "audit": "queue:log"}
    async with make_api(**settings) as api:
        for number in range(5):
            await api.call("PUT", f"/v2/queues/q{number}")
    async with make_api(**settings) as api:
        assert len(await read(api, "/v2/queues/log/messages", 5, "audit")) == 5


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

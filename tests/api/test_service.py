"""Versions, home document, ping and health (zaqar-behaviour 11)."""

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.api.conftest import Api, MakeApi
from tests.waiting import until
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load
from zaqar_lite.service import startup

pytestmark = pytest.mark.anyio


async def test_shows_the_versions_to_anybody_and_answers_a_ping(api: Api) -> None:
    for method in ("GET", "HEAD"):
        answer = await api.expect(204, method, "/v2/ping")
        assert answer.content == b""
    api.http.headers.clear()
    answer = await api.expect(300, "GET", "/")
    media = {"base": "application/json", "type": "application/vnd.openstack.messaging-v2+json"}
    assert answer.json() == {
        "versions": [
            {
                "id": "2",
                "status": "CURRENT",
                "updated": "2014-9-24T04:06:47Z",
                "media-types": [media],
                "links": [{"href": "/v2/", "rel": "self"}],
            }
        ]
    }


async def test_tells_anybody_that_it_lives_and_is_ready(
    api: Api, make_api: MakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    api.http.headers.clear()
    for path in ("/livez", "/readyz"):
        answer = await api.call("GET", path)
        assert (answer.status_code, answer.text) == (200, "ok\n")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        head = await api.call("HEAD", path)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-type", "content-length"):
            assert head.headers[name] == answer.headers[name]
    verbose = await api.call("GET", "/readyz?verbose")
    assert verbose.text == "store: ok\ndisk: ok\ndraining: ok\nok\n"
    async with make_api(store=f"opendata+slatedb:{tmp_path}", auth="keys") as files:
        files.http.headers.clear()
        await files.expect(200, "GET", "/readyz")
        disk = SimpleNamespace(f_bavail=4_096, f_frsize=4_096)
        monkeypatch.setattr(os, "statvfs", lambda _: disk)
        await files.expect(200, "GET", "/readyz")
        disk.f_bavail -= 1
        full = await files.expect(503, "GET", "/readyz")
        assert "15 MiB are free; 16 are needed" in full.text
        assert full.text.startswith("store: ok\ndisk: ")
        head = await files.call("HEAD", "/readyz")
        assert (head.status_code, head.content) == (503, b"")
        await files.expect(200, "GET", "/livez")


async def test_is_not_ready_before_its_store_is_open(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "_PATIENCE", 0.0)
    async with make_api(store="redis://127.0.0.1:1") as api:
        waiting = "waits for its store"
        assert waiting in (await api.expect(503, "GET", "/readyz")).text
        await api.expect(503, "GET", "/v2/queues", says=waiting)


async def test_a_low_disk_refuses_posts_and_lets_consumers_make_room(
    make_api: MakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"disk_reserve": 0}
    async with make_api(store=f"embedded:{tmp_path}", store_options=options) as api:
        posted = {"messages": [{"body": 1}, {"body": 2}]}
        await api.expect(201, "POST", "/v2/queues/low/messages", posted)
    options = {"disk_reserve": 1 << 60}
    async with make_api(store=f"embedded:{tmp_path}", store_options=options) as api:
        await api.expect(503, "POST", "/v2/queues/low/messages", posted, says="nearly full")
        claimed = await api.call("POST", "/v2/queues/low/claims", {"ttl": 60})
        assert [one["body"] for one in claimed.json()["messages"]] == [1, 2]
        for one in claimed.json()["messages"]:
            await api.expect(204, "DELETE", one["href"])
        ready = await api.expect(200, "GET", "/readyz?verbose")
        assert "store: full, or nearly so: posts are refused" in ready.text
        assert "zaqar_lite_store_disk_is_low 1" in (await api.call("GET", "/metrics")).text
    assert "waiting for the store" not in caplog.text


@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_a_directory_that_is_gone_is_not_called_full(
    make_api: MakeApi, tmp_path: Path, is_made_anew: bool
) -> None:
    """Removed or renamed below a server, whose files are open still, or another in its place."""
    place, away = tmp_path / "store", tmp_path / "away"
    async with make_api(store=f"embedded:{place}", store_options={"disk_reserve": 0}) as api:
        posted, path = {"messages": [{"body": 1}]}, "/v2/queues/queue/messages"
        await api.expect(201, "POST", path, posted)
        place.rename(away)
        if is_made_anew:
            place.mkdir()
        gone = "The store's file is gone, put it back"
        await until(partial(api.call, "POST", path, posted), lambda answer: gone in answer.text)
        assert f"store: {gone}" in (await api.expect(503, "GET", "/readyz")).text
        away.rename(place)
        await until(partial(api.call, "POST", path, posted), lambda answer: answer.is_success)
        await api.expect(200, "GET", "/readyz")


async def test_shows_the_home_document(api: Api) -> None:
    answer = await api.expect(200, "GET", "/v2/")
    assert answer.headers["content-type"] == "application/json-home"
    assert answer.headers["cache-control"] == "max-age=86400"
    resources = answer.json()["resources"]
    assert resources["rel/queue"]["href-template"] == "/v2/queues/{queue_name}"
    assert resources["rel/message_patch"]["hints"]["allow"] == ["PATCH"]
    assert "rel/health" not in resources
    assert (await api.call("GET", "/v2")).content == answer.content


async def test_the_home_document_has_every_route_of_v2_and_no_other(make_api: MakeApi) -> None:
    settings = load(
        environment={}, overrides={"store": "memory://", "admin_mode": True, "pooling": True}
    )
    async with make_api(admin_mode=True, pooling=True) as api:
        resources = (await api.call("GET", "/v2/")).json()["resources"]
    shown = {
        (method, (one.get("href") or one["href-template"]).partition("{?")[0])
        for one in resources.values()
        for method in one["hints"]["allow"]
    }
    routes = create_app(settings).routes
    served = {(one.method, one.template) for one in routes if one.template.startswith("/v2")}
    assert shown | {("GET", "/v2")} == served | {("GET", "/v2/")}
    assert resources["rel/queues"]["href-vars"]["limit"] == "param/queue_limit"
    assert resources["rel/messages"]["hints"]["max-limit"] == 20
    events = resources["rel/queue_events"]["hints"]
    assert (events["allow"], events["formats"]) == (["GET"], {"text/event-stream": {}})


async def test_serves_health_in_admin_mode_whatever_roles_a_client_claims(
    api: Api, make_api: MakeApi
) -> None:
    await api.expect(404, "GET", "/v2/health", X_Roles="admin")
    # Quotas are the projects', not the server's own.
    async with make_api(admin_mode=True, quotas={"queues": 0, "messages": 9}) as admin:
        report = (await admin.call("GET", "/v2/health")).json()
        assert report["storage_reachable"] is True
        assert set(report["operation_status"]) == {
            "create_queue",
            "post_messages",
            "claim_messages",
            "list_messages",
            "delete_messages",
            "delete_claim",
            "bulk_delete_messages",
            "delete_queue",
        }
        for outcome in report["operation_status"].values():
            assert outcome["succeeded"] is True
            assert outcome["ref"] is None
        assert report["message_volume"] == {"free": 90, "claimed": 10, "total": 100}
        assert "exclusive" in report["capabilities"]
        assert "rel/health" in (await admin.call("GET", "/v2/")).json()["resources"]

"""Keys over HTTP: who gets in, what each grant opens, and what nobody is told."""

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import UNAUTHORIZED, Api, MakeApi
from zaqar_lite.api.application import Application
from zaqar_lite.domain.errors import TooMany, Unauthenticated
from zaqar_lite.service.identity import authentication as identity

pytestmark = pytest.mark.anyio
BEARER = identity.Place.BEARER
DENIED = {
    "title": "Not authorized",
    "description": "You are not authorized to complete this action.",
}


class Doors:
    """A server that knows keys, and its first one."""

    def __init__(self, api: Api) -> None:
        del api.http.headers["X-Project-ID"]
        self.api = api
        self.admin = api.operator

    async def call(
        self, key: str | None, method: str, path: str, document: Any = None, **headers: str
    ) -> httpx.Response:
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return await self.api.call(method, path, document, **headers)

    async def expect(
        self, status: int, key: str | None, method: str, path: str, *document: Any, **more: str
    ) -> httpx.Response:
        """Send a request whose answer has this status, as `Api.expect` does."""
        if key is not None:
            more["Authorization"] = f"Bearer {key}"
        return await self.api.expect(status, method, path, *document, **more)

    async def make(self, *grants: str, project: str = "p", **more: Any) -> str:
        return await self.api.make_key(*grants, project=project, **more)


@pytest.fixture
async def doors(make_api: MakeApi) -> AsyncIterator[Doors]:
    async with make_api(auth="keys") as api:
        yield Doors(api)


def id_of(key: str) -> str:
    return key.split("_")[1]


async def test_without_a_credential_nothing_is_told(doors: Doors) -> None:
    for path in ("/v2/", "/v2/ping", "/v2/queues", "/v2/keys", "/nowhere", ""):
        answer = await doors.call(None, "GET", path, X_Project_ID="p")
        assert (answer.status_code, answer.json()) == (401, UNAUTHORIZED), path
        assert answer.headers["www-authenticate"] == 'Bearer realm="zaqar-lite"'
    await doors.expect(300, None, "GET", "/")


@pytest.mark.parametrize(
    "key",
    ["zq_", "zq_0123456789abcdef_" + "0" * 48, "other", "zq_0123456789abcdef_", "ä", "a.b.c"],
)
async def test_a_wrong_credential_is_401_and_says_so(doors: Doors, key: str) -> None:
    answer = await doors.api.http.get(
        "/v2/queues", headers=[(b"Authorization", b"Bearer " + key.encode())]
    )
    assert (answer.status_code, answer.json()) == (401, UNAUTHORIZED)
    assert answer.headers["www-authenticate"].endswith('error="invalid_token"')


async def test_the_file_of_the_first_key(
    make_api: MakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "new" / "keys" / "first.key"
    caplog.set_level("INFO")
    async with make_api(auth="keys", admin_key_file=file) as api:
        text = file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert [entry.name for entry in file.parent.iterdir()] == ["first.key"]
        assert f"the admin key is in {file}" in caplog.text
        assert text.strip() not in caplog.text
        await api.expect(200, "GET", "stats", Authorization=f"Bearer {text.strip()}")
    async with make_api(auth="keys", admin_key_file=file) as api:  # and an empty store
        assert file.read_text() == text
        await api.expect(200, "GET", "stats", Authorization=f"Bearer {text.strip()}")


async def test_a_file_that_holds_no_key_ends_the_start(
    make_api: MakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "admin.key"
    file.write_text("secret password")
    with pytest.raises(AssertionError, match=r"startup\.failed"):
        async with make_api(auth="keys", admin_key_file=file):
            pass
    assert "it holds no key" in caplog.text
    assert "secret password" not in caplog.text


async def test_a_grant_is_for_the_queues_of_its_pattern(doors: Doors) -> None:
    """Who may only send makes the queue by its first post."""
    key, post = await doors.make("send:orders*", "!*:orders-secret"), {"messages": [{"body": 1}]}
    for queue, status in (("orders", 201), ("orders-2", 201), ("orders-secret", 403), ("a", 403)):
        await doors.expect(status, key, "POST", f"/v2/queues/{queue}/messages", post)
    await doors.expect(403, key, "GET", "/v2/queues")
    listed = (await doors.call(await doors.make("read:*"), "GET", "/v2/queues")).json()
    assert [queue["name"] for queue in listed["queues"]] == ["orders", "orders-2"]


async def test_a_key_works_in_its_project_alone(doors: Doors) -> None:
    key = await doors.make("*:*")
    await doors.expect(201, key, "PUT", "", {})
    same = await doors.call(key, "GET", "/v2/queues", X_Project_ID="p")
    assert len(same.json()["queues"]) == 1
    other = await doors.call(key, "GET", "/v2/queues", X_Project_ID="other")
    assert (other.status_code, other.json()) == (403, DENIED)
    forged = await doors.call(key, "GET", "/v2/queues", X_Tenant_ID="other", X_Roles="admin")
    assert forged.json() == same.json()
    theirs = await doors.make("*:*", project="other")
    assert (await doors.call(theirs, "GET", "/v2/queues")).json()["queues"] == []


async def test_a_key_is_listed_disabled_rotated_and_deleted(doors: Doors) -> None:
    old, other = [await doors.make("read:*", description="ours", expires=600) for _ in range(2)]
    found = (await doors.call(doors.admin, "GET", "/v2/keys", X_Project_ID="p")).text
    assert id_of(old) in found
    assert old[20:] not in found
    assert "hash" not in found
    operators = (await doors.call(doors.admin, "GET", "/v2/keys")).json()["keys"]
    assert [key["id"] for key in operators] == [id_of(doors.admin)]
    path = f"/v2/keys/{id_of(old)}"
    for is_disabled, status in ((True, 401), (False, 200)):
        shown = await doors.expect(200, doors.admin, "PATCH", path, {"disabled": is_disabled})
        assert shown.json()["disabled"] is is_disabled
        await doors.expect(status, old, "GET", "/v2/queues")
    made = await doors.expect(201, doors.admin, "POST", f"{path}/rotate", {"overlap": 100})
    new = made.json()
    assert (new["grants"], new["description"], new["id"] != id_of(old)) == (
        ["read:*"],
        "ours",
        True,
    )
    for key, status in (
        (old, 200),
        (new["key"], 200),
        (other, 200),
        (new["key"][:20] + other[20:], 401),  # the secret must be the key's own
    ):
        await doors.expect(status, key, "GET", "/v2/queues")
    doors.api.advance(101)
    await doors.expect(401, old, "GET", "/v2/queues")
    await doors.expect(200, new["key"], "GET", "/v2/queues")
    await doors.expect(400, doors.admin, "POST", f"{path}/rotate")
    await doors.expect(204, doors.admin, "DELETE", f"/v2/keys/{new['id']}")
    await doors.expect(401, new["key"], "GET", "/v2/queues")
    await doors.expect(400, doors.admin, "DELETE", f"/v2/keys/{id_of(doors.admin)}")
    doors.api.advance(500)
    await doors.expect(401, other, "GET", "/v2/queues")


async def test_a_key_lives_for_a_second_or_ten_years_and_its_follower_as_long(doors: Doors) -> None:
    short = await doors.make("read:*", expires=1)
    long = await doors.make("read:*", expires=3_653 * 86_400, description="x" * 256)
    doors.api.advance(1)
    await doors.expect(401, short, "GET", "/v2/queues")
    month, first = 31 * 86_400, long
    for overlap, status in ((month, 200), (0, 401)):
        path = f"/v2/keys/{id_of(long)}/rotate"
        made = await doors.expect(201, doors.admin, "POST", path, {"overlap": overlap})
        await doors.expect(status, long, "GET", "/v2/queues")
        long = made.json()["key"]
    doors.api.advance(month)
    await doors.expect(401, first, "GET", "/v2/queues")
    doors.api.advance(3_652 * 86_400 - month)
    await doors.expect(200, long, "GET", "/v2/queues")
    doors.api.advance(86_400)
    await doors.expect(401, long, "GET", "/v2/queues")


async def test_an_administrator_of_a_project_has_its_keys_only(doors: Doors) -> None:
    local = await doors.make("admin:*")
    made = await doors.call(local, "POST", "/v2/keys", {"grants": ["send:*"]})
    assert made.json()["project"] == "p"
    for project in ("other", None):
        document = {"project": project, "grants": ["send:*"]}
        refused = await doors.call(local, "POST", "/v2/keys", document)
        assert (refused.status_code, refused.json()) == (403, DENIED)
    await doors.expect(400, doors.admin, "POST", "/v2/keys", {"grants": ["send:*"]})
    operators = {"grants": ["send:*"], "project": None}
    made = await doors.expect(201, doors.admin, "POST", "/v2/keys", operators)
    assert made.json()["project"] is None
    theirs = await doors.make("send:*", project="other")
    for key in (theirs, doors.admin):
        changes: tuple[tuple[str, str, Any], ...] = (
            ("GET", "", None),
            ("PATCH", "", {"disabled": True}),
            ("POST", "/rotate", None),
        )
        for method, more, document in changes:
            path = f"/v2/keys/{id_of(key)}{more}"
            await doors.expect(404, local, method, path, document)
        await doors.expect(204, local, "DELETE", f"/v2/keys/{id_of(key)}")
    await doors.expect(204, theirs, "GET", "/v2/ping")
    await doors.expect(204, doors.admin, "GET", "/v2/ping")


# Other queues that a request names.


@pytest.mark.parametrize(("queue", "is_allowed"), [("mine-2", True), ("theirs", False)])
async def test_messages_may_go_only_where_one_may_send(
    doors: Doors, queue: str, *, is_allowed: bool
) -> None:
    anything, key = await doors.make("*:*"), await doors.make("manage:*", "read:*", "send:mine*")
    letters = {"_dead_letter_queue": queue, "_max_claim_count": 1}
    patch = [{"op": "add", "path": "/metadata/_dead_letter_queue", "value": queue}]
    plan = {"queue": queue, "body": 1, "every": 60}
    for name, named in (("theirs", "theirs"), ("its", queue)):
        await doors.expect(201, anything, "PUT", f"/v2/schedules/{name}", plan | {"queue": named})
    for status, method, path, document in (
        (201, "PUT", "queues/mine", letters),
        (200, "PATCH", "queues/mine", patch),
        (202, "POST", "queues/mine/redrives", {"to": queue, "filter": {}}),
        (201, "POST", "topics/t/subscriptions", {"subscriber": f"queue:{queue}"}),
        (201, "PUT", "schedules/new", plan),
        (200, "PATCH", "schedules/theirs", {"queue": queue}),
        (201, "POST", "schedules/its/fire", None),
    ):
        answer = await doors.call(key, method, f"/v2/{path}", document)
        assert answer.status_code == (status if is_allowed else 403), (path, answer.text)
        assert is_allowed or answer.json() == DENIED


async def test_a_subscription_reads_its_queue_and_posts_where_it_says(doors: Doors) -> None:
    document: dict[str, Any] = {"subscriber": "https://example.org/", "ttl": 60}
    path = "/v2/queues/mine/subscriptions"
    blind = await doors.make("manage:mine*")
    await doors.expect(403, blind, "POST", path, document)
    key = await doors.make("manage:mine*", "read:mine*", "send:mine*")
    for name in ("dead_letter_queue", "events_queue"):
        named = {**document, "options": {name: "theirs"}}
        answer = await doors.call(key, "POST", path, named)
        assert (answer.status_code, answer.json()) == (403, DENIED), name
    made = await doors.call(key, "POST", path, {**document, "options": {"events_queue": "mine-2"}})
    assert made.status_code == 201, made.text
    path += f"/{made.json()['subscription_id']}"
    change = {"options": {"events_queue": "theirs"}}
    await doors.expect(403, key, "PATCH", path, change)
    await doors.expect(200, key, "GET", path)


async def test_a_filter_reads_the_whole_project(doors: Doors) -> None:
    document = {"_filter": "TRUE"}
    key = await doors.make("manage:mine*")
    await doors.expect(403, key, "PUT", "/v2/queues/mine", document)
    reader = await doors.make("manage:mine*", "read:*")
    await doors.expect(201, reader, "PUT", "/v2/queues/mine", document)
    change = {"path": "/metadata/_filter", "value": "FALSE"}
    await doors.expect(403, key, "PATCH", "/v2/queues/mine", [{"op": "replace", **change}])
    await doors.expect(200, key, "PATCH", "/v2/queues/mine", [{"op": "remove", **change}])


async def test_nobody_signs_what_they_may_not_do(make_api: MakeApi) -> None:
    settings = {"auth": "keys", "signed_url_secret_key": "k" * 32}
    async with make_api(**settings) as api:
        doors = Doors(api)
        key = await doors.make("manage:*", "read:*")
        await doors.expect(200, key, "POST", "share", {"methods": ["GET"]})
        for document in (
            {"methods": ["POST"]},
            {"methods": ["DELETE"]},
            {"methods": ["GET"], "paths": ["claims"]},
        ):
            await doors.expect(403, key, "POST", "share", document)


# What is wrong costs little, and is told to nobody.


async def test_an_address_that_fails_too_often_waits_and_good_keys_do_not(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "SLOWED", 0.0)
    async with make_api(auth="keys", max_failed_logins=20) as api:
        doors = Doors(api)
        good = await doors.make("read:*")
        await doors.expect(200, good, "GET", "/v2/queues")
        statuses = [
            (await doors.call(f"zq_{index:016x}_{'0' * 48}", "GET", "/v2/queues")).status_code
            for index in range(30)
        ]
        assert statuses[:10] == [401] * 10
        assert set(statuses[12:]) == {429}
        answer = await doors.call("zq_" + "1" * 16 + "_" + "0" * 48, "GET", "/v2/queues")
        assert int(answer.headers["retry-after"]) >= 1
        await doors.expect(200, good, "GET", "/v2/queues")
        api.advance(60)  # what is believed of it is out of date; it is looked at all the same
        await doors.expect(200, good, "GET", "/v2/queues")


async def test_all_addresses_together_fail_ten_times_as_often_as_one(make_api: MakeApi) -> None:
    async with make_api(auth="keys", max_failed_logins=20) as api:
        app: Any = api.http._transport.app  # type: ignore[attr-defined]
        known, good = app.authentication.identity, identity.Credential(BEARER, api.operator)
        await known.identify(good, "192.0.2.1")
        for number in range(100):
            assert known.refuses("198.51.100.1", identity.Credential(BEARER, "zq_new")) is None
            wrong = f"zq_{number:016x}_{'0' * 48}" if number % 2 else "zq_no_key"
            with pytest.raises(Unauthenticated):
                await known.identify(identity.Credential(BEARER, wrong), f"192.0.2.{number + 2}")
        refused = known.refuses("198.51.100.1", identity.Credential(BEARER, "zq_new"))
        assert isinstance(refused, TooMany)
        assert known.refuses("198.51.100.1", good) is None


async def test_who_is_refused_too_often_is_told_so_late_and_good_keys_are_not(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each connection would guess as fast as the server can refuse."""
    monkeypatch.setattr(identity, "SLOWED", 600.0)
    async with make_api(auth="keys", max_failed_logins=4) as api:
        doors = Doors(api)
        good, known = await doors.make("read:*"), f"zq_{7:016x}_{'0' * 48}"
        for wrong in (known, None):
            await doors.expect(401, wrong, "GET", "/v2/queues")
        late = [
            asyncio.create_task(doors.call(wrong, "GET", "/v2/queues"))
            for wrong in (known, None, f"zq_{8:016x}_{'0' * 48}")
        ]
        for _ in range(3):
            await doors.expect(200, good, "GET", "/v2/queues")
        assert not any(task.done() for task in late)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


async def test_a_guess_is_refused_by_its_header_alone(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where too many from an address were wrong, nothing else is looked at."""
    monkeypatch.setattr(identity, "SLOWED", 0.0)
    async with make_api(auth="keys", max_failed_logins=4) as api:
        doors = Doors(api)
        good, new = await doors.make("read:*"), await doors.make("read:*")
        await doors.expect(200, good, "GET", "/v2/queues")
        wrong, other, third = (f"zq_{number:016x}_{'0' * 48}" for number in range(3))
        for key in (wrong, other):
            await doors.expect(401, key, "GET", "/v2/queues")
        with monkeypatch.context() as patched:
            patched.setattr(Application, "_admit", None)  # nobody comes as far as that
            for key in (third, new):
                refused = await doors.call(key, "POST", "/v2/queues/q/messages", {"messages": []})
                assert refused.status_code == 429
                assert 1 <= int(refused.headers["retry-after"]) <= 15
                assert refused.json()["title"] == "Too many requests"
            told = await doors.call(wrong, "GET", "/v2/queues")
            assert (told.status_code, told.json()) == (401, UNAUTHORIZED)
            assert 'error="invalid_token"' in told.headers["www-authenticate"]
            head = await doors.call(third, "HEAD", "/v2/queues")
            assert (head.status_code, head.content) == (429, b"")
        # Good keys, public paths and pre-signed URLs are let in from there.
        await doors.expect(200, good, "GET", "/v2/queues")
        await doors.expect(300, third, "GET", "/")
        await doors.expect(404, third, "GET", "/v2/queues", URL_Signature="x")
        path = f"/v2/keys/{id_of(good)}"
        await doors.expect(200, doors.admin, "PATCH", path, {"disabled": True})
        # Who was good is looked at, and so learns that it is no more.
        refused = await doors.expect(401, good, "GET", "/v2/queues")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/queues"),
        ("GET", "/v2/quota"),
        ("GET", "/v2/schedules"),
        ("POST", "/v2/schedules/often/fire"),
        ("GET", "/v2/data-keys"),
        ("POST", "/v2/data-keys"),
    ],
)
async def test_an_operator_says_of_which_project_it_asks(
    operated: Api, method: str, path: str
) -> None:
    del operated.http.headers["X-Project-ID"]
    await operated.expect(400, method, path, title="Project-Id Missing")

"""Pre-signed URLs (zaqar-behaviour 6)."""

import hmac
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import CLIENT_ID, PROJECT, Api, MakeApi, signed_by
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.server.loading import load, signing_keys

pytestmark = pytest.mark.anyio
SECRET = "a secret key of at least 32 bytes"


@pytest.fixture
async def api(make_api: MakeApi) -> AsyncIterator[Api]:
    async with make_api(signed_url_secret_key=SECRET) as made:
        yield made


async def share(api: Api, **document: Any) -> dict[str, Any]:
    answer = await api.expect(200, "POST", "share", document)
    shared: dict[str, Any] = answer.json()
    return shared


async def use(api: Api, shared: dict[str, Any], path: str, method: str = "GET") -> httpx.Response:
    named = {"X_Project_ID": shared["project"], "Client_ID": CLIENT_ID}
    return await api.call(method, path, **signed_by(shared), **named)


def signature_of(shared: dict[str, Any]) -> str:
    """What the server's key makes of it."""
    lists = [",".join(shared[name]) for name in ("paths", "methods")]
    text = r"\n".join([*lists, shared["project"], shared["expires"]])
    return hmac.new(SECRET.encode(), text.encode(), sha256).hexdigest()


async def test_signs_as_upstream_does(api: Api) -> None:
    shared = await share(api, paths=["messages", "claims"], methods=["POST", "GET"])
    base = f"/v2/queues/{api.queue}"
    assert shared["paths"] == [f"{base}/claims", f"{base}/messages"]
    assert (shared["methods"], shared["project"]) == (["GET", "POST"], PROJECT)
    assert shared["signature"] == signature_of(shared)
    until = datetime.fromisoformat(shared["expires"]).replace(tzinfo=UTC)
    assert timedelta(hours=23) < until - datetime.now(UTC) <= timedelta(hours=24)


async def test_admits_what_was_signed_and_nothing_else(api: Api) -> None:
    (message_id,) = await api.post({"body": 1})
    shared = await share(api)
    for path in ("messages?echo=true", f"messages/{message_id}"):
        assert (await use(api, shared, path)).status_code == 200
    neighbour = [path.removesuffix("essages") for path in shared["paths"]]
    refused: list[tuple[dict[str, Any], str, str]] = [
        *(({"expires": one}, "messages", "GET") for one in ("never", "2020-01-01T00:00:00")),
        *(({"paths": one}, "messages", "GET") for one in (["garbage"], [""], neighbour)),
        ({"expires": "20300101"}, "messages", "GET"),
        ({"signature": "0" * 64}, "messages", "GET"),
        ({"project": "other"}, "messages", "GET"),
        ({"methods": []}, "messages", "GET"),
        ({"methods": ["GET", "POST"]}, "messages", "POST"),
        ({}, "messages", "POST"),
        *(({}, path, "GET") for path in ("claims", "stats", "messagesandmore")),
        ({}, "/v2/queues/other/messages", "GET"),
    ]
    for change, path, method in refused:
        answer = await use(api, {**shared, **change}, path, method)
        assert (answer.status_code, answer.json()) == (404, {"title": "404 Not Found"}), change


@pytest.mark.parametrize("project", ["a,b", r"a\nb"])
async def test_a_project_whose_text_could_be_read_in_two_ways_shares_nothing(
    api: Api, project: str
) -> None:
    await api.expect(400, "POST", "share", {}, X_Project_ID=project)
    shared = {**await share(api), "project": project}
    shared["signature"] = signature_of(shared)
    assert (await use(api, shared, "messages")).status_code == 404


async def test_a_topic_is_shared_too(api: Api) -> None:
    topic, post = "/v2/topics/news", {"messages": [{"body": 1}]}
    document = {"paths": ["messages"], "methods": ["POST"]}
    permit = (await api.call("POST", f"{topic}/share", document)).json()
    assert permit["paths"] == [f"{topic}/messages"]
    headers = signed_by(permit)
    await api.expect(201, "POST", f"{topic}/messages", post, **headers)
    await api.expect(404, "POST", "/v2/queues/news/messages", post, **headers)
    await api.expect(204, "DELETE", f"{topic}/share")
    await api.expect(404, "POST", f"{topic}/messages", post, **headers)


async def test_takes_an_expiry_with_a_zone(api: Api) -> None:
    until = (datetime.now(UTC) + timedelta(hours=2)).astimezone(
        datetime.fromisoformat("2020-01-01T00:00:00+05:00").tzinfo
    )
    shared = await share(api, expires=until.isoformat(timespec="seconds"))
    assert shared["expires"] == until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    assert (await use(api, shared, "messages")).status_code == 200


async def test_can_not_sign_without_a_key_nor_without_a_body(make_api: MakeApi) -> None:
    async with make_api() as api:
        await api.expect(400, "POST", "share", {})
        await api.expect(400, "POST", "share", title="Invalid request body")
        await api.expect(404, "GET", "messages", URL_Signature="x")


OLD = "old:the old key, which has 32 bytes and more"
NEW = "new:the new key, which has 32 bytes and more"


async def works(api: Api, shared: dict[str, Any]) -> bool:
    """Whether a signature admits; what does not is as if nothing were there."""
    answer = await use(api, shared, "messages?echo=true")
    if answer.status_code == 404:
        assert answer.json() == {"title": "404 Not Found"}
    return answer.status_code == 200


async def test_keys_are_replaced_while_urls_are_in_use(make_api: MakeApi, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store": f"embedded:{tmp_path}/data"}
    async with make_api(**settings, signed_url_secret_key=SECRET) as api:
        plain = await share(api)
        queue = api.queue
    file = tmp_path / "keys"
    file.write_text(f"{OLD}\n{NEW}\n")
    settings |= {"signed_url_key_file": file}
    async with make_api(**settings, signed_url_secret_key=SECRET) as api:
        api.queue = queue
        old = await share(api)
        assert old["signature"].startswith("old.0.")
        assert [await works(api, one) for one in (plain, old)] == [True, True]
    file.write_text(f"# the current one first\n{NEW}\n\n{OLD}")
    async with make_api(**settings, signed_url_secret_key=SECRET) as api:
        api.queue = queue
        new = await share(api)
        assert [await works(api, one) for one in (plain, old, new)] == [True] * 3
        forged = {**new, "signature": new["signature"].replace("new.", "old.")}
        assert not await works(api, forged)
    file.write_text(NEW)
    async with make_api(**settings) as api:
        api.queue = queue
        assert [await works(api, one) for one in (plain, old, new)] == [False, False, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no key"),
        ("# none", "holds no key"),
        (f"{NEW}\nold:short", "Line 2"),
        (NEW.partition(":")[2], "Line 1"),
        (f"a.b:{SECRET}", "Line 1"),
        (f":{SECRET}", "Line 1"),
        (f"a:{SECRET}\na:{SECRET}", "Line 2"),
    ],
)
def test_a_wrong_file_of_keys_is_refused_without_showing_it(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    settings = load(environment={}, overrides={"signed_url_key_file": file})
    with pytest.raises(ConfigurationError, match=f"{words}.*") as refused:
        signing_keys(settings)
    assert SECRET not in str(refused.value)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize("has_ids", [False, True])
async def test_revokes_what_was_signed_for_one_queue(
    make_api: MakeApi, tmp_path: Path, has_ids: bool
) -> None:
    file = tmp_path / "keys"
    file.write_text(NEW)
    more = {"signed_url_key_file": file} if has_ids else {}
    async with make_api(signed_url_secret_key=SECRET, **more) as api:
        first = await share(api)
        other = (await api.call("POST", "/v2/queues/other/share", {})).json()
        assert await works(api, first)
        for _ in range(2):
            await api.expect(204, "DELETE", "share")
            assert not await works(api, first)
            second = await share(api)
            assert await works(api, second)
            first = second
        _, epoch, digits = second["signature"].split(".")
        assert epoch == "2"
        for wrong in (digits, f"x.2.{digits}", f".1.{digits}", f".{digits}", "..", f"..{digits}"):
            assert not await works(api, {**second, "signature": wrong}), wrong
        await api.call("DELETE", "")
        assert not await works(api, {**first, "signature": wrong})
        assert await works(api, second)
        answer = await api.call(
            "GET",
            "/v2/queues/other/messages",
            URL_Signature=other["signature"],
            URL_Expires=other["expires"],
            URL_Methods="GET",
            URL_Paths=other["paths"][0],
        )
        assert answer.status_code == 200

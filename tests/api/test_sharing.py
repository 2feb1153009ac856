"""Pre-signed URLs (zaqar-behaviour 6)."""

import hmac
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import httpx
import pytest

from tests.api.conftest import CLIENT_ID, PROJECT, Api, MakeApi

pytestmark = pytest.mark.anyio
SECRET = "a secret key of at least 32 bytes"


@pytest.fixture
async def api(make_api: MakeApi) -> AsyncIterator[Api]:
    async with make_api(signed_url_secret_key=SECRET) as made:
        yield made


async def share(api: Api, **document: Any) -> dict[str, Any]:
    answer = await api.call("POST", "share", document)
    assert answer.status_code == 200, answer.text
    shared: dict[str, Any] = answer.json()
    return shared


async def use(api: Api, shared: dict[str, Any], path: str, method: str = "GET") -> httpx.Response:
    return await api.call(
        method,
        path,
        URL_Signature=shared["signature"],
        URL_Expires=shared["expires"],
        URL_Methods=",".join(shared["methods"]),
        URL_Paths=",".join(shared["paths"]),
        X_Project_ID=shared["project"],
        Client_ID=CLIENT_ID,
    )


async def test_signs_as_upstream_does(api: Api) -> None:
    shared = await share(api, paths=["messages", "claims"], methods=["POST", "GET"])
    base = f"/v2/queues/{api.queue}"
    assert shared["paths"] == [f"{base}/claims", f"{base}/messages"]
    assert (shared["methods"], shared["project"]) == (["GET", "POST"], PROJECT)
    text = r"\n".join([",".join(shared["paths"]), "GET,POST", PROJECT, shared["expires"]])
    assert shared["signature"] == hmac.new(SECRET.encode(), text.encode(), sha256).hexdigest()
    until = datetime.fromisoformat(shared["expires"]).replace(tzinfo=UTC)
    assert timedelta(hours=23) < until - datetime.now(UTC) <= timedelta(hours=24)


async def test_admits_the_resource_and_what_is_below_it(api: Api) -> None:
    (message_id,) = await api.post({"body": 1})
    shared = await share(api)
    assert (await use(api, shared, "messages?echo=true")).status_code == 200
    assert (await use(api, shared, f"messages/{message_id}")).status_code == 200


@pytest.mark.parametrize(
    ("change", "path", "method"),
    [
        ({"signature": "0" * 64}, "messages", "GET"),
        ({"expires": "never"}, "messages", "GET"),
        ({"expires": "2020-01-01T00:00:00"}, "messages", "GET"),
        ({"expires": "20300101"}, "messages", "GET"),
        ({"methods": []}, "messages", "GET"),
        ({"methods": ["GET", "POST"]}, "messages", "POST"),
        ({"paths": ["garbage"]}, "messages", "GET"),
        ({"paths": [""]}, "messages", "GET"),
        ({"project": "other"}, "messages", "GET"),
        ({}, "messages", "POST"),
        ({}, "claims", "GET"),
        ({}, "stats", "GET"),
        ({}, "messagesandmore", "GET"),
        ({}, "/v2/queues/other/messages", "GET"),
    ],
)
async def test_answers_404_to_anything_that_was_not_signed(
    api: Api, change: dict[str, Any], path: str, method: str
) -> None:
    shared = {**await share(api), **change}
    answer = await use(api, shared, path, method)
    assert (answer.status_code, answer.json()) == (404, {"title": "404 Not Found"})


async def test_does_not_admit_a_neighbour_with_the_same_beginning(api: Api) -> None:
    shared = await share(api)
    shared["paths"] = [path.removesuffix("essages") for path in shared["paths"]]
    assert (await use(api, shared, "messages")).status_code == 404


@pytest.mark.parametrize(
    "document",
    [
        {"paths": ["stats"]},
        {"paths": "messages"},
        {"paths": [1]},
        {"methods": "GET"},
        {"methods": [1]},
        {"methods": ["GET,POST"]},
        {"methods": ["BREW"]},
        {"expires": 1_900_000_000},
        {"expires": "1900000000"},
        {"expires": "soon"},
        {"expires": "2020-01-01T00:00:00"},
        {"expires": "2999-01-01T00:00:00"},
        {"expires": "9999-12-31T23:59:59-14:00"},
        {"expires": "0001-01-01T00:00:00+14:00"},
        {"more": 1},
    ],
)
async def test_refuses_to_sign(api: Api, document: dict[str, Any]) -> None:
    answer = await api.call("POST", "share", document)
    assert (answer.status_code, answer.json()["title"]) == (400, "Invalid API request")


async def test_refuses_a_project_whose_text_could_be_read_in_two_ways(api: Api) -> None:
    for project in ("a,b", r"a\nb"):
        answer = await api.call("POST", "share", {}, X_Project_ID=project)
        assert answer.status_code == 400


async def test_takes_an_expiry_with_a_zone(api: Api) -> None:
    until = (datetime.now(UTC) + timedelta(hours=2)).astimezone(
        datetime.fromisoformat("2020-01-01T00:00:00+05:00").tzinfo
    )
    shared = await share(api, expires=until.isoformat(timespec="seconds"))
    assert shared["expires"] == until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    assert (await use(api, shared, "messages")).status_code == 200


async def test_can_not_sign_without_a_key_nor_without_a_body(make_api: MakeApi) -> None:
    async with make_api() as api:
        assert (await api.call("POST", "share", {})).status_code == 400
        answer = await api.call("POST", "share")
        assert (answer.status_code, answer.json()["title"]) == (400, "Invalid request body")
        assert (await api.call("GET", "messages", URL_Signature="x")).status_code == 404

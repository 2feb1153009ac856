"""Secrets that are given to a server come out nowhere: no answer, log, error or `repr`."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import MakeApi, WriteCloud
from tests.keystone import Keystone, User, account_at
from tests.push.receiver import Receiver
from zaqar_lite.client import KeyAuth, SignedURL
from zaqar_lite.domain.subscriptions import Secret
from zaqar_lite.push.mail import Smtp
from zaqar_lite.server.loading import load
from zaqar_lite.service.delivery.attempt import Notification
from zaqar_lite.service.identity import authentication, trusts
from zaqar_lite.service.identity.keystone import Answer
from zaqar_lite.service.pooling.pools import Pool
from zaqar_lite.service.presigned_urls import SignedUrl
from zaqar_lite.service.subscriptions.subscriptions import Subscribed
from zaqar_lite.ui.calls import Caller
from zaqar_lite.ui.session import Session

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Support for InfluxDB"),  # openstacksdk's own
]
SECRET = "sesame"
FAST = {"uri": f"redis://u:{SECRET}-in-pool@127.0.0.1:1/0", "options": {"key": f"{SECRET}-option"}}
ADMIN: dict[str, Any] = {"admin_mode": True, "pooling": True}


@pytest.fixture
def keystone() -> Iterator[Keystone]:
    with Keystone() as running:
        running.state.users["zaqar"] = User(f"{SECRET}-account", "service", ("service",))
        yield running


async def test_no_secret_is_told_by_a_server_that_has_many(
    make_api: MakeApi,
    keystone: Keystone,
    write_cloud: WriteCloud,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    settings: dict[str, Any] = {
        **write_cloud(account_at(keystone.url, f"{SECRET}-account")),
        "smtp_url": f"smtp://zaqar:{SECRET}-mail@127.0.0.1:1",
        "smtp_sender": "zaqar@example.org",
        "signed_url_secret_key": f"{SECRET}-signs-urls-and-has-32-bytes",
        "delivery_allowed": "127.0.0.0/8",
        "audit": str(tmp_path / "audit"),
        "access_log": True,
        **ADMIN,
    }
    shown: list[str] = [repr(load(environment={}, overrides={"store": "memory://", **settings}))]
    async with Receiver(500, 410) as receiver, make_api(**settings) as api:
        token = keystone.issue("admin")
        api.http.headers["X-Auth-Token"] = token

        async def call(method: str, path: str, document: Any = None) -> Any:
            answer = await api.call(method, path, document)
            shown.append(f"{answer.headers} {answer.text}")
            return answer

        made = await call("PUT", "/v2/pools/one", {**FAST, "weight": 1})
        assert made.status_code == 201
        for path in ("/v2/pools/one?detailed=true", "/v2/pools?detailed=true"):
            assert (await call("GET", path)).status_code == 200
        assert (await call("PUT", f"/v2/queues/{api.queue}")).status_code in (201, 503)
        assert (await call("POST", "messages", {"messages": [{"body": 1}]})).status_code == 503
        await call("GET", "/v2/health")
        assert (await call("PATCH", "/v2/pools/one", {"weight": 0})).status_code == 200
        assert (await call("PUT", "/v2/pools/one", {**FAST, "uri": "x"})).status_code == 400
        other = "/v2/queues/other"
        options = {"post_headers": {"Authorization": f"Bearer {SECRET}-header"}}
        trusted = {"subscriber": f"trust+{receiver.url}/hook", "ttl": 300, "options": options}
        plain = {**trusted, "subscriber": f"{receiver.url}/plain"}
        mail = {"subscriber": "mailto:a@example.org", "ttl": 300}
        secrets = []
        for document in (trusted, plain, mail):
            answer = await api.expect(201, "POST", f"{other}/subscriptions", document)
            secrets.append(answer.json()["secret"])  # told once, to who makes it
        (trust,) = keystone.state.trusts
        await call("POST", f"{other}/messages", {"messages": [{"body": 1}]})
        await receiver.wait(1)
        listed = (await call("GET", f"{other}/subscriptions?details=true")).json()["subscriptions"]
        for one in listed:
            path = f"{other}/subscriptions/{one['id']}"
            await call("GET", f"{path}/deliveries")
            await call("POST", f"{path}/ping")
            await call("PATCH", path, {"ttl": 1})
            await call("DELETE", path)
    told = "\n".join([*shown, caplog.text, *(str(vars(one)) for one in caplog.records)])
    told += (tmp_path / "audit").read_text()
    for secret in (SECRET, trust, token, *secrets, *(one[6:] for one in secrets)):
        assert secret not in told


def test_what_holds_secrets_does_not_show_them() -> None:
    notification = Notification(
        "http://h/", {"x-auth-token": SECRET}, SECRET.encode(), {}, trust=SECRET
    )
    pool = Pool("one", f"redis://u:{SECRET}@h", 1, None, {"key": SECRET})
    key, address = Secret(SECRET), ("127.0.0.1", 1)
    holders = (
        notification,
        pool,
        key,
        authentication.Credential(authentication.Place.TOKEN, SECRET, SECRET),
        Subscribed("id", key),
        Smtp("smtp", "h", 25, "zaqar@example.org", username="zaqar", password=SECRET),
        Answer(201, {"token": {"id": SECRET}}, SECRET),
        trusts._Kept(SECRET, 1),
        SignedUrl(["/v2/queues/q"], ["GET"], "p", "2030-01-01T00:00:00", SECRET),
        SignedURL("p", ["/v2/queues/q"], ["GET"], "2030-01-01T00:00:00", SECRET),
        KeyAuth(SECRET),
        Session(SECRET, SECRET),
        Caller(app, "p", SECRET, b"h", address),
    )
    for holder in holders:
        assert SECRET not in repr(holder)


async def app(*_: object) -> None:
    """An application that nobody calls."""

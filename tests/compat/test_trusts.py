"""Subscribers with trust+: a real Keystone makes the trust, and says whose token was sent."""

import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio.to_thread
import httpx
import pytest

from tests.compat.test_keystone import Cloud
from tests.keystone import account_at, cloud_in
from tests.push.receiver import Receiver
from tests.server import ServerProcess
from tests.services.keystone import PASSWORD, KeystoneServer
from tests.services.process import wait_until
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.anyio]


@pytest.fixture(scope="module")
def cloud(
    keystone_server: KeystoneServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    """A server with an account at Keystone."""
    admin = keystone_server.log_in("admin", project="admin")
    account = Cloud(keystone_server, admin, "").make_user("service", "services")
    auth = account_at(keystone_server.url, PASSWORD, account, "services")
    environment = {
        "ZAQAR_LITE_KEYSTONE_CLOUD": "ours",
        "OS_CLIENT_CONFIG_FILE": cloud_in(tmp_path_factory.mktemp("cloud"), auth),
        "ZAQAR_LITE_DELIVERY_ALLOWED": "127.0.0.0/8",
    }
    options = ("--auth", "keystone")
    with ServerProcess("memory://", *options, env=environment).start(ready=401) as server:
        yield Cloud(keystone_server, admin, server.url)


class User:
    """Somebody of the cloud, who uses a queue of our server."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.name = cloud.make_user("member", "shop")
        self.token = cloud.keystone.log_in(self.name, project="shop")
        about = self.ask("GET", "/auth/tokens", X_Subject_Token=self.token)
        self.id: str = about["user"]["id"]
        self.queue = f"/v2/queues/{uuid.uuid4().hex}"

    def call(self, method: str, path: str, document: Any, token: str = "") -> httpx.Response:
        headers = {"Client-ID": str(uuid.uuid4()), "X-Auth-Token": token or self.token}
        url = f"{self.cloud.server}{self.queue}/{path}"
        return httpx.request(method, url, headers=headers, json=document, timeout=60)

    def subscribe(self, url: str, token: str = "") -> httpx.Response:
        document = {"subscriber": f"trust+{url}/hook", "ttl": 600}
        return self.call("POST", "subscriptions", document, token)

    def post(self) -> None:
        answer = self.call("POST", "messages", {"messages": [{"body": 1, "ttl": 300}]})
        assert answer.status_code == 201

    def trusts(self) -> list[str]:
        """The ids of all trusts that they have made and that have not ended."""
        answer = httpx.get(
            f"{self.cloud.keystone.url}/OS-TRUST/trusts",
            headers={"X-Auth-Token": self.token},
            params={"trustor_user_id": self.id},
            timeout=60,
        )
        return [trust["id"] for trust in answer.json()["trusts"]]

    def ask(self, method: str, path: str, **headers: str) -> dict[str, Any]:
        return self.cloud.keystone.call(self.token, method, path, **headers)


@pytest.fixture
def user(cloud: Cloud) -> User:
    return User(cloud)


async def test_a_subscriber_gets_a_token_of_the_user_who_subscribed(user: User) -> None:
    async with Receiver() as receiver:
        made = await anyio.to_thread.run_sync(user.subscribe, receiver.url)
        assert made.status_code == 201
        shown = await anyio.to_thread.run_sync(user.call, "GET", "subscriptions", None)
        assert "trust_id" not in shown.text
        await anyio.to_thread.run_sync(user.post)
        await anyio.to_thread.run_sync(user.post)
        first, second = await receiver.wait(2, seconds=60)
    assert first.path == "/hook"
    sent = first.headers["x-auth-token"]
    assert sent == second.headers["x-auth-token"] != user.token
    keystone, admin = user.cloud.keystone, user.cloud.admin
    about = keystone.call(admin, "GET", "/auth/tokens", X_Subject_Token=sent)
    assert (about["user"]["name"], about["project"]["name"]) == (user.name, "shop")
    assert {role["name"] for role in about["roles"]} >= {"member"}
    assert about["OS-TRUST:trust"]["impersonation"] is True


async def test_a_trust_that_has_ended_ends_the_delivery(user: User) -> None:
    async with Receiver() as receiver:
        made = await anyio.to_thread.run_sync(user.subscribe, receiver.url)
        subscription = made.json()["subscription_id"]

        def end() -> None:
            (trust,) = user.trusts()
            user.ask("DELETE", f"/OS-TRUST/trusts/{trust}")
            user.post()

        await anyio.to_thread.run_sync(end)
        path = f"subscriptions/{subscription}/deliveries?state=failed"
        look = partial(anyio.to_thread.run_sync, user.call, "GET", path, None)
        failed = await until(look, lambda seen: seen.json()["deliveries"])
        assert "trust" in failed.text
        assert receiver.received == []


@pytest.mark.parametrize("end", ["DELETE", "PATCH"])
def test_a_subscription_that_ends_ends_its_trust(user: User, end: str) -> None:
    """The account has the role service alone: Keystone lets a trust's own token end it."""
    made = user.subscribe("http://receiver.example").json()["subscription_id"]
    assert len(user.trusts()) == 1
    document = None if end == "DELETE" else {"subscriber": "http://receiver.example/"}
    assert user.call(end, f"subscriptions/{made}", document).status_code == 204
    wait_until(lambda: not user.trusts(), [], timeout=30)


def test_a_token_that_can_make_no_trust_subscribes_to_nothing(user: User) -> None:
    document = {"application_credential": {"name": "app", "roles": [{"name": "member"}]}}
    credential = user.cloud.keystone.call(
        user.token, "POST", f"/users/{user.id}/application_credentials", document
    )
    token = user.cloud.keystone.log_in_by_application(credential)
    refused = user.subscribe("http://receiver.example", token)
    assert refused.status_code == 403
    assert "makes no trust" in refused.text
    assert user.call("GET", "subscriptions", None).json()["subscriptions"] == []

"""Keystone through the real keystoneauth1, against a small identity server on a real socket."""

import asyncio
import json
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.faulty_server import FaultyServer
from tests.keystone import Keystone, User
from tests.local_http import LocalHandler, LocalServer
from tests.test_tls import make_certificate
from zaqar_lite.client import (
    AsyncClient,
    Client,
    KeystoneAuth,
    RetryPolicy,
    Unauthenticated,
    Unreachable,
    ZaqarError,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def queues() -> Iterator[FaultyServer]:
    """A message server that notes the headers it is sent."""
    with FaultyServer() as server:
        yield server


@pytest.fixture
def identity(queues: FaultyServer) -> Iterator[Keystone]:
    """Keystone with a catalogue that points to that server."""
    with Keystone() as server:
        server.state.messaging = f"{queues.url}/"
        server.state.users["ada"] = User("secret", "demo")
        yield server


def password(identity: Keystone, word: str = "secret") -> KeystoneAuth:
    url = f"{identity.url}/v3"
    return KeystoneAuth.password(url, username="ada", password=word, project_name="demo")


def test_a_password_login_finds_the_service_and_is_made_once(
    identity: Keystone, queues: FaultyServer
) -> None:
    with Client(auth=password(identity)) as client:
        client.post("q", 1)
        client.post("q", 2)
        assert client.url == queues.url
    assert identity.log_ins == 1
    for _, headers in queues.seen:
        assert [headers["X-Auth-Token"]] == list(identity.state.tokens)
        assert headers["X-Project-ID"] == "demo"


async def test_an_application_credential_logs_the_async_client_in(
    identity: Keystone, queues: FaultyServer
) -> None:
    by = {"credential_id": "ada", "secret": "secret"}
    auth = KeystoneAuth.application_credential(f"{identity.url}/v3", **by)
    async with AsyncClient(auth=auth) as client:
        await client.post("q", 1)
    assert [queues.seen[0][1]["X-Auth-Token"]] == list(identity.state.tokens)


CLOUDS = """
clouds:
  none: {auth_type: none, auth: {endpoint: URL}}
  override: {auth_type: none, messaging_endpoint_override: URL/v2}
  token: {auth_type: admin_token, auth: {endpoint: URL, token: given}}
"""


@pytest.mark.filterwarnings("ignore:Support for InfluxDB")  # openstacksdk's own
@pytest.mark.parametrize("name", ["none", "override", "token"])
def test_a_cloud_without_keystone_has_its_address_and_the_clients_project(
    queues: FaultyServer, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "clouds.yaml"
    file.write_text(CLOUDS.replace("URL", queues.url), encoding="utf-8")
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(file))
    with Client(auth=KeystoneAuth.cloud(name), project="mine") as client:
        client.post("q", 1)
        assert client.url == queues.url
    _, headers = queues.seen[0]
    assert headers["X-Project-ID"] == "mine"
    assert name != "token" or headers["X-Auth-Token"] == "given"


@pytest.mark.filterwarnings("ignore:Support for InfluxDB")  # openstacksdk's own
async def test_a_cloud_says_whom_to_trust(
    queues: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = make_certificate(tmp_path, "first")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    queues.socket = context.wrap_socket(queues.socket, server_side=True)
    url = queues.url.replace("http:", "https:")
    cloud = {"auth_type": "none", "auth": {"endpoint": url}}
    clouds = {
        "stranger": cloud,
        "trusting": cloud | {"cacert": str(cert)},
        "careless": cloud | {"verify": False},
        "known": cloud | {"verify": False, "cert": str(cert), "key": str(key)},
    }
    file = tmp_path / "clouds.yaml"
    file.write_text(json.dumps({"clouds": clouds}), encoding="utf-8")
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(file))
    for name in ("trusting", "careless", "known"):
        with Client(auth=KeystoneAuth.cloud(name)) as client:
            client.post("q", name)
    async with AsyncClient(auth=KeystoneAuth.cloud("trusting")) as client:
        await client.post("q", "async")
    assert queues.stored == ["trusting", "careless", "known", "async"]
    once = RetryPolicy(attempts=1)
    with (
        Client(auth=KeystoneAuth.cloud("stranger"), retries=once) as client,
        pytest.raises(Unreachable, match="its certificate is refused"),
    ):
        client.post("q", 1)
    login = KeystoneAuth.cloud("trusting")
    with Client(auth=login):
        cert.unlink()
    with Client(auth=login) as client:  # files are read once for all clients of a login
        client.post("q", "again")
    assert queues.stored[-1] == "again"


def test_a_token_is_renewed_before_it_ends(identity: Keystone, queues: FaultyServer) -> None:
    identity.state.lives = 90
    with Client(auth=password(identity)) as client:
        client.post("q", 1)
        client.post("q", 1)
        assert identity.log_ins == 1
        identity.state.lives = KeystoneAuth.MARGIN / 2
    with Client(auth=password(identity)) as client:
        client.post("q", 1)
        time.sleep(1)
        client.post("q", 1)
    assert identity.log_ins == 3
    # Also one that ends within the margin, or has ended by our clock, is shown.
    assert all("X-Auth-Token" in headers for _, headers in queues.seen)


def test_a_token_that_is_refused_early_is_replaced_once(
    identity: Keystone, queues: FaultyServer
) -> None:
    with Client(auth=password(identity)) as client:
        client.post("q", 1)
        queues.script.append(401)
        client.post("q", 2)
        assert queues.seen[-1][1]["X-Auth-Token"] == list(identity.state.tokens)[1]
        queues.script.extend([401, 401, 401])
        with pytest.raises(Unauthenticated):
            client.post("q", 3)
    assert len(queues.seen) == 5
    assert queues.stored == [1, 2]


class Guarded(LocalHandler):
    """Stores what comes with a token that Keystone has not revoked."""

    server: Any

    def respond(self) -> None:
        self.read()
        issued = self.server.tokens.get(self.headers.get("X-Auth-Token"))
        refused = issued is None or issued.revoked
        self.answer(401 if refused else 201, b'{"resources": ["/v2/queues/q/messages/1"]}')


async def test_requests_that_meet_a_revoked_token_together_log_in_once(identity: Keystone) -> None:
    with LocalServer(Guarded) as server:
        tokens = identity.state.tokens
        vars(server)["tokens"] = tokens
        async with AsyncClient(server.url, auth=password(identity)) as client:
            await client.post("q", 1)
            for _ in range(5):
                identity.revoke(list(tokens)[-1])
                await asyncio.gather(*(client.post("q", 1) for _ in range(40)))
    assert identity.log_ins == 6


def test_a_keystone_that_is_busy_is_asked_again(identity: Keystone, queues: FaultyServer) -> None:
    identity.state.away = 503
    policy = RetryPolicy(base=0, on_retry=lambda _: setattr(identity.state, "away", None))
    with Client(auth=password(identity), retries=policy) as client:
        client.post("q", 1)
    assert queues.stored == [1]


def test_a_wrong_password_and_a_catalogue_without_the_service_are_said_so(
    identity: Keystone,
) -> None:
    with Client(auth=password(identity, "wrong")) as client, pytest.raises(Unauthenticated):
        client.post("q", 1)
    for region in ("elsewhere", None):
        if region is None:
            identity.state.messaging = None
        auth = KeystoneAuth(password(identity)._session, region=region)
        with Client(auth=auth) as client, pytest.raises(ZaqarError, match="no messaging service"):
            client.post("q", 1)


def test_without_keystoneauth1_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in [name for name in sys.modules if name.startswith("keystoneauth1")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "keystoneauth1", None)
    with pytest.raises(ImportError, match=r"pip install 'zaqar-lite\[keystone\]'"):
        KeystoneAuth.password("http://x", username="a", password="b", project_name="c")

"""Keystone v3 by clouds.yaml: a small identity service that gives out the real Swift's tokens."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.contract.stores import Stores
from tests.contract.subject import texts
from tests.drivers.swift.conftest import a_queue
from tests.drivers.swift.faulty_proxy import FaultyProxy
from tests.drivers.swift.together import ALONE
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import StoreOptions

pytestmark = pytest.mark.anyio

PASSWORD = "made-up"


class Identity(ThreadingHTTPServer):
    """As much of Keystone v3 as a password login needs; the catalog leads through the proxy."""

    daemon_threads = True

    def __init__(self, proxy: FaultyProxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy
        self.logins = 0
        self.url = f"http://127.0.0.1:{self.server_port}/v3"

    def log_in(self) -> tuple[str, str]:
        """A token and the storage URL, from the auth v1 behind the proxy."""
        self.logins += 1
        place = self.proxy.url.removeprefix("swift+http://").partition("@")[2]
        answer = httpx.get(
            f"http://{place}", headers={"X-Auth-User": "test:tester", "X-Auth-Key": "testing"}
        )
        return answer.headers["X-Auth-Token"], answer.headers["X-Storage-Url"]


class _Handler(BaseHTTPRequestHandler):
    server: Identity

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        version = {
            "id": "v3.14",
            "status": "stable",
            "links": [{"rel": "self", "href": self.server.url}],
        }
        self._answer(200, {"version": version}, "")

    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        user = wanted["auth"]["identity"]["password"]["user"]
        if user["password"] != PASSWORD:
            return self._answer(401, {"error": {"code": 401, "message": "no"}}, "")
        token, url = self.server.log_in()
        endpoint = {"interface": "public", "region": "one", "region_id": "one", "url": url}
        return self._answer(
            201,
            {
                "token": {
                    "methods": ["password"],
                    "expires_at": "2099-01-01T00:00:00.000000Z",
                    "issued_at": "2020-01-01T00:00:00.000000Z",
                    "user": {"id": "u", "name": "u", "domain": {"id": "d", "name": "d"}},
                    "project": {"id": "p", "name": "p", "domain": {"id": "d", "name": "d"}},
                    "roles": [],
                    "catalog": [{"type": "object-store", "name": "swift", "endpoints": [endpoint]}],
                }
            },
            token,
        )

    def _answer(self, status: int, document: object, token: str) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        if token:
            self.send_header("X-Subject-Token", token)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def identity(
    proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Identity]:
    """The identity service, and a clouds.yaml with a good and a bad cloud."""
    server = Identity(proxy)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def cloud(password: str) -> dict[str, object]:
        login = {
            "auth_url": server.url,
            "username": "u",
            "password": password,
            "project_name": "p",
            "user_domain_name": "d",
            "project_domain_name": "d",
        }
        return {"auth": login, "region_name": "one", "identity_api_version": "3"}

    clouds = {"clouds": {"good": cloud(PASSWORD), "bad": cloud("wrong-one")}}
    (tmp_path / "clouds.yaml").write_text(json.dumps(clouds), encoding="utf-8")  # JSON is YAML
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))
    yield server
    server.shutdown()
    server.server_close()


async def test_a_cloud_of_clouds_yaml_is_used_and_its_token_renewed(
    identity: Identity, proxy: FaultyProxy
) -> None:
    uri = f"swift+https:///?cloud=good&prefix=test-{uuid4().hex[:12]}"
    stores = await Stores.open(ALONE, uri, Clock(), StoreOptions(), [])
    try:
        queue = a_queue(stores)
        await queue.post(*"abc")
        assert identity.logins == 1
        proxy.end_tokens()
        assert texts((await queue.claim()).messages) == ["a", "b", "c"]
        assert identity.logins == 2
    finally:
        await stores.close()


async def test_os_variables_are_used(
    identity: Identity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "none.yaml"))
    for name, value in {
        "AUTH_URL": identity.url,
        "USERNAME": "u",
        "PASSWORD": PASSWORD,
        "PROJECT_NAME": "p",
        "USER_DOMAIN_NAME": "d",
        "PROJECT_DOMAIN_NAME": "d",
        "REGION_NAME": "one",
        "IDENTITY_API_VERSION": "3",
    }.items():
        monkeypatch.setenv(f"OS_{name}", value)
    uri = f"swift+https:///?cloud=envvars&prefix=test-{uuid4().hex[:12]}"
    stores = await Stores.open(ALONE, uri, Clock(), StoreOptions(), [])
    try:
        await stores.messages.ping()
    finally:
        await stores.close()


@pytest.mark.usefixtures("identity")
async def test_a_refused_password_is_told_without_it() -> None:
    opened: list[Stores] = []
    uri = "swift+https:///?cloud=bad&patience=0.2"
    with pytest.raises(Unavailable, match="Keystone") as error:
        await Stores.open(ALONE, uri, Clock(), StoreOptions(), opened)
    await opened[0].close()
    assert "wrong-one" not in str(error.value)

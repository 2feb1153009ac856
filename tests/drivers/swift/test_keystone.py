"""Keystone v3 by clouds.yaml: a small identity service that gives out the real Swift's tokens."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.contract.stores import Stores
from tests.contract.subject import texts
from tests.drivers.swift.conftest import a_queue
from tests.drivers.swift.faulty_proxy import FaultyProxy
from tests.drivers.swift.together import ALONE
from tests.local_http import LocalHandler, LocalServer
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import StoreOptions

pytestmark = pytest.mark.anyio

PASSWORD = "made-up"


class Identity(LocalServer):
    """As much of Keystone v3 as a password login needs; the catalog leads through the proxy."""

    def __init__(self, proxy: FaultyProxy) -> None:
        super().__init__(_Handler)
        self.proxy = proxy
        self.logins = 0
        self.url += "/v3"

    def log_in(self) -> tuple[str, str]:
        """A token and the storage URL, from the auth v1 behind the proxy."""
        self.logins += 1
        place = self.proxy.url.removeprefix("swift+http://").partition("@")[2]
        answer = httpx.get(
            f"http://{place}", headers={"X-Auth-User": "test:tester", "X-Auth-Key": "testing"}
        )
        return answer.headers["X-Auth-Token"], answer.headers["X-Storage-Url"]


class _Handler(LocalHandler):
    server: Identity

    def get(self) -> None:
        version = {
            "id": "v3.14",
            "status": "stable",
            "links": [{"rel": "self", "href": self.server.url}],
        }
        self._tell(200, {"version": version}, "")

    def post(self) -> None:
        user = json.loads(self.read())["auth"]["identity"]["password"]["user"]
        if user["password"] != PASSWORD:
            return self._tell(401, {"error": {"code": 401, "message": "no"}}, "")
        token, url = self.server.log_in()
        endpoint = {"interface": "public", "region": "one", "region_id": "one", "url": url}
        told = {
            "methods": ["password"],
            "expires_at": "2099-01-01T00:00:00.000000Z",
            "issued_at": "2020-01-01T00:00:00.000000Z",
            "user": {"id": "u", "name": "u", "domain": {"id": "d", "name": "d"}},
            "project": {"id": "p", "name": "p", "domain": {"id": "d", "name": "d"}},
            "roles": [],
            "catalog": [{"type": "object-store", "name": "swift", "endpoints": [endpoint]}],
        }
        return self._tell(201, {"token": told}, token)

    def _tell(self, status: int, document: object, token: str) -> None:
        headers = {"Content-Type": "application/json", "X-Subject-Token": token}
        self.answer(status, json.dumps(document).encode(), headers)


@pytest.fixture
def identity(
    proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Identity]:
    """The identity service, and a clouds.yaml with a good and a bad cloud."""
    with Identity(proxy) as server:
        clouds = {
            name: {
                "auth": login(server, password),
                "region_name": "one",
                "identity_api_version": "3",
            }
            for name, password in (("good", PASSWORD), ("bad", "wrong-one"))
        }
        file = tmp_path / "clouds.yaml"
        file.write_text(json.dumps({"clouds": clouds}), encoding="utf-8")  # JSON is YAML
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(file))
        yield server


def login(server: Identity, password: str = PASSWORD) -> dict[str, str]:
    return {
        "auth_url": server.url,
        "username": "u",
        "password": password,
        "project_name": "p",
        "user_domain_name": "d",
        "project_domain_name": "d",
    }


@asynccontextmanager
async def opened(cloud: str) -> AsyncIterator[Stores]:
    """The stores of a cloud."""
    uri = f"swift+https:///?cloud={cloud}&prefix=test-{uuid4().hex[:12]}"
    stores = await Stores.open(ALONE, uri, Clock(), StoreOptions(), [])
    yield stores
    await stores.close()


async def test_a_cloud_of_clouds_yaml_is_used_and_its_token_renewed(
    identity: Identity, proxy: FaultyProxy
) -> None:
    async with opened("good") as stores:
        queue = a_queue(stores)
        await queue.post(*"abc")
        assert identity.logins == 1
        proxy.end_tokens()
        assert texts((await queue.claim()).messages) == ["a", "b", "c"]
        assert identity.logins == 2


async def test_os_variables_are_used(
    identity: Identity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "none.yaml"))
    for name, value in login(identity).items():
        monkeypatch.setenv(f"OS_{name.upper()}", value)
    monkeypatch.setenv("OS_REGION_NAME", "one")
    monkeypatch.setenv("OS_IDENTITY_API_VERSION", "3")
    async with opened("envvars") as stores:
        await stores.messages.ping()


@pytest.mark.usefixtures("identity")
async def test_a_refused_password_is_told_without_it() -> None:
    stores: list[Stores] = []
    with pytest.raises(ConfigurationError, match="Keystone") as error:
        await Stores.open(ALONE, "swift+https:///?cloud=bad", Clock(), StoreOptions(), stores)
    await stores[0].close()
    assert "wrong-one" not in str(error.value)

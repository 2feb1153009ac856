"""Gateways that are believed: by their address, their secret, or their certificate."""

import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import CLIENT_ID, MakeApi, running, signed_by
from tests.server import PING_HEADERS
from tests.test_tls import make_certificate, over_tls, started
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load

pytestmark = pytest.mark.anyio
SECRET, NEXT = "the gateway's own of 32 bytes or more", "another one that has 32 bytes too"


async def ask(address: str, settings: dict[str, Any], path: str = "/v2/queues", **more: str) -> int:
    """The status of a request from an address."""
    app = create_app(load(environment={}, overrides={"store": "memory://", **settings}))
    transport = httpx.ASGITransport(app, client=(address, 1))
    headers = {"Client-ID": CLIENT_ID, "X-Project-ID": "p"}
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    async with (
        running(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        return (await client.get(path, headers=headers)).status_code


async def test_a_gateway_calls_from_a_named_network() -> None:
    settings = {"gateways": "10.1.2.3/32, fd00::/16"}
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::7"):
        assert await ask(address, settings) == 200
    for address in ("10.1.2.4", "fd01::7", ""):
        assert await ask(address, settings) == 403
        assert await ask(address, settings, "/") == 300


@pytest.mark.parametrize(
    ("secret", "status"), [(SECRET, 200), (NEXT, 200), (SECRET[:-1], 403), ("", 403), (None, 403)]
)
async def test_a_gateway_sends_its_secret(
    secret: str | None, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    settings = {"gateway_secret": f"{SECRET}, {NEXT}"}
    sent = {} if secret is None else {"X_Gateway_Secret": secret}
    assert await ask("127.0.0.1", settings, **sent) == status
    both = {**settings, "gateways": "10.0.0.0/8"}
    assert await ask("127.0.0.1", both, **sent) == 403
    assert await ask("10.0.0.1", both, **sent) == status
    assert SECRET not in caplog.text


async def test_who_has_a_signed_url_is_bound_to_its_queue_and_to_no_name(
    make_api: MakeApi, tmp_path: Path
) -> None:
    trail = tmp_path / "audit"
    secrets = {"gateway_secret": SECRET, "signed_url_secret_key": "k" * 32}
    async with make_api(**secrets, audit=str(trail)) as api:
        wanted = {"paths": ["subscriptions"], "methods": ["POST"]}
        signed = (await api.call("POST", "share", wanted, X_Gateway_Secret=SECRET)).json()
        headers = {**signed_by(signed), "X_User_ID": "somebody else"}
        document: dict[str, Any] = {"subscriber": "http://example.org/a", "ttl": 300}
        await api.expect(201, "POST", "subscriptions", document, **headers)
        document["options"] = {"dead_letter_queue": "others"}
        await api.expect(403, "POST", "subscriptions", document, **headers)
    assert "somebody else" not in trail.read_text()
    assert "signed URL" in trail.read_text()


def test_a_gateway_shows_its_certificate(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "first")
    gateway = make_certificate(tmp_path, "gateway", "DNS:gateway.internal,URI:spiffe://us/gateway")
    other = make_certificate(tmp_path, "gateway.internal", "DNS:other.internal")
    both = tmp_path / "both.pem"
    both.write_bytes(gateway[0].read_bytes() + other[0].read_bytes())
    env = {"ZAQAR_LITE_GATEWAY_NAMES": "spiffe://us/gateway"}
    with started(over_tls(cert, key, "--tls-client-ca", str(both), env=env)) as server:
        statuses = []
        for shown in (gateway, other):
            context = ssl.create_default_context(cafile=cert)
            context.load_cert_chain(*shown)
            url = server.url.replace("http://", "https://") + "/v2/ping"
            with httpx.Client(verify=context) as client:
                asked = [client.get(url, headers=PING_HEADERS) for _ in range(2)]
            statuses += [answer.status_code for answer in asked]
        assert statuses == [204, 204, 403, 403]


def test_with_a_secret_the_server_may_listen_anywhere() -> None:
    settings = load(environment={}, overrides={"host": "192.0.2.1", "gateway_secret": SECRET})
    assert SECRET not in repr(settings)

"""Redis, MongoDB's protocol and Swift over TLS, with a server over them."""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests import services
from tests.api.conftest import MakeApi
from tests.server import ServerProcess
from tests.test_tls import make_certificate
from zaqar_lite.storage.redis import address
from zaqar_lite.storage.redis.faults import ConnectionLost
from zaqar_lite.storage.redis.link import Link, connect

pytestmark = pytest.mark.anyio
Pem = tuple[Path, Path]


@pytest.fixture
def pem(tmp_path: Path) -> Pem:
    """A certificate of this machine, and its key: the server's and the client's."""
    return make_certificate(tmp_path, "store")


@pytest.fixture
def redis_port(pem: Pem) -> Iterator[int]:
    """A Redis that speaks TLS there, to clients with a certificate."""
    (port,) = services.free_ports(1)
    options = (
        *("--tls-port", str(port), "--tls-ca-cert-file", str(pem[0]), "--tls-auth-clients", "yes"),
        *("--tls-cert-file", str(pem[0]), "--tls-key-file", str(pem[1])),
    )
    with services.start_redis(options=options):
        yield port


@asynccontextmanager
async def tls_before(target: int, pem: Pem) -> AsyncIterator[int]:
    """A port that speaks TLS and forwards to a plain one, as what stands before Swift does.

    Swift names itself by the scheme that it was asked in, so the front names its own.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pem)
    (port,) = services.free_ports(1)
    plain, secure = (f"{scheme}://localhost:{port}".encode() for scheme in ("http", "https"))

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data.replace(plain, secure))
                await writer.drain()
        writer.close()

    forwarding: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pump(reader, back), pump(to, writer))
        for one in (writer, back):
            with contextlib.suppress(OSError):
                await one.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forwarding[asyncio.create_task(forward(reader, writer))] = writer

    async with await asyncio.start_server(begin, "127.0.0.1", port, ssl=context):
        yield port
    for writer in forwarding.values():  # what a client has left open ends before the loop does
        writer.transport.abort()
    await asyncio.gather(*forwarding, return_exceptions=True)


async def check_it_works(make_api: MakeApi, store: str) -> None:
    """A server over the store keeps a message and hands it out."""
    async with make_api(store=store) as api:
        await api.expect(201, "POST", "messages", {"messages": [{"body": 1}]})
        assert [message["body"] for message in await api.claim()] == [1]


async def test_redis_over_tls(make_api: MakeApi, redis_port: int, pem: Pem) -> None:
    files = f"ssl_ca_certs={pem[0]}&ssl_certfile={pem[0]}&ssl_keyfile={pem[1]}"
    await check_it_works(make_api, f"rediss://localhost:{redis_port}/0?{files}")


@pytest.mark.parametrize("refused", ["ours", "theirs"])
def test_a_refused_certificate_is_named_once_and_ends_cleanly(
    redis_port: int, pem: Pem, tmp_path: Path, refused: str
) -> None:
    other, key = make_certificate(tmp_path, "other")
    authority, (cert, key) = (pem[0], (other, key)) if refused == "ours" else (other, pem)
    files = f"ssl_ca_certs={authority}&ssl_certfile={cert}&ssl_keyfile={key}"
    server = ServerProcess(f"rediss://localhost:{redis_port}/0?{files}")
    with server.start(ready=503):
        server.wait_for(lambda: "waiting for the store" in server.log())
        assert server.terminate() == 0
        said = [json.loads(line)["message"] for line in server.log().splitlines()]
    (waiting,) = [line for line in said if "waiting for the store" in line]
    assert f"localhost:{redis_port}" in waiting
    assert "certificate" in waiting or "unknown ca" in waiting
    assert not [line for line in said if "Traceback" in line or "never retrieved" in line]


async def test_a_reset_before_the_first_answer_points_to_the_certificate(
    pem: Pem, tmp_path: Path
) -> None:
    """The reset after a refused certificate may come before the alert that says so."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pem)

    def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async with await asyncio.start_server(reset, "localhost", ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        asked = address.parse(f"rediss://localhost:{port}/0?ssl_ca_certs={pem[0]}")
        with pytest.raises(ConnectionLost, match="client's certificate"):
            await connect(("localhost", port), asked, Link)


async def test_swift_over_tls(
    make_api: MakeApi, swift_server: services.SwiftServer, pem: Pem, tmp_path: Path
) -> None:
    other, _ = make_certificate(tmp_path, "other")
    address = urlsplit(swift_server.auth_url)
    user = f"{quote(swift_server.user, safe='')}:{swift_server.key}"
    async with tls_before(address.port or 0, pem) as port:
        uri = f"swift+https://{user}@localhost:{port}{address.path}?prefix=tls{port}&cacert="
        await check_it_works(make_api, f"{uri}{pem[0]}")
        async with make_api(store=f"{uri}{other}") as api:
            await api.expect(503, "GET", "/v2/ping")

"""TLS: versions, certificates that are renewed, clients that must have one, early answers."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
from websockets.client import ClientProtocol
from websockets.protocol import State
from websockets.uri import parse_uri

from tests.server import ServerProcess, serve_in_vain
from tests.services.process import run_program
from zaqar_lite.client import AsyncClient, Client, RetryPolicy, Unreachable
from zaqar_lite.server.tls import Certificate

ONCE = RetryPolicy(attempts=1)


def make_certificate(
    folder: Path, name: str, names: str = "DNS:localhost,IP:127.0.0.1"
) -> tuple[Path, Path]:
    """A certificate that signs itself, of this machine or other names, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    run_program(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", f"subjectAltName={names}"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
    )
    return cert, key


def over_tls(
    cert: Path,
    key: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    store: str = "memory://",
) -> ServerProcess:
    """A server that speaks TLS; `start(ready=None)` does not wait for it."""
    ours = ("--tls-cert", str(cert), "--tls-key", str(key))
    return ServerProcess(store, *ours, *options, env=env)


def started(server: ServerProcess) -> ServerProcess:
    """Start it; a ping in clear has no answer, so the log says when it listens."""
    server.start(ready=None)
    server.wait_for(lambda: "listening on https://" in server.log())
    return server


def subject(port: int) -> str:
    """The name in the certificate that the server shows."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as secure,
    ):
        shown = secure.getpeercert(binary_form=True)
        assert shown is not None
        return "second" if b"second" in shown else "first"


async def the_async_client_refuses(url: str) -> None:
    """Its HTTP library wraps errors of TLS in others."""
    async with AsyncClient(url, retries=ONCE) as client:
        with pytest.raises(Unreachable, match="its certificate is refused: self-signed"):
            await client.ping()
    async with AsyncClient(url.replace("https:", "http:"), retries=ONCE) as client:
        with pytest.raises(Unreachable, match="if it speaks TLS, its address begins with https://"):
            await client.ping()


def test_a_client_with_the_authority_works_and_others_do_not(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "first")
    with started(over_tls(cert, key)) as server:
        url = server.url.replace("http://", "https://")
        trusting = ssl.create_default_context(cafile=cert)
        with Client(url, ssl_context=trusting) as client:
            client.post("orders", {"order": 1})
            with client.claim("orders") as claim:
                assert [message.body for message in claim] == [{"order": 1}]
        with (
            Client(url, retries=ONCE) as client,
            pytest.raises(Unreachable, match="its certificate is refused: self-signed certificate"),
        ):
            client.ping()
        asyncio.run(the_async_client_refuses(url))
        with Client(server.url, retries=ONCE) as client, pytest.raises(Unreachable) as closed:
            client.ping()
        assert "if it speaks TLS, its address begins with https://" in str(closed.value)
        # An answer that comes before its request has ended: TLS can't close one direction alone.
        context = ssl.create_default_context(cafile=cert)
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as secure,
        ):
            secure.sendall(
                b"POST /v2/queues/q/claims HTTP/1.1\r\nHost: localhost\r\nX-Project-ID: p\r\n"
                b"Client-ID: 3381af92-2b9e-11e3-b191-71861300734c\r\n"
                b"Content-Length: 100000\r\n\r\n"
            )
            assert b" 413 " in secure.recv(4096)
        assert "Traceback" not in server.log()
        assert server.terminate() == 0


def test_nothing_below_tls_1_2_is_spoken(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "first")
    context = Certificate(cert, key, None).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_renewed_certificate_is_shown_and_a_broken_one_is_not(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "first")
    new_cert, new_key = make_certificate(tmp_path, "second")
    good = (cert.read_bytes(), key.read_bytes())
    with started(over_tls(cert, key)) as server:
        assert subject(server.port) == "first"
        key.write_bytes(new_key.read_bytes())  # not yet the certificate's: they do not fit
        server.wait_for(lambda: "was not renewed" in server.log())
        assert subject(server.port) == "first"
        cert.write_bytes(new_cert.read_bytes())  # found without a signal
        server.wait_for(lambda: subject(server.port) == "second")
        cert.write_bytes(good[0])
        key.write_bytes(good[1])
        os.kill(server.pid, signal.SIGHUP)
        server.wait_for(lambda: subject(server.port) == "first")


def resumed(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLSession | None:
    """Go on with a session, or begin one; answer it, None where the client is not let in."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=20) as raw,
        context.wrap_socket(raw, server_hostname="localhost", session=session) as secure,
    ):
        secure.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return secure.session if secure.recv(4096) else None
    return None


def test_clients_must_have_a_certificate_where_an_authority_is_named(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "first")
    mine, my_key = make_certificate(tmp_path, "client")
    other, other_key = make_certificate(tmp_path, "other client")
    authority = tmp_path / "authority"
    authority.write_bytes(mine.read_bytes())
    server = over_tls(cert, key, "--tls-client-ca", str(authority))
    with started(server):
        url = server.url.replace("http://", "https://")

        def ping(shown: tuple[Path, Path] | None) -> None:
            context = ssl.create_default_context(cafile=cert)
            if shown is not None:
                context.load_cert_chain(*shown)
            with Client(url, ssl_context=context, retries=ONCE) as client:
                client.ping()

        for stranger in (None, (other, other_key)):
            with pytest.raises(Unreachable):
                ping(stranger)
        ping((mine, my_key))
        context = ssl.create_default_context(cafile=cert)
        context.load_cert_chain(mine, my_key)
        session = resumed(server.port, context)
        assert session is not None
        authority.write_bytes(other.read_bytes())  # another one from now on
        server.wait_for(lambda: "was read again" in server.log())
        ping((other, other_key))
        with pytest.raises(Unreachable):
            ping((mine, my_key))
        assert resumed(server.port, context, session) is None


def test_a_websocket_is_closed_over_tls_as_in_clear(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "first")
    context = ssl.create_default_context(cafile=cert)
    with (
        started(over_tls(cert, key)) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw,
        # To end without TLS's own end is an error.
        context.wrap_socket(raw, server_hostname="localhost", suppress_ragged_eofs=False) as secure,
    ):
        # Up to Python 3.12 one thread must write and read: a ticket of TLS 1.3 that is read while
        # another thread writes makes the connection hang, whatever the server.
        wire = ClientProtocol(parse_uri(f"wss://localhost:{server.port}/v2/ws"))
        wire.send_request(wire.connect())
        secure.sendall(b"".join(wire.data_to_send()))
        while wire.state is State.CONNECTING:
            wire.receive_data(secure.recv(65_536))
        assert wire.state is State.OPEN
        wire.send_text(b"x" * 1_000, fin=False)
        for _ in range(399):
            wire.send_continuation(b"x" * 1_000, fin=False)
        with contextlib.suppress(OSError):  # it may have closed by then
            secure.sendall(b"".join(wire.data_to_send()))
        # The server ends TLS when the client is silent; after its whole patience it would cut it.
        while data := secure.recv(65_536):
            wire.receive_data(data)
        assert wire.close_rcvd is not None
        assert wire.close_rcvd.code == 1009


def test_clients_that_end_no_handshake_are_few_and_soon_gone(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "first")
    bounds = {"ZAQAR_LITE_MAX_CONNECTIONS": "8", "ZAQAR_LITE_REQUEST_TIMEOUT": "1"}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started(over_tls(cert, key, env=bounds)))
        assert subject(server.port) == "first"
        files = Path(f"/proc/{server.pid}/fd")
        idle = len(list(files.iterdir()))
        address = ("127.0.0.1", server.port)
        for _ in range(300):
            silent = stack.enter_context(socket.create_connection(address, timeout=20))
        assert silent.recv(1) == b"", "there was no room for it"
        assert len(list(files.iterdir())) <= idle + 8 + 64
        server.wait_for(lambda: len(list(files.iterdir())) <= idle, timeout=20)
        assert subject(server.port) == "first"


def test_files_that_can_not_be_used_are_one_line(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "first")
    _, other = make_certificate(tmp_path, "second")
    missing, sealed = tmp_path / "missing", tmp_path / "sealed"
    seal = ("openssl", "ec", "-in", str(key), "-out", str(sealed), "-aes256", "-passout", "pass:x")
    run_program(seal, check=True)
    for words in ((cert, missing), (cert, other), (key, key), (cert, sealed)):
        done = serve_in_vain("--store", "memory://", "--tls-cert", words[0], "--tls-key", words[1])
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("zaqar-lite: tls_cert")
        assert (missing not in words) or f"{missing}: No such file" in line

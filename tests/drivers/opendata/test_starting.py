"""A start that can't go on: it says why, and a signal ends it."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.services.process import free_port
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.opendata import slatedb as slatedb_engine
from zaqar_lite.storage.opendata.slatedb import SlateDbEngine

PING = {"Client-ID": "3381af92-2b9e-11e3-b191-71861300734c", "X-Project-Id": "ping"}


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """An object store that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        for name, value in (
            ("AWS_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}"),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "us-east-1"),
        ):
            monkeypatch.setenv(name, value)
        yield listener


@contextmanager
def starting(store: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "zaqar_lite.cli", "serve", "--store", store]
    with subprocess.Popen(
        [*command, "--port", str(free_port())], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def stop(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    process.send_signal(number)
    _, said = process.communicate(timeout=15)
    assert process.returncode == 0
    (line,) = said.splitlines()
    assert "stopped before it was ready" in line


def test_a_signal_ends_a_start_that_waits_for_an_object_store(silent: socket.socket) -> None:
    with starting("opendata+s3://bucket/prefix") as process:
        connection, _ = silent.accept()
        with connection:
            stop(process, signal.SIGINT)


@pytest.mark.anyio
async def test_an_object_store_that_does_not_answer_is_told(
    silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slatedb_engine, "_OPENING_REMOTE", 0.5)
    engine = SlateDbEngine.in_bucket("bucket", "prefix")
    with pytest.raises(Unavailable, match=r"no answer in 0\.5 seconds.*AWS_ENDPOINT"):
        await engine.open()
    await engine.close()
    silent.close()

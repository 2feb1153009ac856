"""A start that can't go on: it says why, and a signal ends it."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.server import ServerProcess
from tests.services.process import free_port
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.storage.opendata.engine import Batch, DirectoryLock
from zaqar_lite.storage.opendata.slatedb import opening
from zaqar_lite.storage.opendata.slatedb.engine import SlateDbEngine
from zaqar_lite.storage.opendata.sqlite.engine import SqliteEngine

PING = {"Client-ID": "3381af92-2b9e-11e3-b191-71861300734c", "X-Project-Id": "ping"}
SIGNALS = [signal.SIGINT, signal.SIGTERM]


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


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_start_that_waits_for_an_object_store(
    silent: socket.socket, number: signal.Signals
) -> None:
    with starting("opendata+s3://bucket/prefix") as process:
        connection, _ = silent.accept()
        with connection:
            stop(process, number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_start_that_waits_for_an_earlier_writer(
    tmp_path: Path, number: signal.Signals
) -> None:
    held = os.open(tmp_path / "writer.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with starting(f"embedded://{tmp_path}") as process:
            deadline = time.monotonic() + 60
            while not (tmp_path / "lock").exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            stop(process, number)
    finally:
        os.close(held)
    with ServerProcess(f"embedded://{tmp_path}") as server:
        assert httpx.get(f"{server.url}/v2/ping", headers=PING).status_code == 204


@pytest.mark.anyio
async def test_an_object_store_that_does_not_answer_is_told(
    silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_PATIENCE_REMOTE", 0.5)
    engine = SlateDbEngine.in_bucket("bucket", "prefix")
    with pytest.raises(Unavailable, match=r"no answer in 0\.5 seconds.*AWS_ENDPOINT"):
        await engine.open()
    await engine.close()
    silent.close()


def exists(file: Path) -> bool:
    return file.exists()


def cut_short(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 40_960)


@pytest.mark.anyio
async def test_a_rebuild_keeps_others_away_until_it_is_done(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path)
    await engine.open()
    for number in range(20):
        keys = (b"\x01%d-%d" % (number, row) for row in range(1_000))
        await engine.commit(Batch({key: os.urandom(900) for key in keys}, ()))
    await engine.close()
    file, new = engine.path, engine.path.with_name(f"{engine.path.name}.new")
    cut_short(file)
    start = asyncio.create_task(SqliteEngine(tmp_path).open())
    for _ in range(10_000):
        if exists(new):
            break
        await asyncio.sleep(0.001)
    start.cancel()
    while exists(new):
        with pytest.raises(ConfigurationError, match="Another server"):
            DirectoryLock(tmp_path).acquire()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await start
    again = SqliteEngine(tmp_path)
    await again.open()
    assert again.was_rebuilt
    await again.close()

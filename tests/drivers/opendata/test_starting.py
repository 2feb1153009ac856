"""A start: what a store's URI must be, and an object store that does not answer."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import ServerProcess, serve_in_vain
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.opendata import slatedb as slatedb_engine
from zaqar_lite.storage.opendata.slatedb import SlateDbEngine


@pytest.mark.parametrize("uri", ["http://[", "embedded:///x%00"])
def test_a_server_refuses_a_wrong_uri_in_one_line(uri: str) -> None:
    done = serve_in_vain("--store", uri)
    assert done.returncode == 1  # it can never work, as the settings are
    assert done.stderr.startswith("zaqar-lite: ")
    assert done.stderr.count("\n") == 1


def test_the_default_store_needs_no_extra(tmp_path: Path) -> None:
    """SlateDB is an extra; its library is not even loaded for a store on SQLite."""
    program = (
        "import sys; sys.modules['slatedb'] = None\n"
        "from zaqar_lite.domain.clock import Clock\n"
        "from zaqar_lite.domain.models import StoreOptions\n"
        "from zaqar_lite.storage.registry import create_stores\n"
        "create_stores(sys.argv[1], clock=Clock(), options=StoreOptions())"
    )
    for scheme, code in (("embedded", 0), ("opendata+slatedb", 1)):
        command = [sys.executable, "-c", program, f"{scheme}://{tmp_path / scheme}"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
    assert "pip install 'zaqar-lite[slatedb]'" in done.stderr


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


def test_a_signal_ends_a_start_that_waits_for_an_object_store(silent: socket.socket) -> None:
    with ServerProcess("opendata+s3://bucket/prefix").start(ready=None) as server:
        connection, _ = silent.accept()
        with connection:
            assert server.terminate() == 0
        assert "stopped before it was ready" in server.log()


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

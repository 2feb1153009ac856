"""The oldest releases of uvicorn and httptools that may be installed serve too."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import zaqar_lite
from tests.api.sockets import UPGRADE, Raw, chunked, request
from tests.server import ServerProcess

POST = "/v2/queues/q/messages"
MESSAGE = b'{"messages": [{"body": 1}]}'
LARGEST = 262_144
PYPROJECT = Path(zaqar_lite.__file__).parents[1] / "pyproject.toml"


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the oldest uvicorn and httptools allowed; the tests have the newest ones."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    wanted = [
        re.sub(r">=([\d.]+).*", r"==\1", one)
        for one in project["optional-dependencies"]["server"]
        if one.startswith(("uvicorn>=", "httptools>="))
    ]
    assert len(wanted) == 2
    place = tmp_path_factory.mktemp("oldest")
    pip = ["uv", "pip"] if shutil.which("uv") else [sys.executable, "-m", "pip"]
    install = [*pip, "install", "--quiet", "--no-deps", "--target", str(place)]
    if subprocess.run([*install, *wanted], check=False).returncode:
        pytest.skip("needs a package index")
    return place


def test_the_oldest_releases_serve_too(oldest: Path) -> None:
    """Requests one after the other, at once and in chunks, a WebSocket's handshake, and the end.

    httptools before 0.9 takes a body with an empty coding and a length for a counted one, others
    for a chunked one: a request could hide in it.
    """
    env = {"PYTHONPATH": f"{oldest}:{PYPROJECT.parent}"}
    with ServerProcess("memory://", env=env) as server:
        with Raw(server) as raw:
            assert raw.call("POST", POST, MESSAGE).status == 201
            raw.send(chunked("POST", POST, MESSAGE) + request("GET", POST) * 2)
            assert [raw.answer().status for _ in range(3)] == [201, 200, 200]
            raw.send(request("POST", POST, length=LARGEST + 1))
            assert raw.answer().headers["connection"] == "close"
        for body in (MESSAGE, b"%x\r\n%b\r\n0\r\n\r\n" % (len(MESSAGE), MESSAGE)):
            two = {"Transfer-Encoding": "", "Content-Length": str(len(body))}
            with Raw(server) as raw:
                raw.send(request("POST", POST, headers=two) + body)
                assert raw.answer().status == 400
                assert b"HTTP/1.1 2" not in raw.rest()
        with Raw(server) as raw:
            assert raw.call("GET", "/v2/ws", b"", **UPGRADE).status == 101
        assert server.terminate() == 0

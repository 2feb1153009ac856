"""The oldest releases of what we build on, as pyproject.toml allows them, serve too."""

import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from tests.api.sockets import UPGRADE, Raw, chunked, request
from tests.server import ServerProcess
from tests.services.process import missing, run_program

POST = "/v2/queues/q/messages"
MESSAGE = b'{"messages": [{"body": 1}]}'
LARGEST = 262_144
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OTHERS = {"all", "test", "spark", "spark-connect", "spark-hdfs"}
OLDEST = [
    re.sub(r">=([\d.]+).*", r"==\1", one)
    for extra, wanted in {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items()
    if extra not in OTHERS
    for one in wanted
    if ">=" in one
]
FOLDERS = ("domain", "service", "api", "client", "commands", "push")


def install(place: Path, *wanted: str) -> dict[str, str]:
    """Install packages beside ours, which have the newest releases; answer what finds them."""
    pip = ["uv", "pip"] if shutil.which("uv") else [sys.executable, "-m", "pip"]
    done = run_program([*pip, "install", "-q", "--target", place, *wanted])
    if done.returncode:
        missing("the oldest releases", f"they could not be installed:\n{done.stderr[-2000:]}")
    return {"PYTHONPATH": f"{place}:{ROOT}"}


def test_the_oldest_releases_serve_too(tmp_path: Path) -> None:
    """Requests one after the other, at once and in chunks, a WebSocket's handshake, and the end.

    httptools before 0.9 takes a body with an empty coding and a length for a counted one, others
    for a chunked one: a request could hide in it.
    """
    parsers = [one for one in OLDEST if one.startswith(("uvicorn==", "httptools=="))]
    env = install(tmp_path, "--no-deps", *parsers)
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


@pytest.mark.skipif("ZAQAR_TEST_ALL" not in os.environ, reason="minutes: tests/run --all")
def test_our_tests_pass_with_the_oldest_releases(tmp_path: Path) -> None:
    """Those that start no program; the parts for Spark have tests of their own."""
    env = dict(os.environ) | install(tmp_path, *OLDEST)
    env |= {"ZAQAR_TEST_QUICK": "1", "ZAQAR_TEST_DRIVERS": "memory"}
    del env["ZAQAR_TEST_ALL"]
    words = ["-q", "-n", "4", "--dist", "loadfile", "-m", "not slow", "-W", "ignore"]
    folders = (f"tests/{name}" for name in FOLDERS)
    done = run_program([sys.executable, "-m", "pytest", *words, *folders], cwd=ROOT, env=env)
    assert done.returncode == 0, done.stdout[-3000:]

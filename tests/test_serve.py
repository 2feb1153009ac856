"""`zaqar-lite serve` as a process: start, refuse, log, drain."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.sockets import Raw, request
from tests.server import ServerProcess, environment, serve_in_vain
from tests.services.process import free_port, listens, run_program, wait_until
from zaqar_lite.bench.machine import cpu_seconds
from zaqar_lite.cli import main

HEADERS = {"Client-ID": str(uuid.uuid4()), "X-Project-ID": "demo"}
SERVE = [sys.executable, "-m", "zaqar_lite.cli", "serve"]


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Undo what a server that starts in this process does to the loggers, which all tests share."""
    names = ("", "zaqar_lite", "httpx", "swiftclient", "pika", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    before = [(one, one.level, one.handlers[:]) for one in loggers]
    yield
    for one, level, handlers in before:
        one.setLevel(level)
        one.handlers[:] = handlers


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--store", "memory://", "--workers", "2"], ["memory", "one process", "--workers 1"]),
        (["--store", "mysql://x"], ["mysql", "redis://"]),
        (["--store", "/srv/queues"], ["For a directory write embedded:PATH"]),
        (["--store", "memory://host"], ["memory://"]),
        (["--store", "redis://[::1/0"], ["can't be read"]),
        (["--store", "redis://[::1/0", "--workers", "2"], ["can't be read"]),
        (["--store", "redis://h?timeout=never", "--workers", "2"], ["timeout"]),
        (["--store", "memory://", "--host", "0.0.0.0"], ["0.0.0.0", "--trust-headers"]),  # noqa: S104
        (["--config", "/none.toml"], ["/none.toml"]),
    ],
)
def test_refuses_to_start_with_one_clear_line(
    options: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("ZAQAR_")]:
        monkeypatch.delenv(name)
    assert main(["serve", *options]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    for word in words:
        assert word in line


def test_a_start_imports_nothing_that_most_requests_do_without() -> None:
    program = (
        "import sys, zaqar_lite.serve\n"
        "from zaqar_lite.main import create_app\n"
        "create_app()\n"
        "slow = {'fastapi', 'starlette', 'aiohttp', 'redis', 'pymongo', 'zaqar_lite.client'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = run_program(
        [sys.executable, "-c", program],
        check=True,
        env={**os.environ, "ZAQAR_LITE_STORE": "memory://"},
    )
    assert done.stdout == "[]\n"


def test_refuses_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = serve_in_vain("--store", "memory://", "--port", port)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert port in line


def test_refuses_a_host_that_no_name_can_be() -> None:
    done = serve_in_vain("--store", "memory://", "--auth", "keys", "--host", "é" * 70)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "can't listen on é" in line


def test_starts_and_idles_small() -> None:
    with ServerProcess("memory://") as warm:
        assert warm.alive()
    with ServerProcess("memory://") as server:
        # CPU time, not wall time: a busy machine must not fail this. The goal is ready in 1 s.
        assert cpu_seconds([server.pid]) < 1.5
        status = Path(f"/proc/{server.pid}/status").read_text()
        (resident,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
        assert int(resident) < 90 * 1024


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_serves_with_standard_streams_closed(closed: tuple[int, ...], tmp_path: Path) -> None:
    """As `serve >&-` does: a socket would get the number of a stream, and be printed to."""
    port = free_port()
    streams = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    words = [*SERVE, "--port", str(port), "--store", f"embedded://{tmp_path}"]
    with subprocess.Popen(["sh", "-c", f'exec "$@" {streams}', "sh", *words]) as running:
        try:
            wait_until(lambda: listens(port) or running.poll() is not None, [])
            answer = httpx.put(f"http://127.0.0.1:{port}/v2/queues/q", headers=HEADERS)
            assert answer.status_code == 201
        finally:
            running.terminate()
        assert running.wait(30) == 0


def test_logs_json_lines_without_bodies_or_tokens() -> None:
    with ServerProcess("memory://", "--access-log") as server:
        caller = f"req-{uuid.uuid4()}"
        trace = f"00-{'4b' * 16}-{'a3' * 8}-01"
        secret = {"X-Auth-Token": "token-sesame", "traceparent": trace, **HEADERS}
        secret["X-OpenStack-Request-ID"] = caller
        body = {"messages": [{"body": "body-sesame"}]}
        posted = httpx.post(f"{server.url}/v2/queues/q/messages", json=body, headers=secret)
        assert posted.status_code == 201
        server.terminate()
        log = server.log()
    assert "sesame" not in log
    lines = [json.loads(line) for line in log.splitlines()]
    (access,) = [line for line in lines if line.get("route") == "post_messages"]
    assert access["status"] == 201
    assert access["project"] == "demo"
    assert access["request_id"] == posted.headers["x-openstack-request-id"]
    assert access["milliseconds"] > 0
    assert access["caller_request_id"] == caller != access["request_id"]
    assert (access["trace_id"], access["span_id"]) == ("4b" * 16, "a3" * 8)
    assert (access["method"], access["queue"]) == ("POST", "q")
    assert access["path"] == "/v2/queues/{queue_name}/messages"
    assert access["client"] == HEADERS["Client-ID"].replace("-", "")
    assert any("listening on" in line["message"] for line in lines)


@pytest.fixture(scope="module")
def bounded() -> Iterator[ServerProcess]:
    """A server with small bounds for connections."""
    bounds = {"ZAQAR_LITE_REQUEST_TIMEOUT": "1"}
    with ServerProcess("memory://", env=bounds) as server:
        yield server


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /v2/queues HTTP/1.1\r\nHost:",
        request("POST", "/v2/queues/q/messages", b'{"messages": ', length=27),
    ],
)
def test_an_incomplete_request_is_given_up(bounded: ServerProcess, begun: bytes) -> None:
    with Raw(bounded) as raw:
        raw.send(begun)
        started = time.monotonic()
        assert raw.rest() == b""
        assert 0.9 <= time.monotonic() - started < 20
    with httpx.Client(base_url=bounded.url, headers=HEADERS) as http:
        assert http.get("/v2/queues").json()["queues"] == []


def test_finishes_what_is_under_way_and_exits_0() -> None:
    content, waits = b'{"messages": [{"body": 1}]}', {"Expect": "100-continue"}
    with ServerProcess("memory://") as server, Raw(server) as raw:
        raw.send(request("POST", "/v2/queues/q/messages", length=len(content), headers=waits))
        assert raw.answer().status == 100
        os.kill(server.pid, signal.SIGTERM)
        server.wait_for(lambda: not listens(server.port))
        raw.send(content)
        assert raw.answer().status == 201
        assert server.terminate() == 0


def test_the_command_names_the_extra_that_is_missing() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from zaqar_lite.cli import main; raise SystemExit(main(['serve']))"
    )
    finished = run_program([sys.executable, "-c", code])
    assert finished.returncode == 2
    assert "zaqar-lite[server]" in finished.stderr


def test_keeps_queues_in_the_working_directory_without_any_option(tmp_path: Path) -> None:
    def start() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [*SERVE, "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(),
        )
        assert process.stderr is not None
        line = json.loads(process.stderr.readline())["message"]
        assert line.endswith("(store embedded:zaqar-lite-data)")
        return process, line.split()[2]

    first, url = start()
    body = {"messages": [{"body": "durable"}]}
    assert httpx.post(f"{url}/v2/queues/q/messages", json=body, headers=HEADERS).is_success
    assert (tmp_path / "zaqar-lite-data").is_dir()
    second = serve_in_vain(cwd=tmp_path)
    assert second.returncode != 0
    (line,) = second.stderr.strip().splitlines()
    assert "zaqar-lite-data" in line
    first.kill()
    first.communicate()
    again, url = start()
    listed = httpx.get(f"{url}/v2/queues/q/messages?echo=true", headers=HEADERS).json()
    assert [message["body"] for message in listed["messages"]] == ["durable"]
    again.terminate()
    again.communicate()
    assert again.returncode == 0

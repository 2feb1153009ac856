"""Starting: what a server does while its store does not answer, and when a worker dies."""

import contextlib
import json
import os
import resource
import signal
import sys
import uuid
from pathlib import Path

import httpx
import pytest

from tests.server import ServerProcess
from tests.services.process import find_program, free_port, listens, run_program, wait_until
from tests.services.redis import RedisServer, start_redis
from tests.test_tls import make_certificate, over_tls, subject

HEADERS = {"Client-ID": str(uuid.uuid4()), "X-Project-ID": "demo"}
EVICTS = ("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
WAITS = "waiting for the store"


def lines(server: ServerProcess, words: str) -> list[str]:
    """The log's messages with these words."""
    messages = [json.loads(line)["message"] for line in server.log().splitlines()]
    return [message for message in messages if words in message]


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_store_that_can_never_work_ends_the_server_with_exit_code_1(
    workers: str, is_late: bool
) -> None:
    port = free_port()
    server = ServerProcess(f"redis://127.0.0.1:{port}/0", "--workers", workers)
    with contextlib.ExitStack() as stack:
        if is_late:
            stack.enter_context(server.start(ready=503))
        stack.enter_context(start_redis(port=port, options=EVICTS))
        if not is_late:
            stack.enter_context(server.start(ready=None))
        wait_until(lambda: not server.alive(), [])
        assert server.terminate() == 1
        log = [json.loads(line) for line in server.log().splitlines()]
    fatal = [line for line in log if line["level"] == "critical"]
    assert fatal
    assert all("maxmemory-policy noeviction" in line["message"] for line in fatal)
    # The other worker may have been stopped before it came to that.
    assert {line["level"] for line in log} <= {"critical", "info", *["warning"] * is_late}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_store_that_does_not_answer_yet_is_waited_for(workers: str) -> None:
    find_program("redis-server", "redis-server")
    port = free_port()
    server = ServerProcess(f"redis://127.0.0.1:{port}/0", "--workers", workers)
    with server.start(ready=503), httpx.Client(base_url=server.url, headers=HEADERS) as http:
        for method, path in (
            ("GET", "/v2/ping"),
            ("GET", "/v2/queues"),
            ("PUT", "/v2/queues/q"),
            ("POST", "/v2/queues/q/messages"),
            ("POST", "/v2/queues/q/claims"),
            ("DELETE", "/v2/queues/q/messages/1"),
        ):
            answer = http.request(method, path)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1"), path
        assert http.head("/v2/ping").status_code == 204
        for path in ("/v2/", "/v2", "/livez"):
            assert http.get(path).status_code == 200
        assert http.get("/").status_code == 300
        wait_until(lambda: len(lines(server, WAITS)) == int(workers), [])
        assert str(port) in lines(server, WAITS)[0]
        with start_redis(port=port):
            wait_until(lambda: len(lines(server, "the store is open")) == int(workers), [])
            assert server.ping() == 204
            body = {"messages": [{"body": 1}]}
            assert http.post("/v2/queues/q/messages", json=body).status_code == 201
        assert server.terminate() == 0
        assert len(lines(server, WAITS)) == int(workers)


@pytest.mark.parametrize(
    "uri",
    [
        "redis://127.0.0.1:{}/0",
        "mongodb://127.0.0.1:{}/?serverSelectionTimeoutMS=4000",
        "swift+https:///?cloud=envvars&patience=4",
    ],
)
def test_a_server_that_waits_for_its_store_says_why_and_ends_by_a_signal(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("OS_AUTH_URL", f"http://127.0.0.1:{port}")
    for name in ("USERNAME", "PASSWORD", "PROJECT_NAME"):
        monkeypatch.setenv(f"OS_{name}", "somebody")
    server = ServerProcess(uri.format(port))
    with server.start(ready=503):
        wait_until(lambda: any("Errno" in line for line in lines(server, WAITS)), [])
        assert server.terminate() == 0
        assert len(lines(server, "")) == len(lines(server, WAITS)) + len(lines(server, "listening"))


FAILS_AS_IT_STARTS = """
import argparse, asyncio, sys
from contextlib import asynccontextmanager
from zaqar_lite import serve
from zaqar_lite.domain.errors import ConfigurationError

make = serve.create_app

@asynccontextmanager
async def lifespan(fail):
    asyncio.get_running_loop().call_soon(fail, ConfigurationError("It never works."))
    yield

def create_app(*arguments):
    app = make(*arguments)
    app.lifespan = lifespan
    return app

serve.create_app = create_app
parser = argparse.ArgumentParser()
serve.add_commands(parser.add_subparsers())
sys.exit(serve.run(parser.parse_args()))
"""


def test_an_error_in_the_moment_in_which_the_start_ends_is_no_traceback() -> None:
    finished = run_program(
        [
            *(sys.executable, "-c", FAILS_AS_IT_STARTS, "serve"),
            *("--store", "memory://", "--port", str(free_port())),
        ]
    )
    assert "It never works." in finished.stderr
    assert "Traceback" not in finished.stderr
    assert finished.returncode == 1


def test_a_worker_that_dies_is_replaced_and_all_end_with_their_parent(
    redis_server: RedisServer,
) -> None:
    with ServerProcess(redis_server.url, "--workers", "2") as server:
        wait_until(lambda: len(server.workers()) == 2, [])
        dead, other = server.workers()
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: len(set(server.workers()) - {dead, other}) == 1, [])
        assert other in server.workers()
        (line,) = lines(server, "takes its place")
        assert f"worker {dead} ended by signal 9" in line
        assert server.ping() == 204
        assert len(lines(server, "listening on")) == 1
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not listens(server.port), [])


def test_a_worker_that_can_not_start_now_is_tried_again_and_ends_no_other(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """A file may be half written in the moment in which a worker takes another's place."""
    cert, key = make_certificate(tmp_path, "first")
    server = over_tls(cert, key, "--workers", "2", store=redis_server.url)
    with server.start(ready=None):
        server.wait_for(lambda: len(server.workers()) == 2 and "listening on" in server.log())
        good = cert.read_bytes()
        dead, other = server.workers()
        os.kill(dead, signal.SIGSTOP)
        assert subject(server.port) == "first", "the other one has read its files and serves"
        cert.write_bytes(b"half")
        os.kill(dead, signal.SIGKILL)
        server.wait_for(lambda: len(lines(server, "takes its place")) > 1)
        assert lines(server, "tls_cert")
        assert "Traceback" not in server.log()
        assert subject(server.port) == "first"
        cert.write_bytes(good)
        server.wait_for(lambda: len(server.workers()) == 2)
        os.kill(other, signal.SIGKILL)
        server.wait_for(lambda: other not in server.workers())
        server.wait_for(lambda: subject(server.port) == "first")


def test_a_server_that_can_make_no_process_now_serves_on_and_tries_again(
    redis_server: RedisServer,
) -> None:
    with ServerProcess(redis_server.url, "--workers", "2") as server:
        server.wait_for(lambda: len(server.workers()) == 2)
        dead, other = server.workers()
        before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (4, before[1]))
        os.kill(dead, signal.SIGKILL)
        server.wait_for(lambda: bool(lines(server, "no worker can be started now")))
        assert server.ping() == 204
        assert server.workers() == [other]
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)
        server.wait_for(lambda: len(server.workers()) == 2)

"""A server under an orchestrator: probes, the drain, systemd's datagrams, a reload by SIGHUP."""

import json
import os
import signal
import socket
import tempfile
import time
import uuid
from pathlib import Path

import httpx
import pytest

from tests.server import PING_HEADERS, ServerProcess


def heard(notified: socket.socket, state: bytes) -> None:
    """Wait until systemd's socket was told a state."""
    notified.settimeout(30)
    while notified.recv(1_024) != state:
        pass


def test_a_stop_is_unready_first_and_serves_on_for_the_drain_delay(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(address)
        env = {
            "ZAQAR_LITE_DRAIN_DELAY": "60",
            "NOTIFY_SOCKET": address,
            "WATCHDOG_USEC": "100000",
        }
        with ServerProcess("memory://", env=env) as server:
            heard(notified, b"READY=1")
            heard(notified, b"WATCHDOG=1")
            assert httpx.get(f"{server.url}/readyz").text == "ok\n"
            os.kill(server.pid, signal.SIGTERM)
            heard(notified, b"STOPPING=1")
            draining = httpx.get(f"{server.url}/readyz")
            assert draining.status_code == 503
            assert "draining: the server is stopping" in draining.text
            assert httpx.get(f"{server.url}/livez").status_code == 200
            assert httpx.put(f"{server.url}/v2/queues/q", headers=PING_HEADERS).status_code == 201
            # A second and a third signal are in a hurry.
            os.kill(server.pid, signal.SIGINT)
            assert server.terminate() == 0


def test_several_processes_are_counted_as_one_server(request: pytest.FixtureRequest) -> None:
    redis = request.getfixturevalue("redis_server")
    env = {"ZAQAR_LITE_COUNT_INTERVAL": "0.1"}
    queue = uuid.uuid4().hex
    with ServerProcess(redis.url, "--workers", "2", env=env) as server:

        def shown() -> dict[str, str]:
            text = httpx.get(f"{server.url}/metrics").text
            return dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")

        url = f"{server.url}/v2/queues/{queue}"
        httpx.put(url, headers=PING_HEADERS, json={"_monitor": True})
        for _ in range(40):  # each by a connection of its own, so by either process
            body = {"messages": [{"body": 1}]}
            httpx.post(f"{url}/messages", json=body, headers=PING_HEADERS)
        server.wait_for(lambda: shown()["zaqar_lite_posted_messages_total"] == "40")
        depth = f'zaqar_lite_queue_messages{{project="ping",queue="{queue}",state="ready"}}'
        server.wait_for(lambda: shown().get(depth) == "40")
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        server.wait_for(lambda: "another one takes its place" in server.log())
        assert int(shown()["zaqar_lite_posted_messages_total"]) == 40
        assert server.terminate() == 0
    assert not list(Path(tempfile.gettempdir()).glob(f"zaqar-lite-metrics-{server.pid}-*"))


def refused_ttl(server: ServerProcess) -> bool:
    """Whether a message that lives for 1,000 seconds is too much."""
    body = {"messages": [{"body": 1, "ttl": 1_000}]}
    posted = httpx.post(f"{server.url}/v2/queues/q/messages", json=body, headers=PING_HEADERS)
    assert posted.status_code in (201, 400)
    return posted.status_code == 400


def refused_queue(server: ServerProcess) -> bool:
    """Whether a queue is more than the project may have."""
    made = httpx.put(f"{server.url}/v2/queues/{uuid.uuid4().hex}", headers=PING_HEADERS)
    assert made.status_code in (201, 403)
    return made.status_code == 403


def reload(server: ServerProcess, *, until: str) -> None:
    """Ask for a reload, and wait for what the log says of it."""
    said = server.log().count(until)
    os.kill(server.pid, signal.SIGHUP)
    server.wait_for(lambda: server.log().count(until) > said)


def test_sighup_takes_limits_and_log_level_over_or_changes_nothing(tmp_path: Path) -> None:
    config = tmp_path / "zaqar.toml"
    config.write_text("max_message_ttl = 2000\ndefault_message_ttl = 400\n")
    with ServerProcess("memory://", "--config", str(config)) as server:
        assert not refused_ttl(server)
        openapi = f"{server.url}/openapi.json"
        assert '"maximum":2000' in httpx.get(openapi).text
        config.write_text(
            "max_message_ttl = 950\ndefault_message_ttl = 400\nrequest_timeout = 2.0\n"
        )
        reload(server, until="only a restart changes request_timeout")
        assert refused_ttl(server)
        assert '"maximum":2000' not in httpx.get(openapi).text
        assert not refused_queue(server)
        config.write_text("default_message_ttl = 400\nmax_message_ttl = 3000\nlog_level = 'loud'\n")
        reload(server, until="nothing was reloaded")
        assert refused_ttl(server)
        config.write_text(
            "default_message_ttl = 400\nmax_message_ttl = 3000\nlog_level = 'debug'\n"
            "[quotas]\nqueues = 0\n"
        )
        reload(server, until="reloaded: ")
        assert refused_queue(server)
        assert httpx.get(f"{server.url}/v2/none", headers=PING_HEADERS).status_code == 404
        server.wait_for(lambda: '"status": 404' in server.log())
        told = [json.loads(line) for line in server.log().splitlines()]
        (wrong,) = [line for line in told if line["level"] == "error"]
        assert "log_level" in wrong["message"]
        started = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - started < 20


def test_sighup_reaches_processes_that_start_and_those_that_replace_others(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    redis = request.getfixturevalue("redis_server")
    config = tmp_path / "zaqar.toml"
    config.write_text("max_message_ttl = 2000\ndefault_message_ttl = 400\n")
    server = ServerProcess(redis.url, "--workers", "2", "--config", str(config))
    server.start(ready=None)
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")

    def workers() -> list[int]:
        return [
            pid
            for pid in map(int, children.read_text().split())
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    with server:
        server.wait_for(lambda: len(workers()) == 2)
        config.write_text("max_message_ttl = 950\ndefault_message_ttl = 400\n")
        os.kill(server.pid, signal.SIGHUP)
        told = "reloaded: max_message_ttl changed"
        server.wait_for(lambda: server.log().count(told) == 2)
        assert "takes its place" not in server.log()
        os.kill(workers()[-1], signal.SIGKILL)
        server.wait_for(lambda: server.log().count(told) == 3)
        assert server.terminate() == 0

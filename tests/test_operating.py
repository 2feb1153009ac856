"""A server under an orchestrator: probes, the drain, systemd; several processes as one server."""

import os
import signal
import socket
import tempfile
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

"""A server under an orchestrator or an operator: probes, the drain, several processes, SIGHUP."""

import json
import os
import signal
import socket
import tempfile
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomlkit

from tests.server import PING_HEADERS, ServerProcess
from zaqar_lite.server.loading import RELOADED


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
    queue = uuid.uuid4().hex
    with ServerProcess(redis.url, "--workers", "2") as server:

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
        os.kill(server.workers()[-1], signal.SIGKILL)
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
    with server.start(ready=None):
        server.wait_for(lambda: len(server.workers()) == 2)
        config.write_text("max_message_ttl = 950\ndefault_message_ttl = 400\n")
        os.kill(server.pid, signal.SIGHUP)
        told = "reloaded: max_message_ttl changed"
        server.wait_for(lambda: server.log().count(told) == 2)
        assert "takes its place" not in server.log()
        os.kill(server.workers()[-1], signal.SIGKILL)
        server.wait_for(lambda: server.log().count(told) == 3)
        assert server.terminate() == 0


# A setting: its value before and after, and what is seen of it before and after.
CHANGES: dict[str, tuple[Any, Any, Any, Any]] = {
    "default_message_ttl": (400, 500, 400, 500),
    "max_messages_per_page": (15, 17, 400, 200),
    "max_large_page": (30, 40, 400, 200),
    "max_message_ttl": (3000, 4000, 400, 201),
    "max_message_delay": (100, 200, 400, 201),
    "max_claim_ttl": (500, 600, 400, 201),
    "message_delete_with_claim_id": (True, False, 400, 204),
    "max_filters_per_project": (1, 2, 400, 201),
    "quotas": ({"subscriptions": 1}, {"subscriptions": 2}, 403, 201),
    "log_level": ("info", "debug", False, True),
}


def seen(server: ServerProcess) -> dict[str, Any]:
    """What is seen of each setting, in a project of its own."""
    headers = {**PING_HEADERS, "X-Project-Id": uuid.uuid4().hex}
    with httpx.Client(base_url=f"{server.url}/v2/queues", headers=headers) as http:

        def status(method: str, path: str, document: object = None) -> int:
            return http.request(method, path, json=document).status_code

        def post(queue: str, **fields: int) -> int:
            return status("POST", f"{queue}/messages", {"messages": [{"body": 1, **fields}]})

        def subscribe(queue: str) -> int:
            return status("POST", f"{queue}/subscriptions", {"subscriber": "http://203.0.113.1/"})

        post("q")
        status("PUT", "late", {"_default_message_delay": 1})
        (listed,) = http.get("q/messages?echo=true").json()["messages"]
        status("GET", "none/messages/none")
        return {
            "default_message_ttl": listed["ttl"],
            "max_messages_per_page": status("GET", "q/messages?limit=16"),
            "max_large_page": status("GET", "q/messages?limit=35&large=true"),
            "max_message_ttl": post("q", ttl=3500),
            "max_message_delay": post("late", delay=150),
            "max_claim_ttl": status("POST", "q/claims", {"ttl": 550}),
            "message_delete_with_claim_id": status("DELETE", f"q/messages?ids={'0' * 32}"),
            "max_filters_per_project": [status("PUT", n, {"_filter": "TRUE"}) for n in "ab"][1],
            "quotas": [subscribe(name) for name in "ab"][1],
            "log_level": '"status": 404' in server.log(),
        }


def write(config: Path, which: int, **more: Any) -> None:
    values = {name: change[which] for name, change in CHANGES.items()}
    config.write_text(tomlkit.dumps({**values, **more}))


def reload(server: ServerProcess, *, until: str) -> None:
    """Ask for a reload, and wait for what the log says of it."""
    said = server.log().count(until)
    os.kill(server.pid, signal.SIGHUP)
    server.wait_for(lambda: server.log().count(until) > said)


def test_every_reloadable_setting_is_changed_by_sighup_and_holds(tmp_path: Path) -> None:
    assert CHANGES.keys() == RELOADED
    config = tmp_path / "zaqar.toml"
    write(config, 0)
    options = ("--config", str(config), "--admin-mode", "--pooling")
    with ServerProcess("memory://", *options) as server:
        assert seen(server) == {name: change[2] for name, change in CHANGES.items()}
        write(config, 1)
        reload(server, until="reloaded: ")
        assert seen(server) == {name: change[3] for name, change in CHANGES.items()}
        document = httpx.get(f"{server.url}/openapi.json").text
        assert '"maximum":4000' in document
        assert '"maximum":3000' not in document
        # A file that is wrong changes nothing, and says where.
        write(config, 0, log_level="loud")
        reload(server, until="nothing was reloaded")
        assert seen(server) == {name: change[3] for name, change in CHANGES.items()}
        told = [json.loads(line) for line in server.log().splitlines()]
        (wrong,) = [line for line in told if line["level"] == "error"]
        assert "log_level" in wrong["message"]
        write(config, 0, request_timeout=2.0)
        reload(server, until="only a restart changes request_timeout")

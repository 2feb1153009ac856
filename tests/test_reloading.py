"""SIGHUP changes every setting that says so: each is changed here, and seen to hold."""

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import tomlkit

from tests.server import PING_HEADERS, ServerProcess
from zaqar_lite.server.loading import RELOADED

URL = "http://203.0.113.1/hook"


class Place:
    """A project of its own on the server, in which a setting is looked at."""

    _numbers = itertools.count()

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        headers = {**PING_HEADERS, "X-Project-Id": f"project-{next(self._numbers)}"}
        self.http = httpx.Client(base_url=server.url, headers=headers)

    def status(self, method: str, path: str, document: object = None) -> int:
        return self.http.request(method, path, json=document).status_code

    def read(self, path: str) -> Any:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, *messages: dict[str, Any], queue: str = "q") -> int:
        path = f"/v2/queues/{queue}/messages"
        return self.status("POST", path, {"messages": list(messages) or [{"body": 1}]})

    def listed(self, **asked: str) -> list[dict[str, Any]]:
        path = f"/v2/queues/q/messages?{httpx.QueryParams({'echo': 'true', **asked})}"
        messages: list[dict[str, Any]] = self.read(path)["messages"]
        return messages

    def claim(self, document: dict[str, int] | None = None) -> httpx.Response:
        return self.http.post("/v2/queues/q/claims", json=document or {})

    def subscribe(self, queue: str, number: int) -> int:
        document = {"subscriber": f"{URL}/{number}"}
        return self.status("POST", f"/v2/queues/{queue}/subscriptions", document)


def claims_with(field: str, seconds: int) -> Callable[[Place], int]:
    def claim(place: Place) -> int:
        place.post()
        return place.claim({field: seconds}).status_code

    return claim


def headers(*sizes: int) -> Callable[[Place], int]:
    given = {f"h{number}": "x" * size for number, size in enumerate(sizes)}
    return lambda place: place.post({"body": 1, "headers": given})


def delayed(place: Place) -> int:
    place.status("PUT", "/v2/queues/q", {"_default_message_delay": 1})
    return place.post({"body": 1, "delay": 150})


def filtered(place: Place) -> int:
    place.status("PUT", "/v2/queues/first", {"_filter": "TRUE"})
    return place.status("PUT", "/v2/queues/second", {"_filter": "TRUE"})


def subscribed_in_two_queues(place: Place) -> int:
    place.subscribe("q", 1)
    return place.subscribe("r", 1)


def queues(place: Place) -> int:
    return [place.status("PUT", f"/v2/queues/{n}") for n in range(5)].count(201)


def logged(place: Place) -> bool:
    assert place.status("GET", "/v2/none") == 404
    return '"status": 404' in place.server.log()


def answers(method: str, path: str) -> Callable[[Place], int]:
    return lambda place: place.status(method, path)


# A setting: its value before and after, how it is seen, and what is seen before and after.
CHANGES: dict[str, tuple[Any, Any, Callable[[Place], Any], Any, Any]] = {
    "default_message_ttl": (400, 500, lambda at: (at.post(), at.listed()[0]["ttl"])[1], 400, 500),
    "max_messages_per_page": (15, 17, answers("GET", "/v2/queues/q/messages?limit=16"), 400, 200),
    "max_large_page": (
        *(30, 40, answers("GET", "/v2/queues/q/messages?limit=35&large=true")),
        *(400, 200),
    ),
    "max_message_ttl": (3000, 4000, lambda at: at.post({"body": 1, "ttl": 3500}), 400, 201),
    "max_message_delay": (100, 200, delayed, 400, 201),
    "max_claim_ttl": (500, 600, claims_with("ttl", 550), 400, 201),
    "message_delete_with_claim_id": (
        *(True, False, answers("DELETE", f"/v2/queues/q/messages?ids={'0' * 32}")),
        *(400, 204),
    ),
    "max_filters_per_project": (1, 2, filtered, 400, 201),
    "quotas": ({"subscriptions": 1}, {"subscriptions": 2}, subscribed_in_two_queues, 403, 201),
    "log_level": ("info", "debug", logged, False, True),
}


def write(config: Path, which: int, **more: Any) -> None:
    values = {name: change[which] for name, change in CHANGES.items()}
    config.write_text(tomlkit.dumps({**values, **more}))


def reload(server: ServerProcess, *, until: str) -> None:
    """Ask for a reload, and wait for what the log says of it."""
    said = server.log().count(until)
    os.kill(server.pid, signal.SIGHUP)
    server.wait_for(lambda: server.log().count(until) > said)


def seen(server: ServerProcess) -> dict[str, Any]:
    found = {}
    for name, change in CHANGES.items():
        place = Place(server)
        with place.http:
            found[name] = change[2](place)
    return found


def test_every_reloadable_setting_is_changed_by_sighup_and_holds(tmp_path: Path) -> None:
    assert CHANGES.keys() == RELOADED
    config = tmp_path / "zaqar.toml"
    write(config, 0)
    options = ("--config", str(config), "--admin-mode", "--pooling")
    with ServerProcess("memory://", *options) as server:
        assert seen(server) == {name: change[3] for name, change in CHANGES.items()}
        write(config, 1)
        reload(server, until="reloaded: ")
        assert seen(server) == {name: change[4] for name, change in CHANGES.items()}
        document = httpx.get(f"{server.url}/openapi.json").text
        assert '"maximum":4000' in document
        assert '"maximum":3000' not in document
        # A file that is wrong changes nothing, and says where.
        write(config, 0, log_level="loud")
        reload(server, until="nothing was reloaded")
        assert seen(server) == {name: change[4] for name, change in CHANGES.items()}
        told = [json.loads(line) for line in server.log().splitlines()]
        (wrong,) = [line for line in told if line["level"] == "error"]
        assert "log_level" in wrong["message"]
        write(config, 0, request_timeout=2.0)
        reload(server, until="only a restart changes request_timeout")

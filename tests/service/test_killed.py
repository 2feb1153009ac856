"""kill -9 of servers in the middle of a redrive and of schedules: nothing twice, nothing lost.

Behind `tests/run --all` there are more letters, kills and days.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.server import ServerProcess
from tests.services import start_redis
from tests.services.process import wait_until

IS_LONG = "ZAQAR_TEST_ALL" in os.environ
LETTERS, KILLS = (20_000, 5) if IS_LONG else (1_500, 2)
DAYS, DEATHS = (10, 20) if IS_LONG else (1, 2)
HEADERS = {"Client-ID": str(uuid4()), "X-Project-ID": f"killed-{uuid4().hex[:8]}"}
STEP, HOUR, DAY = 600, 3_600, 86_400
"""Seconds; a step is how far the clock moves at a time."""


class Servers:
    """Server processes over one store, any of which may be killed; their clock can be moved."""

    def __init__(self, store: str, count: int, directory: Path, *options: str) -> None:
        self._offset_file = directory / "clock"
        self._offset = 0
        env = {
            "ZAQAR_LITE_CLOCK_OFFSET_FILE": str(self._offset_file),
            # The clock may move on by hours while a server starts again.
            "ZAQAR_LITE_IDEMPOTENCY_WINDOW": str(DAY),
        }
        self._servers = [ServerProcess(store, *options, env=env) for _ in range(count)]
        for server in self._servers:
            server.start()

    def advance(self, seconds: int) -> None:
        self._offset += seconds * 1_000
        written = self._offset_file.with_suffix(".new")
        written.write_text(str(self._offset))
        written.rename(self._offset_file)

    def kill_one(self, away: int = 11) -> None:
        """Kill a server and start it again after some seconds, which are not waited for."""
        server = random.choice(self._servers)
        server.kill()
        self.advance(away)
        server.start()

    def now(self) -> float:
        """What time it is for the servers, in seconds since 1970."""
        return time.time() + self._offset / 1000

    def call(self, method: str, path: str, document: Any = None) -> httpx.Response:
        url = self._servers[0].url + path
        return httpx.request(method, url, json=document, headers=HEADERS, timeout=60)

    def listed(self, queue: str) -> Counter[str]:
        """How often each message is in a queue."""
        found: Counter[str] = Counter()
        path = f"/v2/queues/{queue}/messages?echo=true&include_claimed=true&limit=20"
        while True:
            page = self.call("GET", path).json()
            if not page["messages"]:
                return found
            found.update(message["id"] for message in page["messages"])
            path = next(link["href"] for link in page["links"] if link["rel"] == "next")

    def close(self) -> None:
        for server in self._servers:
            server.close()


@pytest.fixture(params=["embedded", "redis"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    """One server over the embedded store, or two over Redis."""
    if request.param == "embedded":
        made = Servers(f"embedded://{tmp_path / 'data'}", 1, tmp_path)
        yield made
        made.close()
        return
    request.getfixturevalue("redis_server")  # skips where there is none
    # Its own: the clock is moved, and other tests look at what a shared one holds.
    with start_redis() as redis:
        made = Servers(redis.url, 2, tmp_path)
        yield made
        made.close()


def post(servers: Servers, queue: str, count: int) -> Sequence[str]:
    ids: list[str] = []
    for first in range(0, count, 500):
        messages = [{"body": n} for n in range(first, min(first + 500, count))]
        answer = servers.call("POST", f"/v2/queues/{queue}/messages", {"messages": messages})
        ids += [href.rsplit("/", 1)[1] for href in answer.json()["resources"]]
    return ids


def test_each_letter_is_moved_once_whoever_dies(servers: Servers) -> None:
    redrive_all(servers, f"letters-{uuid4().hex[:8]}")


def test_each_letter_arrives_once_in_another_pool_whoever_dies(tmp_path: Path) -> None:
    home = f"embedded://{tmp_path / 'home'}"
    servers = Servers(home, 1, tmp_path, "--admin-mode", "--pooling")
    letters = f"letters-{uuid4().hex[:8]}"
    try:
        for queue in (letters, f"{letters}-back"):
            pool = {"uri": f"embedded://{tmp_path / queue}", "weight": 1}
            assert servers.call("PUT", f"/v2/pools/{queue}", pool).status_code == 201
            servers.call("PUT", f"/v2/flavors/{queue}", {"pool_list": [queue]})
            made = servers.call("PUT", f"/v2/queues/{queue}", {"_flavor": queue})
            assert made.status_code == 201
        redrive_all(servers, letters)
    finally:
        servers.close()


def redrive_all(servers: Servers, letters: str) -> None:
    """Redrive letters while servers are killed: each is moved once, and the job tells the truth."""
    ids = post(servers, letters, LETTERS)
    order = {"filter": {}, "to": f"{letters}-back", "max_per_second": LETTERS // 4}
    begun = servers.call("POST", f"/v2/queues/{letters}/redrives", order)
    assert begun.status_code == 202, begun.text

    def job() -> dict[str, Any]:
        shown: dict[str, Any] = servers.call("GET", begun.headers["location"]).json()
        return shown

    for number in range(1, KILLS + 1):
        wait_until(lambda: job()["done"] >= LETTERS * number // (KILLS + 2), [])  # noqa: B023
        servers.kill_one()
    wait_until(lambda: job()["state"] != "running", [])
    ended = job()
    assert ended["state"] == "completed"
    # What a step did that ended with its process is counted too.
    assert (ended["done"], ended["selected"], ended["examined"]) == (LETTERS, LETTERS, LETTERS)
    assert (ended["targets"], ended["refused"]) == ({f"{letters}-back": LETTERS}, {})
    wait_until(lambda: servers.listed(f"{letters}-back") == Counter(ids), [])
    assert servers.listed(letters) == Counter()


def test_each_instant_has_one_message_whoever_dies(servers: Servers) -> None:
    """Schedules over ten days with twenty kills; without --all over one day with two."""
    made = uuid4().hex[:8]
    plans = {
        "every": ({"every": "1h"}, HOUR),
        "cron": ({"cron": "*/30 * * * *"}, HOUR // 2),
        "daily": ({"cron": "0 9 * * *", "time_zone": "Asia/Kolkata"}, DAY),
    }
    always = {"body": 1, "ttl": 1_209_600, "missed": "all", "catch_up": "1d"}
    first: dict[str, float] = {}

    def schedule(name: str, plan: dict[str, Any]) -> None:
        document = {**always, **plan, "queue": f"{name}-{made}"}
        answer = servers.call("PUT", f"/v2/schedules/{name}-{made}", document)
        assert answer.status_code in (200, 201), answer.text

    def shown(name: str) -> tuple[float, dict[str, int]]:
        """When a schedule fires next, and what it has counted."""
        found = servers.call("GET", f"/v2/schedules/{name}-{made}").json()
        return datetime.fromisoformat(found["next"][0]).timestamp(), found["counts"]

    def wait_for_all() -> None:
        for name in plans:
            wait_until(lambda: shown(name)[0] > servers.now(), [])  # noqa: B023

    for name, (plan, _) in plans.items():
        schedule(name, plan)
        first[name], _ = shown(name)
    steps = DAY // STEP * DAYS
    kills = set(random.sample(range(steps), DEATHS))
    caught_up = servers.now()
    for step in range(steps):
        servers.advance(STEP)
        time.sleep(0.02)
        if step in kills:
            # What schedules something wakes a server, which looks once a second otherwise.
            schedule("waker", {"at": "2199-01-01T00:00:00Z"})
            time.sleep(random.random() / 50)
            servers.kill_one(away=random.randrange(3 * HOUR))
        if servers.now() - caught_up > DAY // 4:  # `catch_up` is a day
            wait_for_all()
            caught_up = servers.now()
    wait_for_all()
    for name, (_, period) in plans.items():
        after, _ = shown(name)
        passed = round((after - first[name]) / period)
        assert passed >= DAYS * DAY // period
        # The next instant is known before the last ones have their messages and are counted.
        wait_until(lambda: sum(shown(name)[1].values()) >= passed, [])  # noqa: B023
        _, counts = shown(name)
        assert counts == {**dict.fromkeys(counts, 0), "fired": passed}
        listed = servers.listed(f"{name}-{made}")
        assert (len(listed), set(listed.values())) == (passed, {1})

"""The metrics of age and lateness agree with what the history checker saw, within 1 %."""

import asyncio
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.client.conftest import MovableServer
from tests.history import Habits, History, RecordingClient
from tests.server import ServerProcess
from zaqar_lite.client import AsyncClient

pytestmark = pytest.mark.anyio
QUEUE, PROJECT = "timed", "history"
DELAYS = (30, 120, 300, 420)
LATER = 900
"""Seconds that the server's clock jumps between the last post and the first claim."""


@pytest.fixture(params=["memory", "embedded"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MovableServer]:
    offset = tmp_path / "offset"
    env = {
        "ZAQAR_LITE_CLOCK_OFFSET_FILE": str(offset),
        "ZAQAR_LITE_COUNT_INTERVAL": "0.1",
    }
    store = "memory://" if request.param == "memory" else f"embedded://{tmp_path}/store"
    with ServerProcess(store, env=env) as process:
        yield MovableServer(process, offset)


async def shown(url: str, name: str) -> float:
    """The sum of a metric's samples."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        text = (await http.get("/metrics")).text
    found = re.findall(rf"^zaqar_lite_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


async def until(url: str, name: str, wanted: float) -> None:
    give_up = time.monotonic() + 60
    while (found := await shown(url, name)) != wanted:
        assert time.monotonic() < give_up, (name, found)
        await asyncio.sleep(0.1)


def recorder(history: History, url: str, seed: int) -> RecordingClient:
    habits = Habits(project=PROJECT, delays=DELAYS, sizes=(5,))
    return RecordingClient(history, url, QUEUE, str(uuid.uuid4()), seed, habits=habits)


async def test_age_and_lateness_are_those_of_the_history(server: MovableServer) -> None:
    history = History()
    producer = recorder(history, server.url, 1)
    async with AsyncClient(server.url, project=PROJECT) as client:
        await client.create_queue(QUEUE, {"_default_message_delay": 60})
        for _ in range(40):
            await producer.post(5)
        await producer.close()
        server.advance(LATER)
        for post in history.posts.values():  # the history in the server's time from now on
            assert post.answered is not None
            post.invoked, post.answered = post.invoked - LATER, post.answered - LATER
        due = {text: post.invoked + post.delay for text, post in history.posts.items()}

        await until(server.url, "ready_messages", len(due))
        age = await shown(server.url, "oldest_ready_message_age_seconds")
        # Of the one that was due first; once the sweep has come by, of the first by position.
        ages = [time.time() - at for at in (min(due.values()), next(iter(due.values())))]
        assert any(age == pytest.approx(one, rel=0.01) for one in ages)

        consumers = [recorder(history, server.url, seed) for seed in (2, 3)]
        tasks = [asyncio.create_task(one.run(produces=False)) for one in consumers]
        give_up = time.monotonic() + 60
        while {hold.text for hold in history.holds} != set(due):
            assert time.monotonic() < give_up
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = client.list_messages(QUEUE, include_claimed=True, include_delayed=True)
        history.end([str(message.body) async for message in left])
    assert history.violations() == []

    first: dict[str, float] = {}
    for hold in sorted(history.holds, key=lambda hold: hold.answered):
        first.setdefault(hold.text, (hold.invoked + hold.answered) / 2)
    late = sum(at - due[text] for text, at in first.items())
    assert await shown(server.url, "delay_lateness_seconds_count") == len(due)
    counted = await shown(server.url, "delay_lateness_seconds_sum")
    assert counted == pytest.approx(late, rel=0.01)

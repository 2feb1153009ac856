"""kill -9 at random moments under 8 clients, against the real server, and what a history proves.

Killed are the server with its writer, the server alone, or the writer alone.
ZAQAR_TEST_KILL_ROUNDS sets the rounds per engine (2 unless told). With 0 violations in n rounds,
the chance of one in a round is below 3/n with 95 % confidence (the rule of three).
"""

import asyncio
import os
import random
import signal
import uuid
from pathlib import Path

import httpx
import pytest

from tests.history import Habits, History, RecordingClient, everything, failure_counts
from tests.server import ServerProcess
from zaqar_lite.bench.machine import descendants

pytestmark = pytest.mark.anyio
ROUNDS = int(os.environ.get("ZAQAR_TEST_KILL_ROUNDS", "2"))
ENOUGH = 20
"""Rounds in which every habit of the clients has had its turn, however busy the machine is."""
HEADERS = {"Client-ID": str(uuid.uuid4()), "X-Project-Id": "history"}


async def make_queue(url: str, queue: str) -> None:
    async with httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=30) as http:
        metadata = {"_default_message_delay": 1, "_dead_letter_queue": f"{queue}-letters"}
        answer = await http.put(f"/v2/queues/{queue}", json=metadata)
        answer.raise_for_status()


async def kill(server: ServerProcess) -> None:
    """Kill everything at once, or only one of the two processes first (SQLite)."""
    pids = [server.pid, *descendants(server.pid)]
    os.kill(random.choice(pids), signal.SIGKILL)
    await asyncio.sleep(random.choice([0, 0.05, 0.3]))
    server.kill()


def damaged(directory: Path) -> list[Path]:
    """What a start has set aside as damaged."""
    return list(directory.rglob("*damaged*"))


@pytest.mark.parametrize("scheme", ["embedded", "opendata+slatedb"])
async def test_kill_minus_nine_breaks_no_promise(scheme: str, tmp_path: Path) -> None:
    history = History()
    queue = f"queue-{uuid.uuid4().hex[:8]}"
    server = ServerProcess(f"{scheme}://{tmp_path / 'data'}")
    try:
        for round_number in range(ROUNDS):
            await asyncio.to_thread(server.start)
            if round_number == 0:
                await make_queue(server.url, queue)
            habits = Habits(settles=True, rejects=True)
            clients = [
                RecordingClient(history, server.url, queue, str(uuid.uuid4()), seed, habits=habits)
                for seed in range(8)
            ]
            work = [
                asyncio.create_task(client.run(produces=seed % 2 == 0))
                for seed, client in enumerate(clients)
            ]
            await asyncio.sleep(random.uniform(0.3, 1.5))
            await kill(server)
            await asyncio.gather(*work)
            history.restarts += 1
        await asyncio.to_thread(server.start)
        failed = await failure_counts(server.url, queue)
        dead = await everything(server.url, f"{queue}-letters")
        history.end(await everything(server.url, queue), failed, dead)
    finally:
        server.close()
    print(f"{scheme}: {history.summary()}")
    assert history.violations() == []
    assert not damaged(tmp_path)  # no kill looks like damage
    assert history.holds
    assert any(post.answered for post in history.posts.values())
    if ROUNDS >= ENOUGH:
        assert any(failure.answered for failure in history.failures)
        assert any(reject.answered for reject in history.rejects)

"""kill -9 at random moments under 8 clients, against the real server, and what a history proves.

ZAQAR_TEST_KILL_ROUNDS sets the rounds (2 unless told). With 0 violations in n rounds,
the chance of one in a round is below 3/n with 95 % confidence (the rule of three).
"""

import asyncio
import os
import random
import uuid
from pathlib import Path

import pytest

from tests.history import Habits, History, Limits, RecordingClient, make_queue, note_end
from tests.server import ServerProcess

pytestmark = pytest.mark.anyio
ROUNDS = int(os.environ.get("ZAQAR_TEST_KILL_ROUNDS", "2"))
ENOUGH = 20
"""Rounds in which every habit of the clients has had its turn, however busy the machine is."""
LIMITS = Limits(claims=3, failures=2)


def damaged(directory: Path) -> list[Path]:
    """What a start has set aside as damaged."""
    return list(directory.rglob("*damaged*"))


async def test_kill_minus_nine_breaks_no_promise(tmp_path: Path) -> None:
    history = History(limits=LIMITS)
    queue = f"queue-{uuid.uuid4().hex[:8]}"
    server = ServerProcess(f"opendata+slatedb://{tmp_path / 'data'}")
    try:
        for round_number in range(ROUNDS):
            await asyncio.to_thread(server.start)
            if round_number == 0:
                await make_queue(server.url, queue, LIMITS)
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
            server.kill()
            await asyncio.gather(*work)
            history.restarts += 1
        await asyncio.to_thread(server.start)
        await note_end(history, server.url, queue)
    finally:
        server.close()
    print(history.summary())
    assert history.violations() == []
    assert not damaged(tmp_path)  # no kill looks like damage
    assert history.holds
    assert any(post.answered for post in history.posts.values())
    if ROUNDS >= ENOUGH:
        assert any(failure.answered for failure in history.failures)
        assert any(reject.answered for reject in history.rejects)

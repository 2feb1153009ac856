"""Servers and their database are killed or stopped under settling workers, and a history watches.

Two servers share one database. It takes minutes, so it runs with `tests/run --all`, or where
ZAQAR_TEST_KILL_ROUNDS says how many rounds.
"""

import asyncio
import os
import random
from collections.abc import Sequence

import pytest

from tests.drivers.mongodb.inspection import database_of, faults
from tests.history import ENOUGH, History, Limits, at_work, make_queue, note_end
from tests.server import ServerProcess
from tests.services import MongoServer, start_mongo
from zaqar_lite.storage.mongodb.transactions import DEAD_MS

pytestmark = pytest.mark.anyio
ROUNDS = int(os.environ.get("ZAQAR_TEST_KILL_ROUNDS") or 3)
IS_WANTED = {"ZAQAR_TEST_KILL_ROUNDS", "ZAQAR_TEST_ALL"} & os.environ.keys()
LIMITS = Limits(claims=3, failures=2)
QUEUE = "queue"


class Work:
    """Four clients of one server, two that post and two that consume; they end with it."""

    def __init__(self, history: History, server: ServerProcess) -> None:
        self._history = history
        self.server = server
        self._tasks: Sequence[asyncio.Task[None]] = ()

    async def start(self) -> None:
        """Start the server, and the clients."""
        await asyncio.to_thread(self.server.start)
        self._tasks = at_work(self._history, self.server.url, QUEUE, count=4)

    async def kill(self) -> None:
        """Kill the server."""
        self.server.kill()
        await asyncio.gather(*self._tasks)


async def fail_once(works: Sequence[Work], mongodb: MongoServer, history: History) -> None:
    """Kill a server or the database, and start it again; or stop a server for a while.

    One that is stopped goes on when the others have taken it for dead.
    """
    victim = random.choice([*works, None])
    if victim is not None and random.random() < 0.3:
        await victim.server.stop_for(random.uniform(1, 2) * DEAD_MS / 1000)
        history.stops += 1
        return
    history.restarts += 1
    if victim is None:
        await asyncio.to_thread(mongodb.kill)
        await asyncio.to_thread(mongodb.start)
    else:
        await victim.kill()
        await asyncio.sleep(random.choice([0, 0.5]))
        await victim.start()


@pytest.mark.skipif(not IS_WANTED, reason="takes minutes: tests/run --all")
async def test_kills_and_stops_break_no_promise() -> None:
    history = History(limits=LIMITS)
    with start_mongo(durable=True) as mongodb:
        servers = [ServerProcess(f"{mongodb.url}&serverSelectionTimeoutMS=3000") for _ in range(2)]
        works = [Work(history, server) for server in servers]
        try:
            await asyncio.to_thread(servers[0].start)
            await make_queue(servers[0].url, QUEUE, LIMITS)
            servers[0].kill()
            for work in works:
                await work.start()
            for _ in range(ROUNDS):
                await asyncio.sleep(random.uniform(1, 3))
                await fail_once(works, mongodb, history)
            await asyncio.sleep(3)
            for work in works:
                await work.kill()
            await asyncio.to_thread(servers[0].start)
            await note_end(history, servers[0].url, QUEUE)
            servers[0].terminate()
            with database_of(mongodb.url) as database:
                assert faults(database) == []
        finally:
            for server in servers:
                server.close()
    print(f"mongodb: {history.summary()}")
    assert history.violations() == []
    assert history.holds
    assert any(failure.answered for failure in history.failures)
    if ROUNDS >= ENOUGH:
        reasons = {counts.reason for counts in history.dead.values()}
        assert {"rejected", "max_failures"} <= reasons

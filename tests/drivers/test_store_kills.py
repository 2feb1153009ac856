"""Servers and their store are killed or stopped under settling workers, and a history watches.

Two servers share one store. It takes minutes, so it runs with `tests/run --all`, or where
ZAQAR_TEST_KILL_ROUNDS says how many rounds.
"""

import asyncio
import os
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from tests import services
from tests.drivers.mongodb.inspection import database_of, faults
from tests.history import ENOUGH, History, Limits, at_work, make_queue, note_end
from tests.server import ServerProcess
from tests.services import Service
from zaqar_lite.storage.mongodb.transactions import DEAD_MS

pytestmark = pytest.mark.anyio
ROUNDS = int(os.environ.get("ZAQAR_TEST_KILL_ROUNDS") or 3)
IS_WANTED = {"ZAQAR_TEST_KILL_ROUNDS", "ZAQAR_TEST_ALL"} & os.environ.keys()
LIMITS = Limits(claims=3, failures=2)
QUEUE = "queue"
SWIFT_LEASE = 10


class Store(NamedTuple):
    """A store that can be killed, and how servers use it.

    Others take a server for dead that has stood still for `lease` seconds.
    """

    service: Service
    uri: str
    lease: float
    faults: Callable[[], Sequence[object]] = tuple
    """What is wrong with what it holds, when all servers have ended."""
    env: Mapping[str, str] = {}


@contextmanager
def mongodb() -> Iterator[Store]:
    """A MongoDB that syncs before it answers."""
    with services.start_mongo(durable=True) as server:

        def find_faults() -> Sequence[object]:
            with database_of(server.url) as database:
                return faults(database)

        uri = f"{server.url}&serverSelectionTimeoutMS=3000"
        yield Store(server, uri, DEAD_MS / 1000, find_faults)


@contextmanager
def swift() -> Iterator[Store]:
    """A Swift whose locks are in Redis, where they outlive a killed holder by their lease."""
    with services.start_swift() as server, services.start_redis() as redis:
        uri = f"{server.url}?prefix=kills-{uuid.uuid4().hex[:8]}&timeout=2&lease={SWIFT_LEASE}"
        env = {"ZAQAR_LITE_STORE_OPTIONS__COORDINATION_URL": redis.url}
        yield Store(server, uri, SWIFT_LEASE, env=env)


@dataclass
class Work:
    """Four clients of one server, two that post and two that consume; they end with it."""

    history: History
    server: ServerProcess
    tasks: Sequence[asyncio.Task[None]] = ()

    async def start(self) -> None:
        """Start the server, and the clients."""
        await asyncio.to_thread(self.server.start)
        self.tasks = at_work(self.history, self.server.url, QUEUE, count=4)

    async def kill(self) -> None:
        """Kill the server."""
        self.server.kill()
        await asyncio.gather(*self.tasks)


async def fail_once(works: Sequence[Work], store: Store, history: History) -> None:
    """Kill a server or the store, and start it again; or stop a server for a while.

    One that is stopped goes on when the others have taken it for dead.
    """
    victim = random.choice([*works, None])
    if victim is not None and random.random() < 0.3:
        await victim.server.stop_for(random.uniform(1, 2) * store.lease)
        history.stops += 1
        return
    history.restarts += 1
    if victim is None:
        await asyncio.to_thread(store.service.kill)
        await asyncio.sleep(random.choice([0, 2]))
        await asyncio.to_thread(store.service.start)
    else:
        await victim.kill()
        await asyncio.sleep(random.choice([0, 0.5]))
        await victim.start()


@pytest.mark.skipif(not IS_WANTED, reason="takes minutes: tests/run --all")
@pytest.mark.timeout(240 + 60 * ROUNDS)  # beside other work on the machine
@pytest.mark.parametrize("start", [mongodb, swift])
async def test_kills_and_stops_break_no_promise(
    start: Callable[[], AbstractContextManager[Store]],
) -> None:
    history = History(limits=LIMITS)
    with start() as store:
        servers = [ServerProcess(store.uri, env=store.env) for _ in range(2)]
        works = [Work(history, server) for server in servers]
        try:
            await asyncio.to_thread(servers[0].start)
            await make_queue(servers[0].url, QUEUE, LIMITS)
            servers[0].kill()
            for work in works:
                await work.start()
            for _ in range(ROUNDS):
                await asyncio.sleep(random.uniform(1, 3))
                await fail_once(works, store, history)
            await asyncio.sleep(3)
            for work in works:
                await work.kill()
            await asyncio.sleep(store.lease)  # what the last ones held when they were killed ends
            await asyncio.to_thread(servers[0].start)
            await note_end(history, servers[0].url, QUEUE)
            servers[0].terminate()
            assert not store.faults()
        finally:
            for server in servers:
                server.close()
    print(f"{store.uri.partition(':')[0]}: {history.summary()}")
    assert history.violations() == []
    assert history.holds
    assert any(failure.answered for failure in history.failures)
    if ROUNDS >= ENOUGH:
        reasons = {counts.reason for counts in history.dead.values()}
        assert {"rejected", "max_failures"} <= reasons

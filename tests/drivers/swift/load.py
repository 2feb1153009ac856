"""Two of our servers over one Swift, killed or stopped again and again under settling workers.

    python -m tests.drivers.swift.load 10        ten minutes; tells what was broken

Their lock is in Redis: it outlives a killed holder by its lease, as a promise of the store needs.
One that is stopped goes on after its lease, wherever it was.
"""

import asyncio
import random
import sys
import uuid
from collections import Counter
from dataclasses import dataclass, field

import httpx

from tests import services
from tests.history import Habits, History, Limits, RecordingClient, make_queue, note_end
from tests.server import ServerProcess

LIMITS = Limits(claims=3, failures=2)
QUEUE = "queue"
CLIENTS = 6
LEASE = 10
"""Seconds."""


@dataclass
class Load:
    """What the clients did, and the statuses they were answered with."""

    history: History = field(default_factory=lambda: History(limits=LIMITS))
    statuses: Counter[int] = field(default_factory=Counter)

    async def note(self, response: httpx.Response) -> None:
        """Count an answer."""
        self.statuses[response.status_code] += 1

    async def work(self, server: ServerProcess, seed: int) -> None:
        """Post or consume; begin anew, as another client, when the server was killed."""
        for life in range(1_000_000):
            client = RecordingClient(
                self.history,
                server.url,
                QUEUE,
                str(uuid.uuid4()),
                seed + CLIENTS * life,
                habits=Habits(settles=True, rejects=True),
            )
            client.note_answers(self.note)
            await client.run(produces=seed % 2 == 0)
            await asyncio.sleep(0.2)


async def run(swift_url: str, redis_url: str, minutes: float) -> Load:
    """Let clients work for so long while one server or the other fails every 20 seconds."""
    load = Load()
    store = f"{swift_url}?prefix=load-{uuid.uuid4().hex[:8]}&timeout=2&lease={LEASE}"
    env = {"ZAQAR_LITE_COORDINATION_URL": redis_url}
    servers = [ServerProcess(store, env=env) for _ in range(2)]
    try:
        await asyncio.gather(*[asyncio.to_thread(server.start) for server in servers])
        await make_queue(servers[0].url, QUEUE, LIMITS)
        work = [
            asyncio.create_task(load.work(servers[seed // 2 % 2], seed)) for seed in range(CLIENTS)
        ]
        end = asyncio.get_running_loop().time() + 60 * minutes
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(random.uniform(10, 30))
            victim = random.choice(servers)
            if random.random() < 0.5:
                await victim.stop_for(random.uniform(LEASE / 2, 2 * LEASE))
                load.history.stops += 1
                continue
            await asyncio.to_thread(victim.kill)
            await asyncio.to_thread(victim.start)
            load.history.restarts += 1
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await asyncio.sleep(20)  # the lock of the last one that was killed ends, moves are healed
        await note_end(load.history, servers[0].url, QUEUE)
    finally:
        for server in servers:
            await asyncio.to_thread(server.close)
    return load


def main() -> int:
    """Run, and print what was broken."""
    with services.start_swift() as swift, services.start_redis() as redis:
        load = asyncio.run(run(swift.url, redis.url, float(sys.argv[1])))
    broken = load.history.violations()
    print(f"{load.history.summary()}; statuses {dict(load.statuses)}")
    print("\n".join(broken) or "no promise was broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""Two of our servers over one Redis, with eight clients that note what they are told."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from tests.history import Habits, History, Limits, RecordingClient, make_queue, note_end
from tests.server import ServerProcess

LIMITS = Limits(claims=3, failures=2)


@dataclass
class Load:
    """What the clients did, and the statuses they were answered with."""

    history: History = field(default_factory=History)
    statuses: Counter[int] = field(default_factory=Counter)

    async def goes_on(self) -> None:
        """Return when the servers have answered fifty more requests with success."""
        before = self.statuses[201]
        for _ in range(300):
            await asyncio.sleep(0.1)
            if self.statuses[201] > before + 50:
                return
        raise AssertionError(f"the servers do not recover: {dict(self.statuses)}")

    def report(self, what: str) -> list[str]:
        """Print what happened; answer the promises that were broken."""
        broken = self.history.violations()
        lost = sum(violation.startswith("lost") for violation in broken)
        print(f"{what}: {lost} lost; {self.history.summary()}; statuses {dict(self.statuses)}")
        return broken

    async def note(self, response: httpx.Response) -> None:
        """Count an answer; a refusal must say that it passes, and when to come again."""
        self.statuses[response.status_code] += 1
        if response.status_code >= 500:
            assert response.status_code == 503
            assert int(response.headers["Retry-After"]) >= 1


@asynccontextmanager
async def under_load(url: str, *, settles: bool = False) -> AsyncIterator[Load]:
    """Let half of the clients post (now and then with a delay) and half consume, until the end.

    Consumers that settle say of each message what becomes of it, and their queue has limits; others
    give back whole claims.
    """
    load = Load(History(limits=LIMITS)) if settles else Load()
    queue = f"queue-{uuid.uuid4().hex[:8]}"
    servers = [ServerProcess(url) for _ in range(2)]
    try:
        await asyncio.gather(*[asyncio.to_thread(server.start) for server in servers])
        await make_queue(servers[0].url, queue, LIMITS if settles else None)
        habits = Habits(settles=settles, rejects=settles)
        clients = [
            RecordingClient(
                load.history, servers[seed % 2].url, queue, str(uuid.uuid4()), seed, habits=habits
            )
            for seed in range(8)
        ]
        for client in clients:
            client.note_answers(load.note)
        work = [
            asyncio.create_task(client.run(produces=seed < 4))
            for seed, client in enumerate(clients)
        ]
        yield load
        for task in work:
            task.cancel()
        ends = await asyncio.gather(*work, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
        await note_end(load.history, servers[0].url, queue, patience=75 if settles else 0)
    finally:
        for server in servers:
            server.close()

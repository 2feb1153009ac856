"""Two pools on two different stores are drained into each other's kind under load.

What lies in Redis goes to the embedded store and the other way round, and a history watches.
The server is killed meanwhile, ZAQAR_TEST_KILL_ROUNDS times (once unless told).
"""

import asyncio
import os
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.history import Habits, History, at_work, everything
from tests.server import ServerProcess
from tests.services.redis import start_redis
from tests.waiting import until

pytestmark = pytest.mark.anyio
HEADERS = {"Client-ID": str(uuid.uuid4()), "X-Project-Id": "history"}
LATER_MS = 600_000
ROUNDS = int(os.environ.get("ZAQAR_TEST_KILL_ROUNDS", "1"))


async def call(url: str, method: str, path: str, document: Any = None) -> Any:
    async with httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=60) as http:
        answer = await http.request(method, path, json=document)
        answer.raise_for_status()
        return answer.json() if answer.content else None


async def make(url: str, redis: str, directory: Path) -> list[str]:
    """Make two pools with two queues in each, and two for them to go to, of the other kind."""
    queues = []
    uris = {
        "redis": (f"{redis}/1", f"embedded:{directory}/new"),
        "embedded": (f"embedded:{directory}/old", f"{redis}/2"),
    }
    for name, (old, new) in uris.items():
        pools = [name, f"from-{name}"]
        await call(url, "PUT", f"/v2/pools/{name}", {"uri": old, "weight": 1})
        await call(url, "PUT", f"/v2/pools/from-{name}", {"uri": new, "weight": 0})
        await call(url, "PUT", f"/v2/flavors/{name}", {"pool_list": pools})
        own = {"_flavor": name}
        for n in range(2):
            queues.append(f"{name}-{n}")
            metadata = {"_default_message_delay": 1, "_dead_letter_queue": f"{name}-dead", **own}
            await call(url, "PUT", f"/v2/queues/{queues[-1]}", metadata)
        await call(url, "PATCH", f"/v2/pools/{name}", {"weight": 0})
        await call(url, "PATCH", f"/v2/pools/from-{name}", {"weight": 1})
    return queues


@asynccontextmanager
async def load(server: ServerProcess, history: History, queues: list[str]) -> AsyncIterator[None]:
    """Let six clients work; in the end the server is killed with them."""
    habits = Habits(settles=True, sizes=(5, 20))
    tasks = at_work(history, server.url, queues, count=6, habits=habits)
    yield
    server.kill()
    await asyncio.gather(*tasks)
    history.restarts += 1


async def test_two_pools_are_drained_into_each_other_under_load_and_no_promise_is_broken(
    tmp_path: Path,
) -> None:
    history = History()
    clock = tmp_path / "clock"
    with start_redis() as redis:
        databases = redis.url.rpartition("/")[0]
        server = ServerProcess(
            f"{databases}/3",
            *("--admin-mode", "--pooling"),
            env={"ZAQAR_LITE_CLOCK_OFFSET_FILE": str(clock), "ZAQAR_LITE_DRAIN_WAIT": "0.3"},
        )
        try:
            await asyncio.to_thread(server.start)
            queues = await make(server.url, databases, tmp_path)
            async with load(server, history, queues):
                await until(lambda: len(history.posts) > 300, seconds=60)
                for name in ("redis", "embedded"):
                    await call(server.url, "POST", f"/v2/pools/{name}/drain")
                await asyncio.sleep(random.uniform(0.5, 1.5))
            await asyncio.to_thread(server.start)
            for _ in range(ROUNDS - 1):
                async with load(server, history, queues):
                    await asyncio.sleep(random.uniform(0.5, 1.5))
                await asyncio.to_thread(server.start)
            clock.write_text(str(LATER_MS))  # what the clients hold lapses
            moved = {}
            for name in ("redis", "embedded"):
                drain = partial(call, server.url, "GET", f"/v2/pools/{name}/drain")
                ended = await until(drain, lambda told: told["state"] == "completed", seconds=60)
                moved[name] = ended["messages_moved"]
                await call(server.url, "DELETE", f"/v2/pools/{name}")
            names = [*queues, "redis-dead", "embedded-dead"]
            history.end([text for name in names for text in await everything(server.url, name)])
        finally:
            server.close()
    print(history.summary(), f"moved from {moved}")
    assert history.violations() == []
    assert min(moved.values()) > 20
    assert history.holds

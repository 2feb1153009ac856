"""Races between processes, over the stores that several may share."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.contract.subject import QueueUnderTest, ids
from zaqar_lite.domain.models import Capability

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
PATIENCE = 60
"""Seconds until a process that does nothing is given up."""


class Worker:
    """A process that posts, or claims until it is told to end."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def report(self) -> None:
        """Give it a line: begin, or end."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        await self._process.stdin.drain()

    async def hear(self) -> str:
        """Wait for its next line."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE)
        assert line, "the worker ended early; see its standard error above"
        return line.decode().strip()

    async def end(self) -> None:
        """Let it go, by force where it does not go by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


StartWorker = Callable[[QueueUnderTest, int], Awaitable[Worker]]


@pytest.fixture
async def start_worker() -> AsyncIterator[StartWorker]:
    workers: list[Worker] = []

    async def start(queue: QueueUnderTest, posts: int) -> Worker:
        task = {
            "uri": queue.stores.uri,
            "extra": dict(queue.stores.options.extra),
            "project": queue.ref.project,
            "name": queue.ref.name,
            "posts": posts,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.contract.worker", json.dumps(task)),
            stdin=PIPE,
            stdout=PIPE,
            cwd=ROOT,
        )
        workers.append(Worker(process))
        return workers[-1]

    yield start
    for worker in workers:
        await worker.end()


async def test_processes_share_no_message_and_a_reader_misses_none(
    queue: QueueUnderTest, start_worker: StartWorker
) -> None:
    queue.stores.need(Capability.SHARED)
    producers = [await start_worker(queue, 4) for _ in range(2)]
    claimers = [await start_worker(queue, 0) for _ in range(2)]
    for worker in [*producers, *claimers]:
        assert await worker.hear() == "ready"

    writing = True
    reader = asyncio.create_task(queue.followed(lambda: not writing))
    for worker in [*producers, *claimers]:
        await worker.report()
    posted = [message_id for each in producers for message_id in json.loads(await each.hear())]
    writing = False
    seen = await reader
    for worker in claimers:
        await worker.report()
    claimed = [message_id for each in claimers for message_id in json.loads(await each.hear())]

    assert len(set(posted)) == 16
    assert Counter(claimed) == Counter(posted)
    assert Counter(ids(seen)) == Counter(posted)
    assert await queue.counts() == (0, 0, 16)

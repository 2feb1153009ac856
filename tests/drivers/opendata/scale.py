"""Measure what many messages and many queues cost: `python -m tests.drivers.opendata.scale`.

`--delayed 1000000` posts so many delayed messages of 200 bytes and claims by twenty behind them;
`--queues 100000` makes so many queues without messages, and posts beside them. Both are opened
again by a process of its own: seconds to open, resident memory, and what a sweep of an idle store
costs the processor. `--purge 500000` posts so many messages and purges them: the longest step of
the event loop.
"""

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import DelayMode, QueueRef, StoreOptions, Take
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.registry import create_stores

QUEUE, OTHER = QueueRef("scale", "queue"), QueueRef("scale", "other")
BODY = json.dumps("x" * 198).encode()
DAY = 24 * 3_600_000
_ROUNDS, _SWEEPS = 200, 60
_POSTS, _TURNS = 100, 20


def resident() -> float:
    """Megabytes of memory that this process has."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * resource.getpagesize() / 1e6


def stores(uri: str) -> tuple[MessageStore, ManagementStore]:
    """Make the two stores of a URI, not yet opened."""
    return create_stores(uri, clock=Clock(), options=StoreOptions(max_messages=1 << 62))


async def post(messages: MessageStore, queue: QueueRef, count: int, delay_ms: int = 0) -> None:
    """Post messages by the thousand."""
    for start in range(0, count, 1_000):
        new = [NewMessage(BODY, DAY, delay_ms)] * min(1_000, count - start)
        await messages.post(queue, new, client_id="producer", version=None)


async def claim_once(messages: MessageStore, queue: QueueRef) -> float:
    """Claim twenty, delete and post anew; answer what the claim took."""
    began = time.perf_counter()
    claimed = await messages.claim(
        queue, Take(20, None, DelayMode.HONOUR, ttl_ms=60_000, grace_ms=60_000, client_id="c")
    )
    took = time.perf_counter() - began
    ids = [held.id for held in claimed.messages]
    await messages.delete(queue, ids, claim_ids=[claimed.claim_id or ""])
    await post(messages, queue, len(ids))
    return took


async def claims(messages: MessageStore) -> None:
    """Compare claims behind the delayed messages with those in a small queue, in turns."""
    for queue in (OTHER, QUEUE):
        await post(messages, queue, 1_000)
    few, many = [], []
    for _ in range(_ROUNDS):
        few.append(await claim_once(messages, OTHER))
        many.append(await claim_once(messages, QUEUE))
    alone, behind = statistics.median(few), statistics.median(many)
    print(
        f"claim of 20: median {alone * 1e3:.3f} ms in a small queue, {behind * 1e3:.3f} ms behind "
        f"the delayed ones, {behind / alone:.2f} of it"
    )


async def posts(messages: MessageStore) -> list[float]:
    """Post one by one while the sweep comes by; answer what the posts took."""
    times = []
    sweep = asyncio.create_task(messages.sweep(1_000))
    for _ in range(_POSTS):
        began = time.perf_counter()
        await post(messages, OTHER, 1)
        times.append(time.perf_counter() - began)
    await sweep
    return times


async def beside(messages: MessageStore) -> None:
    """Compare posts with those to an empty store, in turns."""
    with tempfile.TemporaryDirectory() as directory:
        empty, _ = stores(f"embedded://{directory}/empty")
        async with empty:
            times: tuple[list[float], list[float]] = [], []
            for _ in range(_TURNS):
                times[0].extend(await posts(empty))
                times[1].extend(await posts(messages))
    (alone, among), p99 = times, _POSTS * _TURNS * 99 // 100
    print(
        f"single posts: p50 {statistics.median(among) * 1e3:.2f} ms, p99 "
        f"{sorted(among)[p99] * 1e3:.2f} ms, {sorted(among)[p99] / sorted(alone)[p99]:.2f} of the "
        "p99 of an empty store"
    )


async def purge(uri: str, count: int) -> None:
    """Purge a long queue; tell the longest step of the event loop, by the processor's time."""
    messages, _ = stores(uri)
    async with messages:
        await post(messages, QUEUE, count)
        await messages.sweep(1_000)
        gaps, done = [0.0], asyncio.Event()

        async def watch() -> None:
            while not done.is_set():
                began = time.thread_time()
                await asyncio.sleep(0)
                gaps.append(time.thread_time() - began)

        watching = asyncio.create_task(watch())
        began = time.perf_counter()
        await messages.purge(QUEUE)
        while (await messages.sweep(1_000)).deleted:
            pass
        took = time.perf_counter() - began
        done.set()
        await watching
        print(
            f"purge of {count:,}, swept: {took:.1f} s, longest step of the event loop "
            f"{max(gaps) * 1e3:.1f} ms of the processor"
        )


async def fill(uri: str, queues: int, delayed: int) -> None:
    """Make queues, and post delayed messages."""
    messages, management = stores(uri)
    async with messages, management:
        for start in range(0, queues, 1_000):
            names = [f"queue-{number}" for number in range(start, min(start + 1_000, queues))]
            made = (
                management.create_queue(QueueRef("scale", name), {}, max_queues=1 << 62)
                for name in names
            )
            await asyncio.gather(*made)
        began = time.perf_counter()
        await post(messages, QUEUE, delayed, DAY // 2)
        print(f"filled: {resident():.0f} MB resident, {time.perf_counter() - began:.1f} s of posts")


async def look(uri: str, delayed: int) -> None:
    """Open the store, and measure."""
    messages, management = stores(uri)
    before, began, used = resident(), time.perf_counter(), time.process_time()
    async with messages, management:
        took, used = time.perf_counter() - began, time.process_time() - used
        print(
            f"opened: {took:.2f} s, {used:.2f} s of the processor, {resident():.0f} MB resident "
            f"({before:.0f} MB before)"
        )
        for _ in range(20):
            await messages.sweep(1_000)
        used = time.process_time()
        for _ in range(_SWEEPS):
            await messages.sweep(1_000)
        each = (time.process_time() - used) / _SWEEPS
        print(f"idle: {each * 1e3:.3f} ms of the processor a sweep; {resident():.0f} MB resident")
        if not delayed:
            await beside(messages)
        else:
            await claims(messages)
        print(f"in the end: {resident():.0f} MB resident")


def main() -> None:
    """Fill in one process, look in another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delayed", type=int, default=0)
    parser.add_argument("--queues", type=int, default=0)
    parser.add_argument("--purge", type=int, default=0)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--uri", default=None, help="look at a store that was filled")
    arguments = parser.parse_args()
    if arguments.uri is not None:
        asyncio.run(look(arguments.uri, arguments.delayed))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        uri = f"embedded://{directory}/data"
        if arguments.purge:
            asyncio.run(purge(uri, arguments.purge))
            return
        asyncio.run(fill(uri, arguments.queues, arguments.delayed))
        command = [sys.executable, "-m", "tests.drivers.opendata.scale", "--uri", uri]
        subprocess.run([*command, "--delayed", str(arguments.delayed)], check=True)


if __name__ == "__main__":
    main()

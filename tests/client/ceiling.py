"""Measure the clients beside the server's own ceiling: `python -m tests.client.ceiling`.

A server is started unless `--url` names one. Rounds are interleaved (`zaqar-lite bench` without and
with idempotency keys, then the async client, then threads of the sync client and of urllib3, the
library below it), each figure is the median over the rounds, and the ratio is that of the medians.
The async client must reach 60 % of the ceiling with 16 requests in flight; it sends a key with
every post, so the ceiling with keys is the like for like.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import urllib3

from tests.server import ServerProcess
from zaqar_lite.client import AsyncClient, Client

BODY = "x" * 198  # what `bench` posts
IN_FLIGHT = 16
GOAL = 0.6


def ceiling(url: str, seconds: float, *options: str) -> float:
    """Post one message per request over 16 connections; return messages per second."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures"
        words = ["bench", "--url", url, "--scenario", "post1", "--connections", str(IN_FLIGHT)]
        words += ["--seconds", str(seconds), "--json", str(figures), *options]
        subprocess.run(
            [sys.executable, "-m", "zaqar_lite.cli", *words], check=True, stdout=subprocess.DEVNULL
        )
        (result,) = json.loads(figures.read_text(encoding="utf-8"))["results"]
        return float(result["messages_per_second"])


def with_tasks(url: str, seconds: float) -> float:
    """Post with 16 tasks of the async client; return messages per second."""

    async def measure() -> float:
        async with AsyncClient(url) as client:
            await client.ping()  # imports and connects
            begin, count = time.perf_counter(), 0

            async def post() -> None:
                nonlocal count
                while time.perf_counter() < begin + seconds:
                    await client.post("ceiling", BODY)
                    count += 1

            await asyncio.gather(*(post() for _ in range(IN_FLIGHT)))
            rate = count / (time.perf_counter() - begin)
            await client.delete_queue("ceiling")
            return rate

    return asyncio.run(measure())


def in_threads(post: Callable[[], object], seconds: float) -> float:
    """Call `post` in 8 threads; return calls per second."""
    begin, counts = time.perf_counter(), [0] * 8

    def go_on(index: int) -> None:
        while time.perf_counter() < begin + seconds:
            post()
            counts[index] += 1

    threads = [threading.Thread(target=go_on, args=(index,)) for index in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begin)


def with_threads(url: str, seconds: float) -> float:
    """Post with 8 threads of the sync client; return messages per second."""
    with Client(url) as client:
        client.ping()
        rate = in_threads(lambda: client.post("ceiling", BODY), seconds)
        client.delete_queue("ceiling")
        return rate


def with_urllib3(url: str, seconds: float) -> float:
    """Post what the sync client posts with 8 threads of the library below it."""
    headers = {"Client-ID": str(uuid.uuid4()), "X-Project-ID": "ceiling"}
    body = json.dumps({"messages": [{"body": BODY}]})
    path = f"{url}/v2/queues/ceiling/messages"
    with urllib3.PoolManager(maxsize=8, headers=headers) as pool:
        return in_threads(lambda: pool.request("POST", path, body=body).data, seconds)


def measure(url: str, seconds: float, rounds: int) -> float:
    """Print the medians; return the async client's part of the ceiling with keys."""
    parts: dict[str, Callable[[], float]] = {
        "bench post1": lambda: ceiling(url, seconds),
        "bench post1 --keys": lambda: ceiling(url, seconds, "--keys"),
        "AsyncClient, 16 tasks": lambda: with_tasks(url, seconds),
        "Client, 8 threads": lambda: with_threads(url, seconds),
        "urllib3 alone, 8 threads": lambda: with_urllib3(url, seconds),
    }
    rates: dict[str, list[float]] = {name: [] for name in parts}
    cpu = dict.fromkeys(parts, 0.0)
    for _ in range(rounds):
        for name, part in parts.items():
            before = time.process_time()
            rates[name].append(part())
            cpu[name] += (time.process_time() - before) / (rates[name][-1] * seconds) / rounds
    medians = {name: statistics.median(found) for name, found in rates.items()}
    print(f"load average {os.getloadavg()[0]:.1f}, {rounds} rounds of {seconds:g} s, medians:")
    for name, median in medians.items():
        line = f"{name:25} {median:8,.0f} messages/s"
        if not name.startswith("bench"):  # whose CPU is another process's
            line += f"  {1e6 * cpu[name]:4.0f} us of CPU each"
            line += f"  {median / medians['bench post1']:.0%} of the ceiling"
            line += f", {median / medians['bench post1 --keys']:.0%} of it with keys"
        print(line)
    return medians["AsyncClient, 16 tasks"] / medians["bench post1 --keys"]


def main() -> int:
    """Measure; 1 when the async client is below its part of the ceiling."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server that runs; one is started by default")
    parser.add_argument("--store", default="memory://", help="of the server that is started")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each part of a round (3)")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = arguments.url
        if url is None:
            url = stack.enter_context(ServerProcess(arguments.store)).url
        part = measure(url, arguments.seconds, arguments.rounds)
    print(f"the async client reaches {part:.0%} of the ceiling; {GOAL:.0%} is the goal")
    return 0 if part >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())

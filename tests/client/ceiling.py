"""Measure both clients against a real server: `python tests/client/ceiling.py URL`.

`zaqar-lite bench --scenario post1 --connections 16` is the ceiling to compare with: the async
client must reach 60 % of it with 16 requests in flight.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable

from zaqar_lite.client import AsyncClient, Client

SECONDS = 4.0
BODY = {"text": "x" * 180}


async def with_tasks(url: str, number: int) -> float:
    """Post with tasks; return messages per second."""
    async with AsyncClient(url) as client:
        await client.ping()  # imports and connects
        end, count = time.perf_counter() + SECONDS, 0

        async def post() -> None:
            nonlocal count
            while time.perf_counter() < end:
                await client.post("ceiling", BODY)
                count += 1

        await asyncio.gather(*(post() for _ in range(number)))
        return count / SECONDS


def with_threads(url: str, number: int) -> float:
    """Post with threads; return messages per second."""
    with Client(url) as client:
        client.ping()
        end, counts = time.perf_counter() + SECONDS, [0] * number

        def post(index: int) -> None:
            while time.perf_counter() < end:
                client.post("ceiling", BODY)
                counts[index] += 1

        threads = [threading.Thread(target=post, args=(index,)) for index in range(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / SECONDS


def report(name: str, run: Callable[[], float]) -> None:
    """Print the rate, and the client's CPU time for a message: it is steady on a busy machine."""
    cpu = time.process_time()
    rate = run()
    cpu = (time.process_time() - cpu) / (rate * SECONDS)
    print(f"{name:16} {rate:8,.0f} messages/s, {1e6 * cpu:4.0f} us of CPU each")


def main() -> None:
    """Print a line for each client."""
    url = sys.argv[1]
    report("AsyncClient x 16", lambda: asyncio.run(with_tasks(url, 16)))
    report("Client x  1", lambda: with_threads(url, 1))
    report("Client x  8", lambda: with_threads(url, 8))


if __name__ == "__main__":
    main()

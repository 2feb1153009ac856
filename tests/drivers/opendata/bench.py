"""Measure the embedded store below HTTP: `python -m tests.drivers.opendata.bench`.

Figures are medians of rounds. `--million` adds a million waiting messages: opening, memory, claims.
"""

import argparse
import asyncio
import gc
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import DelayMode, NewMessage, QueueRef, StoreOptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.registry import create_stores

QUEUE = QueueRef("bench", "queue")
BODY = json.dumps("x" * 198).encode()
HOUR = 3_600_000


def message(delay_ms: int = 0) -> NewMessage:
    """A message of 200 bytes."""
    return NewMessage(BODY, HOUR * 24, delay_ms)


async def posts(store: MessageStore, producers: int, batch: int, seconds: float) -> float:
    """Messages a second of so many producers, each waiting for its answer."""
    ends = time.perf_counter() + seconds
    count = 0

    async def produce() -> None:
        nonlocal count
        new = [message()] * batch
        while time.perf_counter() < ends:
            await store.post(QUEUE, new, client_id="producer", version=None)
            count += batch

    started = time.perf_counter()
    await asyncio.gather(*(produce() for _ in range(producers)))
    return count / (time.perf_counter() - started)


async def claims(store: MessageStore, consumers: int, seconds: float) -> float:
    """Messages a second, claimed by twenty and deleted."""
    ends = time.perf_counter() + seconds
    count = 0

    async def consume() -> None:
        nonlocal count
        while time.perf_counter() < ends:
            claimed = await store.claim(
                QUEUE,
                limit=20,
                ttl_ms=60_000,
                grace_ms=60_000,
                client_id="consumer",
                delay_mode=DelayMode.IGNORE,
                version=None,
            )
            if claimed.claim_id is None:
                return
            ids = [held.id for held in claimed.messages]
            await store.delete(QUEUE, ids, claim_ids=[claimed.claim_id])
            count += len(ids)

    started = time.perf_counter()
    await asyncio.gather(*(consume() for _ in range(consumers)))
    return count / (time.perf_counter() - started)


def rss() -> int:
    """Resident bytes of this process."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * resource.getpagesize()


async def million(uri: str, count: int) -> None:
    """Open, measure and claim from a queue of `count` waiting messages."""
    messages, _ = create_stores(uri, clock=Clock(), options=StoreOptions())
    async with messages:
        gc.collect()
        before = rss()
        for _ in range(count // 1_000):
            await messages.post(QUEUE, [message()] * 1_000, client_id="p", version=None)
        gc.collect()
        print(f"memory: {(rss() - before) / count:.0f} bytes a waiting message of 200 bytes")
    del messages
    messages, _ = create_stores(uri, clock=Clock(), options=StoreOptions())
    started = time.perf_counter()
    async with messages:
        print(f"opening {count} messages: {time.perf_counter() - started:.2f} s")
        times = []
        for _ in range(50):
            started = time.perf_counter()
            await messages.claim(
                QUEUE, limit=20, ttl_ms=60_000, grace_ms=60_000, client_id="c",
                delay_mode=DelayMode.IGNORE, version=None,
            )  # fmt: skip
            times.append(time.perf_counter() - started)
        print(f"claim of 20 among {count}: median {statistics.median(times) * 1e3:.2f} ms")


async def run(arguments: argparse.Namespace) -> None:
    """Run the rounds."""
    scheme = {"sqlite": "opendata+sqlite", "slatedb": "opendata+slatedb"}[arguments.engine]
    figures: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            uri = f"{scheme}://{directory}/data"
            messages, _ = create_stores(uri, clock=Clock(), options=StoreOptions())
            async with messages:
                for name, producers, batch in (("1", 1, 1), ("16", 16, 1), ("64", 64, 1)):
                    rate = await posts(messages, producers, batch, arguments.seconds)
                    figures.setdefault(f"{name} producers of single posts", []).append(rate)
                await messages.purge(QUEUE)
                rate = await posts(messages, 16, 20, arguments.seconds)
                figures.setdefault("16 producers of posts of twenty", []).append(rate)
                rate = await claims(messages, 16, arguments.seconds)
                figures.setdefault("16 consumers: claim 20 and delete", []).append(rate)
    for name, rates in figures.items():
        print(f"{name}: {statistics.median(rates):,.0f} messages/s")
    if arguments.million:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            await million(f"{scheme}://{directory}/data", arguments.million)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("sqlite", "slatedb"), default="sqlite")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--million", type=int, nargs="?", const=1_000_000, default=0)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--uvloop", action="store_true")
    arguments = parser.parse_args()
    if arguments.uvloop:
        import uvloop  # noqa: PLC0415 - an option

        uvloop.run(run(arguments))
    else:
        asyncio.run(run(arguments))


if __name__ == "__main__":
    main()

"""Measure the embedded store below HTTP: `python -m tests.drivers.opendata.bench`.

Figures are medians of rounds. `--million` (or `--million 100000`) adds what a million waiting
messages cost: memory, opening, and claims of twenty in interleaved rounds among 1,000 messages,
among a million, and behind a million delayed ones, as a ratio of medians.
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
from zaqar_lite.domain.models import DelayMode, QueueRef, StoreOptions, Take
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.opendata.messages import OpenDataMessageStore
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
                Take(
                    limit=20,
                    ttl_ms=60_000,
                    grace_ms=60_000,
                    client_id="consumer",
                    delay_mode=DelayMode.IGNORE,
                    version=None,
                ),
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
    """Bytes of memory that this process has."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * resource.getpagesize()


class Claims:
    """A queue of its own, from which twenty are claimed, deleted, and replaced at the end."""

    def __init__(self, name: str, store: OpenDataMessageStore) -> None:
        self.name = name
        self.store = store
        self.times: list[float] = []
        self.examined: list[int] = []

    async def fill(self, count: int, delay_ms: int = 0) -> None:
        """Post messages by the thousand."""
        for start in range(0, count, 1_000):
            new = [message(delay_ms)] * min(1_000, count - start)
            await self.store.post(QUEUE, new, client_id="p", version=None)

    async def claim(self) -> None:
        """Measure one claim of twenty."""
        examined, started = self.store.examined, time.perf_counter()
        claimed = await self.store.claim(
            QUEUE,
            Take(
                limit=20,
                ttl_ms=60_000,
                grace_ms=60_000,
                client_id="c",
                delay_mode=DelayMode.HONOUR,
                version=None,
            ),
        )
        self.times.append(time.perf_counter() - started)
        self.examined.append(self.store.examined - examined)
        ids = [held.id for held in claimed.messages]
        await self.store.delete(QUEUE, ids, claim_ids=[claimed.claim_id or ""])
        await self.fill(len(ids))


def opened(uri: str) -> OpenDataMessageStore:
    """Make the store of a URI, not yet opened."""
    messages, _ = create_stores(uri, clock=Clock(), options=StoreOptions())
    assert isinstance(messages, OpenDataMessageStore)
    return messages


async def scale(base: str, count: int, rounds: int) -> None:
    """Memory, opening, and claims among `count` messages and behind as many delayed ones."""
    async with opened(f"{base}/many") as store:
        half = count // 2
        await Claims("", store).fill(half)  # by then the caches of bodies and of SQLite are full
        gc.collect()
        before = rss()
        await Claims("", store).fill(half)
        gc.collect()
        print(f"memory: {(rss() - before) / half:.0f} bytes a waiting message of 200 bytes")
    del store
    times = []
    for _ in range(3):
        started = time.perf_counter()
        async with opened(f"{base}/many"):
            times.append(time.perf_counter() - started)
    print(f"opening {count:,} messages: {statistics.median(times):.2f} s")
    few, many, behind = (opened(f"{base}/{name}") for name in ("few", "many", "behind"))
    async with few, many, behind:
        queues = [
            Claims("among 1,000", few),
            Claims(f"among {count:,}", many),
            Claims(f"behind {count:,} delayed", behind),
        ]
        await queues[0].fill(1_000)
        await queues[2].fill(count - 1_000, HOUR)  # all of them within what is held in memory
        await queues[2].fill(1_000)
        for _ in range(rounds):
            for queue in queues:
                await queue.claim()
    base_line = statistics.median(queues[0].times)
    for queue in queues:
        median = statistics.median(queue.times)
        print(
            f"claim of 20 {queue.name}: median {median * 1e3:.3f} ms of {rounds} claims, "
            f"{median / base_line:.2f} of the first, {statistics.median(queue.examined):.0f} "
            "entries examined"
        )


async def run(arguments: argparse.Namespace) -> None:
    """Run the rounds."""
    scheme = {"sqlite": "opendata+sqlite", "slatedb": "opendata+slatedb"}[arguments.engine]
    figures: dict[str, list[float]] = {}
    for _ in range(0 if arguments.only_million else arguments.rounds):
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
            await scale(f"{scheme}://{directory}", arguments.million, arguments.claims)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("sqlite", "slatedb"), default="sqlite")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--million", type=int, nargs="?", const=1_000_000, default=0)
    parser.add_argument("--claims", type=int, default=500, help="with --million: of each queue")
    parser.add_argument("--only-million", action="store_true", help="leave the other figures out")
    parser.add_argument("--directory", default=None)
    parser.add_argument("--uvloop", action="store_true")
    arguments = parser.parse_args()
    if arguments.only_million and not arguments.million:
        arguments.million = 1_000_000
    if arguments.uvloop:
        import uvloop  # noqa: PLC0415 - an option

        uvloop.run(run(arguments))
    else:
        asyncio.run(run(arguments))


if __name__ == "__main__":
    main()

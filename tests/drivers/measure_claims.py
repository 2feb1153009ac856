"""Measure claims of twenty in deep queues: `python -m tests.drivers.measure_claims [--store URI]`.

Medians over 500 claims, with 1,000 ready messages and with `--size` (1,000,000) ready, delayed or
claimed ones before them; the goal is at most 1.2 times as long. The sizes take turns, claim by
claim. Without `--store` it starts a Redis of its own.
"""

import argparse
import asyncio
import statistics
import time

from tests import services
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import DelayMode, QueueRef, StoreOptions, Take
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.registry import create_stores

HOUR = 3_600_000
BODY = b'"' + b"x" * 198 + b'"'


async def fill(store: MessageStore, queue: QueueRef, count: int, delay: int = 0) -> None:
    """Post `count` messages, a thousand at a time."""
    batch = [NewMessage(BODY, HOUR, delay)] * 1_000
    for _ in range(count // 1_000):
        await store.post(queue, batch, client_id="filler", version=None)


async def claim(store: MessageStore, queue: QueueRef, limit: int) -> str:
    """Claim messages that are there."""
    claimed = await store.claim(
        queue,
        Take(
            limit=limit,
            ttl_ms=HOUR,
            grace_ms=60_000,
            client_id="claimer",
            delay_mode=DelayMode.HONOUR,
            version=None,
        ),
    )
    assert claimed.claim_id is not None
    assert len(claimed.messages) == limit
    return claimed.claim_id


async def measure(url: str, size: int) -> None:
    """Print the medians."""
    store, _ = create_stores(url, clock=Clock(), options=StoreOptions())
    await store.open()
    shapes = ["1,000 ready", f"{size:,} ready", f"{size:,} delayed", f"{size:,} claimed"]
    queues = {shape: QueueRef("depth", str(number)) for number, shape in enumerate(shapes)}
    await fill(store, queues[shapes[1]], size)
    await fill(store, queues[shapes[2]], size, delay=HOUR // 2)
    await fill(store, queues[shapes[3]], size)
    for _ in range(size // 500):
        await claim(store, queues[shapes[3]], 500)
    for shape in (shapes[0], shapes[2], shapes[3]):
        await fill(store, queues[shape], 1_000)
    times: dict[str, list[float]] = {shape: [] for shape in shapes}
    for _ in range(500):
        for shape, queue in queues.items():
            begun = time.perf_counter()
            claim_id = await claim(store, queue, 20)
            times[shape].append(time.perf_counter() - begun)
            await store.release(queue, claim_id)
    base = statistics.median(times[shapes[0]])
    for shape, taken in times.items():
        median = statistics.median(taken)
        print(f"{shape:20} median {median * 1e6:6.0f} us, {median / base:.2f}x")
    await store.close()


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", metavar="URI")
    parser.add_argument("--size", type=int, default=1_000_000)
    arguments = parser.parse_args()
    if arguments.store is not None:
        asyncio.run(measure(arguments.store, arguments.size))
        return
    with services.start_redis() as redis:
        asyncio.run(measure(redis.url, arguments.size))


if __name__ == "__main__":
    main()

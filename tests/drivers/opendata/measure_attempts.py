"""What remembering hand-outs adds to a claim of twenty on the embedded store.

`python -m tests.drivers.opendata.measure_attempts`

Claims with and without what is remembered of attempts take turns in one process, on one queue of
the embedded store: who holds a message, which the sweep writes down where that still holds it. The
medians of CPU time (this process) and of wall time are printed, and their ratios; the goal is 1.10
at most. Then what it takes the sweep to write twenty holders down.
"""

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Awaitable
from typing import TypeVar
from unittest.mock import patch

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import DelayMode, QueueRef, StoreOptions, Take
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.opendata.entries import MAX_ATTEMPTS, Claim, Entry
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.registry import create_stores

T = TypeVar("T")
QUEUE = QueueRef("p", "q")
MESSAGES = [NewMessage(b'"' + b"x" * 198 + b'"', 3_600_000)] * 20
TAKE = Take(
    limit=20, ttl_ms=600_000, grace_ms=60_000, client_id="3381af92-2b9e-11e3-b191-71861300734c",
    delay_mode=DelayMode.IGNORE, version=None,
)  # fmt: skip
ROUNDS = 800


def hold(self: Queue, entry: Entry, claim: Claim) -> None:
    """Let a claim hold an entry, and keep nothing of the attempt."""
    entry.claim = claim
    if entry.attempts < MAX_ATTEMPTS:
        entry.attempts += 1
    claim.held[entry.position] = entry.name
    self.change(entry.page)


Cost = tuple[float, float]


async def timed(work: Awaitable[T]) -> tuple[T, Cost]:
    """What the work answers, and the seconds of CPU and of wall time that it took."""
    cpu, wall = time.process_time(), time.perf_counter()
    answer = await work
    return answer, (time.process_time() - cpu, time.perf_counter() - wall)


async def claim(store: MessageStore) -> tuple[Cost, Cost]:
    """Claim twenty messages; what that took, and then a sweep."""
    await store.post(QUEUE, MESSAGES, client_id="c", version=None)
    claimed, taken = await timed(store.claim(QUEUE, TAKE))
    _, swept = await timed(store.sweep(1_000))
    ids = [message.id for message in claimed.messages]
    assert len(ids) == len(MESSAGES)
    await store.delete(QUEUE, ids, claim_ids=None)
    return taken, swept


async def measure(url: str) -> None:
    """Print the medians."""
    store, _ = create_stores(url, clock=Clock(), options=StoreOptions())
    await store.open()
    gc.freeze()
    gc.disable()
    with_it: list[tuple[Cost, Cost]] = []
    without: list[tuple[Cost, Cost]] = []
    for number in range(2 * ROUNDS):
        if number // 2 % 2:
            with_it.append(await claim(store))
        else:
            with patch.object(Queue, "hold", hold):
                without.append(await claim(store))
    for number, what in enumerate(("a claim", "the sweep")):
        for kind, unit in enumerate(("CPU", "wall")):
            one, other = (
                statistics.median(costs[number][kind] for costs in some)
                for some in (with_it, without)
            )
            print(f"{what}, {unit}: {one * 1e6:.0f} us, without {other * 1e6:.0f} us,", end=" ")
            print(f"{one / other:.2f}x")
    await store.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(f"embedded://{directory}/data"))

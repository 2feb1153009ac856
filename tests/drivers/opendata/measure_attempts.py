"""What remembering hand-outs adds to a claim of twenty on the embedded store.

`python -m tests.drivers.opendata.measure_attempts`

Claims with and without the records of attempts take turns in one process, on one queue of the
embedded store. Printed are the medians of CPU time (this process) and of wall time, and their
ratios; the goal is 1.10 at most.
"""

import asyncio
import gc
import statistics
import tempfile
import time
from unittest.mock import patch

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import DelayMode, QueueRef, StoreOptions, Take
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.opendata import checkpoint
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import State
from zaqar_lite.storage.registry import create_stores

QUEUE = QueueRef("p", "q")
MESSAGES = [NewMessage(b'"' + b"x" * 198 + b'"', 3_600_000)] * 20
TAKE = Take(
    limit=20, ttl_ms=600_000, grace_ms=60_000, client_id="3381af92-2b9e-11e3-b191-71861300734c",
    delay_mode=DelayMode.IGNORE, version=None,
)  # fmt: skip
ROUNDS = 800


def forget(_: State, queue: Queue) -> None:
    """Keep nothing of attempts."""
    queue.ended.clear()


async def claim(store: MessageStore) -> tuple[float, float]:
    """Claim twenty messages; the seconds of CPU and of wall time that took."""
    await store.post(QUEUE, MESSAGES, client_id="c", version=None)
    cpu, wall = time.process_time(), time.perf_counter()
    claimed = await store.claim(QUEUE, TAKE)
    taken = time.process_time() - cpu, time.perf_counter() - wall
    ids = [message.id for message in claimed.messages]
    assert len(ids) == len(MESSAGES)
    await store.delete(QUEUE, ids, claim_ids=None)
    return taken


async def measure(url: str) -> None:
    """Print the medians."""
    store, _ = create_stores(url, clock=Clock(), options=StoreOptions())
    await store.open()
    gc.freeze()
    gc.disable()
    remembered, forgotten = [], []
    for number in range(2 * ROUNDS):
        if number // 2 % 2:
            remembered.append(await claim(store))
        else:
            with patch.object(checkpoint, "_encode_attempts", forget):
                forgotten.append(await claim(store))
    for what, some, others in zip(
        ("CPU", "wall"), zip(*remembered, strict=True), zip(*forgotten, strict=True), strict=True
    ):
        one, other = statistics.median(some), statistics.median(others)
        print(f"{what}: {one * 1e6:.0f} us, without {other * 1e6:.0f} us, {one / other:.2f}x")
    await store.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(f"embedded://{directory}/data"))

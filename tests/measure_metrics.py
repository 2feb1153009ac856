"""What metrics cost a request, a post and a claim; a scrape and the page at 100,000 queues.

    python -m tests.measure_metrics [--queues N]

Microseconds of CPU, the best of five; a scrape in milliseconds, once the queues have been counted;
the page's first screen over HTTP in milliseconds, the median and the worst of ten.
"""

import argparse
import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.server import ServerProcess
from zaqar_lite.client import Client
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import Claimed, DelayMode, Message, QueueRef, StoreOptions, Take
from zaqar_lite.domain.posts import NewMessage, Posted
from zaqar_lite.service.metrics.instrumented_store import instrumented
from zaqar_lite.service.metrics.metric_families import MetricFamilies
from zaqar_lite.service.metrics.metrics import Metrics
from zaqar_lite.service.metrics.queue_depths import QueueDepths
from zaqar_lite.service.metrics.shared_counters import SharedCounters
from zaqar_lite.storage.registry import create_stores

QUEUE = QueueRef("p", "q")


def best(act: Callable[[], object], rounds: int = 20_000) -> float:
    """Microseconds of one call."""
    found = []
    for _ in range(5):
        begun = time.process_time()
        for _ in range(rounds):
            act()
        found.append((time.process_time() - begun) / rounds * 1e6)
    return min(found)


class Nothing:
    """A store that answers the same at once, to leave only what the counting costs."""

    def __init__(self) -> None:
        message = Message("0" * 32, 1, b"1", 60_000, 1_000, 61_000, 2_000, claim_count=1)
        self._claimed = Claimed("c", [message] * 20)
        self._posted = [Posted("0" * 32)]

    async def post(self, *_: object, **__: object) -> Sequence[Posted]:
        """Store nothing."""
        return self._posted

    async def claim(self, *_: object) -> Claimed:
        """Hand out the same twenty messages."""
        return self._claimed

    def __getattr__(self, name: str) -> object:
        return self.post


def run(call: Any) -> None:
    """Run a coroutine that never waits."""
    try:
        call.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


def make(store: Any, management: Any) -> tuple[Any, Metrics]:
    """A store that counts, and what shows it."""
    families, board, clock = MetricFamilies(), SharedCounters(), Clock()
    census = QueueDepths(store, management, board, interval=5)
    metrics = Metrics(families, board, census, clock, store="memory")
    counted = instrumented(store, families, board.row)
    metrics.lay_out({f"route_{number}": f"GET /v2/{number}" for number in range(70)})
    return counted, metrics


def costs() -> dict[str, float]:
    """Microseconds that counting adds, by what is counted."""
    bare: Any = Nothing()
    counted, metrics = make(bare, None)
    new = [NewMessage(b"1", 60_000)]
    take = Take(20, None, DelayMode.IGNORE)
    cells = [0]

    def add() -> None:
        cells[0] += 1

    return {
        "list element": best(add),
        "request": best(lambda: metrics.request("route_7", 201, 0.0004)),
        "post of one": best(lambda: run(counted.post(QUEUE, new, client_id="c", version=1)))
        - best(lambda: run(bare.post(QUEUE, new, client_id="c", version=1))),
        "claim of twenty": best(lambda: run(counted.claim(QUEUE, take)))
        - best(lambda: run(bare.claim(QUEUE, take))),
    }


async def scrape(queues: int) -> tuple[float, float, int]:
    """Seconds of a count of all queues and of a scrape after it, and the bytes of its text."""
    store, management = create_stores("memory://", clock=Clock(), options=StoreOptions())
    _, metrics = make(store, management)
    for number in range(queues):
        message = NewMessage(b"1", 3_600_000)
        ref = QueueRef(f"project-{number % 50}", f"queue-{number}")
        await store.post(ref, [message], client_id="c", version=None)
    begun = time.perf_counter()
    shown = f'zaqar_lite_counted_queues{{store="memory"}} {queues}\n'
    text = ""
    while shown not in text:
        await asyncio.sleep(0.05)
        text = (await metrics.page(openmetrics=False)).text()
    counted = time.perf_counter() - begun
    found = []
    for _ in range(5):
        begun = time.perf_counter()
        text = (await metrics.page(openmetrics=False)).text()
        found.append(time.perf_counter() - begun)
    await metrics.stop()
    return counted, min(found), len(text)


def page(queues: int) -> list[float]:
    """Seconds until the first byte of the screen of all queues, of a server that has so many."""
    found = []
    with (
        ServerProcess("memory://") as server,
        Client(server.url) as client,
        ThreadPoolExecutor(8) as pool,
        httpx.Client(base_url=server.url, timeout=60) as browser,
    ):
        made = pool.map(lambda number: client.post(f"queue-{number}", 1), range(queues))
        deque(made, maxlen=0)
        for _ in range(10):
            begun = time.perf_counter()
            with browser.stream("GET", "/ui/p/default/") as answer:
                next(answer.iter_raw())
                found.append(time.perf_counter() - begun)
    return sorted(found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=100_000)
    for name, microseconds in costs().items():
        print(f"{name:16} {microseconds:6.2f} us")
    queues = parser.parse_args().queues
    counted, seconds, size = asyncio.run(scrape(queues))
    print(f"scrape {seconds * 1000:.1f} ms, {size:,} bytes, after a count of {counted:.1f} s")
    times = page(queues)
    print(f"page {times[5] * 1000:.0f} ms, at worst {times[-1] * 1000:.0f} ms")


if __name__ == "__main__":
    main()

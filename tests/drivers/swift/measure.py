"""Compare the driver with the raw Swift calls of the same run; prints ratios.

python -m tests.drivers.swift.measure [URL] [ROUNDS]

Without a URL it starts a Swift of its own. Raw calls go through the same worker threads, 20 at
once; each figure is the median of ROUNDS rounds, driver and raw by turns, so that what else the
machine does falls on both. "raw" is without X-Delete-At, which costs Swift an entry in the
expirer's queue for each write; "with deadline" is the same calls with it, as the driver has to.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from tests import services
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import DelayMode, NewMessage, QueueRef, StoreOptions
from zaqar_lite.storage.swift import create
from zaqar_lite.storage.swift.messages import SwiftMessageStore

COUNT = 20
BODY = b'"' + b"x" * 500 + b'"'

Step = Callable[[], Awaitable[Any]]


async def timed(step: Step) -> float:
    """Milliseconds that a step took."""
    started = time.perf_counter()
    await step()
    return (time.perf_counter() - started) * 1000


class Measurement:
    """One store, one queue, and a container of raw objects beside it."""

    def __init__(self, store: SwiftMessageStore) -> None:
        self.store = store
        self.swift = store._backend.swift
        self.queue = QueueRef("measure", f"queue-{uuid4().hex[:8]}")
        self.raw = f"measure-{uuid4().hex[:8]}"
        self.names: list[str] = []
        self.deadline: dict[str, str] = {}

    async def post(self) -> None:
        """The driver posts."""
        messages = [NewMessage(BODY, 3_600_000)] * COUNT
        await self.store.post(self.queue, messages, client_id="c", version=None)

    async def list(self) -> None:
        """The driver lists."""
        page = await self.store.list_messages(self.queue, limit=COUNT)
        assert len(page.messages) == COUNT

    async def claim(self) -> None:
        """The driver claims."""
        claimed = await self.store.claim(
            self.queue,
            limit=COUNT,
            ttl_ms=600_000,
            grace_ms=60_000,
            client_id="c",
            delay_mode=DelayMode.IGNORE,
            version=None,
        )
        assert len(claimed.messages) == COUNT

    async def raw_puts(self) -> None:
        """20 PUTs at once."""
        self.names = [f"m/{uuid4().hex}" for _ in range(COUNT)]
        headers = {"Content-Type": "application/x-zaqar-message;e=1;t=1;u=1", **self.deadline}
        await asyncio.gather(
            *(
                self.swift.call("PUT", self.raw, name, headers=headers, body=BODY)
                for name in self.names
            )
        )

    async def raw_list(self) -> None:
        """A listing and 20 GETs at once."""
        await self.swift.call("GET", self.raw, query={"format": "json", "limit": 2 * COUNT})
        await self.raw_each("GET")

    async def raw_claim(self) -> None:
        """A listing, 20 GETs and 20 POSTs at once."""
        await self.raw_list()
        await self.raw_each("POST")

    async def raw_each(self, method: str) -> None:
        """The same request to each of the 20 objects."""
        headers = {"Content-Type": "application/x-zaqar-message;e=2;t=2;u=2", **self.deadline}
        chosen = headers if method == "POST" else {"X-Newest": "true"}
        await asyncio.gather(
            *(self.swift.call(method, self.raw, name, headers=chosen) for name in self.names)
        )

    async def run(self, rounds: int) -> None:
        """Measure and print, one kind of operation after the other."""
        await self.swift.call("PUT", self.raw)
        await self.compare(self.post, self.raw_puts, rounds)
        await self.compare(self.list, self.raw_list, rounds)
        await self.compare(self.claim, self.raw_claim, rounds)
        await self.store.drop(self.queue)

    async def compare(self, ours: Step, raw: Step, rounds: int) -> None:
        """Run the driver's step, and the raw one without and with a deadline, by turns."""
        times: list[list[float]] = [[], [], []]
        for number in range(rounds + 1):
            for turn in range(3):
                which = (number + turn) % 3
                ends = {"X-Delete-At": str(int(time.time()) + 3600)}
                self.deadline = ends if which == 2 else {}
                took = await timed(ours if which == 0 else raw)
                if number:  # the first round opens connections
                    times[which].append(took)
            if ours == self.claim:  # what is held would lengthen the next claim's listing
                found = await self.store.list_messages(
                    self.queue, limit=COUNT, include_claimed=True
                )
                ids = [message.id for message in found.messages]
                await self.store.delete(self.queue, ids, claim_ids=None)
        mine, plain, with_deadline = map(statistics.median, times)
        print(
            f"{ours.__name__:5} of {COUNT}: {mine:4.0f} ms; raw {plain:4.0f} ms, ratio "
            f"{mine / plain:.2f}; raw with deadline {with_deadline:4.0f} ms, ratio "
            f"{mine / with_deadline:.2f}"
        )


async def measure(url: str, rounds: int) -> None:
    """Measure the Swift at `url`."""
    messages, _ = create(url, clock=Clock(), options=StoreOptions())
    assert isinstance(messages, SwiftMessageStore)
    async with messages:
        await Measurement(messages).run(rounds)


if __name__ == "__main__":
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    if len(sys.argv) > 1 and sys.argv[1]:
        asyncio.run(measure(sys.argv[1], rounds))
    else:
        with services.start_swift() as server:
            asyncio.run(measure(server.url, rounds))

"""Compare the driver with raw Swift calls in one run; prints times and ratios.

python -m tests.drivers.swift.measure [URL] [ROUNDS]

Without a URL it starts a Swift of its own. "raw" is python-swiftclient alone: as many threads as
the driver has, a connection each, kept open, and the same names, content, headers and sizes.
"without deadline" leaves X-Delete-At out, which costs Swift's object server a write to the
expirer's queue for each PUT and POST. Driver and raw take turns, so that what else the machine does
falls on all; the ratio is the median of those of the rounds. First come rounds that are not
counted: Swift makes a hundred containers for a day's deadlines, each when it first needs it.
"""

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import swiftclient

from tests import services
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.ids import new_message_id
from zaqar_lite.domain.models import ClaimRequest, DelayMode, ListQuery, QueueRef, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.swift import SwiftMessageStore, create, layout
from zaqar_lite.storage.swift.layout import Content, State

COUNT = 20
CONNECTIONS = 24
BODY = b'"' + b"x" * 500 + b'"'
TTL_MS = 3_600_000
WARMING = 20

Step = Callable[[], Awaitable[Any]]


async def timed(step: Step) -> float:
    """Milliseconds that a step took."""
    started = time.perf_counter()
    await step()
    return (time.perf_counter() - started) * 1000


class Driver:
    """The operations that are measured, by the driver."""

    def __init__(self, store: SwiftMessageStore) -> None:
        self.store = store
        self.queue = QueueRef("measure", f"queue-{uuid4().hex[:8]}")
        self.claim_id = ""

    async def post(self) -> None:
        """Post a batch."""
        messages = [NewMessage(BODY, TTL_MS)] * COUNT
        await self.store.post(self.queue, messages, client_id="c", version=None)

    async def list(self) -> None:
        """List the first page."""
        page = await self.store.list_messages(self.queue, ListQuery(limit=COUNT))
        assert len(page.messages) == COUNT

    async def claim(self) -> None:
        """Claim the first messages."""
        claimed = await self.store.claim(
            self.queue,
            ClaimRequest(
                limit=COUNT,
                ttl_ms=600_000,
                grace_ms=60_000,
                client_id="c",
                delay_mode=DelayMode.IGNORE,
                version=None,
            ),
        )
        assert len(claimed.messages) == COUNT
        self.claim_id = claimed.claim_id or ""

    async def free(self) -> None:
        """End the claim, so that the next one meets the same queue."""
        if self.claim_id:
            await self.store.settle_all(self.queue, self.claim_id, Settlement("", Act.RELEASE))
            self.claim_id = ""


class Raw:
    """The same Swift calls by python-swiftclient, 20 at once."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token
        self.container = f"measure-{uuid4().hex[:8]}"
        self.names: list[str] = []
        self.deadline = True
        self._pool = ThreadPoolExecutor(CONNECTIONS)
        self._thread = threading.local()

    async def prepare(self) -> None:
        """Make the container."""
        await self._call(swiftclient.put_container)

    async def post(self) -> None:
        """20 PUTs."""
        first = time.time_ns() // 1000
        places = range(first, first + COUNT)
        self.names = [layout.message_name(at, new_message_id(at)) for at in places]
        content = Content(int(time.time() * 1000), "c", None, None, BODY).encode()
        await self._each(swiftclient.put_object, contents=content, headers=self._headers())

    async def list(self) -> None:
        """A listing and 20 GETs."""
        await self._call(swiftclient.get_container, limit=2 * COUNT)
        await self._each(swiftclient.get_object, headers={"X-Newest": "true"})

    async def claim(self) -> None:
        """A listing, 20 GETs and 20 POSTs."""
        await self.list()
        await self._each(swiftclient.post_object, headers=self._headers(claim_id=uuid4().hex))

    def _headers(self, claim_id: str = "") -> dict[str, str]:
        now = int(time.time() * 1000)
        state = State(now + TTL_MS, TTL_MS, layout.client_digest("c"))
        if claim_id:
            state = replace(
                state, claim_count=1, claim_id=claim_id, claim_expires_at=now, claim_client="c"
            )
        ends = {"X-Delete-At": str(int(time.time()) + 3_900)} if self.deadline else {}
        return {"Content-Type": state.content_type(), **ends}

    async def _each(self, function: Callable[..., Any], **words: object) -> None:
        await asyncio.gather(*(self._call(function, name, **words) for name in self.names))

    async def _call(self, function: Callable[..., Any], *name: str, **words: object) -> None:
        await asyncio.get_running_loop().run_in_executor(
            self._pool, self._in_thread, function, name, words
        )

    def _in_thread(
        self, function: Callable[..., Any], name: tuple[str, ...], words: dict[str, object]
    ) -> None:
        if not hasattr(self._thread, "connection"):
            self._thread.connection = swiftclient.http_connection(self.url)
        connection = self._thread.connection
        function(self.url, self.token, self.container, *name, http_conn=connection, **words)


async def compare(driver: Driver, raw: Raw, name: str, rounds: int) -> None:
    """Run one operation by the driver, raw, and raw without deadline, by turns; print."""
    raw_step: Step = getattr(raw, name)
    steps: list[Step] = [getattr(driver, name), raw_step, raw_step]
    times: list[list[float]] = [[], [], []]
    for number in range(rounds + 2):
        for turn in range(3):
            which = (number + turn) % 3
            raw.deadline = which == 1
            took = await timed(steps[which])
            if number > 1:  # the first rounds open connections
                times[which].append(took)
        await driver.free()
    mine, same, plain = times
    print(
        f"{name:5} of {COUNT}: {statistics.median(mine):4.0f} ms; raw "
        f"{statistics.median(same):4.0f} ms, ratio {_ratio(mine, same)}; raw without deadline "
        f"{statistics.median(plain):4.0f} ms, ratio {_ratio(mine, plain)}",
        flush=True,
    )


def _ratio(mine: list[float], theirs: list[float]) -> str:
    """The median of the rounds' ratios, and the middle half of them."""
    ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


async def measure(url: str, rounds: int) -> None:
    """Measure the Swift at `url`."""
    store, _ = create(f"{url}?connections={CONNECTIONS}", clock=Clock(), options=StoreOptions())
    assert isinstance(store, SwiftMessageStore)
    async with store:
        raw, driver = Raw(*store._connection.swift._auth.current()), Driver(store)
        await raw.prepare()
        for _ in range(WARMING):
            await raw.post()
            await driver.post()
        for name in ("post", "list", "claim"):
            await compare(driver, raw, name, rounds)
        await store.drop(driver.queue)


if __name__ == "__main__":
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 30
    if len(sys.argv) > 1 and sys.argv[1]:
        asyncio.run(measure(sys.argv[1], rounds))
    else:
        with services.start_swift() as server:
            asyncio.run(measure(server.url, rounds))

"""Measure what messages cost that are due within a year: `python -m tests.measure_long_delays`.

One queue of a store holds `--messages` (a million) that are due within a year, another one as many
that are due ten to twenty minutes from now. Then both take turns: post a message of that kind,
claim twenty that have become due, list twenty, count all. Printed are the medians of each and the
ratio of the two queues; the goal is at most 1.2. `--stores` names what is measured: memory,
embedded and redis, and at a hundredth of the messages mongodb and swift.
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import uuid4

from tests.services import Service, start_mongo, start_redis, start_swift
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.models import DelayMode, QueueRef, Selection, StoreOptions, Take
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.registry import create_stores

MINUTE, DAY = 60_000, 86_400_000
KINDS = {"ten minutes": (10 * MINUTE, 20 * MINUTE), "a year": (10 * MINUTE, 365 * DAY)}
"""The kinds of messages: from when to when they are due, in milliseconds from their post."""
STARTS: Mapping[str, Callable[[], Service]] = {
    "redis": start_redis,
    "mongodb": start_mongo,
    "swift": start_swift,
}
_SMALL = {"mongodb", "swift"}
_BODY = b'"' + b"x" * 198 + b'"'
_LIMIT = 20
_SOON_MS, _MARGIN = 1_000, 2.0
"""How soon the claimed messages are due, and seconds more for a store whose clock is behind."""
_CLIENT = "3381af92-2b9e-11e3-b191-71861300734c"
_TAKE = Take(_LIMIT, None, DelayMode.HONOUR, DAY, MINUTE, _CLIENT)


class Cost(NamedTuple):
    """What a call took: seconds, and entries that the store looked at, 0 if it does not count."""

    seconds: float
    examined: int


Costs = Mapping[tuple[str, str], list[Cost]]
"""What calls took, by what was done and the kind of the queue's messages."""


def message(kind: str) -> NewMessage:
    """A message of a kind, which lives for a day from when it is due."""
    delay = random.randint(*KINDS[kind])
    return NewMessage(_BODY, delay + DAY, delay)


async def fill(store: MessageStore, project: str, count: int, rounds: int) -> None:
    """Post the messages of each kind, and those that the rounds claim; wait until these are due."""
    for kind in KINDS:
        queue = _queue(project, kind)
        for first in range(0, count, 1_000):
            some = [message(kind) for _ in range(min(1_000, count - first))]
            await store.post(queue, some, client_id=_CLIENT, version=None)
        soon = [NewMessage(_BODY, DAY, _SOON_MS)] * _LIMIT
        for _ in range(rounds):
            await store.post(queue, soon, client_id=_CLIENT, version=None)
    await asyncio.sleep(_SOON_MS / 1000 + _MARGIN)


async def measure(store: MessageStore, count: int, rounds: int) -> Costs:
    """Fill the queues, and measure each call in rounds."""
    began, project = time.monotonic(), uuid4().hex
    await fill(store, project, count, rounds)
    costs: defaultdict[tuple[str, str], list[Cost]] = defaultdict(list)
    kinds = list(KINDS)
    for number in range(rounds):
        for kind in kinds if number % 2 else reversed(kinds):
            for name, call in _calls(store, _queue(project, kind), message(kind)).items():
                costs[name, kind].append(await _cost(store, call))
    assert time.monotonic() - began < 600, "the messages of ten minutes have become due meanwhile"
    return costs


def _queue(project: str, kind: str) -> QueueRef:
    return QueueRef(project, kind.replace(" ", "-"))


def _calls(
    store: MessageStore, queue: QueueRef, new: NewMessage
) -> Mapping[str, Callable[[], Awaitable[object]]]:
    page = Selection(_LIMIT, Marker(0), include_delayed=True)

    async def claim() -> None:
        assert len((await store.claim(queue, _TAKE)).messages) == _LIMIT

    async def list_() -> None:
        assert len((await store.list_messages(queue, page)).messages) == _LIMIT

    return {
        "post": lambda: store.post(queue, [new], client_id=_CLIENT, version=None),
        "claim": claim,
        "list": list_,
        "stats": lambda: store.stats(queue),
    }


async def _cost(store: MessageStore, call: Callable[[], Awaitable[object]]) -> Cost:
    examined, began = getattr(store, "examined", 0), time.perf_counter()
    await call()
    return Cost(time.perf_counter() - began, getattr(store, "examined", 0) - examined)


@contextlib.asynccontextmanager
async def opened(name: str) -> AsyncIterator[MessageStore]:
    """A store of its own."""
    with contextlib.ExitStack() as stack:
        if name in STARTS:
            uri = stack.enter_context(STARTS[name]()).url
        elif name == "embedded":
            uri = f"embedded://{stack.enter_context(tempfile.TemporaryDirectory())}"
        else:
            uri = "memory://"
        messages, management = create_stores(
            uri, clock=Clock(), options=StoreOptions(max_messages=100_000_000)
        )
        async with management, messages:
            yield messages


async def compare(name: str, count: int, rounds: int) -> None:
    """Print a line for each call."""
    async with opened(name) as store:
        costs = await measure(store, count, rounds)
    near, far = KINDS
    for call in dict.fromkeys(call for call, _ in costs):
        less, more = (_median_us(costs[call, kind]) for kind in (near, far))
        print(f"{name:9}{count:>10,}  {call:6}", end="")
        print(f"{near} {less:>7,.0f} us   {far} {more:>7,.0f} us   {more / less:.2f}x", flush=True)


def _median_us(costs: Sequence[Cost]) -> float:
    return statistics.median(one.seconds for one in costs) * 1e6


def main() -> None:
    """Measure the stores, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", default="memory,embedded,redis,mongodb,swift")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    for name in arguments.stores.split(","):
        count = arguments.messages // (100 if name in _SMALL else 1)
        asyncio.run(compare(name, count, arguments.rounds))


if __name__ == "__main__":
    main()

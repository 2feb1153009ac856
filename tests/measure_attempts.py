"""Measure what attempts cost a claim that does not show them: `python -m tests.measure_attempts`.

Twenty messages are claimed for the first time, after one failure, and after twenty failures with a
detail of 700 bytes each (sixteen attempts are kept, 16 KiB of them). The kinds take turns. Printed
are the medians of what such a claim costs, and of its ratio to the first claim of the same round:
the CPU of this process, in which the store is, and of a script where that is Redis's.
"""

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence

from tests.services import start_redis
from tests.services.redis import RedisServer
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import Claimed, DelayMode, QueueRef, StoreOptions, Take
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.registry import create_stores

_CLIENT = "3381af92-2b9e-11e3-b191-71861300734c"
_QUEUE = QueueRef("p", "q")
_MESSAGE = NewMessage(b'"%s"' % (b"x" * 198), ttl_ms=3_600_000)
_TAKE = Take(20, None, DelayMode.IGNORE, ttl_ms=300_000, grace_ms=60_000, client_id=_CLIENT)
_KINDS = {"no attempt": 0, "one": 1, "sixteen": 20}
_WARM_UP = 10


async def claim(store: MessageStore) -> Claimed:
    """Claim the twenty messages."""
    claimed = await store.claim(_QUEUE, _TAKE)
    assert len(claimed.messages) == _TAKE.limit
    return claimed


async def prepare(store: MessageStore, failures: int) -> None:
    """Let the queue hold twenty messages that have failed so often."""
    await store.purge(_QUEUE)
    await store.post(_QUEUE, [_MESSAGE] * _TAKE.limit, client_id=_CLIENT, version=None)
    for _ in range(failures):
        held = await claim(store)
        failed = [
            Settlement(one.id, Act.RELEASE, 0, failed=True, reason="http_503", detail="x" * 700)
            for one in held.messages
        ]
        await store.settle(_QUEUE, held.claim_id or "", failed)


def script_seconds(redis: RedisServer | None) -> float:
    """How long the scripts of a Redis have run."""
    if redis is None:
        return 0.0
    lines = redis.cli("info", "commandstats").splitlines()
    found = [line for line in lines if line.startswith("cmdstat_evalsha:")]
    return int(found[0].split("usec=")[1].split(",")[0]) / 1e6 if found else 0.0


async def measure(
    store: MessageStore, redis: RedisServer | None, rounds: int
) -> dict[str, list[float]]:
    """The seconds of a claim of each kind, in rounds."""
    taken: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    names = list(_KINDS)
    for number in range(_WARM_UP + rounds):
        turn = number % len(names)
        for kind in names[turn:] + names[:turn]:
            await prepare(store, _KINDS[kind])
            await asyncio.sleep(0.005)
            before, cpu = script_seconds(redis), time.process_time()
            await claim(store)
            cpu = time.process_time() - cpu
            if number >= _WARM_UP:
                taken[kind].append(cpu + script_seconds(redis) - before)
    return taken


@contextlib.asynccontextmanager
async def opened(name: str) -> AsyncIterator[tuple[MessageStore, RedisServer | None]]:
    """A store of its own, and its Redis."""
    with contextlib.ExitStack() as stack:
        redis, uri = None, "memory://"
        if name == "redis":
            redis = stack.enter_context(start_redis())
            uri = redis.url
        elif name == "embedded":
            uri = f"embedded://{stack.enter_context(tempfile.TemporaryDirectory())}"
        stores = create_stores(uri, clock=Clock(), options=StoreOptions())
        messages, management = stores
        await management.open()
        await messages.open()
        try:
            yield messages, redis
        finally:
            await messages.close()
            await management.close()


async def compare(name: str, rounds: int) -> None:
    """Print a line for each kind of claim."""
    async with opened(name) as (store, redis):
        taken = await measure(store, redis, rounds)
    base = taken["no attempt"]
    for kind, costs in taken.items():
        print(f"{name:10}{kind:12}{_median(costs, base)}", flush=True)


def _median(costs: Sequence[float], base: Sequence[float]) -> str:
    ratio = statistics.median(one / other for one, other in zip(costs, base, strict=True))
    return f"{statistics.median(costs) * 1e6:>6.0f} us {ratio:>6.2f}x"


def main() -> None:
    """Measure the stores, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", default="memory,embedded,redis")
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    for name in arguments.stores.split(","):
        asyncio.run(compare(name, arguments.rounds))


if __name__ == "__main__":
    main()

"""kill -9 of a process in the middle of what another process must finish soon."""

import math
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests import services
from tests.server import PING_HEADERS, ServerProcess
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.redis.keys import EVERYWHERE, keys_of

SOON = 20
"""Seconds; what a process that ended had not registered was found after sixty at the soonest."""
QUEUE = QueueRef("ping", "jobs")
CONSUMER = """
import asyncio, os, signal, sys
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import ClaimRequest, DeadLetter, DelayMode, QueueRef, RetryPolicy
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.redis.outbox import Outbox
from zaqar_lite.storage.redis.runner import Runner
from zaqar_lite.storage.registry import create_stores

QUEUE = QueueRef("ping", "jobs")
RETRIES = RetryPolicy(DeadLetter(QueueRef("ping", "letters"), max_claims=1))

async def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

async def claim(store, ttl_ms):
    await store.post(QUEUE, [NewMessage(b"1", 3_600_000)], client_id="c", version=None)
    if ttl_ms < 60_000:
        Runner._register = die
    request = ClaimRequest(1, None, DelayMode.IGNORE, ttl_ms, 60_000, "c", RETRIES)
    return await store.claim(QUEUE, request)

async def reject(store):
    claimed = await claim(store, 600_000)
    rejected = Settlement(claimed.messages[0].id, Act.DEAD, reason="test")
    await store.settle(QUEUE, claimed.claim_id, [rejected], retries=RETRIES)
    await asyncio.sleep(0.5)

async def main(uri, dies_before):
    store, _ = create_stores(uri, clock=Clock(), options=StoreOptions())
    await store.open()
    if dies_before == "drain":
        await reject(store)
        print("one letter is there", flush=True)
        sys.stdin.readline()
        Outbox.deliver = Outbox.drain = die
        await reject(store)
    await claim(store, 2_000)
    await die()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def server(own_redis: services.RedisServer, client: Any) -> Iterator[ServerProcess]:
    """Another server over the same Redis, which has the queue's policy."""
    with ServerProcess(own_redis.url).start() as started:
        metadata = {"_dead_letter_queue": "letters", "_max_claim_count": 1}
        path = f"{started.url}/v2/queues/{QUEUE.name}"
        httpx.put(path, json=metadata, headers=PING_HEADERS).raise_for_status()
        yield started
        for queue in (QUEUE.name, "letters"):
            httpx.delete(f"{started.url}/v2/queues/{queue}", headers=PING_HEADERS)


def letters_come(server: ServerProcess, count: int) -> None:
    """Wait until so many letters are there; fail when they do not come soon."""
    path = f"{server.url}/v2/queues/letters/messages"
    until = time.monotonic() + SOON
    found: list[Any] = []
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} letters of {count} after {SOON} s"
        time.sleep(0.1)
        found = httpx.get(path, headers=PING_HEADERS, params={"echo": True}).json()["messages"]


@pytest.mark.parametrize("dies_before", ["drain", "register"])
def test_another_server_brings_the_letters_of_one_that_was_killed(
    server: ServerProcess, own_redis: services.RedisServer, client: Any, dies_before: str
) -> None:
    """Of a consumer that ended with a letter in the outbox, or before it registered its claim."""
    with subprocess.Popen(
        [sys.executable, "-c", CONSUMER, own_redis.url, dies_before],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as consumer:
        assert consumer.stdin is not None
        assert consumer.stdout is not None
        if dies_before == "drain":
            assert consumer.stdout.readline()
            letters_come(server, 1)
            # The sweep has been here: it comes again in some seconds, or where it is told to.
            index, tag = EVERYWHERE.key("visits"), keys_of(QUEUE).tag
            server.wait_for(
                lambda: (client.zscore(index, tag) or math.inf) > time.time() * 1000 + 1_000
            )
            consumer.stdin.write(b"now\n")
            consumer.stdin.flush()
        assert consumer.wait(60) == -9
    letters_come(server, 2 if dies_before == "drain" else 1)

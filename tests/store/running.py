"""What the tests of `zaqar-lite store` do most: fill a store, run a command, read what there is."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tests.drivers.sql.store import Store
from tests.drivers.store import HOUR, OTHER, QUEUE, THIRD
from zaqar_lite.cli import main
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import (
    DeadLetter,
    DelayMode,
    RetryPolicy,
)
from zaqar_lite.domain.posts import Copy, IdempotencyKey, NewMessage
from zaqar_lite.domain.settlements import Act, Settlement

T = TypeVar("T")
METADATA = {
    "é": [1], "_default_message_delay": 0, "_max_claim_count": 2, "_dead_letter_queue": "third",
    "_priority": "RULES(TRUE -> 1, DEFAULT 2)", "_done_retention": 0,
}  # fmt: skip


def on(directory: Path, work: Callable[[Store], Awaitable[T]], clock: Clock | None = None) -> T:
    """Work on an open store, and close it."""

    async def run() -> T:
        store = Store(directory)
        store.db.clock = clock or store.clock
        async with store:
            return await work(store)

    return asyncio.run(run())


async def fill(store: Store) -> None:
    """A row in every table, and messages in every state; nothing of it ends within a minute."""
    await store.management.create_queue(QUEUE, METADATA, max_queues=9)
    await store.management.create_queue(OTHER, {"_filter": "a = 'b'"}, max_queues=9)
    await store.management.put_record("kind", "project", "name", b'{"a": 1}', expected=None)
    await store.post("dead")
    await settle(store, Act.DEAD, reason="malformed", detail="é")
    await store.post("done")
    await settle(store, Act.ACK)
    await store.post("parked")
    await settle(store, Act.RELEASE, delay_ms=HOUR, failed=True, reason="busy")
    await store.post("claimed")
    await store.claim(1)
    copy = Copy(OTHER, HOUR, 0, 7)
    await store.post(
        NewMessage(b'"copied"', HOUR, 0, None, {"a": "b"}, copies=(copy,)),
        NewMessage(b'"delayed"', HOUR, HOUR // 2),
        NewMessage(b'"keyed"', HOUR, idempotency_key=IdempotencyKey("key", b"x" * 16)),
        NewMessage(b'"grouped"', HOUR, headers={"zaqar-group": "g"}, priority=3),
    )


async def settle(store: Store, act: Act, **how: Any) -> None:
    """Claim one message, and settle it."""
    retries = RetryPolicy(DeadLetter(THIRD, 2))
    claimed = await store.claim(1, retries=retries, mode=DelayMode.HONOUR)
    assert claimed.claim_id is not None
    settlement = Settlement(claimed.messages[0].id, act, **how)
    await store.messages.settle(QUEUE, claimed.claim_id, [settlement], retries=retries)


def store(*words: str | Path) -> int:
    """Run `zaqar-lite store` in this process; answer its exit code."""
    return main(["store", *map(str, words)])


def run(
    *words: str | Path, environment: Mapping[str, str] | None = None, given: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `zaqar-lite store` in a process of its own; `given` is its standard input."""
    command = [sys.executable, "-m", "zaqar_lite.cli", "store", *map(str, words)]
    own = os.environ | (environment or {})
    return subprocess.run(
        command, check=False, capture_output=True, timeout=60, env=own, input=given
    )

"""One process of the races between processes: `python -m tests.contract.worker JSON`.

It says `ready` once its store is open, and begins when it is given a line. What it posted or
claimed is its last line. A claimer ends when it is given another line and finds no more.
"""

import asyncio
import json
import sys
from typing import Any

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import ClaimRequest, DelayMode, QueueRef, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.registry import create_stores

HOUR = 3_600_000


async def post(store: MessageStore, queue: QueueRef, posts: int) -> list[str]:
    """Post pairs of messages as fast as the store takes them."""
    posted: list[str] = []
    for _ in range(posts):
        answers = await store.post(
            queue, [NewMessage(b"1", HOUR)] * 2, client_id="producer", version=None
        )
        posted += [answer.id for answer in answers]
    return posted


async def claim(store: MessageStore, queue: QueueRef) -> list[str]:
    """Claim until told to end and nothing is left."""
    end = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    found: list[str] = []
    while True:
        ending = end.done()
        claimed = await store.claim(
            queue,
            ClaimRequest(
                limit=3,
                ttl_ms=HOUR,
                grace_ms=HOUR,
                client_id="consumer",
                delay_mode=DelayMode.IGNORE,
                version=None,
            ),
        )
        found += [message.id for message in claimed.messages]
        if ending and not claimed.messages:
            return found
        await asyncio.sleep(0)


async def main(task: dict[str, Any]) -> None:
    """Open the store and do one task."""
    options = StoreOptions(workers=2, extra=task["extra"])
    messages, _ = create_stores(task["uri"], clock=Clock(), options=options)
    queue = QueueRef(task["project"], task["name"])
    async with messages:
        print("ready", flush=True)
        sys.stdin.readline()
        posts = task["posts"]
        ids = await (post(messages, queue, posts) if posts else claim(messages, queue))
    print(json.dumps(ids), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))

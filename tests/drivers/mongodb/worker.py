"""A process of its own that posts to or claims from a queue: URI, database, what, how many.

Prints one line for each message: its body when posted, its id when claimed.
"""

import asyncio
import sys

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import DelayMode, QueueRef, StoreOptions, Take
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.registry import create_stores

QUEUE = QueueRef("project", "queue")


async def main(uri: str, database: str, what: str, count: int) -> None:
    """Do it."""
    options = StoreOptions(extra={"database": database})
    store, _ = create_stores(uri, clock=Clock(), options=options)
    async with store:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        if what == "die in a post":

            async def hang(*_: object, **__: object) -> None:
                print("in a transaction", flush=True)
                await asyncio.sleep(600)

            store._insert = hang  # type: ignore[attr-defined]
        if what.startswith(("post", "die")):
            for number in range(count):
                body = f'"{what}-{number:03}"'
                await store.post(
                    QUEUE, [NewMessage(body.encode(), 3_600_000)], client_id=what, version=None
                )
                print(body, flush=True)
            return
        while True:
            claimed = await store.claim(
                QUEUE,
                Take(
                    limit=count,
                    ttl_ms=600_000,
                    grace_ms=60_000,
                    client_id=what,
                    delay_mode=DelayMode.IGNORE,
                    version=None,
                ),
            )
            if claimed.claim_id is None:
                return
            for message in claimed.messages:
                print(message.id, message.claim_count, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))

"""A process that stands still in the middle of a post, to be killed there: URI and database."""

import asyncio
import sys

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.registry import create_stores

QUEUE = QueueRef("project", "queue")


async def hang(*_: object, **__: object) -> None:
    """Insert nothing, while the transaction is open."""
    print("in a transaction", flush=True)
    await asyncio.sleep(600)


async def main(uri: str, database: str) -> None:
    """Begin a post."""
    options = StoreOptions(extra={"database": database})
    store, _ = create_stores(uri, clock=Clock(), options=options)
    async with store:
        store._insert = hang  # type: ignore[attr-defined]
        message = NewMessage(b"1", 3_600_000)
        await store.post(QUEUE, [message], client_id="dies", version=None)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

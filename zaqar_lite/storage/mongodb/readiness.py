"""What became ready: this process's own doings are told at once, those of others are looked for.

A process looks every `LOOK_MS` at the queues that it watches: what is there the last ready message
of each? Another one than before means that something became ready. Nothing is written for it, so it
costs who posts nothing, and it works on every server.
"""

import asyncio
from collections import Counter
from collections.abc import Collection
from contextlib import suppress

from pymongo.errors import PyMongoError

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.base import Listener
from zaqar_lite.storage.mongodb.connection import Connection, read_all
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.queues import READY, key_of, queue_of

POLL_INTERVAL_MS = 5_000
LOOK_MS = 500
_QUEUES_A_LOOK = 50
"""How many queues one command looks at."""


class Readiness:
    """Watch queues, and tell the listener what became ready."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._listener: Listener | None = None
        self._watched: Counter[QueueRef] = Counter()
        self._last: dict[QueueRef, int] = {}  # the last ready message of each, where there was one
        self._told: set[QueueRef] = set()  # what this process told since the last look
        self._looking: asyncio.Task[None] | None = None

    def listen(self, listener: Listener) -> None:
        """Tell `listener` from now on."""
        self._listener = listener

    def announce(self, queue: QueueRef, count: int) -> None:
        """Tell that so many messages became ready; 0: something may be due earlier."""
        if self._listener is not None and queue in self._watched:
            if count:
                self._told.add(queue)
            self._listener(queue, count)

    async def watch(self, queue: QueueRef) -> None:
        """Begin to tell of a queue: of what becomes ready after this."""
        self._watched[queue] += 1
        if self._watched[queue] == 1:
            with suppress(PyMongoError):  # then whatever is ready is told at the next look
                self._last |= await self._look([queue])
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._keep_looking(), name="news")

    def unwatch(self, queue: QueueRef) -> None:
        """End what one `watch` began."""
        self._watched[queue] -= 1
        if self._watched[queue] <= 0:
            del self._watched[queue]
            self._last.pop(queue, None)

    async def close(self) -> None:
        """Look no more."""
        self._watched.clear()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _keep_looking(self) -> None:
        while self._watched:
            await asyncio.sleep(LOOK_MS / 1000)
            await self.look_again()

    async def look_again(self) -> None:
        """Look at all watched queues once, and tell what became ready since the last look."""
        queues, told = list(self._watched), set(self._told)
        for first in range(0, len(queues), _QUEUES_A_LOOK):
            some = queues[first : first + _QUEUES_A_LOOK]
            with suppress(PyMongoError):  # the next look tells it
                self._compare(some, await self._look(some), told)
        self._told -= told

    def _compare(
        self, queues: Collection[QueueRef], found: dict[QueueRef, int], told: Collection[QueueRef]
    ) -> None:
        """Tell of the queues that are otherwise than at the last look, but not twice."""
        for queue in queues:
            if queue in self._told and queue not in told:
                continue  # told while it was looked at: the next look takes that in
            last = found.get(queue)
            if queue in self._watched and last != self._last.get(queue):
                self._last.pop(queue, None)
                if last is not None:
                    self._last[queue] = last
                    if queue not in told and self._listener is not None:
                        self._listener(queue, 1)

    async def _look(self, queues: Collection[QueueRef]) -> dict[QueueRef, int]:
        """The position of the last ready message of each queue that has one."""
        first, *others = [_last_ready(queue) for queue in queues]
        messages = self._connection.messages
        unions = [{"$unionWith": {"coll": messages.name, "pipeline": other}} for other in others]
        found = await read_all(messages, [*first, *unions], hint="live")
        return {queue_of(document["q"]): document["k"] for document in found}


def _last_ready(queue: QueueRef) -> list[Document]:
    return [
        {"$match": {"q": key_of(queue), "s": READY}},
        {"$sort": {"k": -1}},
        {"$limit": 1},
        {"$project": {"_id": 0, "q": 1, "k": 1}},
    ]

"""Announce what became ready: what this process did at once, and what others did by polling.

Every `LOOK_MS` a process reads the last ready message of each queue that it watches. When that is
another message than before, something became ready. Nothing is written for this, so posting costs
no more, and it works on every server that speaks MongoDB's protocol.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

from pymongo.errors import PyMongoError

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.connection import Connection, read_all
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.queues import key_of, queue_of
from zaqar_lite.storage.watchers import Listener, Watchers

POLL_INTERVAL_MS = 5_000
LOOK_MS = 500
_QUEUES_A_LOOK = 50
"""How many queues one command reads."""


class Readiness:
    """Watch queues, and announce to the listener what became ready."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._watchers = Watchers[QueueRef]()
        self._last: dict[QueueRef, int] = {}
        """The position of each queue's last ready message, where it has one."""
        self._looking: asyncio.Task[None] | None = None

    def announce(self, queue: QueueRef, count: int) -> None:
        """Announce that `count` messages became ready; 0 says that something may be due earlier."""
        self._watchers.tell(queue, count)

    async def watch(self, queue: QueueRef, listener: Listener) -> Callable[[], None]:
        """Begin to announce what becomes ready in a queue after this."""
        is_first = queue not in self._watchers
        end = self._watchers.add(queue, listener)
        if is_first:
            try:
                with suppress(PyMongoError):  # the next look then announces whatever is ready
                    self._last |= await self._look([queue])
            except BaseException:
                self._end(queue, end)
                raise
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._keep_looking(), name="readiness")
        return partial(self._end, queue, end)

    def _end(self, queue: QueueRef, end: Callable[[], None]) -> None:
        end()
        if queue not in self._watchers:
            self._last.pop(queue, None)

    async def close(self) -> None:
        """Stop looking."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _keep_looking(self) -> None:
        while self._watchers:
            await asyncio.sleep(LOOK_MS / 1000)
            await self.look_again()

    async def look_again(self) -> None:
        """Look at all watched queues once, and announce what became ready since the last look."""
        queues = list(self._watchers)
        for first in range(0, len(queues), _QUEUES_A_LOOK):
            some = queues[first : first + _QUEUES_A_LOOK]
            with suppress(PyMongoError):  # the next look announces it
                self._compare(some, await self._look(some))

    def _compare(self, queues: Collection[QueueRef], found: dict[QueueRef, int]) -> None:
        """Announce the queues that changed since the last look, whoever announced it before."""
        for queue in queues:
            before, last = self._last.pop(queue, None), found.get(queue)
            if queue in self._watchers and last is not None:
                self._last[queue] = last
                if last != before:
                    self._watchers.tell(queue, 1)

    async def _look(self, queues: Collection[QueueRef]) -> dict[QueueRef, int]:
        """The position of the last ready message of each queue that has one."""
        first, *others = [_last_ready(queue) for queue in queues]
        messages = self._connection.messages
        unions = [{"$unionWith": {"coll": messages.name, "pipeline": other}} for other in others]
        found = await read_all(messages, [*first, *unions], hint="sized")
        return {queue_of(document["q"]): document["k"] for document in found}


def _last_ready(queue: QueueRef) -> list[Document]:
    return [
        {"$match": {"q": key_of(queue), "s": states.READY}},
        {"$sort": {"k": -1}},
        {"$limit": 1},
        {"$project": {"_id": 0, "q": 1, "k": 1}},
    ]

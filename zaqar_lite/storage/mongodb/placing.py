"""Places at the end of a queue: insert above the counter, then move it by compare-and-set.

Readers see nothing above the counter. So what is written there becomes visible with the counter's
move, in one step, and after everything below it. Three races decide the shape of this:

* Two writers read one counter. The unique index lets one in; the other waits for its commit.
* A writer died before its commit. After `patience` seconds the next one passes over what it left.
* A writer was slow: others committed the same positions and their messages are gone again, so the
  index let it in below the counter, where readers have been. Its compare-and-set fails, and it
  takes its messages to the end before it answers.
"""

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

from bson import Int64
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError

from zaqar_lite.domain.errors import LimitReached
from zaqar_lite.domain.ids import new_message_id
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import is_duplicate, repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import Queues, QueueState

Take = Callable[[str, int], Awaitable[bool]]

PATIENCE = 2.0
"""Seconds that a writer waits for another's commit before it passes over what the other wrote."""


class Taken(Exception):
    """Somebody else has written at one of the positions."""


class Placing:
    """Take places for documents at the end of a queue."""

    def __init__(self, connection: Connection, queues: Queues) -> None:
        self._connection = connection
        self._queues = queues
        self.patience = PATIENCE

    async def let_in(
        self, state: QueueState, arrivals: "Arrivals", *, resume: bool = False
    ) -> None:
        """Write above the counter and commit, until both have held.

        `resume` tells that an earlier call may have left some of the arrivals above the counter:
        they are passed over, not waited for. A queue that is dropped meanwhile ends it: the write
        happened, and then the drop.

        Raises:
            LimitReached: the arrivals are not admitted (any more); nothing of them is left.
        """
        seen: QueueState | None = state
        base = await self._pass_over(state) if resume else state.counter
        waiting_for, waiting_since = -1, 0.0
        while seen is not None and seen.birth == state.birth:
            try:
                await arrivals.admit(seen, base)
            except LimitReached:
                await arrivals.withdraw()
                raise
            try:
                last = base + await arrivals.write(base)
            except Taken:
                if waiting_for != seen.counter:
                    waiting_for, waiting_since = seen.counter, time.monotonic()
                await asyncio.sleep(random.uniform(0.001, 0.01))  # noqa: S311 - no secret
            else:
                if await self._queues.commit(
                    state.key, seen.counter, last, keys=arrivals.keys, move=arrivals.move
                ):
                    return
            seen = await self._queues.read_key(state.key)
            if seen is not None:
                base = seen.counter
                if base == waiting_for and time.monotonic() - waiting_since >= self.patience:
                    base = await self._pass_over(seen)

    async def settle(self, state: QueueState, ids: Sequence[str]) -> None:
        """Make sure that readers see these messages of a post that may have died before its commit.

        A retry is about to answer for them.
        """
        waiting = await self._connection.messages.count_documents(
            {"_id": {"$in": list(ids)}, "q": state.key, "k": {"$gt": Int64(state.counter)}},
            hint=BY_ID,
        )
        seen: QueueState | None = state
        while waiting and seen is not None and seen.birth == state.birth:
            last = await self._pass_over(seen)
            if await self._queues.commit(state.key, seen.counter, last):
                return
            seen = await self._queues.read_key(state.key)

    async def finish_moves(self, key: str, tokens: Sequence[str]) -> None:
        """Let readers see what moves brought in whose movers died before their commit."""
        state = await self._queues.read_key(key)
        if state is not None:
            last = await self._pass_over(state)
            for token in tokens:
                if not await self._queues.commit(key, state.counter, last, move=token):
                    return  # others are at work here, and the next sweep comes again
                state = state._replace(counter=last)

    async def _pass_over(self, state: QueueState) -> int:
        """Find the last position that was written, committed or not.

        What is passed over becomes visible with the next commit.
        """
        last = await self._connection.messages.find_one(
            {"q": state.key, "k": {"$gt": Int64(state.counter)}},
            {"_id": 0, "k": 1},
            sort=[("k", -1)],
            hint="position",
        )
        return int(last["k"]) if last else state.counter


class Arrivals(ABC):
    """What comes into a queue. `keys` counts new idempotency keys, `move` is a move's token."""

    keys = 0
    move: str | None = None

    async def admit(self, state: QueueState, base: int) -> None:  # noqa: B027 - may stay empty
        """Refuse with LimitReached what is too much, now that the queue has come to `base`."""

    @abstractmethod
    async def write(self, base: int) -> int:
        """Put all at the positions above `base`; answer how many there are.

        Called again, it takes those that are in already to their new places.

        Raises:
            Taken: somebody else has written at one of the positions.
        """

    async def withdraw(self) -> None:  # noqa: B027 - may stay empty
        """Take back what is written."""


class Insertion(Arrivals):
    """New documents, in their order; each gets an id of its position."""

    def __init__(self, connection: Connection, documents: Sequence[Document]) -> None:
        self._connection = connection
        self._waiting = list(documents)
        self._placed: list[Document] = []

    async def write(self, base: int) -> int:
        """Put all at the positions above `base`; see there."""
        if self._placed:
            await _shift(self._connection, self._placed[0]["q"], self._ids, base)
        if self._waiting:
            await self._insert(base + len(self._placed))
        return len(self._placed)

    async def withdraw(self) -> None:
        """Delete what is in already."""
        if self._placed:
            await repeated(
                lambda: self._connection.messages.delete_many(
                    {"_id": {"$in": self._ids}, "q": self._placed[0]["q"]}, hint=BY_ID
                )
            )

    @property
    def _ids(self) -> list[str]:
        return [document["_id"] for document in self._placed]

    async def _insert(self, base: int) -> None:
        for position, document in enumerate(self._waiting, base + 1):
            document["k"] = Int64(position)
            document["_id"] = new_message_id(position)
        try:
            await self._connection.messages.insert_many(self._waiting, ordered=True)
        except BulkWriteError as exc:
            if not is_duplicate(exc):
                raise
            failed = (exc.details or {})["writeErrors"][0]
            self._placed += self._waiting[: failed["index"]]
            del self._waiting[: failed["index"]]
            raise Taken from exc
        self._placed += self._waiting
        self._waiting = []


class Moving(Arrivals):
    """Messages of another queue: `take(id, position)` moves one, or answers that it can't."""

    def __init__(
        self, connection: Connection, key: str, ids: Sequence[str], take: Take, token: str
    ) -> None:
        self.moved: list[str] = []
        self.move = token
        self._connection = connection
        self._key = key
        self._waiting = list(ids)
        self._take = take

    async def write(self, base: int) -> int:
        """Move all to the positions above `base`; see there."""
        if self.moved:
            await _shift(self._connection, self._key, self.moved, base)
        while self._waiting:
            try:
                has_come = await self._take(self._waiting[0], base + len(self.moved) + 1)
            except DuplicateKeyError as exc:
                raise Taken from exc
            letter = self._waiting.pop(0)
            if has_come:
                self.moved.append(letter)
        return len(self.moved)


async def _shift(connection: Connection, key: str, ids: Sequence[str], base: int) -> None:
    """Take documents of ours to the positions above `base`; the last first, so none is in the way.

    Their state stays: who claimed one meanwhile keeps it, and who deleted one has had it.
    """
    updates = [
        UpdateOne({"_id": message_id, "q": key}, {"$set": {"k": Int64(position)}}, hint=BY_ID)
        for position, message_id in enumerate(ids, base + 1)
    ]
    try:
        await connection.messages.bulk_write(updates[::-1], ordered=True)
    except BulkWriteError as exc:
        if is_duplicate(exc):
            raise Taken from exc
        raise

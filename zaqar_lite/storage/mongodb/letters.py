"""Dead letters: exhausted messages change their queue, many in one transaction."""

from collections.abc import Sequence

from bson import Int64
from bson.datetime_ms import DatetimeMS
from pymongo import UpdateOne
from pymongo.errors import PyMongoError

from zaqar_lite.domain.models import DeadLetter, QueueRef
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import is_duplicate
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import READY, Queues, QueueState, key_of
from zaqar_lite.storage.mongodb.transactions import Tries, transaction


class _NoTarget(Exception):
    """The target has no document yet."""


class Letters:
    """Move exhausted messages to their dead-letter queue."""

    def __init__(self, connection: Connection, queues: Queues) -> None:
        self._connection = connection
        self._queues = queues

    async def move(
        self,
        source: QueueRef,
        claimable: Document,
        letters: Sequence[Document],
        dead_letter: DeadLetter,
    ) -> int:
        """Move those that are still `claimable` and exhausted; answer how many."""
        target = dead_letter.target
        if target is None:
            return 0
        tries = Tries()
        while True:
            try:
                return await self._move_once(source, claimable, letters, dead_letter, target)
            except _NoTarget:
                await self._queues.seed(target)
            except PyMongoError as exc:
                if is_duplicate(exc) and tries.left:
                    await tries.back_off()
                else:
                    await tries.pause(exc)

    async def _move_once(
        self,
        source: QueueRef,
        claimable: Document,
        letters: Sequence[Document],
        dead_letter: DeadLetter,
        target: QueueRef,
    ) -> int:
        """One try."""
        guard = {**claimable, "n": {"$gte": dead_letter.max_claims}}
        async with transaction(self._connection) as session:
            state = await self._queues.advance(session, key_of(target), messages=len(letters))
            if state is None:
                raise _NoTarget
            arrival = _arrival(state, source, dead_letter)
            first = state.counter - len(letters) + 1
            updates = [
                UpdateOne(
                    {"_id": letter["_id"], **guard},
                    [{"$set": {**arrival, "k": Int64(position)}}, {"$unset": ["w", "ct"]}],
                    hint=BY_ID,
                )
                for position, letter in enumerate(letters, first)
            ]
            result = await self._connection.messages.bulk_write(
                updates, ordered=False, session=session
            )
        return result.matched_count


def _arrival(target: QueueState, source: QueueRef, dead_letter: DeadLetter) -> Document:
    """The fields of an exhausted message in its dead-letter queue, but for its position."""
    changes: Document = {
        "q": {"$literal": target.key},
        "s": READY,
        "o": {
            "source": {"$literal": source.name},
            "at": target.date,
            "n": "$n",
            "cid": {"$ifNull": ["$cid", None]},
            "cu": {"$ifNull": ["$cu", None]},
        },
    }
    if dead_letter.ttl_ms is not None:
        changes["t"] = Int64(dead_letter.ttl_ms)
        changes["e"] = DatetimeMS(target.now + dead_letter.ttl_ms)
    return changes

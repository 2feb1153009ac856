"""Purging and dropping: one update ends all messages, and bounded steps then delete the documents.

No reader sees those documents: their positions are at or below the queue's birth. The field `u` of
the queue's document notes up to which position they are still to be deleted.
"""

from contextlib import suppress

from bson import Int64
from pymongo.errors import PyMongoError

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb.connection import find_first
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID
from zaqar_lite.storage.mongodb.parts import StorePart
from zaqar_lite.storage.mongodb.queues import QueueState, ids_of, key_of

STEP = MAX_EXAMINED
"""How many messages a purge or a drop itself deletes; the sweep deletes the rest."""


class Clearing(StorePart):
    """Purge and drop queues."""

    async def purge(self, queue: QueueRef) -> None:
        """End all messages and claims there are now, by one update; see the seam."""
        await self._begin_clearing(await self._queues.end_messages(key_of(queue)))

    async def drop(self, queue: QueueRef) -> None:
        """End the queue's life, its record included, by one update; see the seam."""
        await self._begin_clearing(await self._queues.end_life(key_of(queue)))

    async def _begin_clearing(self, state: QueueState | None) -> None:
        if state is not None:
            with suppress(PyMongoError):  # the messages have ended; the sweep deletes them
                await self._clear(state.key, state.birth, STEP)

    async def _clear(self, key: str, upto: int, limit: int) -> int:
        """Delete at most `limit` documents; remove the note when these were the last."""
        messages = self._connection.messages
        ended = {"q": key, "k": {"$lte": Int64(upto)}}
        found = await find_first(
            messages, ended, {"_id": 1}, order=["k"], limit=limit, hint="position"
        )
        if found:
            doomed = {"_id": {"$in": ids_of(found)}, **ended}
            await repeated(lambda: messages.delete_many(doomed, hint=BY_ID))
        if len(found) < limit:
            done = {"_id": key, "u": Int64(upto)}
            await self._connection.queues.update_one(done, {"$unset": {"u": True}}, hint=BY_ID)
        return len(found)

    async def _clear_all(self, limit: int) -> int:
        """Clear all queues that have the note `u`; answer how many documents were deleted."""
        queues, noted = self._connection.queues, {"u": {"$exists": True}}
        count = 0
        for document in await find_first(queues, noted, {"u": 1}, limit=limit, hint="unclear"):
            if count >= limit:
                break
            count += await self._clear(document["_id"], document["u"], limit - count)
        return count

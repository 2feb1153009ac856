"""Purging and dropping: one update ends all messages, and bounded steps then delete the documents.

Nobody sees those documents any more: their positions are at or below the queue's birth. A note in
the queue's document, `u`, says up to which position they are still to be deleted.
"""

from contextlib import suppress

from bson import Int64
from pymongo.errors import PyMongoError

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID
from zaqar_lite.storage.mongodb.parts import StorePart
from zaqar_lite.storage.mongodb.queues import QueueState, key_of

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
        """Delete at most `limit` documents; take the note away when these were the last."""
        messages = self._connection.messages
        cursor = messages.find(
            {"q": key, "k": {"$lte": Int64(upto)}},
            {"_id": 1},
            sort=[("k", 1)],
            limit=limit,
            batch_size=limit,
            hint="position",
        )
        ids = [document["_id"] for document in await cursor.to_list()]
        if ids:
            doomed = {"_id": {"$in": ids}, "q": key, "k": {"$lte": Int64(upto)}}
            await repeated(lambda: messages.delete_many(doomed, hint=BY_ID))
        if len(ids) < limit:
            done = {"_id": key, "u": Int64(upto)}
            await self._connection.queues.update_one(done, {"$unset": {"u": True}}, hint=BY_ID)
        return len(ids)

    async def _clear_all(self, limit: int) -> int:
        """Go on in all queues with a note; answer how many documents were deleted."""
        cursor = self._connection.queues.find(
            {"u": {"$exists": True}}, {"u": 1}, limit=limit, batch_size=limit, hint="unclear"
        )
        count = 0
        for document in await cursor.to_list():
            if count >= limit:
                break
            count += await self._clear(document["_id"], document["u"], limit - count)
        return count

"""Clearing: what a purge or a drop has ended goes in bounded steps, by a note in the queue.

Nobody sees it any more: its positions are at or below the queue's birth.
"""

from bson import Int64

from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID

STEP = MAX_EXAMINED
"""How many messages a purge or a drop itself removes."""


class Clearing:
    """Delete the messages up to the position `u` in the document of their queue."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def step(self, key: str, upto: int, limit: int) -> int:
        """Delete at most `limit` of them; take the note away when these were the last."""
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

    async def sweep(self, limit: int) -> int:
        """Go on where queues are left unclear; answer how many messages went."""
        cursor = self._connection.queues.find(
            {"u": {"$exists": True}}, {"u": 1}, limit=limit, batch_size=limit, hint="unclear"
        )
        count = 0
        for document in await cursor.to_list():
            if count >= limit:
                break
            count += await self.step(document["_id"], document["u"], limit - count)
        return count

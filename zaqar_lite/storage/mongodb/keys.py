"""Idempotency keys: which messages a key stands for.

A key is written when its messages are staged: stored, and seen by nobody. So a key that is there
answers its ids, whatever became of the messages since; and without one nobody has seen any.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import is_duplicate, repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID
from zaqar_lite.storage.mongodb.queues import QueueState

BATCH, MESSAGE = "b", "m"


def key_id(kind: str, key: str, queue: str) -> str:
    """The id of a key's document: the length makes it the only one with this text."""
    return f"{kind}{len(key)}:{key}{queue}"


class Remembered(NamedTuple):
    """A live key: the ids it stands for, and whose post made it."""

    ids: Sequence[str]
    maker: str


class Keys:
    """The idempotency keys of all queues."""

    def __init__(self, connection: Connection, window_ms: int) -> None:
        self._connection = connection
        self._window_ms = window_ms

    async def look_up(self, state: QueueState, names: Sequence[str]) -> Mapping[str, Remembered]:
        """Find the live ones among the documents `names`."""
        cursor = self._connection.keys.find(
            {"_id": {"$in": list(names)}, "q": state.key}, hint=BY_ID, batch_size=len(names) + 1
        )
        return {
            document["_id"]: Remembered(document["l"], document["r"])
            for document in await cursor.to_list()
            if int(document["e"]) > state.now and document["g"] == state.birth
        }

    async def remember(
        self, state: QueueState, wanted: Mapping[str, Sequence[str]], maker: str
    ) -> Mapping[str, Remembered]:
        """Write the keys that are not live yet; answer what all of them stand for.

        This decides between posts of one key: its messages are those of the first that comes here.
        """
        now = self._connection.now
        is_live = {"$and": [{"$gt": ["$e", now]}, {"$eq": ["$g", state.birth]}]}
        updates = []
        for name, ids in wanted.items():
            fresh = {
                "_id": "$_id",
                "q": "$q",
                "g": state.birth,
                "e": {"$toDate": {"$add": [{"$toLong": now}, self._window_ms]}},
                "r": maker,
                "l": list(ids),
            }
            update = [{"$replaceWith": {"$cond": [is_live, "$$ROOT", fresh]}}]
            updates.append(
                UpdateOne({"_id": name, "q": state.key}, update, upsert=True, hint=BY_ID)
            )
        try:
            result = await self._connection.keys.bulk_write(updates, ordered=False)
        except BulkWriteError as exc:
            if not is_duplicate(exc):
                raise
            # Another post made one of them between our look and our insert: now it is there.
            await self._connection.keys.bulk_write(updates, ordered=False)
        else:
            if result.upserted_count == len(wanted):
                return {name: Remembered(ids, maker) for name, ids in wanted.items()}
        return await self.look_up(state, list(wanted))

    async def count(self, state: QueueState) -> int:
        """Count the live keys of a queue."""
        return await self._connection.keys.count_documents(
            {"q": state.key, "e": {"$gt": state.date}, "g": state.birth}, hint="queue"
        )

    async def forget(self, state: QueueState) -> None:
        """Delete the keys of the lives of a queue before this one."""
        await repeated(
            lambda: self._connection.keys.delete_many(
                {"q": state.key, "g": {"$lt": state.birth}}, hint="queue"
            )
        )

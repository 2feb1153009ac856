"""Idempotency keys: what a key stands for, and whether its messages are stored already.

A key is written before its messages, as pending, and marked when they are stored but not visible
yet. So a key that is not pending answers the first ids, whatever became of the messages; and the
messages of a pending one have been seen by nobody, so that a retry may store them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import is_duplicate, repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import QueueState

BATCH, MESSAGE = "b", "m"


def key_id(kind: str, key: str, queue: str) -> str:
    """The id of a key's document: the length makes it the only one with this text."""
    return f"{kind}{len(key)}:{key}{queue}"


class Remembered(NamedTuple):
    """A live key: the ids it stands for, whether they are stored, and whose post made it."""

    ids: Sequence[str]
    pending: bool
    stored: Collection[str]
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
            document["_id"]: Remembered(
                document["l"], "x" in document, document.get("in", ()), document["r"]
            )
            for document in await cursor.to_list()
            if int(document["e"]) > state.now and document["g"] == state.birth
        }

    async def remember(
        self, state: QueueState, wanted: Mapping[str, Sequence[str]], maker: str
    ) -> Mapping[str, Remembered]:
        """Write the keys that are not live yet, as pending; answer what all of them stand for."""
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
                "x": True,
                "l": list(ids),
            }
            update = [{"$replaceWith": {"$cond": [is_live, "$$ROOT", fresh]}}]
            updates.append(
                UpdateOne({"_id": name, "q": state.key}, update, upsert=True, hint=BY_ID)
            )
        try:
            await self._connection.keys.bulk_write(updates, ordered=False)
        except BulkWriteError as exc:
            if not is_duplicate(exc):
                raise
            # Another post made one of them between our look and our insert: now it is there.
            await self._connection.keys.bulk_write(updates, ordered=False)
        return await self.look_up(state, list(wanted))

    async def mark(self, key: str, answers: Mapping[str, Sequence[str]]) -> None:
        """Note that the messages of these keys are stored; the next commit makes them visible."""
        await self._connection.keys.bulk_write(
            [
                UpdateOne(
                    {"_id": name, "q": key},
                    {"$set": {"l": list(ids)}, "$unset": {"x": True, "in": True}},
                    hint=BY_ID,
                )
                for name, ids in answers.items()
            ],
            ordered=False,
        )

    async def mark_passed_over(self, documents: Iterable[Document]) -> None:
        """Note that these messages of posts that are not finished are about to be visible."""
        updates: list[UpdateOne] = []
        for document in documents:
            for name in document["y"]:
                change: dict[str, Any] = {"$addToSet": {"in": document["_id"]}}
                if name.startswith(MESSAGE):
                    change = {"$unset": {"x": True}}
                updates.append(UpdateOne({"_id": name, "q": document["q"]}, change, hint=BY_ID))
        await self._connection.keys.bulk_write(updates, ordered=False)

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

"""Idempotency keys: which messages a key stands for.

A key is written in the transaction that stores its messages. So a key that is there answers its
ids, whatever became of the messages since; and of racing posts with one key the first to commit
has stored it, because the id of a key's document is the key.
"""

from collections.abc import Collection
from typing import NamedTuple

from bson import Int64
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from pymongo.asynchronous.client_session import AsyncClientSession

from zaqar_lite.domain.posts import KnownKey
from zaqar_lite.storage.mongodb.connection import Connection, read_all
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import QueueState

BATCH, MESSAGE = "b", "m"
_DAY_MS = 86_400_000


def key_id(kind: str, text: str, queue: str) -> str:
    """The id of a key's document; with the length in it no two keys have the same id."""
    return f"{kind}{len(text)}:{text}{queue}"


class Known(NamedTuple):
    """A key's document: what the key stands for, and the life of the queue that it belongs to."""

    key: KnownKey
    generation: int
    is_live: bool = True


class Keys:
    """The idempotency keys of all queues."""

    def __init__(self, connection: Connection, window_ms: int) -> None:
        self._connection = connection
        self._window_ms = window_ms

    async def look_up(self, queue: str, names: Collection[str]) -> dict[str, Known]:
        """Find the documents `names`, also those whose time is over.

        With a majority write concern only keys that a majority has are found: another one may still
        be rolled back with its messages, so it must not answer a replay.
        """
        found = await read_all(
            self._connection.known_keys,
            [
                {"$match": {"_id": {"$in": list(names)}, "q": queue}},
                {"$addFields": {"now": self._connection.now}},
            ],
            hint=BY_ID,
        )
        return {
            document["_id"]: Known(
                KnownKey(document["l"], document.get("d") or None),
                document["g"],
                document["e"] > document["now"],
            )
            for document in found
        }

    async def remember(
        self, session: AsyncClientSession, state: QueueState, new: dict[str, Known]
    ) -> None:
        """Write new keys; DuplicateKeyError tells that another post was faster."""
        ends = DatetimeMS(state.now + self._window_ms)
        await self._connection.keys.insert_many(
            [
                {
                    "_id": name,
                    "q": state.key,
                    "g": Int64(state.generation),
                    "e": ends,
                    "l": list(known.key.ids),
                    "d": Binary(known.key.digest or b""),
                }
                for name, known in new.items()
            ],
            session=session,
        )

    async def is_next(
        self, session: AsyncClientSession, state: QueueState, source: str, number: int
    ) -> bool:
        """Note the number of a source's call for a day; False where that call came before."""
        keys, name = self._connection.keys, {"_id": f"a{len(source)}:{source}{state.key}"}
        noted = {"l": [number], "e": DatetimeMS(state.now + _DAY_MS)}
        known = await keys.find_one(name, hint=BY_ID, session=session)
        if known is None:
            await keys.insert_one({**name, "q": state.key, **noted}, session=session)
        elif known["l"][0] >= number and known["e"] > state.date:
            return False
        else:
            await keys.update_one(name, {"$set": noted}, hint=BY_ID, session=session)
        return True

    async def forget(
        self, session: AsyncClientSession, state: QueueState, names: Collection[str]
    ) -> None:
        """Delete what is left of keys whose time, or whose queue's life, is over."""
        is_over = [{"e": {"$lte": state.date}}, {"g": {"$ne": Int64(state.generation)}}]
        await self._connection.keys.delete_many(
            {"_id": {"$in": list(names)}, "q": state.key, "$or": is_over}, session=session
        )

    async def has_any(self, state: QueueState) -> bool:
        """Whether a queue has a live key."""
        live = _live(state)
        return await self._connection.keys.find_one(live, {"e": 1}, hint="live") is not None

    async def count(self, state: QueueState) -> tuple[int, int]:
        """Count the live keys of a queue; tell when the oldest of them ends."""
        live = _live(state)
        count = await self._connection.keys.count_documents(live, hint="live")
        oldest = await self._connection.keys.find_one(live, {"e": 1}, sort=[("e", 1)], hint="live")
        return count, state.now if oldest is None else int(oldest["e"])


def _live(state: QueueState) -> Document:
    return {"q": state.key, "g": Int64(state.generation), "e": {"$gt": state.date}}

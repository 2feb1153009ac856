"""The queue's document: one read tells the version, the counter, the birth and the time."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from bson import Int64
from bson.datetime_ms import DatetimeMS
from pymongo import ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import DuplicateKeyError

from zaqar_lite.domain.errors import QueueChanged, Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.mongodb.connection import Connection, read_all
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document

LIFE_GAP = 1_000_000
"""Positions between two lives of a name: more than any post that began in the one before takes."""

READY, DELAYED, CLAIMED, RECORD, POPPED, STAGED = range(6)
"""The states of what is in the collection of messages."""
LIVE_STATES = (READY, DELAYED, CLAIMED)

_ATTEMPTS = 5


def key_of(ref: QueueRef) -> str:
    """The key of a queue in all collections."""
    return f"{ref.project}/{ref.name}"


class QueueState(NamedTuple):
    """What the queue's document said at `now` (the server's clock, milliseconds)."""

    key: str
    now: int
    counter: int
    birth: int
    floor: int
    keys: int
    version: int
    in_use: bool

    @property
    def date(self) -> DatetimeMS:
        """`now` as it is compared with stored dates."""
        return DatetimeMS(self.now)

    @property
    def visible(self) -> Document:
        """The positions that readers may see."""
        return {"$gt": Int64(self.birth), "$lte": Int64(self.counter)}

    @property
    def live(self) -> Document:
        """The filter of all live messages of the queue."""
        return {
            "q": self.key,
            "k": self.visible,
            "e": {"$gt": self.date},
            "s": {"$in": LIVE_STATES},
        }

    def check(self, ref: QueueRef, version: int | None) -> None:
        """Compare the version that a caller decided by; 0 stands for no record.

        Raises:
            QueueChanged: the record is at another version.
        """
        if version is not None and version != self.version:
            raise QueueChanged(f"The queue {ref.name!r} is not at version {version} any more.")


class Queues:
    """Read, create and move the counters of queues."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def read(
        self,
        ref: QueueRef,
        version: int | None = None,
        *,
        session: AsyncClientSession | None = None,
    ) -> QueueState | None:
        """Read a queue's state; None when nothing was ever posted to it.

        Raises:
            QueueChanged: the record is not at `version`.
        """
        state = await self.read_key(key_of(ref), session=session)
        if state is not None:
            state.check(ref, version)
        elif version:
            raise QueueChanged(f"The queue {ref.name!r} is not at version {version} any more.")
        return state

    async def read_key(
        self, key: str, *, session: AsyncClientSession | None = None
    ) -> QueueState | None:
        """Read a queue's state by its key."""
        found = await read_all(
            self._connection.queues, self.read_pipeline(key), hint=BY_ID, session=session
        )
        return _state(found[0]) if found else None

    def read_pipeline(self, key: str) -> list[Document]:
        """The aggregation that reads one queue's document and the server's clock."""
        return [
            {"$match": {"_id": key}},
            {"$project": {"k": 1, "b": 1, "f": 1, "y": 1, "v": 1, "z": 1, "has": {"$type": "$m"}}},
            {"$addFields": {"now": self._connection.now}},
        ]

    async def enter(self, ref: QueueRef, version: int | None = None) -> QueueState:
        """Read the state of a queue that something will be written to; make its document first.

        Raises:
            QueueChanged: the record is not at `version`; nothing was made.
        """
        for _ in range(_ATTEMPTS):
            state = await self.read(ref, version)
            if state is not None and state.in_use:
                return state
            await self._upsert(ref, self.birth_pipeline(ref))
        raise Unavailable(f"The queue {ref.name!r} is being deleted too often.")

    async def announce_move(self, ref: QueueRef, token: str) -> QueueState:
        """Enter a queue, and note in its document that a move into it is under way."""
        note = [{"t": token, "at": self._connection.now}]
        noted = {"$set": {"mv": {"$concatArrays": [{"$ifNull": ["$mv", []]}, note]}}}
        for _ in range(_ATTEMPTS):
            document = await self._upsert(ref, [*self.birth_pipeline(ref), noted])
            if document is not None:
                return _state({**document, "now": document["mv"][-1]["at"]})
        raise Unavailable(f"The queue {ref.name!r} is being deleted too often.")

    async def _upsert(self, ref: QueueRef, pipeline: Sequence[Document]) -> Document | None:
        """Update a queue's document, made if need be; None when another made it just now."""
        try:
            return await self._connection.queues.find_one_and_update(
                {"_id": key_of(ref)},
                pipeline,
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        except DuplicateKeyError:
            return None

    def birth_pipeline(self, ref: QueueRef) -> list[Document]:
        """The update that gives a queue its document, and leaves one that is there as it is."""
        born = self._connection.now_us
        return [
            {
                "$set": {
                    "p": {"$literal": ref.project},
                    "n": {"$literal": ref.name},
                    "v": {"$ifNull": ["$v", Int64(0)]},
                    "k": {"$ifNull": ["$k", born]},
                    "b": {"$ifNull": ["$b", born]},
                    "f": {"$ifNull": ["$f", born]},
                    "y": {"$ifNull": ["$y", 0]},
                }
            },
            {"$unset": "z"},
        ]

    async def commit(
        self, key: str, expected: int, last: int, *, keys: int = 0, move: str | None = None
    ) -> bool:
        """Move the counter from `expected` to `last`; False when it is elsewhere by now."""
        update: dict[str, Any] = {"$set": {"k": Int64(last)}}
        if keys:
            update["$inc"] = {"y": keys}
        if move is not None:
            update["$pull"] = {"mv": {"t": move}}
        result = await self._connection.queues.update_one(
            {"_id": key, "k": Int64(expected)}, update, hint=BY_ID
        )
        return result.matched_count == 1

    async def raise_floor(self, key: str, floor: int) -> None:
        """Note that at most counter - `floor` messages are live."""
        await self._connection.queues.update_one({"_id": key}, {"$max": {"f": Int64(floor)}})

    async def set_keys(self, state: QueueState, count: int) -> None:
        """Note how many idempotency keys are live, unless others were added meanwhile."""
        await self._connection.queues.update_one(
            {"_id": state.key, "y": state.keys}, {"$set": {"y": count}}
        )

    async def end_life(self, key: str) -> QueueState | None:
        """Turn a queue's document into a tombstone: no message of its life exists any more.

        Record and messages go in this one step: positions up to the new birth are dead. The
        tombstone keeps version and counter, so that the next life of the name begins above both.
        """
        birth = {"$max": [{"$add": ["$k", LIFE_GAP]}, self._connection.now_us]}
        document = await self._connection.queues.find_one_and_update(
            {"_id": key},
            [
                {"$set": {"b": birth, "k": birth, "f": birth, "y": 0, "z": self._connection.now}},
                {"$unset": ["m", "x", "t", "i", "mv"]},
            ],
            return_document=ReturnDocument.AFTER,
        )
        return None if document is None else _state({**document, "now": document["z"]})


def _state(document: Document) -> QueueState:
    """Read a queue's document; `has` stands for the record where the read left it out."""
    has_record = document["has"] != "missing" if "has" in document else "m" in document
    return QueueState(
        document["_id"],
        int(document["now"]),
        document["k"],
        document["b"],
        document["f"],
        document["y"],
        document["v"] if has_record else 0,
        "z" not in document,
    )

"""The queue's document: one read tells the version, the counter, the birth and the time."""

from contextlib import suppress
from typing import NamedTuple

from bson import Int64
from bson.datetime_ms import DatetimeMS
from pymongo import ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import DuplicateKeyError

from zaqar_lite.domain.errors import QueueChanged
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.mongodb.connection import Connection, read_all
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document

READY, DELAYED, CLAIMED, _RECORD, POPPED = range(5)
"""The states of messages; 3 was a claim's record in earlier versions."""
LIVE_STATES = (READY, DELAYED, CLAIMED)


def key_of(ref: QueueRef) -> str:
    """The key of a queue in all collections."""
    return f"{ref.project}/{ref.name}"


class QueueState(NamedTuple):
    """What the queue's document said at `now` (the server's clock, milliseconds).

    `messages` and `keys` are upper bounds of what is live. Until `full_until` and
    `keys_full_until` these bounds are as good as a count, so nobody counts again.
    """

    key: str
    now: int
    counter: int
    birth: int
    generation: int
    messages: int
    keys: int
    full_until: int
    keys_full_until: int
    version: int

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
    """Read and change the documents of queues."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def read(self, ref: QueueRef, version: int | None = None) -> QueueState | None:
        """Read a queue's state; None when nothing was ever posted to it.

        Raises:
            QueueChanged: the record is not at `version`.
        """
        found = await read_all(self._connection.queues, self.read_pipeline(ref), hint=BY_ID)
        return self.checked(found, ref, version)

    def read_pipeline(self, ref: QueueRef) -> list[Document]:
        """The aggregation that reads one queue's document and the server's clock."""
        return [
            {"$match": {"_id": key_of(ref)}},
            {"$project": {"m": 0}},
            {"$addFields": {"now": self._connection.now}},
        ]

    def checked(
        self, found: list[Document], ref: QueueRef, version: int | None
    ) -> QueueState | None:
        """The state that `read_pipeline` has found.

        Raises:
            QueueChanged: the record is not at `version`.
        """
        state = _state(found[0]) if found and "k" in found[0] else None
        if state is not None:
            state.check(ref, version)
        elif version:
            raise QueueChanged(f"The queue {ref.name!r} is not at version {version} any more.")
        return state

    async def advance(
        self, session: AsyncClientSession, key: str, *, messages: int, keys: int = 0
    ) -> QueueState | None:
        """Take the next `messages` positions, up to the counter that is answered; in a transaction.

        They begin above the server's clock in microseconds too. A counter that a rollback took back
        therefore never gives a position again that a reader has passed. None without a document.
        """
        update: list[Document] = [
            *self.birth_pipeline(),
            {
                "$set": {
                    "k": {"$add": [{"$max": ["$k", self._connection.now_us]}, messages]},
                    "f": {"$add": ["$f", messages]},
                    "y": {"$add": ["$y", keys]},
                    "at": self._connection.now,
                }
            },
        ]
        document = await self._connection.queues.find_one_and_update(
            {"_id": key},
            update,
            projection={"m": 0},
            return_document=ReturnDocument.AFTER,
            session=session,
        )
        return None if document is None else _state({**document, "now": document["at"]})

    async def seed(self, ref: QueueRef) -> None:
        """Make a queue's document where there is none; `birth_pipeline` gives it its life."""
        document = {"_id": key_of(ref), "p": ref.project, "n": ref.name}
        with suppress(DuplicateKeyError):
            await repeated(lambda: self._connection.queues.insert_one(document))

    def birth_pipeline(self) -> list[Document]:
        """The update that gives a queue's document a life, and leaves one that it has as it is."""
        born = self._connection.now_us
        return [
            {
                "$set": {
                    "v": {"$ifNull": ["$v", Int64(0)]},
                    "k": {"$ifNull": ["$k", born]},
                    "b": {"$ifNull": ["$b", born]},
                    "g": {"$ifNull": ["$g", {"$ifNull": ["$b", born]}]},
                    "f": {"$ifNull": ["$f", Int64(0)]},
                    "y": {"$ifNull": ["$y", Int64(0)]},
                }
            },
            {"$unset": "z"},
        ]

    async def note_count(
        self, state: QueueState, *, messages: int | None = None, keys: int | None = None, until: int
    ) -> bool:
        """Note what was counted, good until `until`; False when more has come since `state`."""
        bound, counted, known = "f", messages, "fu"
        seen = state.messages
        if keys is not None:
            bound, counted, known, seen = "y", keys, "yu", state.keys
        unchanged = {"_id": state.key, bound: seen, "g": state.generation}
        update = {"$set": {bound: Int64(counted or 0), known: DatetimeMS(until)}}
        result = await repeated(
            lambda: self._connection.queues.update_one(unchanged, update, hint=BY_ID)
        )
        return result.matched_count == 1

    async def end_messages(self, key: str) -> QueueState | None:
        """Let no message exist that is there now; their documents are left for `Clearing`."""
        changes = {
            "g": {"$ifNull": ["$g", "$b"]},
            "b": "$k",
            "u": "$k",
            "f": Int64(0),
            "at": self._connection.now,
        }
        return await self._end(key, [{"$set": changes}, {"$unset": ["fu", "mv"]}])

    async def end_life(self, key: str) -> QueueState | None:
        """Turn a queue's document into a tombstone: no message and no key of its life exists.

        Record and messages go in this one step: positions up to the new birth are dead. The
        tombstone keeps version and counter, so that the next life of the name begins above both.
        """
        birth = {"$max": ["$k", self._connection.now_us]}
        changes = {
            **dict.fromkeys(("b", "k", "g", "u"), birth),
            "f": Int64(0),
            "y": Int64(0),
            "z": self._connection.now,
            "at": self._connection.now,
        }
        gone = ["m", "x", "t", "i", "fu", "yu", "mv"]
        return await self._end(key, [{"$set": changes}, {"$unset": gone}])

    async def _end(self, key: str, update: list[Document]) -> QueueState | None:
        document = await repeated(
            lambda: self._connection.queues.find_one_and_update(
                {"_id": key, "k": {"$exists": True}},
                update,
                projection={"m": 0},
                return_document=ReturnDocument.AFTER,
            )
        )
        return None if document is None else _state({**document, "now": document["at"]})


def _state(document: Document) -> QueueState:
    """Read a queue's document; `i` is there as long as its record is."""
    return QueueState(
        document["_id"],
        int(document["now"]),
        document["k"],
        document["b"],
        document["g"] if "g" in document else document["b"],
        document["f"],
        document["y"],
        int(document.get("fu", 0)),
        int(document.get("yu", 0)),
        document["v"] if "i" in document else 0,
    )

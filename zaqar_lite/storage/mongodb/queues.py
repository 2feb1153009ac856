"""The queue's document: one read tells the version, the counter, the birth and the time."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import compress
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

READY, DELAYED, CLAIMED, _RECORD, POPPED, PARKED, GONE = range(7)
"""The states of messages; 3 was a claim's record in earlier versions."""
LIVE_STATES = (READY, DELAYED, CLAIMED, PARKED)

BRIEF: Document = {"b": 0, "h": 0}
"""The projection of all but what only readers want."""


def key_of(ref: QueueRef) -> str:
    """The key of a queue in all collections."""
    return f"{ref.project}/{ref.name}"


def queue_of(key: str) -> QueueRef:
    """The queue of a key."""
    return QueueRef(*key.rsplit("/", 1))


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

    def has(self, document: Document) -> bool:
        """Whether a message that was read in a live state is one of the queue's."""
        return bool(document["k"] > self.birth and document["e"] > self.date)

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


def reading(match: Document, projection: Document) -> Sequence[Document]:
    """The stages that read what matches, without what is not asked for."""
    return [{"$match": match}, {"$project": projection}]


class Among(NamedTuple):
    """Messages that were found by something else than their positions, and their queue's state.

    Without a state the queue has never been used, and there are none.
    """

    messages: list[Document]
    state: QueueState | None

    @property
    def live(self) -> list[Document]:
        """Those that exist, of what was read in live states."""
        state = self.state
        return [] if state is None else [d for d in self.messages if state.has(d)]


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

    async def look_for(
        self,
        ref: QueueRef,
        stages: Sequence[Document],
        hint: str,
        version: int | None = None,
    ) -> Among:
        """Read messages by an aggregation, and the state of their queue, in one command.

        Raises:
            QueueChanged: the record is not at `version`.
        """
        union = {"coll": self._connection.queues.name, "pipeline": self.read_pipeline(ref)}
        found = await read_all(
            self._connection.messages,
            [*stages, {"$unionWith": union}],
            hint=hint,
        )
        is_queue = [document["_id"] == key_of(ref) for document in found]
        state = self.checked(list(compress(found, is_queue)), ref, version)
        return Among([document for document in found if "s" in document], state)

    def read_pipeline(self, ref: QueueRef) -> list[Document]:
        """The aggregation that reads one queue's document and the server's clock."""
        return [{"$match": {"_id": key_of(ref)}}, *self._shown()]

    def _shown(self) -> list[Document]:
        return [{"$project": {"m": 0}}, {"$addFields": {"now": self._connection.now}}]

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

    async def read_many(self, keys: Collection[str]) -> dict[str, QueueState]:
        """Read the states of queues, as many as there are, by their keys."""
        found = await read_all(
            self._connection.queues,
            [
                {"$match": {"_id": {"$in": list(keys)}, "k": {"$exists": True}}},
                *self._shown(),
            ],
            hint=BY_ID,
        )
        return {document["_id"]: _state(document) for document in found}

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

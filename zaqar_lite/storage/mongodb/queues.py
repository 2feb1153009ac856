"""The document of a queue: one read tells its version, counter and birth, and the server's time."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from bson import Int64
from bson.datetime_ms import DatetimeMS
from pymongo import ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import DuplicateKeyError, PyMongoError

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.refusals import queue_changed
from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.connection import Connection, read_all
from zaqar_lite.storage.mongodb.errors import is_duplicate
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.transactions import RetryBudget, repeated

T = TypeVar("T")

BRIEF: Document = {"b": 0, "h": 0}
"""The projection without body and headers, which only readers want."""


def key_of(queue: QueueRef) -> str:
    """The key of a queue in all collections."""
    return f"{queue.project}/{queue.name}"


def queue_of(key: str) -> QueueRef:
    """The queue of a key."""
    return QueueRef(*key.rsplit("/", 1))


def ids_of(documents: Iterable[Document]) -> list[str]:
    """The ids of messages."""
    return [document["_id"] for document in documents]


class QueueState(NamedTuple):
    """What the queue's document said at `now` (the server's clock, milliseconds)."""

    key: str
    now: int
    counter: int
    birth: int
    generation: int
    messages: "Bound"
    keys: "Bound"
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
        """Whether a message that was read in a live state exists in the queue."""
        return bool(document["k"] > self.birth and document["e"] > self.date)

    def is_held(self, document: Document) -> bool:
        """Whether a live claim holds a message."""
        return document["s"] == states.CLAIMED and int(document["w"]) > self.now

    @property
    def live(self) -> Document:
        """The filter of all live messages of the queue."""
        return {
            "q": self.key,
            "k": self.visible,
            "e": {"$gt": self.date},
            "s": {"$in": states.LIVE},
        }

    def check(self, queue: QueueRef, version: int | None) -> None:
        """Compare the version that a caller decided by; 0 stands for no record.

        Raises:
            QueueChanged: the record is at another version.
        """
        if version is not None and version != self.version:
            raise queue_changed(queue)


def reading(match: Document, projection: Document) -> Sequence[Document]:
    """The stages of an aggregation that reads what matches."""
    return [{"$match": match}, {"$project": projection}]


class FoundMessages(NamedTuple):
    """What `find_with_state` read: messages, and the state of their queue in the same command.

    Without a state the queue has never been used, and there are no messages.
    """

    messages: list[Document]
    state: QueueState | None

    @property
    def live(self) -> list[Document]:
        """Those that still exist, of messages that were read in live states."""
        state = self.state
        return [] if state is None else [d for d in self.messages if state.has(d)]


class MissingQueue(Exception):
    """A transaction needs the document of a queue that was never used."""

    def __init__(self, queue: QueueRef) -> None:
        super().__init__()
        self.queue = queue


class Bound(NamedTuple):
    """An upper bound of what is live in a queue, kept in `field` of its document.

    Until `sure_until` (milliseconds) the bound is as good as a count, so nobody counts again.
    """

    field: str
    most: int
    sure_until: int

    def less(self, count: int) -> "Bound":
        """The bound before it was raised by `count`."""
        return self._replace(most=self.most - count)


class Queues:
    """Read and change the documents of queues."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def read(self, queue: QueueRef, version: int | None = None) -> QueueState | None:
        """Read a queue's state; None when nothing was ever posted to it.

        Raises:
            QueueChanged: the record is not at `version`.
        """
        pipeline = self.pipeline(key_of(queue))
        found = await read_all(self._connection.queues, pipeline, hint=BY_ID)
        return self.checked(found, queue, version)

    async def find_with_state(
        self,
        queue: QueueRef,
        stages: Sequence[Document],
        hint: str,
        version: int | None = None,
    ) -> FoundMessages:
        """Read messages by an aggregation, and the state of their queue, in one command.

        Raises:
            QueueChanged: the record is not at `version`.
        """
        union = {"coll": self._connection.queues.name, "pipeline": self.pipeline(key_of(queue))}
        found = await read_all(
            self._connection.messages,
            [*stages, {"$unionWith": union}],
            hint=hint,
        )
        state = self.checked([one for one in found if "s" not in one], queue, version)
        return FoundMessages([one for one in found if "s" in one], state)

    def pipeline(self, key: str | Document) -> list[Document]:
        """The aggregation that reads documents of queues, and the server's clock."""
        now = {"$addFields": {"now": self._connection.now}}
        return [{"$match": {"_id": key}}, {"$project": {"m": 0}}, now]

    def checked(
        self, found: list[Document], queue: QueueRef, version: int | None
    ) -> QueueState | None:
        """The state that `pipeline` has found.

        Raises:
            QueueChanged: the record is not at `version`.
        """
        state = _state(found[0]) if found and "k" in found[0] else None
        if state is not None:
            state.check(queue, version)
        elif version:
            raise queue_changed(queue)
        return state

    async def read_many(self, keys: Collection[str]) -> dict[str, QueueState]:
        """Read the states of queues, as many as there are, by their keys."""
        found = await read_all(
            self._connection.queues, self.pipeline({"$in": list(keys)}), hint=BY_ID
        )
        return {document["_id"]: _state(document) for document in found if "k" in document}

    async def advance(
        self, session: AsyncClientSession, key: str, *, messages: int, keys: int = 0
    ) -> QueueState:
        """Take the next `messages` positions, up to the counter that is answered; in a transaction.

        They begin above the server's clock in microseconds too. A counter that a rollback took back
        therefore never gives a position again that a reader has passed.

        Raises:
            MissingQueue: there is no document.
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
        if document is None:
            raise MissingQueue(queue_of(key))
        return _state({**document, "now": document["at"]})

    async def in_transaction(self, work: Callable[[AsyncClientSession], Awaitable[T]]) -> T:
        """Run `work` in a transaction, and repeat it after transient errors, for a limited time.

        Where it raises MissingQueue, the queue's document is made before the next try.
        """
        budget = RetryBudget()
        while True:
            try:
                async with self._connection.sessions.transaction() as session:
                    return await work(session)
            except MissingQueue as missing:
                await self.seed(missing.queue)
            except PyMongoError as exc:
                await budget.pause(exc, is_transient=is_duplicate(exc))

    async def seed(self, queue: QueueRef) -> None:
        """Make a queue's document where there is none; `birth_pipeline` gives it its life."""
        document = {"_id": key_of(queue), "p": queue.project, "n": queue.name}
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

    async def note_count(self, state: QueueState, bound: Bound, counted: int, until: int) -> bool:
        """Note what was counted, good until `until`; False when more has come since `state`."""
        unchanged = {"_id": state.key, bound.field: bound.most, "b": Int64(state.birth)}
        noted = {bound.field: Int64(counted), bound.field + "u": DatetimeMS(until)}
        result = await repeated(
            lambda: self._connection.queues.update_one(unchanged, {"$set": noted}, hint=BY_ID)
        )
        return result.matched_count == 1

    async def end_messages(self, key: str, *, forget: bool) -> QueueState | None:
        """End all messages that there are now; the sweep deletes their documents.

        With `forget` the queue's document becomes a tombstone: the record and the keys of its life
        go in this one step too. It keeps version and counter, so that the next life of the name
        begins above both.
        """
        birth = {"$max": ["$k", self._connection.now_us]}
        changes = {
            **dict.fromkeys(("b", "k", "u"), birth),
            "g": {"$ifNull": ["$g", "$b"]},
            "f": Int64(0),
            "at": self._connection.now,
        }
        gone = ["fu", "mv"]
        if forget:
            changes |= {"g": birth, "y": Int64(0), "z": self._connection.now}
            gone += ["m", "x", "t", "i", "yu"]
        document = await repeated(
            lambda: self._connection.queues.find_one_and_update(
                {"_id": key, "k": {"$exists": True}},
                [{"$set": changes}, {"$unset": gone}],
                projection={"m": 0},
                return_document=ReturnDocument.AFTER,
            )
        )
        return None if document is None else _state({**document, "now": document["at"]})


def _state(document: Document) -> QueueState:
    """Read a queue's document; without the field `i` the queue has no record, and version 0."""
    return QueueState(
        document["_id"],
        int(document["now"]),
        document["k"],
        document["b"],
        document["g"] if "g" in document else document["b"],
        Bound("f", document["f"], int(document.get("fu", 0))),
        Bound("y", document["y"], int(document.get("yu", 0))),
        document["v"] if "i" in document else 0,
    )

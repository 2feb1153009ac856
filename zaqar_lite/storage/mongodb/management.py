"""The management store: records of queues, and of any other kind, changed at the version seen.

A queue's record is part of the queue's document, which every operation reads anyway. Any other one
is a document. A write or a deletion reads that, and then updates it where its `v` is still the
same. Each change gives it a higher `v`, a deletion too: its tombstone lets versions grow. Where
there is no document, a tombstone is inserted first, and its unique `_id` lets one writer win. So of
several racing writers exactly one finds the version that it has seen. A writer whose answer was
lost recognises its own change by the mark `i`.
"""

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from bson import Int64
from bson.datetime_ms import DatetimeMS
from pymongo import ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import DuplicateKeyError

from zaqar_lite.domain.errors import RecordChanged, Unavailable
from zaqar_lite.domain.json_values import holds_all
from zaqar_lite.domain.metadata import dead_letter_target
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record, RecordBound
from zaqar_lite.domain.refusals import queue_changed, too_many_queues
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.mongodb.connection import Connection, Session, find_first, read_all
from zaqar_lite.storage.mongodb.errors import translating
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import Queues, ids_of, key_of
from zaqar_lite.storage.mongodb.transactions import RetryBudget, repeated
from zaqar_lite.storage.store import Connected

MAKERS = "creators"
"""The kind of the documents that racing makers change: one for each bound's place, never listed."""
MOST_MAKERS = 100
"""Makers that race without passing a bound."""
_NEVER = 253_402_300_799_999
"""The end of the year 9999: the `e` of what stays until it is deleted."""
Make = Callable[[Session], Awaitable[Document | None]]
"""Make a record, in a transaction or not; None where somebody else changed what is there."""
IsNear = Callable[[Session], Awaitable[bool]]
"""Tell whether other records nearly reach a bound; raise where they do."""
_HAS_RECORD = {"m": {"$exists": True}}
_ATTEMPTS = 5


@translating
class MongoManagementStore(Connected[Connection], ManagementStore):
    """Queue records in MongoDB, and those of other kinds."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._queues = Queues(connection)

    async def create_queue(
        self, queue: QueueRef, metadata: Mapping[str, Any], *, max_queues: int
    ) -> tuple[QueueRecord, bool]:
        """Create a queue within the project's bound; see the seam."""
        maker = uuid4().hex

        async def is_near(session: Session) -> bool:
            others = {"p": queue.project, "n": {"$ne": queue.name}, **_HAS_RECORD}
            count = await self._connection.queues.count_documents(
                others, session, limit=max(max_queues, 1), hint="name"
            )
            if count >= max_queues:
                raise too_many_queues(max_queues)
            return count + MOST_MAKERS >= max_queues

        for _ in range(_ATTEMPTS):
            known = await self._connection.queues.find_one({"_id": key_of(queue)}, hint=BY_ID)
            if known is not None and "m" in known:
                return _queue_record(known), known["i"] == maker
            fields = {**self._record_fields(queue, metadata, exposing=False), "i": maker}
            make = partial(self._make_record, queue, fields, known is None)
            document = await self._make_within(queue.project, "", make, is_near)
            if document is not None:
                return _queue_record(document), True
        raise Unavailable(f"The queue {queue.name!r} is being created and deleted too often.")

    async def _make_record(
        self, queue: QueueRef, fields: Document, is_unknown: bool, session: Session
    ) -> Document | None:
        """Write a record where there is none; None where it can't be seen that there is none."""
        if is_unknown:
            await self._queues.seed(queue)  # not before its bound is known: it would stay
        return await self._connection.queues.find_one_and_update(
            {"_id": key_of(queue), "m": {"$exists": False}},
            [*self._queues.birth_pipeline(), {"$set": fields}],
            return_document=ReturnDocument.AFTER,
            session=session,
        )

    async def get_queue(self, queue: QueueRef) -> QueueRecord | None:
        """Read a queue's record from the primary; see the seam."""
        document = await self._connection.queues.find_one({"_id": key_of(queue)}, hint=BY_ID)
        return None if document is None or "m" not in document else _queue_record(document)

    async def update_queue(self, record: QueueRecord) -> QueueRecord:
        """Replace a record at its version; see the seam."""
        fields = self._record_fields(record.queue, record.metadata, exposing=record.exposing)
        absent = [name for name in ("x", "t") if name not in fields]
        update: list[Document] = [{"$set": fields}]
        if absent:
            update.append({"$unset": absent})
        document = await self._connection.queues.find_one_and_update(
            {"_id": key_of(record.queue), "v": record.version, **_HAS_RECORD},
            update,
            return_document=ReturnDocument.AFTER,
        )
        if document is None:
            raise queue_changed(record.queue)
        return _queue_record(document)

    async def delete_queue(self, queue: QueueRef, *, version: int) -> None:
        """Delete a record at its version; counter and version stay, messages too; see the seam."""
        result = await self._connection.queues.update_one(
            {"_id": key_of(queue), "v": version, **_HAS_RECORD},
            {"$unset": {"m": True, "x": True, "t": True, "i": True}},
            hint=BY_ID,
        )
        if not result.matched_count and await self.get_queue(queue) is not None:
            raise queue_changed(queue)

    async def list_queues(
        self,
        project: str,
        *,
        marker: str | None = None,
        limit: int,
        name_contains: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Sequence[QueueRecord]:
        """List a project's queues by name; see the seam."""
        wanted, found = metadata or {}, list[QueueRecord]()
        step = MAX_EXAMINED if wanted else min(limit, MAX_EXAMINED)
        pattern = {} if name_contains is None else {"$regex": re.escape(name_contains)}
        while len(found) < limit:
            match = {"p": project, "n": {"$gt": marker or "", **pattern}, **_HAS_RECORD}
            queues = self._connection.listed_queues
            page = await find_first(queues, match, None, order=["n"], limit=step, hint="name")
            records = map(_queue_record, page)
            found += [record for record in records if holds_all(record.metadata, wanted)]
            if len(page) < step:
                break
            marker = page[-1]["n"]
        return found[:limit]

    async def count_queues(self, project: str) -> int:
        """Count a project's queues; see the seam."""
        return await self._connection.listed_queues.count_documents(
            {"p": project, **_HAS_RECORD}, hint="name"
        )

    async def dead_letter_sources(self, target: QueueRef, *, limit: int) -> Sequence[str]:
        """Name the queues with this dead-letter queue; see the seam."""
        queues, named = self._connection.listed_queues, {"t": key_of(target)}
        found = await find_first(queues, named, {"n": 1}, order=["n"], limit=limit, hint="source")
        return [document["n"] for document in found]

    async def exposing_queues(self, *, limit: int) -> Sequence[QueueRecord]:
        """Find the exposing queues; see the seam."""
        queues, exposing = self._connection.queues, {"x": True, **_HAS_RECORD}
        found = await find_first(queues, exposing, None, limit=limit, hint="exposing")
        return [_queue_record(document) for document in found]

    def _record_fields(
        self, queue: QueueRef, metadata: Mapping[str, Any], *, exposing: bool
    ) -> Document:
        """The fields of a record as a pipeline sets them, under the next version."""
        newer = {"$add": [{"$ifNull": ["$v", 0]}, 1]}
        fields: Document = {
            "m": {"$literal": json.dumps(metadata)},
            "v": {"$max": [newer, self._connection.now_us]},
        }
        target = dead_letter_target(metadata)
        if target is not None:
            fields["t"] = {"$literal": key_of(QueueRef(queue.project, target))}
        if exposing:
            fields["x"] = True
        return fields

    async def put_record(
        self,
        kind: str,
        project: str,
        name: str,
        value: bytes,
        *,
        expected: int | None,
        ttl_ms: int | None = None,
        bounds: Sequence[RecordBound] = (),
    ) -> Record:
        """Write a record at its expected version; see the seam."""
        changes = {"b": {"$literal": value}, "e": self._end(ttl_ms)}
        update: list[Document] = [{"$set": changes}, {"$unset": "z"}]

        async def put(seen: Document, mark: str) -> Document | None:
            make = partial(self._changed, seen, mark, update)
            if not bounds or _is_live(seen):
                return await repeated(make)
            place = "" if any(bound.of_server for bound in bounds) else project
            return await self._make_within(place, kind, make, partial(self._is_near, seen, bounds))

        written = await self._write(kind, project, name, expected, put, creates=True)
        return _record({**written, "b": value})

    async def get_record(self, kind: str, project: str, name: str) -> Record | None:
        """Read a live record from the primary; see the seam."""
        found = await self._read(kind, project, name, with_value=True)
        return _record(found) if found is not None and _is_live(found) else None

    async def delete_record(
        self, kind: str, project: str, name: str, *, expected: int | None = None
    ) -> bool:
        """Turn a record into a tombstone; see the seam."""
        gone: list[Document] = [{"$set": {"z": self._connection.now}}, {"$unset": ["b", "e"]}]

        async def remove(seen: Document, mark: str) -> Document | None:
            return await repeated(partial(self._changed, seen, mark, gone))

        return bool(await self._write(kind, project, name, expected, remove, creates=False))

    async def _write(
        self,
        kind: str,
        project: str,
        name: str,
        expected: int | None,
        change: Callable[[Document, str], Awaitable[Document | None]],
        *,
        creates: bool,
    ) -> Document:
        """Let `change` write a document under a mark, at the expected version; answer the new one.

        It is empty where there is no record, unless this `creates` one.
        """
        mark, tries = uuid4().hex, RetryBudget()
        while tries.left:
            found = await self._read(kind, project, name)
            if found is not None and found["i"] == mark:
                return found
            if not creates and not (found is not None and _is_live(found)):
                return {}
            _check(found, kind, name, expected)
            if found is None:
                await self._seed(kind, project, name)
            elif (written := await change(found, mark)) is not None:
                return written
            else:
                await tries.back_off()
        raise Unavailable(f"The {kind} {name!r} is being changed too often.")

    async def list_records(
        self,
        kind: str,
        project: str | None = None,
        *,
        after: tuple[str, str] | None = None,
        limit: int,
    ) -> Sequence[Record]:
        """List live records in bounded steps, each longer than the one before; see the seam."""
        found: list[Record] = []
        step = min(limit, MAX_EXAMINED)
        while len(found) < limit:
            documents: list[Document] = []
            for within in _ranges(project, after):
                if len(documents) < step:
                    documents += await self._page(kind, within, step - len(documents))
            found += [_record(document) for document in documents if _is_live(document)]
            if len(documents) < step:
                break
            after = documents[-1]["p"], documents[-1]["n"]
            step = min(4 * step, MAX_EXAMINED)
        return found[:limit]

    async def _page(self, kind: str, within: Document, limit: int) -> Sequence[Document]:
        return await read_all(
            self._connection.records,
            [
                {"$match": {"k": kind, "e": {"$exists": True}, **within}},
                {"$sort": {"k": 1, "p": 1, "n": 1}},
                {"$limit": limit},
                {"$addFields": {"now": self._connection.now}},
            ],
            hint="name",
        )

    async def sweep_records(self, limit: int) -> int:
        """Delete what has expired and was not written anew; see the seam."""
        over = {"e": {"$lte": DatetimeMS(await self._connection.now_ms())}}
        records = self._connection.records
        found = await find_first(records, over, {"_id": 1}, order=["e"], limit=limit, hint="expiry")
        if not found:
            return 0
        doomed = {"_id": {"$in": ids_of(found)}, **over}
        result = await repeated(lambda: records.delete_many(doomed, hint=BY_ID))
        return result.deleted_count

    async def _read(
        self, kind: str, project: str, name: str, *, with_value: bool = False
    ) -> Document | None:
        pipeline: list[Document] = [
            {"$match": {"_id": record_id(kind, project, name)}},
            {"$addFields": {"now": self._connection.now}},
        ]
        if not with_value:
            pipeline.insert(1, {"$project": {"b": 0}})
        found = await read_all(self._connection.records, pipeline, hint=BY_ID)
        return found[0] if found else None

    async def _seed(self, kind: str, project: str, name: str) -> None:
        """Make a tombstone where there is nothing."""
        document = {
            "_id": record_id(kind, project, name),
            "k": kind,
            "p": project,
            "n": name,
            "v": Int64(0),
            "i": "",
            "z": DatetimeMS(await self._connection.now_ms()),
        }
        with suppress(DuplicateKeyError):
            await repeated(lambda: self._connection.records.insert_one(document))

    async def _changed(
        self,
        seen: Document,
        mark: str,
        update: Sequence[Document],
        session: Session = None,
    ) -> Document | None:
        """Change a document that is still as it was seen; None when it is not."""
        newer = {"$max": [{"$add": ["$v", 1]}, self._connection.now_us]}
        return await self._connection.records.find_one_and_update(
            {"_id": seen["_id"], "v": seen["v"]},
            [{"$set": {"v": newer, "i": mark}}, *update],
            projection={"b": 0},
            return_document=ReturnDocument.AFTER,
            session=session,
        )

    async def _make_within(
        self, place: str, kind: str, make: Make, is_near: IsNear
    ) -> Document | None:
        """Make a record within its bounds; None where it must be tried again.

        Near a bound it is a transaction that changes a document of the bounds' place: of racing
        makers one is first, and the others count its record.
        """
        if not await is_near(None):
            return await repeated(lambda: make(None))
        await self._seed(MAKERS, place, kind)
        turn = {"_id": record_id(MAKERS, place, kind)}

        async def make_in_turn(session: AsyncClientSession) -> Document | None:
            taken = await self._connection.records.update_one(
                turn, {"$inc": {"v": 1}}, hint=BY_ID, session=session
            )
            made = await make(session) if taken.matched_count else None
            if made is not None:
                await is_near(session)
            return made

        return await self._queues.in_transaction(make_in_turn)

    async def _is_near(
        self, seen: Document, bounds: Sequence[RecordBound], session: Session
    ) -> bool:
        """Count the other live records that each bound counts; tell whether one is nearly reached.

        The record itself is left out, because somebody else may make it meanwhile.

        Raises:
            LimitReached: one is reached.
        """
        near = False
        for bound in bounds:
            counted: Document = {
                "k": seen["k"],
                "e": {"$exists": True},
                "_id": {"$ne": seen["_id"]},
            }
            if not bound.of_server:
                counted["p"] = seen["p"]
            if bound.prefix:
                counted["n"] = {"$gte": bound.prefix, "$lt": bound.prefix + "\U0010ffff"}
            counted["$expr"] = {"$gt": ["$e", self._connection.now]}
            count = await self._connection.records.count_documents(
                counted, session, limit=max(bound.most, 1), hint="name"
            )
            if count >= bound.most:
                raise bound.reached
            near = near or count + MOST_MAKERS >= bound.most
        return near

    def _end(self, ttl_ms: int | None) -> Document:
        """The expression for `e`."""
        if ttl_ms is None:
            return {"$literal": DatetimeMS(_NEVER)}
        return {"$toDate": {"$add": [{"$toLong": self._connection.now}, ttl_ms]}}


def _queue_record(document: Document) -> QueueRecord:
    return QueueRecord(
        QueueRef(document["p"], document["n"]),
        json.loads(document["m"]),
        document["v"],
        document.get("x", False),
    )


def record_id(kind: str, project: str, name: str) -> str:
    """The id of a record's document; with the lengths in it no two records have the same id."""
    return f"{len(kind)}:{kind}{len(project)}:{project}{name}"


def _ranges(project: str | None, after: tuple[str, str] | None) -> Sequence[Document]:
    """What comes after a place in the order of (project, name), as ranges of the index."""
    if after is None or (project is not None and after[0] < project):
        return [{} if project is None else {"p": project}]
    rest = {"p": after[0], "n": {"$gt": after[1]}}
    if project is None:
        return [rest, {"p": {"$gt": after[0]}}]
    return [rest] if after[0] == project else []


def _record(document: Document) -> Record:
    ends = int(document["e"])
    return Record(
        document["k"],
        document["p"],
        document["n"],
        document["b"],
        document["v"],
        None if ends == _NEVER else ends,
    )


def _is_live(document: Document) -> bool:
    """Whether it is a record, and not expired, at the instant it was read."""
    return "e" in document and bool(document["e"] > document["now"])


def _check(found: Document | None, kind: str, name: str, expected: int | None) -> None:
    """Check that a record is at the version that a writer has seen; 0 stands for no record."""
    version = found["v"] if found is not None and _is_live(found) else 0
    if expected is not None and expected != version:
        raise RecordChanged(f"The {kind} {name!r} was changed or deleted meanwhile.")

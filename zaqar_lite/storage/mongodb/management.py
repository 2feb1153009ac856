"""Queue records: part of the queue's document, which every operation reads anyway."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from pymongo import ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.json_values import holds_all
from zaqar_lite.domain.metadata import dead_letter_target
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.domain.refusals import queue_changed, too_many_queues
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb.connection import find_first
from zaqar_lite.storage.mongodb.errors import translating
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import key_of
from zaqar_lite.storage.mongodb.records import MOST_MAKERS, KindRecords

_HAS_RECORD = {"m": {"$exists": True}}
_ATTEMPTS = 5


@translating
class MongoManagementStore(KindRecords):
    """Queue records in MongoDB, and those of other kinds."""

    async def create_queue(
        self, queue: QueueRef, metadata: Mapping[str, Any], *, max_queues: int
    ) -> tuple[QueueRecord, bool]:
        """Create a queue within the project's bound; see the seam."""
        maker = uuid4().hex

        async def is_near(session: AsyncClientSession | None) -> bool:
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
                return _record(known), known["i"] == maker
            if known is None:
                await is_near(None)  # a queue that is one too many leaves nothing
                await self._queues.seed(queue)
            fields = {**self._record_fields(queue, metadata, exposing=False), "i": maker}
            make = partial(self._make_record, queue, fields)
            document = await self._make_within(queue.project, "", make, is_near)
            if document is not None:
                return _record(document), True
        raise Unavailable(f"The queue {queue.name!r} is being created and deleted too often.")

    async def _make_record(
        self, queue: QueueRef, fields: Document, session: AsyncClientSession | None
    ) -> Document | None:
        """Write a record where there is none; None without a document, or with another's record."""
        return await self._connection.queues.find_one_and_update(
            {"_id": key_of(queue), "m": {"$exists": False}},
            [*self._queues.birth_pipeline(), {"$set": fields}],
            return_document=ReturnDocument.AFTER,
            session=session,
        )

    async def get_queue(self, queue: QueueRef) -> QueueRecord | None:
        """Read a queue's record from the primary; see the seam."""
        document = await self._connection.queues.find_one({"_id": key_of(queue)}, hint=BY_ID)
        return None if document is None or "m" not in document else _record(document)

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
        return _record(document)

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
        while len(found) < limit:
            match = queue_filter(project, marker, name_contains)
            queues = self._connection.listed_queues
            page = await find_first(queues, match, None, order=["n"], limit=step, hint="name")
            records = map(_record, page)
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
        cursor = self._connection.listed_queues.find(
            {"t": key_of(target)}, {"n": 1}, sort=[("n", 1)], limit=limit, hint="source"
        )
        return [document["n"] for document in await cursor.to_list()]

    async def exposing_queues(self, *, limit: int) -> Sequence[QueueRecord]:
        """Find the exposing queues; see the seam."""
        cursor = self._connection.queues.find(
            {"x": True, **_HAS_RECORD}, limit=limit, hint="exposing"
        )
        return [_record(document) for document in await cursor.to_list()]

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


def queue_filter(project: str, marker: str | None, name_contains: str | None) -> Document:
    """The filter of a page of queues."""
    name: Document = {"$gt": marker or ""}
    if name_contains is not None:
        name["$regex"] = re.escape(name_contains)
    return {"p": project, "n": name, **_HAS_RECORD}


def _record(document: Document) -> QueueRecord:
    return QueueRecord(
        QueueRef(document["p"], document["n"]),
        json.loads(document["m"]),
        document["v"],
        document.get("x", False),
    )

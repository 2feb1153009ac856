"""Guarded updates: what was decided on a message is stored only if it is still as it was read."""

from collections.abc import Sequence
from typing import NamedTuple

import bson
from bson import Int64
from pymongo import DeleteMany, UpdateMany
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.results import BulkWriteResult

from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import Queues, ids_of, queue_of
from zaqar_lite.storage.mongodb.readiness import Readiness

GUARDED = ("s", "k", "n", "cid", "w", "e")
"""Every change of a message's state or deadlines changes one of these."""


class Change(NamedTuple):
    """A message as it was read in a queue, and as it is to be.

    A dead letter's is in another queue; one that is GONE is deleted.
    """

    key: str
    seen: Document
    document: Document

    @property
    def target(self) -> str:
        """The key of the queue where it is to be."""
        key: str = self.document.get("q", self.key)
        return key

    @property
    def guard(self) -> Document:
        """The filter that finds the message if nobody has changed it since."""
        return {"_id": self.seen["_id"], **{name: self.seen.get(name) for name in GUARDED}}

    @property
    def update(self) -> Document:
        """The update; empty where the message is to be deleted."""
        seen, document = self.seen, self.document
        if document["s"] == states.GONE:
            return {}
        update: Document = {
            "$set": {name: v for name, v in document.items() if seen.get(name) != v},
            "$unset": {name: True for name in seen if name not in document},
        }
        return {operator: fields for operator, fields in update.items() if fields}


def statements(changes: Sequence[Change]) -> list[UpdateMany | DeleteMany]:
    """The guarded writes: one statement for all messages of the queue that change alike."""
    alike: dict[bytes, list[Change]] = {}
    for change in changes:
        alike.setdefault(bson.encode(change.update), []).append(change)
    found: list[UpdateMany | DeleteMany] = []
    for some in alike.values():
        guards = [change.guard for change in some]
        match = {"_id": {"$in": ids_of(guards)}, "q": some[0].key, "$or": guards}
        update = some[0].update
        found.append(
            UpdateMany(match, update, hint=BY_ID) if update else DeleteMany(match, hint=BY_ID)
        )
    return found


class _Changed(Exception):
    """A message is not as it was read any more."""


class GuardedUpdates:
    """Store changes of messages."""

    def __init__(self, connection: Connection, queues: Queues, readiness: Readiness) -> None:
        self._connection = connection
        self._queues = queues
        self._readiness = readiness

    async def write(self, changes: Sequence[Change]) -> int:
        """Store changes as `store` does, again after a lost connection."""
        return await repeated(lambda: self.store(changes))

    async def store(self, changes: Sequence[Change]) -> int:
        """Store changes of messages of one queue; answer how many were stored.

        Where some move to another queue (all to one), all are stored in one transaction, or none.
        """
        letters = [change for change in changes if change.target != change.key]
        count = 0
        if letters:
            count = await self._move(changes, letters)
        elif changes:
            count = await self._write(changes)
        if count:
            self._announce(changes)
        return count

    async def _write(
        self, changes: Sequence[Change], session: AsyncClientSession | None = None
    ) -> int:
        result: BulkWriteResult = await self._connection.messages.bulk_write(
            statements(changes), ordered=False, session=session
        )
        return result.matched_count + result.deleted_count

    async def _move(self, changes: Sequence[Change], letters: Sequence[Change]) -> int:
        async def move(session: AsyncClientSession) -> None:
            state = await self._queues.advance(session, letters[0].target, messages=len(letters))
            for position, letter in enumerate(letters, state.counter - len(letters) + 1):
                letter.document["k"] = Int64(position)
            if await self._write(changes, session) < len(changes):
                raise _Changed

        try:
            await self._queues.in_transaction(move, retry_duplicates=True)
        except _Changed:
            return 0
        return len(changes)

    def _announce(self, changes: Sequence[Change]) -> None:
        for key in {change.target for change in changes}:
            ready = [c for c in changes if c.target == key and c.document["s"] == states.READY]
            self._readiness.announce(queue_of(key), len(ready))

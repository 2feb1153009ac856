"""Guarded updates: what was decided on a message is stored only if it is still as it was read."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from bson import Int64
from pymongo import UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession

from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import Queues, queue_of
from zaqar_lite.storage.mongodb.readiness import Readiness

_GUARDED = ("s", "k", "n", "cid", "w", "e")
"""Every change of a message's state or deadlines changes one of these."""


class Change(NamedTuple):
    """A message as it was read in a queue, and as it is to be; a dead letter's is another queue."""

    key: str
    seen: Document
    document: Document

    @property
    def target(self) -> str:
        """The key of the queue where it is to be."""
        key: str = self.document.get("q", self.key)
        return key

    def update(self) -> UpdateOne:
        """The guarded update."""
        seen, document = self.seen, self.document
        guard = {"_id": seen["_id"], "q": self.key}
        guard |= {name: seen.get(name) for name in _GUARDED}
        update: Document = {
            "$set": {name: v for name, v in document.items() if seen.get(name) != v},
            "$unset": {name: True for name in seen if name not in document},
        }
        return UpdateOne(guard, {op: fields for op, fields in update.items() if fields}, hint=BY_ID)


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
            updates = [change.update() for change in changes]
            result = await self._connection.messages.bulk_write(updates, ordered=False)
            count = result.matched_count
        if count:
            self._announce(changes)
        return count

    async def remove(self, key: str, ids: Collection[str], state: int) -> None:
        """Delete the documents of messages in a state that nobody sees."""
        doomed = {"_id": {"$in": list(ids)}, "q": key, "s": state}
        await repeated(lambda: self._connection.messages.delete_many(doomed, hint=BY_ID))

    async def _move(self, changes: Sequence[Change], letters: Sequence[Change]) -> int:
        async def move(session: AsyncClientSession) -> None:
            state = await self._queues.advance(session, letters[0].target, messages=len(letters))
            for position, letter in enumerate(letters, state.counter - len(letters) + 1):
                letter.document["k"] = Int64(position)
            result = await self._connection.messages.bulk_write(
                [change.update() for change in changes], ordered=False, session=session
            )
            if result.matched_count < len(changes):
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

"""Storing what was decided on messages, each as long as it is still as it was seen."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from bson import Int64
from pymongo import UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import is_duplicate, repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import READY, Queues, queue_of
from zaqar_lite.storage.mongodb.readiness import Readiness
from zaqar_lite.storage.mongodb.transactions import Tries, transaction

_GUARDED = ("s", "k", "n", "cid", "w")
"""Whatever happens to a message changes one of these."""


class Change(NamedTuple):
    """A message as it was seen in a queue, and as it is to be; a letter is in another queue."""

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


class _NoTarget(Exception):
    """The target has no document yet."""


class _Changed(Exception):
    """A message is not as it was seen any more."""


class Rewriting:
    """Store changes of messages."""

    def __init__(self, connection: Connection, queues: Queues, readiness: Readiness) -> None:
        self._connection = connection
        self._queues = queues
        self._readiness = readiness

    async def write(self, changes: Sequence[Change]) -> int:
        """Store changes of messages of one queue; answer how many were stored.

        Where some move to another queue (all to one), all are stored in one transaction, or none.
        """
        letters = [change for change in changes if change.target != change.key]
        count = 0
        if letters:
            count = await self._move(changes, letters)
        elif changes:
            updates = [change.update() for change in changes]
            result = await repeated(
                lambda: self._connection.messages.bulk_write(updates, ordered=False)
            )
            count = result.matched_count
        if count:
            self._announce(changes)
        return count

    async def remove(self, key: str, ids: Collection[str], state: int) -> None:
        """Delete the documents of messages that are in no queue any more."""
        doomed = {"_id": {"$in": list(ids)}, "q": key, "s": state}
        await repeated(lambda: self._connection.messages.delete_many(doomed, hint=BY_ID))

    async def _move(self, changes: Sequence[Change], letters: Sequence[Change]) -> int:
        target, tries = queue_of(letters[0].target), Tries()
        while True:
            try:
                async with transaction(self._connection) as session:
                    await self._move_once(session, changes, letters)
            except _Changed:
                return 0
            except _NoTarget:
                await self._queues.seed(target)
            except PyMongoError as exc:
                if is_duplicate(exc) and tries.left:
                    await tries.back_off()
                else:
                    await tries.pause(exc)
            else:
                return len(changes)

    async def _move_once(
        self, session: AsyncClientSession, changes: Sequence[Change], letters: Sequence[Change]
    ) -> None:
        state = await self._queues.advance(session, letters[0].target, messages=len(letters))
        if state is None:
            raise _NoTarget
        for position, letter in enumerate(letters, state.counter - len(letters) + 1):
            letter.document["k"] = Int64(position)
        result = await self._connection.messages.bulk_write(
            [change.update() for change in changes], ordered=False, session=session
        )
        if result.matched_count < len(changes):
            raise _Changed

    def _announce(self, changes: Sequence[Change]) -> None:
        for key in {change.target for change in changes}:
            ready = [c for c in changes if c.target == key and c.document["s"] == READY]
            self._readiness.announce(queue_of(key), len(ready))

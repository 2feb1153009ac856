"""The sessions of this process's transactions, which other processes end when this one has died.

A transaction locks what it has changed, a queue's counter for example. When its process is killed,
the server keeps the transaction open, for a minute by default, and nobody can post to that queue.
So sessions are lent from a pool and recorded in a collection with a heartbeat, and every process
ends the sessions whose heartbeat has stopped. Ending the session of a process that was only slow
harms nothing: its transaction has not happened, and the process begins it again.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from bson.datetime_ms import DatetimeMS
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import DuplicateKeyError, PyMongoError

from zaqar_lite.storage.mongodb.indexes import BY_ID, Document

BEAT_SECONDS = 1.5
DEAD_MS = 5_000
"""A process counts as dead when its last heartbeat is this old."""

_NOW: Document = {"$toDate": {"$toLong": "$$NOW"}}  # heartbeats ignore the offset of tests


class SessionPool:
    """Lend sessions, send their heartbeats, and end the sessions of dead processes."""

    def __init__(self, collection: AsyncCollection[Document]) -> None:
        self._collection = collection
        self._free: list[AsyncClientSession] = []
        self._known: list[Any] = []
        self._heart: asyncio.Task[None] | None = None
        self._has_stopped = False

    def start(self) -> None:
        """Begin to send heartbeats."""
        self._heart = asyncio.create_task(self._keep_beating())

    async def stop(self) -> None:
        """Stop, and remove the records of the sessions."""
        self._has_stopped = True  # pymongo may hide the cancellation in an error
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        with suppress(PyMongoError):
            if self._known:
                await self._collection.delete_many({"_id": {"$in": self._known}}, hint=BY_ID)
        for session in self._free:
            await session.end_session()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[AsyncClientSession]:
        """Lend a session that nobody else uses meanwhile."""
        session = self._free.pop() if self._free else await self._make()
        try:
            yield session
        finally:
            self._free.append(session)

    async def _make(self) -> AsyncClientSession:
        session = self._collection.database.client.start_session()
        number = session.session_id["id"]
        self._known.append(number)
        await self._register(number)
        return session

    async def _register(self, number: Any) -> None:  # noqa: ANN401 - a UUID as BSON has it
        with suppress(DuplicateKeyError):
            await self._collection.insert_one({"_id": number})
        await self._collection.update_one({"_id": number}, [{"$set": {"at": _NOW}}], hint=BY_ID)

    async def _keep_beating(self) -> None:
        while not self._has_stopped:
            await asyncio.sleep(BEAT_SECONDS)
            with suppress(PyMongoError):  # the next beat tries again
                await self._beat()
                await self._end_dead()

    async def _beat(self) -> None:
        known = list(self._known)
        if known:
            mine = {"_id": {"$in": known}}
            result = await self._collection.update_many(mine, [{"$set": {"at": _NOW}}], hint=BY_ID)
            if result.matched_count < len(known):  # another process took this one for dead
                for number in known:
                    await self._register(number)

    async def _end_dead(self) -> None:
        admin = self._collection.database.client.admin
        greeting = await admin.command("hello", codec_options=self._collection.codec_options)
        silent = {"at": {"$lt": DatetimeMS(int(greeting["localTime"]) - DEAD_MS)}}
        dead = [
            document["_id"]
            async for document in self._collection.find(silent, {"_id": 1}, hint="at", limit=100)
            if document["_id"] not in self._known
        ]
        if dead:
            with suppress(PyMongoError):  # without the privilege, the server's own limit ends them
                await admin.command("killSessions", [{"id": number} for number in dead])
            await self._collection.delete_many({"_id": {"$in": dead}, **silent}, hint=BY_ID)

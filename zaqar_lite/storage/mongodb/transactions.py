"""Transactions: the driver itself begins, ends and repeats them, and ends those of the dead.

Some servers that speak the protocol set no error labels, keep a transaction open after an error in
it, or do not remember what was committed. So every error ends the transaction, labels or codes tell
what may be repeated, and whoever repeats it must recognise its own writes (by their ids).

A transaction locks what it has changed, a queue's counter for example. When its process is killed,
the server keeps the transaction open, for a minute by default, and nobody can post to that queue.
So the sessions of transactions are recorded in a collection with a heartbeat, and every process
ends the sessions whose heartbeat has stopped. Ending the session of a process that was only slow
harms nothing: its transaction has not happened, and the process begins it again.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import pymongo
from bson.datetime_ms import DatetimeMS
from pymongo import ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import AutoReconnect, DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern

from zaqar_lite.storage.mongodb.errors import code_of
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document

T = TypeVar("T")
BUDGET = 10.0
"""Seconds after which a transaction is not begun again."""
BEAT_SECONDS = 1.5
DEAD_MS = 5_000
"""A process counts as dead when its last heartbeat is this old."""

_ABORT_SECONDS = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 0.004, 0.25
_CONFLICT, _NO_SUCH_TRANSACTION = 112, 251
_LABELS = ("TransientTransactionError", "UnknownTransactionCommitResult")
_NOW: Document = {"$toDate": {"$toLong": "$$NOW"}}  # heartbeats ignore the offset of tests


class RetryBudget:
    """How long an operation may be tried again, with growing pauses."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + BUDGET
        self._pause = _FIRST_PAUSE

    async def pause(self, exc: PyMongoError, *, is_transient: bool = False) -> None:
        """Wait before the next try, or raise `exc` where another try can't help."""
        is_transient = is_transient or (
            any(exc.has_error_label(label) for label in _LABELS)
            or isinstance(exc, AutoReconnect)
            or code_of(exc) in (_CONFLICT, _NO_SUCH_TRANSACTION)
        )
        if not is_transient or not self.left:
            raise exc
        await self.back_off()

    async def back_off(self) -> None:
        """Wait, longer each time: others are changing the same documents."""
        await asyncio.sleep(random.uniform(self._pause / 2, self._pause))  # noqa: S311 - no secret
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    @property
    def left(self) -> bool:
        """Tell whether there is time for another try."""
        return time.monotonic() < self._deadline


async def repeated(operation: Callable[[], Awaitable[T]]) -> T:
    """Run a write that may safely run twice, again after a lost connection or a stepdown.

    pymongo retries reads by itself, and writes of single documents where the server supports that.
    It can't retry updates and deletes of many documents. Ours are guarded, so that a second run
    changes nothing.
    """
    tries = RetryBudget()
    while True:
        try:
            return await operation()
        except PyMongoError as exc:
            await tries.pause(exc)


class SessionPool:
    """Begin transactions, send their sessions' heartbeats, end the sessions of dead processes."""

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
    async def transaction(self) -> AsyncIterator[AsyncClientSession]:
        """One try of a transaction: committed at the end of the block, aborted by any error in it.

        Its session is nobody else's meanwhile.
        """
        session = self._free.pop() if self._free else await self._make()
        try:
            await session.start_transaction(
                read_concern=ReadConcern("local"), read_preference=ReadPreference.PRIMARY
            )
            yield session
            await _commit(session)
        except BaseException:
            if session.in_transaction:
                with pymongo.timeout(_ABORT_SECONDS):  # pymongo hides the errors of an abort
                    await session.abort_transaction()
            raise
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


async def _commit(session: AsyncClientSession) -> None:
    """Commit until the outcome is known, or the time is over."""
    tries = RetryBudget()
    while True:
        try:
            await session.commit_transaction()
        except PyMongoError as exc:
            if not exc.has_error_label("UnknownTransactionCommitResult"):
                raise
            await tries.pause(exc)
        else:
            return

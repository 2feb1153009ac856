"""Transactions: the driver itself begins, ends and repeats them.

Some servers that speak the protocol set no error labels, keep a transaction open after an error in
it, or do not remember what was committed. So every error ends the transaction, labels or codes tell
what may be repeated, and whoever repeats it must recognise its own writes (by their ids).
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pymongo
from pymongo import ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import AutoReconnect, PyMongoError
from pymongo.read_concern import ReadConcern

from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import code_of

BUDGET = 10.0
"""Seconds after which a transaction is not begun again."""

_ABORT_SECONDS = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 0.004, 0.25
_CONFLICT, _NO_SUCH_TRANSACTION = 112, 251
_LABELS = ("TransientTransactionError", "UnknownTransactionCommitResult")


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


@asynccontextmanager
async def transaction(connection: Connection) -> AsyncIterator[AsyncClientSession]:
    """One try of a transaction: committed at the end of the block, aborted by any error in it."""
    async with connection.sessions.lend() as session:
        await session.start_transaction(
            read_concern=ReadConcern("local"), read_preference=ReadPreference.PRIMARY
        )
        try:
            yield session
            await _commit(session)
        except BaseException:
            if session.in_transaction:
                with pymongo.timeout(_ABORT_SECONDS):  # pymongo hides the errors of an abort
                    await session.abort_transaction()
            raise


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

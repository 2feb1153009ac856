"""A batch of operations, and what one operation does in it.

`database.py` commits batches and makes them durable.
"""

import asyncio
from types import TracebackType
from typing import Any, Protocol

import apsw

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRef


class Batch:
    """The operations of one transaction: who waits for it, and what became ready by it."""

    __slots__ = ("epoch", "ready", "waiting")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.waiting: list[asyncio.Future[None]] = []
        self.ready: dict[QueueRef, int] = {}

    def settle(self, exc: BaseException | None) -> None:
        """Answer those who wait for it."""
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if future.done():
                continue  # its caller went away
            if exc is None:
                future.set_result(None)
            else:
                future.set_exception(exc)


class Steps(Protocol):
    """What a step needs of the database."""

    undo: dict[Any, Any]
    execute: Any

    def begin(self) -> None:
        """Begin a batch, unless one gathers."""

    def undo_step(self, exc: BaseException) -> None:
        """Undo a step that raised."""

    def fail_batch(self, exc: BaseException) -> None:
        """Undo the whole batch."""


class Step:
    """One operation within the batch: where it raises, its statements and counts are undone."""

    __slots__ = ("_db",)

    def __init__(self, db: Steps) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.begin()
        self._db.undo.clear()
        try:
            self._db.execute("SAVEPOINT step")
        except apsw.Error as exc:
            self._db.fail_batch(exc)
            raise unavailable(exc) from exc

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None:
            self._db.undo_step(exc)
            return
        try:
            self._db.execute("RELEASE step")
        except apsw.Error as unreleased:
            self._db.fail_batch(unreleased)
            raise unavailable(unreleased) from unreleased


def unavailable(exc: BaseException) -> Unavailable:
    """What clients are told of an error of SQLite or of the disk."""
    if isinstance(exc, apsw.FullError):
        return Unavailable("The store's disk is full.", retry_after=10)
    if isinstance(exc, apsw.CorruptError | apsw.NotADBError):
        return Unavailable("The store's file is damaged.", retry_after=60, detail=str(exc))
    if isinstance(exc, OSError | apsw.IOError):
        return Unavailable("The store's disk failed.", retry_after=5, detail=str(exc))
    return Unavailable("The store can't do this now; try again.", detail=str(exc))

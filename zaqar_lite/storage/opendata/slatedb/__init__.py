"""The SlateDB engine: the same keys and values in an object store, or in a local directory.

Locally SlateDB never calls fsync, so this engine does (`syncfs` on the directory, in a thread,
before a commit returns), and takes a lock that SlateDB has no notion of. SlateDB's blocks have
checksums: a single read names what lies in a damaged one, and a scan ends there. A store that
SlateDB can't open, or whose queues lie in a damaged block, is refused and left as it is.

A commit is one WriteBatch and an explicit flush of the log: SlateDB's flush timer would delay every
answer. In an object store the flush is a paid request, which the operations of a batch share. A
batch must be atomic, so a large one is not split; it is handed to the binding in parts, so that
other tasks run in between.
"""

import asyncio
import ctypes
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Self, TypeVar

from zaqar_lite.domain.errors import ConfigurationError, Unavailable, ZaqarLiteError
from zaqar_lite.storage.opendata.engine import Batch, Unreadable
from zaqar_lite.storage.opendata.format import after_prefix
from zaqar_lite.storage.opendata.slatedb.binding import (
    DURABLE,
    FAILURES,
    SCAN,
    settings,
    slatedb,
)
from zaqar_lite.storage.sql.directory import FULL, DirectoryLock, is_full, try_to_write

logger = logging.getLogger(__name__)
_CHUNK = 100
"""Records that are read in one step, which may be as large as posts."""
_FIRST, _LAST = b"\x01", b"\xff\xff"  # of records: keys below are the engine's own
_PATIENCE_REMOTE = 60.0
_MEMTABLE_SECONDS = 30.0
_LOOK = 1.0
_OPENING_REMOTE = 60.0
_OPENING_LOCAL = 600.0  # the log may be a long one: it grows while there are gaps
# Of the event loop's time: a call costs about what copying 4 KiB does, and 1 MiB some 5 ms.
_MOST_BYTES = 1_048_576
_CALL = 4_096
_BROKEN = "A write to the store failed: it is opened anew from what is stored."

T = TypeVar("T")
_libc = ctypes.CDLL(None, use_errno=True)


class LocalDirectory(DirectoryLock):
    """The directory of a server, with the store in `place`, a folder of it."""

    def __init__(self, place: Path) -> None:
        super().__init__(place.parent)
        self.place = place
        self._descriptor = -1

    def make(self) -> None:
        """Make the folder of the store if it is missing. Raises OSError: that failed."""
        self.place.mkdir(mode=0o700, exist_ok=True)
        self._descriptor = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def repair(self) -> bool:
        """Move trailing files aside that a loss of power left empty or full of zeros.

        Acknowledged batches were synced, so none is in them. An empty file of the log is a fence of
        SlateDB's, and stays. Answers whether there were any. Raises OSError: a file can't be read
        or moved.
        """
        moved = False
        for folder, pattern in (("wal", "*.sst"), ("manifest", "*.manifest")):
            for file in sorted((self.place / folder).glob(pattern), reverse=True):
                content = file.read_bytes()
                if content.strip(b"\x00"):
                    break
                if not content and folder == "wal":
                    continue
                logger.warning("moved aside %s: it holds nothing but zeros", file)
                file.rename(file.with_suffix(file.suffix + ".damaged"))
                moved = True
        return moved

    async def try_to_write(self) -> None:
        """Try whether the disk takes a file of 64 KiB. Raises OSError: it does not, and why."""
        await asyncio.get_running_loop().run_in_executor(None, try_to_write, self.place / "probe")

    async def sync(self) -> None:
        """Sync the file system. Raises OSError: it failed."""
        if self._descriptor >= 0:
            await asyncio.get_running_loop().run_in_executor(None, _syncfs, self._descriptor)

    def release(self) -> None:
        """Let the directory go; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().release()


def _syncfs(descriptor: int) -> None:
    if _libc.syncfs(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _cannot_open(place: str, exc: Exception) -> ZaqarLiteError:
    """The error for a store that can't be opened, with what to do; a time-out is temporary."""
    if isinstance(exc, TimeoutError):
        return Unavailable(f"The SlateDB store does not open: {exc}", detail=place)
    if is_full(exc):
        why = f"{FULL}."
    else:
        way_out = "restore it from a backup, or give the server another place."
        why = f"{exc}. It is kept as it is: {way_out}"
    return ConfigurationError(f"The SlateDB store at {place} can't be opened: {why}")


class SlateDbEngine:
    """Records in SlateDB; `local` is None in an object store. All calls may raise Unavailable.

    After `patience` seconds operations stop to wait for a commit, which may still be stored;
    `complaint` says why one takes long, where that is known. `is_fenced` tells that another server
    has become the writer of this place.
    """

    patience = 10.0

    def __init__(self, local: LocalDirectory | None, url: str, path: str) -> None:
        self._local = local
        self._url = url
        self._path = path
        self._db: slatedb.Db | None = None
        if local is None:
            self.patience = _PATIENCE_REMOTE
        self.is_fenced = False
        self.complaint = ""
        self._broken: str | None = None
        self._flushed = 0.0
        self._flushing: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    @classmethod
    def in_directory(cls, place: Path) -> Self:
        """A store in a folder of a local directory, which is locked."""
        return cls(LocalDirectory(place), "file:///", str(place.parent.resolve() / place.name))

    @classmethod
    def in_bucket(cls, bucket: str, prefix: str) -> Self:
        """A store in a bucket; credentials come from the usual AWS_* environment variables."""
        return cls(None, f"s3://{bucket}", prefix or "zaqar-lite")

    async def open(self) -> None:
        """Become the only writer of this place, or refuse.

        Raises ConfigurationError: another server has it, or it can't be used; says what to do.
        """
        self._broken = None
        if self._local is not None:
            self._local.acquire()
        try:
            self._db = await self._build()
        except FAILURES as exc:
            self._let_go()
            raise _cannot_open(f"{self._url}{self._path}", exc) from exc
        except BaseException:
            self._let_go()
            raise
        self._flushed = time.monotonic()

    async def _build(self) -> slatedb.Db:
        local = self._local
        if local is None:
            return await self._build_once()
        local.make()
        is_repaired = local.repair()
        await local.try_to_write()
        try:
            db = await self._build_once()
        except slatedb.Error:
            if not is_repaired:
                raise
            db = await self._build_once()  # after a lost manifest the first try reports a fence
        await local.sync()
        return db

    async def _build_once(self) -> slatedb.Db:
        """Let SlateDB open the place, with a limit: it would try again for ever, silently.

        Raises TimeoutError: no answer in time; says what to check; OSError: the disk can't be
        written.
        """
        builder = slatedb.DbBuilder(self._path, slatedb.ObjectStore.resolve(self._url))
        builder.with_settings(settings())
        patience, place = _OPENING_LOCAL, "its disk"
        if self._local is None:
            patience, place = _OPENING_REMOTE, "AWS_ENDPOINT, AWS_REGION and the network"
        building = asyncio.ensure_future(builder.build())
        try:
            async with asyncio.timeout(patience):
                while not (await asyncio.wait({building}, timeout=_LOOK))[0]:
                    if self._local is not None:
                        await self._local.try_to_write()
        except TimeoutError as exc:
            raise TimeoutError(f"no answer in {patience:g} seconds. See to {place}.") from exc
        finally:
            building.cancel()
        return building.result()

    async def get(self, key: bytes) -> bytes | None:
        """Read a record; None where it is absent. Raises Unreadable: it is damaged."""
        try:
            value: bytes | None = await self._translated(
                self._opened().get_with_options(key, DURABLE)
            )
        except slatedb.Error.Data as exc:
            raise Unreadable(key, str(exc.message)) from exc
        return value

    async def scan(self, prefix: bytes) -> AsyncIterator[Sequence[tuple[bytes, bytes]]]:
        """Read the records whose keys begin with a prefix, in order, in chunks.

        Raises Unreadable: nothing after the rows answered so far can be read.
        """
        start, end = prefix or _FIRST, after_prefix(prefix) or _LAST
        bounds = slatedb.KeyRange(start=start, start_inclusive=True, end=end, end_inclusive=False)
        try:
            iterator = await self._translated(self._opened().scan_with_options(bounds, SCAN))
            while rows := await self._translated(iterator.next_batch(_CHUNK)):
                yield rows
                start = rows[-1][0]
        except slatedb.Error.Data as exc:
            raise Unreadable(start, str(exc.message), after=True) from exc

    async def commit(self, batch: Batch) -> None:
        """Make changes durable: when this returns, they survive the loss of power.

        SlateDB tries again for as long as the disk is full or the object store can't be reached.
        After any other error nothing is written until the engine is opened anew. Raises
        Unavailable: they were not made, or it is not known whether they were.
        """
        if self._broken:
            raise Unavailable(_BROKEN, retry_after=5, detail=self._broken)
        write = self._writing = asyncio.create_task(self._write(batch.puts, batch.deletes))
        try:
            await asyncio.wait({write}, timeout=_LOOK)
            if not write.done():
                await self._find_why()
                await asyncio.wait({write})
            if write.cancelled():
                raise Unavailable("The store is closed.")
            write.result()
        except FAILURES as exc:
            reason = exc.reason if isinstance(exc, slatedb.Error.Closed) else None
            self.is_fenced = reason is slatedb.CloseReason.FENCED
            self._broken = f"writing to SlateDB at {self._path}: {exc}"
            logger.error("a commit failed: %s", self._broken)
            raise Unavailable(_BROKEN, retry_after=5, detail=self._broken) from exc
        finally:
            write.cancel()
            self.complaint = ""
        is_due = time.monotonic() - self._flushed > _MEMTABLE_SECONDS
        if is_due and self._flushing is None:
            self._flushed = time.monotonic()
            self._flushing = asyncio.create_task(self._flush_memtable())

    async def _find_why(self) -> None:
        """Find out why a write takes long. Raises OSError: the disk fails, and is not only full."""
        try:
            if self._local is not None:
                await self._local.try_to_write()
        except OSError as exc:
            if not is_full(exc):
                raise
            self.complaint = ": it is full, free some space"
            logger.error("a commit of SlateDB at %s waits: its disk is full", self._path)

    async def close(self) -> None:
        """Shut SlateDB down and let the directory go; idempotent."""
        db, self._db = self._db, None
        if db is None:
            return
        is_stuck = self._writing is not None and not self._writing.done()
        patience = _LOOK if is_stuck else self.patience
        unfinished = {task for task in (self._flushing, self._writing) if task is not None}
        if unfinished:
            await asyncio.wait(unfinished, timeout=patience)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        try:
            async with asyncio.timeout(patience):
                await db.shutdown()
            await self._sync()
        except FAILURES:
            logger.exception("SlateDB did not shut down cleanly")
        finally:
            self._let_go()

    async def _write(self, puts: Mapping[bytes, bytes], deletes: Sequence[bytes]) -> None:
        """Write a batch and make it durable."""
        batch = slatedb.WriteBatch()
        size = 0
        for key, value in chain(puts.items(), zip(deletes, repeat(None))):
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
                size += len(value)
            size += _CALL
            if size > _MOST_BYTES:
                size = 0
                await asyncio.sleep(0)
        db = self._opened()
        handle = await db.write(batch)
        await db.flush_with_options(slatedb.FlushOptions(flush_type=slatedb.FlushType.WAL))
        await handle.await_durable()
        await self._sync()

    async def _flush_memtable(self) -> None:
        """Flush the memtable, so that the files of the write-ahead log, one a commit, can go."""
        try:
            await self._opened().flush_with_options(
                slatedb.FlushOptions(flush_type=slatedb.FlushType.MEM_TABLE)
            )
            await self._sync()
        except (*FAILURES, Unavailable):
            logger.exception("the memtable was not flushed; the log grows until it is")
        finally:
            self._flushing = None

    async def _sync(self) -> None:
        if self._local is not None:
            await self._local.sync()

    async def _translated(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self.patience):
                return await call
        except TimeoutError as exc:  # SlateDB tries for ever to read a file that is too short
            raise Unavailable(
                "The store can't be read: no answer in time.", detail=f"SlateDB at {self._path}"
            ) from exc
        except slatedb.Error.Data:
            raise  # a damaged block: handled by the caller
        except FAILURES as exc:
            raise Unavailable(
                "The store can't be read.", detail=f"SlateDB at {self._path}: {exc}"
            ) from exc

    def _opened(self) -> slatedb.Db:
        if self._db is None:
            raise Unavailable("The store is closed.")
        return self._db

    def _let_go(self) -> None:
        if self._local is not None:
            self._local.release()

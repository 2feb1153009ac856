"""The connection, its transactions, and when what they stored is durable: group commit.

Statements run on the event loop, in one open transaction, the batch. What arrives while a batch is
being synced joins the next one. A batch ends by COMMIT, which writes the WAL without a sync; then a
thread syncs the WAL, and only then are the operations of the batch answered, those too that read
what was not durable yet.

* An operation that is refused has changed nothing yet: it checks first, then it writes. One that
  fails after it has written, or whose statement SQLite fails, undoes its batch, and so does a
  failed COMMIT: all who wait for it are told Unavailable, and nothing of it was stored. For a while
  after that each operation has a SAVEPOINT, so that one that fails again and again undoes only
  itself. To have one always would make a post dearer by a seventh.
* A failed sync comes after COMMIT. Nothing of that batch is acknowledged, everything is refused,
  and the file is opened anew from what is durable.

In RAM there is nothing to sync: a batch lasts until the event loop's next turn, and nobody waits.
So each operation has a SAVEPOINT there: who is answered already must not be undone with another.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

import apsw

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable, ZaqarLiteError
from zaqar_lite.domain.ids import new_message_ids
from zaqar_lite.domain.models import QueueRecord, QueueRef, StoreOptions
from zaqar_lite.domain.refusals import queue_changed
from zaqar_lite.storage.sql.batches import Batch, in_thread, is_locked, unavailable
from zaqar_lite.storage.sql.place import InRam, Room
from zaqar_lite.storage.sql.queues import Queue, Queues, write_counts
from zaqar_lite.storage.sql.shares import Shares
from zaqar_lite.storage.store import Condition
from zaqar_lite.storage.watchers import Watchers

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 10.0
_CAREFUL = 1_000
"""Batches in which each operation has a SAVEPOINT, after one that was undone."""
_RETRY = 1.0
"""Seconds between two tries to open the file again."""
_LOCKED, _LOOK = 2.0, 0.005
"""Seconds for which a batch waits while another program writes, and between two looks."""


class Database:
    """A database with one writer: this object."""

    is_post_whole = False
    """Whether a large post is stored in one batch."""

    def __init__(self, place: InRam, clock: Clock, options: StoreOptions) -> None:
        self.place = place
        self.room = Room(place)
        self.clock = clock
        self.options = options
        self.queues = Queues()
        self.new_ids: Callable[[int, int], list[str]] = new_message_ids
        """Makes the ids of messages at positions in a row, by the first and their number."""
        self.watchers = Watchers[QueueRef]()
        self.busy: dict[QueueRef, asyncio.Future[Any]] = {}
        """Large posts and drops, which take several steps: posts to these queues wait for them."""
        self.unfinished: set[int] = set()
        """The numbers of large posts that a crash or an error has cut short."""
        self.finishing = asyncio.Lock()
        self.undone = 0
        """How many batches were undone."""
        self.shares = Shares(self._ask_for_batch) if place.syncs else None
        self.undo: dict[Queue, tuple[Any, ...] | None] = {}
        self.epoch = 1
        """The number of the batch that gathers, or will."""
        self.synced = 0
        """The number of the last batch that is durable."""
        self.records_epoch = 0
        """The batch that changed the records of kinds last."""
        self.filtered: dict[str, Sequence[QueueRecord]] = {}
        """The records with a filter, by project: each post asks for them."""
        self.record_counts: dict[tuple[str, str | None], int] = {}
        """How many records of a kind a project, or the server, has at most."""
        self._careful_until = 0  # the batch with which operations have no SAVEPOINT any more
        self._batch: Batch | None = None
        self._syncing: Batch | None = None
        self._touched: dict[Queue, None] = {}
        self._gate: asyncio.Future[None] | None = None
        self._refused: Unavailable | None = None
        self._is_late = False
        self._task: asyncio.Task[None] | None = None
        self._copying: asyncio.Future[None] | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._number = self._position = self._version = 0
        self._removed_epoch = 0  # the batch that removed a queue last
        self._users = 0
        self._opening = asyncio.Lock()
        self._is_closing = False
        if not place.syncs:
            self._use(place.open())

    def _use(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.execute: Callable[..., Any] = connection.execute
        self.executemany = connection.executemany
        select = "SELECT number, position, version, instant FROM counter"
        ((number, position, version, instant),) = self.execute(select)
        # After a failed sync the file is behind what this process gave away.
        self._number = max(self._number, number)
        self._position = max(self._position, position)
        self._version = max(self._version, version)
        self.clock.not_before(instant)
        posts = self.execute("SELECT DISTINCT number FROM post")
        self.unfinished = {number for (number,) in posts}

    @property
    def patience(self) -> float:
        """Seconds after which operations stop waiting for a sync; it may still be stored."""
        return PATIENCE

    # -- opening and closing --

    async def open(self) -> None:
        """Open the file, for the first of the stores that opens."""
        async with self._opening:
            if self._users == 0 and self.place.syncs:
                self._threads = ThreadPoolExecutor(2, "zaqar-sync")
                self._is_closing, self._refused = False, None
                try:
                    self._use(await self._open_place())
                except BaseException:
                    self._threads.shutdown(wait=False)
                    raise
            self._users += 1

    async def close(self) -> None:
        """Finish what is under way and close the file, for the last of the stores that closes."""
        async with self._opening:
            if self._users == 0:
                return
            self._users -= 1
            if self._users or self._threads is None:
                return
            self._is_closing = True
            while tasks := {*filter(None, (self._task, self._copying, *self.busy.values()))}:
                _, late = await asyncio.wait(tasks, timeout=2 * self.patience)
                if late:
                    logger.error("the last batch is not durable: its disk does not answer")
                    self._threads.shutdown(wait=False)
                    await self._leave_place()
                    return
            await self._close_place()
            self._threads.shutdown(wait=False)
            self.queues.forget_all()

    # -- what operations use --

    async def write(
        self, work: Callable[Concatenate["Database", P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation that may change something, as one step; wait until it is durable.

        Raises:
            Unavailable: nothing was stored, or it is not known whether it was.
        """
        result = await self.join(work, *args, **kwargs)
        if self.place.syncs:
            await self.future()
        return result

    async def join(
        self, work: Callable[Concatenate["Database", P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation as `write` does, but do not wait until it is durable."""
        if self._gate is not None or self._batch is None:
            await self._begin()
        self.begin()
        self.undo.clear()
        is_careful = not self.place.syncs or self.epoch < self._careful_until
        changes = None if is_careful else self.connection.total_changes()
        try:
            if is_careful:
                self.execute("SAVEPOINT step")
            result = work(self, *args, **kwargs)
            if is_careful:
                self.execute("RELEASE step")
        except BaseException as exc:
            self._undo_step(exc, changes)
            raise
        return result

    async def read(
        self,
        ref: QueueRef,
        work: Callable[Concatenate["Database", P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation that reads a queue; wait until what it saw is durable."""
        queue, result = await self.look(lambda db: (db.queue(ref), work(db, *args, **kwargs)))
        epoch = self._removed_epoch if queue is None else queue.epoch
        if epoch > self.synced:
            await self.visible(epoch)
        return result

    async def look(
        self, work: Callable[Concatenate["Database", P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation that reads, but do not wait until what it saw is durable."""
        await self.pass_gate()
        try:
            return work(self, *args, **kwargs)
        except apsw.Error as exc:
            raise self._failed_read(exc) from exc

    async def change_queue(
        self,
        ref: QueueRef,
        version: int | None,
        nothing: T,
        work: Callable[Concatenate["Database", Queue, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation on a queue as `write` does; answer `nothing` where it does not exist.

        Raises:
            QueueChanged: its record is not at `version`.
        """

        def act(db: Database) -> T:
            queue = db.queue_at(ref, version)
            return nothing if queue is None else work(db, queue, *args, **kwargs)

        return await self.write(act)

    async def read_queue(
        self,
        ref: QueueRef,
        nothing: T,
        work: Callable[Concatenate["Database", Queue, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Read a queue as `read` does; answer `nothing` where it does not exist."""

        def act(db: Database) -> T:
            queue = db.queue(ref)
            return nothing if queue is None else work(db, queue, *args, **kwargs)

        return await self.read(ref, act)

    async def visible(self, epoch: int) -> None:
        """Wait until what was stored up to a batch is durable, for readers who have seen it.

        It must not go away again. `epoch` may be that of a batch which has not begun.
        """
        if epoch <= self.synced or not self.place.syncs:
            return
        batch = self._batch if epoch == self.epoch else None
        batch = batch or self._syncing
        if batch is not None:
            if self._is_late:
                raise self._stalled()
            await batch.durable()

    async def pass_gate(self) -> None:
        """Wait while the log is begun anew: until the next await, statements may run then.

        Raises:
            Unavailable: the file is being opened anew.
        """
        while self._gate is not None:
            await asyncio.shield(self._gate)
        self.check_readable()

    def check_readable(self) -> None:
        """Refuse to read while what is in memory is not what is durable.

        Raises:
            Unavailable: says why.
        """
        if self._refused is not None:
            raise Unavailable(self._refused.shown, retry_after=self._refused.retry_after)
        # While the log is begun anew the connection is a thread's, and no batch is open.
        if self._batch is None and self._gate is None and self.connection.in_transaction:
            try:  # the batch before was undone, but for this
                self.execute("ROLLBACK")
            except apsw.Error as exc:
                raise unavailable(exc) from exc

    def check_writable(self) -> None:
        """Refuse to write while the disk does not answer. Raises Unavailable."""
        self.check_readable()
        if self._is_late:
            raise self._stalled()

    def check_growth(self) -> None:
        """Refuse to store more when only the reserve is left. Raises Unavailable."""
        if self.place.syncs:
            self.room.check()

    def condition(self) -> Condition:
        """How the store's disk is; never raises."""
        return Condition(not self.room.is_left(), self.place.wal_bytes)

    def queue(self, ref: QueueRef) -> Queue | None:
        """The queue, if it has a row."""
        try:
            return self.queues.get(self.connection, ref)
        except apsw.Error as exc:
            raise self._failed_read(exc) from exc

    def _failed_read(self, exc: apsw.Error) -> Unavailable:
        """What a read that failed is answered; the batch is undone where SQLite has ended it."""
        if self._batch is not None and not self.connection.in_transaction:
            self.fail_batch(exc)
        return unavailable(exc)

    def queue_at(self, ref: QueueRef, version: int | None) -> Queue | None:
        """The queue, after comparing its record's version with the one that the caller has read.

        Raises:
            QueueChanged: the record is at another version; 0 means no record.
        """
        queue = self.queue(ref)
        if version is not None and version != (0 if queue is None else queue.version):
            raise queue_changed(ref)
        return queue

    def make_queue(self, ref: QueueRef) -> Queue:
        """The queue to write to; it is made if it does not exist."""
        queue = self.queue(ref)
        if queue is None:
            number, content = self.take_number(), self.take_number()
            self.execute(
                "INSERT INTO queue (number, project, name, content) VALUES (?, ?, ?, ?)",
                (number, ref.project, ref.name, content),
            )
            queue = Queue(ref, number, content)
            self.queues.add(queue)
            self.undo[queue] = None
        return queue

    def empty_queue(self, queue: Queue) -> None:
        """Let a queue hold no messages and claims: what there is becomes garbage at once."""
        self.touch(queue)
        if queue.total:
            self.execute("INSERT INTO garbage VALUES (?)", (queue.content,))
            queue.clear(self.take_number())

    def remove_queue(self, queue: Queue) -> None:
        """Remove a queue's row; what it still has is garbage."""
        self.empty_queue(queue)
        if queue.keys or queue.ended:
            self.execute("INSERT INTO garbage VALUES (?)", (queue.number,))
        if queue.version:
            self.count_queues(queue.ref.project, -1)
            self.filtered.pop(queue.ref.project, None)
        self.execute("DELETE FROM queue WHERE number = ?", (queue.number,))
        self._touched.pop(queue, None)
        self._removed_epoch = self.epoch
        self.queues.forget(queue.ref)

    def count_queues(self, project: str, by: int) -> None:
        """Count the queues with a record of a project."""
        self.execute(
            "INSERT INTO project VALUES (?, ?) ON CONFLICT DO UPDATE SET queues = queues + ?",
            (project, by, by),
        )
        self.execute("DELETE FROM project WHERE name = ? AND queues <= 0", (project,))

    def touch(self, queue: Queue) -> None:
        """Note that this step changes a queue: its row is written at the end of the batch."""
        if queue not in self.undo:
            self.undo[queue] = queue.counts()
        self._touched[queue] = None
        queue.epoch = self.epoch

    def take_number(self) -> int:
        """Take a number that no queue and no content had."""
        self._number += 1
        return self._number

    def take_positions(self, count: int, now_us: int) -> int:
        """Take positions in a row; answer the first."""
        first = max(self._position + 1, now_us)
        self._position = first + count - 1
        return first

    def take_version(self) -> int:
        """Take a version that no record had."""
        self._version = max(self._version + 1, self.clock.now_us())
        return self._version

    def announce(self, ref: QueueRef, count: int) -> None:
        """Tell who watches, once it is durable, that messages became ready; 0: that they will."""
        if ref in self.watchers and self._batch is not None:
            self._batch.ready[ref] = self._batch.ready.get(ref, 0) + count

    # -- the batch --

    def begin(self) -> Batch:
        """The batch that gathers; it begins if there is none.

        Raises:
            Unavailable: nothing can be written now.
        """
        if self._batch is not None and not self._is_late:
            return self._batch
        self.check_writable()
        try:
            self.execute("BEGIN IMMEDIATE")
        except apsw.Error as exc:
            raise unavailable(exc) from exc
        batch = self._batch = Batch(self.epoch)
        loop = asyncio.get_running_loop()
        if not self.place.syncs:
            loop.call_soon(self._commit_in_ram)
        elif self._task is None:
            self._task = loop.create_task(self._run(), name="zaqar-commit")
        return batch

    async def _begin(self) -> Batch:
        """Begin a batch, as soon as no other program writes to the file.

        Litestream does for an instant, and so may a person with `sqlite3`.
        """
        ends = asyncio.get_running_loop().time() + _LOCKED
        while True:
            await self.pass_gate()
            try:
                return self.begin()
            except Unavailable as exc:
                if not is_locked(exc) or asyncio.get_running_loop().time() > ends:
                    raise
            await asyncio.sleep(_LOOK)

    def future(self) -> "asyncio.Future[None]":
        """A future of the batch that gathers: it is done when the batch is durable."""
        return self.begin().durable()

    def _ask_for_batch(self) -> "asyncio.Future[None]":
        """Answer as `future` does; while another program writes, for the batch that comes then."""
        try:
            return self.future()
        except Unavailable as exc:
            if not is_locked(exc):
                raise
        return asyncio.ensure_future(self._next_batch())

    async def _next_batch(self) -> None:
        await self._begin()
        await self.future()

    def _undo_step(self, exc: BaseException, changes: int | None) -> None:
        """Undo an operation that raised, or its batch if need be.

        `changes` is how many rows the connection had changed before; None: it has a SAVEPOINT.

        Raises:
            Unavailable: it was SQLite that raised.
        """
        is_kept = not isinstance(exc, apsw.Error) and self.connection.total_changes() == changes
        if changes is None:
            with contextlib.suppress(apsw.Error):
                self.execute("ROLLBACK TO step; RELEASE step")
                is_kept = True
        if not is_kept:
            self.fail_batch(exc)
        else:
            self.filtered.clear()
            for queue, counts in self.undo.items():
                if counts is None:
                    self.queues.forget(queue.ref)
                    self._touched.pop(queue, None)
                else:  # also one that the step has removed
                    queue.restore(counts)
                    self.queues.add(queue)
                    self._touched[queue] = None
        if isinstance(exc, apsw.Error):
            logger.error("a request failed in the store: %s", exc)
            raise unavailable(exc) from exc

    def fail_batch(self, exc: BaseException) -> None:
        """Undo the whole batch, and tell all who wait for it."""
        batch, self._batch = self._batch, None
        self._careful_until = self.epoch + _CAREFUL
        with contextlib.suppress(apsw.Error):
            if self.connection.in_transaction:
                self.execute("ROLLBACK")
        self._forget()
        told = unavailable(exc)
        logger.error("a batch was undone, nothing of it was stored: %s", told)
        if batch is not None:
            batch.settle(told)

    def _forget(self) -> None:
        self.undone += 1
        self.queues.forget_all()
        self.filtered.clear()
        self.record_counts.clear()
        self._touched = {}
        self.undo.clear()

    def write_queues(self) -> None:
        """Write the rows of the queues that the batch has changed so far."""
        if self._touched:
            write_counts(self.connection, self._touched, self.clock.now_ms())
            self._touched = {}

    def _commit(self) -> Batch | None:
        """Commit the batch; answer it, or None where it failed."""
        batch = self._batch
        if batch is None:
            return None
        try:
            self.write_queues()
            self.execute(
                "UPDATE counter SET number = ?, position = ?, version = ?, instant = ?",
                (self._number, self._position, self._version, self.clock.now_ms()),
            )
            self.execute("COMMIT")
        except (apsw.Error, ZaqarLiteError) as exc:
            self.fail_batch(exc)
            return None
        self._batch = None
        self.epoch += 1
        self.undo.clear()
        self.queues.shrink(batch.epoch)
        return batch

    def _commit_in_ram(self) -> None:
        try:
            batch = self._commit()
        except Exception as exc:  # a bug; the next batch must not wait for this one
            logger.exception("a batch can't be written")
            self.fail_batch(exc)
            return
        if batch is not None:
            self.synced = batch.epoch
            self._announce(batch)

    def _announce(self, batch: Batch) -> None:
        """Tell who watches which queues have new ready messages by the batch."""
        for ref, count in batch.ready.items():
            try:
                self.watchers.tell(ref, count)
            except Exception:  # a hint must not fail what is stored
                logger.exception("a listener failed for %s", ref)

    # -- durability: the file alone --

    async def _run(self) -> None:
        """Commit and sync batches while there are any."""
        try:
            while self._batch is not None:
                await self._fill()
                must_restart = self.place.must_restart
                if must_restart and self._batch is not None:
                    self._gate = asyncio.get_running_loop().create_future()
                await self._prepare()
                batch = self._commit()
                if batch is not None:
                    await self._sync(batch, restarts=must_restart)
                else:
                    self._open_gate()
        except BaseException as exc:
            logger.exception("the store's commit task failed")
            self.fail_batch(exc)
            raise
        finally:
            self._open_gate()
            self._task = None

    async def _fill(self) -> None:
        """Let waiting operations add what there is room for."""
        batch, shares = self._batch, self.shares
        if batch is not None and shares is not None and shares.last_call(len(batch.waiting)):
            await asyncio.sleep(0)  # they add their messages

    async def _sync(self, batch: Batch, *, restarts: bool) -> None:
        loop = asyncio.get_running_loop()
        self._syncing = batch
        watch = loop.call_later(self.patience, self._stall, batch)
        try:
            if self.shares is not None and not restarts:
                self.shares.next_batch()
            await self._make_durable(restarts=restarts)
        except (OSError, apsw.Error, Unavailable) as exc:
            await self._break(batch, exc)
        except BaseException as exc:  # a bug, or the loop ends: nobody may wait for ever
            batch.settle(unavailable(exc))
            raise
        else:
            self.synced = batch.epoch
            batch.settle(None)
            self._announce(batch)
        finally:
            watch.cancel()
            self._syncing, self._is_late = None, False
            self._open_gate()
            if self.shares is not None and restarts:
                self.shares.next_batch()

    # -- where the tables lie; storage/opendata has another place --

    def in_one_batch(self) -> contextlib.AbstractContextManager[None]:
        """Store what the block stores in one batch, where `is_post_whole`."""
        return contextlib.nullcontext()

    async def _open_place(self) -> apsw.Connection:
        return await asyncio.to_thread(self.place.open)

    async def _reopen_place(self) -> apsw.Connection:
        return await asyncio.to_thread(self.place.reopen)

    async def _close_place(self) -> None:
        await asyncio.to_thread(self.place.close)

    async def _leave_place(self) -> None:
        """Close what can be closed of a place whose disk does not answer."""

    async def _prepare(self) -> None:
        """Do what comes before COMMIT; a gate must keep operations away while it waits."""

    async def _make_durable(self, *, restarts: bool) -> None:
        """Make what was committed durable.

        Raises:
            OSError, apsw.Error, Unavailable: it is not, and the tables are behind what they show.
        """
        await in_thread(self._threads, self.place.sync)
        if restarts:
            if self._copying is not None:
                await asyncio.wait({self._copying})
            await in_thread(self._threads, self.place.restart)
        elif self._copying is None and self.place.must_copy:
            self._copying = in_thread(self._threads, self.place.copy)
            self._copying.add_done_callback(self._copied)

    def _copied(self, copying: "asyncio.Future[None]") -> None:
        self._copying = None
        exc = None if copying.cancelled() else copying.exception()
        if exc is not None:  # the WAL keeps what was not copied
            logger.warning("the store's log could not be copied into its file yet: %s", exc)

    def _open_gate(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None and not gate.done():
            gate.set_result(None)

    def _stall(self, batch: Batch) -> None:
        """Stop waiting for a disk that does not answer."""
        self._is_late = True
        logger.error("the store's disk has not answered for %g s", self.patience)
        batch.settle(self._stalled())
        if self._batch is not None:
            self._batch.settle(self._stalled())

    def _stalled(self) -> Unavailable:
        return Unavailable(
            f"The store's disk has not answered for {self.patience:g} s; what was sent meanwhile "
            "may be stored later.",
            retry_after=5,
        )

    async def _break(self, batch: Batch, exc: BaseException) -> None:
        """Refuse everything after a failed sync, and open the file anew from what is durable."""
        told = unavailable(exc)
        logger.error("a batch is not durable, so the store is opened anew: %s", exc)
        self._refused = told
        if self._batch is not None:
            self.fail_batch(told)
        batch.settle(told)
        self._open_gate()  # those who wait there are refused
        logged = ""
        while True:
            if self._copying is not None:
                await asyncio.wait({self._copying})
            try:
                self._use(await self._reopen_place())
            except (Unavailable, apsw.Error) as still:
                if str(still) != logged:  # once, not each second
                    logged = str(still)
                    logger.error("the store can't be opened again yet: %s", logged)
                if self._is_closing:
                    return
                await asyncio.sleep(_RETRY)
            else:
                self._forget()
                self.synced = self.epoch - 1
                self._refused = None
                logger.warning("the store is open again")
                return

"""The tables of `storage/sql` as the working copy of a store of RFC 0001's records.

The tables lie in a temporary database, which is made anew at each start; SQLite keeps what its
cache can't hold in a file of its own. Before a batch is committed there, `recorder.py` encodes what
it must read there of the changes, and the rest after it; then the engine makes these records
durable, and the batch is answered. Where that fails, the tables are filled again from the records
that are stored.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.opendata.engine import Batch, Unreadable
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.bookkeeping import BLOCK, STATE
from zaqar_lite.storage.opendata.ids import Ids
from zaqar_lite.storage.opendata.loading import Loading, read_own
from zaqar_lite.storage.opendata.pages import SCHEMA
from zaqar_lite.storage.opendata.recorder import Encoding, Recorder
from zaqar_lite.storage.opendata.routing import route
from zaqar_lite.storage.sql import batches, database
from zaqar_lite.storage.sql.place import InRam, connect, make_tables

if TYPE_CHECKING:
    from zaqar_lite.storage.opendata.slatedb import SlateDbEngine

logger = logging.getLogger(__name__)
BLOCK_SIZE = 4_096
"""Ids of a block, at least."""
_CACHE_KIB = 65_536
_PATIENCE = 10
"""How many times longer a start waits for the engine than an operation does."""
_STEP = 1_000
"""Records of earlier versions that one batch deletes."""


class Beside(InRam):
    """A temporary database, whose batches are answered when their records are durable."""

    syncs = True

    def open(self) -> apsw.Connection:
        """Make the tables."""
        connection = connect("")
        connection.pragma("journal_mode", "MEMORY")
        connection.pragma("cache_size", -_CACHE_KIB)
        make_tables(connection)
        connection.execute(SCHEMA)
        return connection


class Database(database.Database):
    """The tables, and the engine that has the records."""

    is_post_whole = True  # the records know no parts

    def __init__(self, engine: "SlateDbEngine", clock: Clock, options: StoreOptions) -> None:
        super().__init__(Beside(), clock, options)
        self.engine = engine
        self.ids = Ids(b"")
        self.new_ids = self._ids_of
        self.log = keys.Log(())
        self.damages: Sequence[str] = ()
        """What can't be read of payloads and of the metadata log."""
        self._block_end = self._next_end = 0
        self._encoding: Encoding | None = None
        self._recorder: Recorder | None = None
        self._holds = 0
        self._released = asyncio.Event()

    @property
    def patience(self) -> float:
        """Seconds after which operations stop waiting for the engine."""
        return self.engine.patience

    # -- ids --

    def take_positions(self, count: int, now_us: int) -> int:
        """Take positions in a row, which are ids of messages too; answer the first.

        They are in a block that is stored with their first use or before it. Unlike those of other
        places they never run ahead of the time in microseconds.
        """
        first = self._position + 1
        self._position += count
        return first

    def take_version(self) -> int:
        """Take a version that no record had: records and messages share their numbers."""
        return self.take_positions(1, 0)

    def _ids_of(self, first: int, count: int) -> list[str]:
        return [self.ids.of(number).hex() for number in range(first, first + count)]

    # -- opening and closing --

    async def _open_place(self) -> apsw.Connection:
        await self.engine.open()
        try:
            return await self._load()
        except BaseException:
            self._let_tables_go()
            await self.engine.close()
            raise

    async def _load(self) -> apsw.Connection:
        """Fill tables from the records, and write what these lack beside them.

        Raises ConfigurationError: a record can't be read; Unavailable: the engine, or the disk of
        the tables, failed.
        """
        connection = self.place.open()
        try:
            own = await read_own(self.engine, self.clock)
            loading = Loading(self.engine, connection, self.clock, own)
            await loading.read()
            await route(loading)
            await loading.finish()
        except Unreadable as exc:
            why = f"The store can't be opened. {exc} It is kept as it is: restore it from a backup."
            raise ConfigurationError(why) from exc
        except apsw.Error as exc:
            raise Unavailable(
                "The store can't be opened: its tables, for which SQLite makes a file in the "
                f"directory for temporary files (TMPDIR), can't be filled: {exc}."
            ) from exc
        self.ids, self.log, self._block_end = own.ids, own.log, own.block_end
        self.damages = list(map(str, loading.unreadable.values()))
        self._recorder = Recorder(connection, own.ids, own.log)
        await self._repair(loading)
        return connection

    async def _repair(self, loading: Loading) -> None:
        """Write what the records lack beside the tables, then delete what no version needs."""
        if loading.is_behind:
            for (kind, queue), rows in loading.again.items():
                await loading.lacking.encode_pages(kind, queue, rows)
            loading.lacking.puts |= self._own_records(loading.position)
            await self._commit_at_start(await loading.lacking.finish())
            self._block_end = self._next_end
        for start in range(0, len(loading.deletes), _STEP):
            await self._commit_at_start(Batch({}, loading.deletes[start : start + _STEP]))

    async def _commit_at_start(self, batch: Batch) -> None:
        try:
            async with asyncio.timeout(_PATIENCE * self.patience):
                await self.engine.commit(batch)
        except TimeoutError as exc:
            why = "The store can't be opened: its disk does not take what the start has to write."
            raise Unavailable(why) from exc

    def _own_records(self, position: int) -> dict[bytes, bytes]:
        """What a batch says of the store itself, whose last id is `position`."""
        own = {keys.STATE: STATE.encode(position + 1, self.clock.now_ms(), self.ids.secret)}
        self._next_end = self._block_end
        if position >= self._block_end:
            size = max(BLOCK_SIZE, position + 1 - self._block_end)
            own[keys.ID_BLOCK] = own[keys.LOG_BLOCK] = BLOCK.encode(self._block_end, size)
            self._next_end += size
        return own

    async def _reopen_place(self) -> apsw.Connection:
        if self._is_closing or self.engine.is_fenced:
            raise Unavailable("The store is closed, or another server has taken it over.")
        self._let_tables_go()
        await self.engine.close()
        try:
            await self.engine.open()
            return await self._load()
        except (ConfigurationError, ValueError) as exc:
            raise Unavailable("The store can't be opened.", detail=str(exc)) from exc

    def _stalled(self) -> Unavailable:
        return Unavailable(
            f"The store's disk has not answered for {self.patience:g} s{self.engine.complaint}; "
            "what was sent meanwhile may be stored later.",
            retry_after=5,
        )

    async def _close_place(self) -> None:
        self._let_tables_go()
        await self.engine.close()

    _leave_place = _close_place

    def _let_tables_go(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder.connection.close(force=True)
            self._recorder = None

    # -- batches --

    @contextmanager
    def in_one_batch(self) -> Iterator[None]:
        """Keep the batch that gathers from being committed; undo it where the block raises."""
        batch = self._batch
        self._holds += 1
        try:
            yield
        except BaseException as exc:
            if batch is not None and self._batch is batch:
                self.fail_batch(exc)
            raise
        finally:
            self._holds -= 1
            if not self._holds:
                self._released.set()
                self._released.clear()

    async def _fill(self) -> None:
        """Let posts in steps end, too."""
        await self._wait_for_holds()
        await super()._fill()
        await self._wait_for_holds()

    async def _wait_for_holds(self) -> None:
        while self._holds:
            await self._released.wait()

    async def _prepare(self) -> None:
        """Encode the records of the batch; operations wait meanwhile for the next one."""
        if self._batch is None:
            return
        self._gate = asyncio.get_running_loop().create_future()
        try:
            if self._recorder is None:
                raise Unavailable("The store is closed.")
            encoding = await self._recorder.encode()
        except (apsw.Error, Unavailable) as exc:
            self.fail_batch(exc)
        except Exception:  # a value that no record can hold, or a bug: later batches must not fail
            logger.exception("a batch can't be written")
            self.fail_batch(Unavailable("The store can't write this; try again."))
        else:
            encoding.puts |= self._own_records(self._position)
            self._encoding = encoding

    def _commit(self) -> batches.Batch | None:
        try:
            return super()._commit()
        finally:
            if self._recorder is not None:
                self._recorder.follow()
            self._open_gate()

    async def _make_durable(self, *, restarts: bool) -> None:
        del restarts  # there is no log of SQLite
        encoding, self._encoding = self._encoding, None
        if encoding is None:
            raise Unavailable("The store is closed.")
        try:
            await self.engine.commit(await encoding.finish())
        except Unavailable:
            raise
        except Exception as exc:  # a bug: the tables are to be what is stored
            logger.exception("a batch can't be written")
            raise Unavailable("The store can't write this; try again.") from exc
        self._block_end = self._next_end

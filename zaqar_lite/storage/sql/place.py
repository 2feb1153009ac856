"""Where the tables lie: in RAM, or in a file of a directory; and how they become durable there.

A directory holds `zaqar.sqlite3`, its WAL while a server runs (`zaqar.sqlite3-wal`, `-shm`) and
`lock`. SQLite runs in WAL mode with `synchronous=NORMAL`: COMMIT writes the WAL without a sync,
and the thread of `sync` makes it durable by one `fdatasync` for a whole batch. Copying the WAL
into the file ("checkpoint") is the work of a second connection in that thread, so that the event
loop never waits for it; the writing connection only begins the WAL anew (`restart`), while no
statement runs. Under load the second connection alone would never bring the WAL to its end.
"""

import contextlib
import fcntl
import logging
import os
import sys
from importlib.resources import files
from pathlib import Path
from time import monotonic

import apsw

from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.storage.sql.directory import (
    FULL,
    DirectoryLock,
    is_full,
    sync_directory,
    try_to_write,
)

logger = logging.getLogger(__name__)

FILE_NAME = "zaqar.sqlite3"
OLD_FILE_NAME = "queue.sqlite3"
"""The file of versions before 0.3.0, which had another format."""
APPLICATION_ID = 0x5A51_4C54
FORMAT = 3
"""The version of `schema.sql`, kept as the file's `user_version`."""
SAFE_SQLITE = 3_051_003
"""Before 3.51.3 two connections that write or checkpoint at once can corrupt a file in WAL mode."""

PAGE_SIZE = 4_096
_FRAME = PAGE_SIZE + 24
_WAL_HEADER = 32
_COPY_AT = 2 << 20
"""Bytes of the WAL that are not in the file yet, from which on they are copied."""
_RESTART_AT = 32 << 20
"""Bytes of the WAL from which on it is begun anew, on a small disk a quarter of that: nobody can
work for some 5 ms then."""
_SHORT_WAL = 1 << 20
"""Bytes of the WAL from which on it is begun anew on a low disk."""
LONG_WAL = 256 << 20
"""Bytes of the WAL from which on the log says that some reader keeps it from being begun anew."""
_PRAGMAS = {
    "page_size": PAGE_SIZE,
    "auto_vacuum": "INCREMENTAL",
    "journal_mode": "WAL",
    "synchronous": "NORMAL",
    "cache_size": -49_152,  # KiB
    "journal_size_limit": 64 << 20,
}
"""Of the writing connection, in this order: the first two must come before a file is made."""
_RESERVE_MOST, _RESERVE_LEAST = 64 << 20, 8 << 20
_ROOM_FOR = 0.25
"""Seconds for which the last look at the disk's free space holds."""
_ROOM_BYTES = 512 << 10
"""Bytes of the log after which it holds no more."""
_SPARE_PAGES = 512
"""Free pages that a file may keep for what comes next."""


def connect(name: str) -> apsw.Connection:
    """Open a connection whose query plans depend on the statements alone.

    Without QPSG, SQLite looks at its statistics anew for each new value of a parameter, which
    doubled the cost of a statement.
    """
    connection = apsw.Connection(name, statementcachesize=256)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    # One that `reopen` closes must not copy a WAL that may be damaged.
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.pragma("temp_store", "MEMORY")
    return connection


def make_tables(connection: apsw.Connection) -> None:
    """Make the tables of `schema.sql` in an empty database."""
    schema = files("zaqar_lite.storage.sql").joinpath("schema.sql").read_text("utf-8")
    connection.execute(
        f"BEGIN; {schema} PRAGMA application_id = {APPLICATION_ID}; "
        f"PRAGMA user_version = {FORMAT}; COMMIT"
    )


def check_format(connection: apsw.Connection, file: Path) -> None:
    """Refuse a file that is not ours, or of another format. Raises ConfigurationError."""
    identity, version = connection.pragma("application_id"), connection.pragma("user_version")
    has_tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if not has_tables and not version:
        return
    if identity != APPLICATION_ID or int(version) != FORMAT:
        raise ConfigurationError(
            f"{file} is no store of this version of Zaqar Lite (application_id {identity}, "
            f"user_version {version}). It is kept as it is: give the server another directory, "
            "or use the version that made it."
        )


class InRam:
    """A database in RAM: nothing is ever synced, and all ends with the connection.

    What a place on a disk does beyond `open` and `close` is nothing here.
    """

    syncs = False
    """Whether operations wait until a batch is durable."""
    wal_bytes = 0
    must_copy = False
    """Whether there is enough in the WAL to be copied into the file."""
    must_restart = False
    """Whether the WAL is so long that it should be begun anew."""

    def open(self) -> apsw.Connection:
        """Make the database."""
        connection = connect(":memory:")
        connection.pragma("journal_mode", "MEMORY")
        make_tables(connection)
        return connection

    def reopen(self) -> apsw.Connection:
        """Do what `open` does: there is nothing else to read."""
        return self.open()

    def close(self) -> None:
        """Do nothing: the database goes with its connection."""

    def sync(self) -> None:
        """Make what was committed so far durable. Raises OSError: the disk did not take it."""

    def copy(self) -> None:
        """Copy what is durable of the WAL into the file."""

    def restart(self) -> None:
        """Begin the WAL anew, in a thread and while no statement runs."""

    def has_room(self) -> bool:
        """Whether the disk has room beyond the reserve, which is for whoever empties the store."""
        return True

    def has_spare_pages(self) -> bool:
        """Whether the file has many pages that nothing uses."""
        return False

    def give_back_pages(self) -> None:
        """Give some of these pages back to the disk."""


class InFile(InRam):
    """A database in a directory that this process alone uses.

    `synced` is how many bytes of the WAL are durable. After a failed sync it is not known what of
    the rest the disk has, while the system takes it for written. So `reopen` writes the rest again
    before the file is opened: a part of it may have been copied into the file already.
    """

    syncs = True

    def __init__(self, directory: Path, *, reserve: int | None = None) -> None:
        self.directory = directory
        self.file = directory / FILE_NAME
        self._wal = directory / f"{FILE_NAME}-wal"
        self._lock = DirectoryLock(directory)
        self._writer: apsw.Connection | None = None
        self._copier: apsw.Connection | None = None
        self._descriptor: int | None = None
        self._reserve = reserve
        self.synced = 0
        self._copied = 0
        self._has_warned = False
        self._is_low = False
        self._restart_at = _RESTART_AT

    # -- opening and closing --

    def open(self) -> apsw.Connection:
        """Take the directory and open its file, which is made where there is none.

        Raises:
            ConfigurationError: another server has it, it can't be used, it holds a store of
                another format, or the file is damaged; says what to do.
        """
        self._check_sqlite()
        self._lock.acquire()
        try:
            self._refuse_old_format()
            return self._open_file()
        except BaseException:
            self.close()
            raise

    def reopen(self) -> apsw.Connection:
        """Open the file again after a failed sync, from what is durable.

        Raises:
            Unavailable: it can't be opened now.
        """
        self._disconnect()
        try:
            self._write_again()
            return self._open_file()
        except (OSError, apsw.Error, ConfigurationError) as exc:
            self._disconnect()
            raise Unavailable("The store can't be opened again yet.", detail=str(exc)) from exc

    def _open_file(self) -> apsw.Connection:
        is_new = not self.file.exists()
        try:
            # SQLite gives its other files the mode of this one.
            os.close(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self.file.chmod(0o600)
            writer = self._writer = connect(str(self.file))
            check_format(writer, self.file)
            for name, value in _PRAGMAS.items():
                writer.pragma(name, value)
            if not int(writer.pragma("user_version")):
                make_tables(writer)
            with contextlib.suppress(apsw.BusyError):  # somebody reads the file
                writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            writer.set_wal_hook(self._note_wal)  # SQLite itself copies nothing from now on
            writer.execute("UPDATE counter SET one = 1")  # makes the WAL
            writer.execute("SELECT count(*) FROM post").fetchall()  # a start reads it, too
            self._copier = connect(str(self.file))
            self._copier.pragma("synchronous", "NORMAL")
        except (apsw.Error, OSError) as exc:
            raise ConfigurationError(self._why_not(exc)) from exc
        self._descriptor = os.open(self._wal, os.O_RDONLY | os.O_CLOEXEC)
        self._copied = 0
        self.sync()
        if is_new:
            sync_directory(self.directory)
        return writer

    def _why_not(self, exc: Exception) -> str:
        if isinstance(exc, apsw.NotADBError | apsw.CorruptError):
            return (
                f"{self.file} is damaged ({exc}) and kept as it is: restore a backup, or save "
                f"what can be read of it: zaqar-lite store salvage {self.directory} NEW_DIRECTORY."
            )
        if isinstance(exc, apsw.FullError) or is_full(exc) or self._has_full_disk():
            return f"The store in {self.directory} can't be opened: {FULL}."
        return f"The store in {self.directory} can't be opened: {exc}."

    def _has_full_disk(self) -> bool:
        """Whether the disk takes no file: SQLite calls some of what that causes an I/O error."""
        try:
            try_to_write(self.directory / "probe")
        except OSError as exc:
            return is_full(exc)
        return False

    @staticmethod
    def _check_sqlite() -> None:
        found = apsw.SQLITE_VERSION_NUMBER
        if found < SAFE_SQLITE:
            raise ConfigurationError(
                f"SQLite {apsw.sqlite_lib_version()} can corrupt a file that two connections use: "
                "install a newer 'apsw' (pip install -U apsw), which brings SQLite 3.51.3 or later."
            )

    def _refuse_old_format(self) -> None:
        old = self.directory / OLD_FILE_NAME
        if old.exists() and not self.file.exists():
            raise ConfigurationError(
                f"{self.directory} holds a store of Zaqar Lite 0.2.0 ({OLD_FILE_NAME}), which this "
                "version does not read; it is kept as it is. Carry it over: with 0.2.0 in an "
                "environment of its own (pip install 'zaqar-lite[server]==0.2.0') "
                f"run 'zaqar-lite store export --store embedded:{self.directory} FILE', then with "
                "this version 'zaqar-lite store import NEW_DIRECTORY FILE', and start the server "
                "with --store embedded:NEW_DIRECTORY."
            )
        if (self.directory / "slatedb").exists():
            raise ConfigurationError(
                f"{self.directory} holds a SlateDB store: open it with opendata+slatedb://"
                f"{self.directory}, or give this store a directory of its own."
            )

    def close(self) -> None:
        """Copy what the WAL holds into the file, and let the directory go; idempotent."""
        if self._writer is not None:
            with contextlib.suppress(apsw.Error):  # the next start does it
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        self._disconnect()
        self._lock.release()

    def _disconnect(self) -> None:
        for connection in (self._copier, self._writer):
            if connection is not None:
                connection.close(force=True)
        self._copier = self._writer = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    # -- making a batch durable --

    def _note_wal(self, _: apsw.Connection, __: str, frames: int) -> int:
        self.wal_bytes = _WAL_HEADER + frames * _FRAME
        return apsw.SQLITE_OK

    def sync(self) -> None:
        """Make what was committed so far durable. Raises OSError: the disk did not take it."""
        length = self.wal_bytes
        if self._descriptor is not None:
            sync_data(self._descriptor)
        self.synced = length

    @property
    def must_copy(self) -> bool:  # type: ignore[override]
        """Whether there is enough in the WAL to be copied into the file."""
        return self.wal_bytes - self._copied >= _COPY_AT

    def copy(self) -> None:
        """Copy what is durable of the WAL into the file."""
        if self._copier is None:
            return
        with contextlib.suppress(apsw.BusyError):
            _, frames = self._copier.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._copied = frames * _FRAME
        if self._copied * 2 <= self.wal_bytes:
            self._warn_of_reader()

    @property
    def must_restart(self) -> bool:  # type: ignore[override]
        """Whether the WAL is so long that it should be begun anew."""
        # On a low disk the WAL must not grow into the reserve.
        return self.wal_bytes >= (_SHORT_WAL if self._is_low else self._restart_at) and (
            self.wal_bytes < LONG_WAL or self._copied * 2 > self.wal_bytes
        )

    def restart(self) -> None:
        """Begin the WAL anew, in a thread and while no statement runs.

        SQLite syncs the header of a new WAL when the first transaction comes, so that one is
        made here, and not on the event loop. A reader that holds the file open prevents it.
        """
        writer = self._writer
        if writer is None or writer.in_transaction:
            return
        try:
            writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        except apsw.BusyError:
            self._warn_of_reader()
            return
        except apsw.FullError:  # it is tried again when there is room
            return
        writer.execute("UPDATE counter SET one = 1")
        self._copied = 0
        self._has_warned = False
        self.sync()

    def _warn_of_reader(self) -> None:
        if self.wal_bytes >= LONG_WAL and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s has %d MiB: another program reads the store and keeps a transaction open, so "
                "the log can't be begun anew; it shrinks when that program ends",
                self._wal,
                self.wal_bytes >> 20,
            )

    def _write_again(self) -> None:
        """Write again what of the WAL was not durable when a sync failed, and sync it."""
        with contextlib.suppress(FileNotFoundError), self._wal.open("r+b", buffering=0) as wal:
            start = self.synced
            while part := os.pread(wal.fileno(), 1 << 20, start):
                start += os.pwrite(wal.fileno(), part, start)
            sync_data(wal.fileno())

    # -- room --

    def has_room(self) -> bool:
        """Whether the disk has room beyond the reserve, which is for whoever empties the store.

        What the file has still to get from the WAL counts. Raises OSError: the file is gone.
        """
        disk = os.statvfs(self.file)
        reserve, size = self._reserve, disk.f_blocks * disk.f_frsize
        self._restart_at = min(_RESTART_AT, size // 4)
        if reserve is None:
            reserve = min(_RESERVE_MOST, max(size // 100, _RESERVE_LEAST))
        waiting = max(0, self.wal_bytes - self._copied)
        self._is_low = disk.f_bavail * disk.f_frsize < reserve + waiting
        return not self._is_low

    def has_spare_pages(self) -> bool:
        """Whether the file has many pages that nothing uses."""
        writer = self._writer
        return writer is not None and int(writer.pragma("freelist_count")) > _SPARE_PAGES

    def give_back_pages(self) -> None:
        """Give some of these pages back to the disk."""
        if self._writer is not None:
            self._writer.execute("PRAGMA incremental_vacuum(64)").fetchall()


_LOW = (
    "The store's disk is nearly full: nothing is added until there is room. Claims, settlements "
    "and deletions go on, and make some."
)


class Room:
    """Whether a place has room for more than its reserve; the disk is asked now and then."""

    def __init__(self, place: InRam) -> None:
        self._place = place
        self._until, self._at = 0.0, 0
        self._problem = ""

    def is_left(self) -> bool:
        """Whether there is room; a change is told in the log."""
        now, written = monotonic(), self._place.wal_bytes
        if now >= self._until or abs(written - self._at) > _ROOM_BYTES:
            self._until, self._at = now + _ROOM_FOR, written
            before = self._problem
            try:
                self._problem = "" if self._place.has_room() else _LOW
            except OSError as exc:
                self._problem = f"The store's file is gone, put it back ({exc.strerror})."
            if self._problem not in ("", before):
                logger.error("%s", self._problem)
            elif before and not self._problem:
                logger.warning("the store takes posts again")
        return not self._problem

    def check_file(self) -> None:
        """Refuse where the file is gone. Raises Unavailable."""
        if not self.is_left() and self._problem != _LOW:
            self.check()

    def check(self) -> None:
        """Refuse to store more when only the reserve is left. Raises Unavailable."""
        if not self.is_left():
            raise Unavailable(self._problem, retry_after=10)


def sync_data(descriptor: int) -> None:
    """Make a file's data durable. Raises OSError: the disk did not take it."""
    if sys.platform == "darwin":  # there fsync leaves the data in the drive's cache
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)

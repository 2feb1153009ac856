"""The SQLite file: its tables, how they are written, and the process that writes them.

    payload(k, v, c), log(k, v, c)    records whose key is one prefix and a number: k is the number
    kv(n, k, v, c)                    all others, by key

The prefixes are those of payloads and of the metadata log: such rows are appended and fill their
pages, and a body of up to 8 KiB lies in one page. `c` is the crc32 of key and value: SQLite itself
does not notice a flipped bit inside a value. Each batch is one transaction and counts the row
`COMMITS` up; the file `last-commit` has the same count, so that a start notices when the end of the
write-ahead log is lost.

It is written by a process because a thread would take the interpreter from the event loop four
times a statement, with each waiting for the other. The process is started without the rest of the
package, so this module imports nothing but the standard library. This is on the wire to it:

    batch    u32 number of puts, u32 of deletes, u64 bytes that follow: u32 lengths of the keys of
             the puts, of their values, of the keys of the deletes; then these, one after the other
    answer   i32 SQLite's error code, 0 for done; u32 bytes that follow: the error's text

Its first answer says that the file is open. It ends when its standard input does, for example when
its server dies. Until then it holds `writer.lock`, so that the next server reads the file only once
the last batch of this one is stored or never will be. While no batch comes, it gives free pages
back to the file system, a few at a time.
"""

import contextlib
import fcntl
import os
import select
import signal
import sqlite3
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

COMMITS = b"\x00commits"
"""The key of the number of the last batch, 8 bytes; below every record."""
NOTE = "last-commit"
"""The file beside the database with the number of a batch that is durable, and its crc32."""
NOTED = struct.Struct(">QI")
_PAGE = 8_192
_WAL_FRAMES = 512
_WAL_BYTES = 32 + _WAL_FRAMES * (24 + _PAGE)
_STEP = 64
"""Free pages that are given back in one step, which takes some milliseconds and delays a batch."""
_FEW = 128
_BUSY = 32
"""Batches after which pages are given back between batches, if more than half is free."""


class Table(NamedTuple):
    """A table of records whose keys are a prefix and a number of `width` bytes, 0 for var_u64.

    A var_u64 tells its length in its first nibble, so its bytes as a number keep the order.
    """

    name: str
    prefix: bytes
    width: int

    def number(self, key: bytes) -> int | None:
        """The number in a key of this table; None where that is not one."""
        tail = key[len(self.prefix) :]
        if not tail or len(tail) != (self.width or (tail[0] >> 4) + 1) or len(tail) > 8:
            return None
        number = int.from_bytes(tail, "big")
        return number if number < 1 << 63 else None

    def key(self, number: int) -> bytes:
        """The key of a number."""
        size = self.width or max(1, (number.bit_length() + 7) // 8)
        return self.prefix + number.to_bytes(size, "big")


PAYLOAD = Table("payload", b"\x01\x01", 8)
LOG = Table("log", b"\x03\x01\x00\x00\x00\x01\x10opendata-queue/messages/metadata\x00", 0)
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS kv"
    "(n INTEGER PRIMARY KEY, k BLOB NOT NULL UNIQUE, v BLOB NOT NULL, c INTEGER NOT NULL)",
    *(
        f"CREATE TABLE IF NOT EXISTS {table.name}"
        "(k INTEGER PRIMARY KEY, v BLOB NOT NULL, c INTEGER NOT NULL)"
        for table in (PAYLOAD, LOG)
    ),
)
LAYOUT = (f"PRAGMA page_size = {_PAGE}", "PRAGMA auto_vacuum = INCREMENTAL")
"""What can only be chosen before a database has a table, or by VACUUM."""
_TABLES = ("kv", PAYLOAD.name, LOG.name)
_PUT = {
    name: f"INSERT INTO {name}(k, v, c) VALUES (?, ?, ?) "  # noqa: S608 - a name of ours
    "ON CONFLICT(k) DO UPDATE SET v = excluded.v, c = excluded.c"
    for name in _TABLES
}
_DELETE = {name: f"DELETE FROM {name} WHERE k = ?" for name in _TABLES}  # noqa: S608 - as above


def table_of(key: bytes) -> Table | None:
    """The table in which a record is by its number; None for the others."""
    if key.startswith(PAYLOAD.prefix):
        return PAYLOAD
    return LOG if key.startswith(LOG.prefix) else None


class Database:
    """The file, opened to be written durably and read by nobody else.

    Raises OSError: its place can't be used; sqlite3.Error: it can't be opened.
    """

    def __init__(self, path: Path) -> None:
        _make(path)
        self._path = path
        self._connection = open_file(path)
        note = path.with_name(NOTE)
        self._note = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._commits = commits(self._connection)
        self._gave_back = False
        self._grow()

    def write(self, puts: dict[bytes, bytes], deletes: Sequence[bytes]) -> None:
        """Write a batch in one transaction. Raises sqlite3.Error: nothing of it was written."""
        connection = self._connection
        puts[COMMITS] = (self._commits + 1).to_bytes(8, "big")
        connection.execute("BEGIN IMMEDIATE")
        try:
            put(connection, puts)
            _delete(connection, deletes)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        self._commits += 1

    def note(self) -> None:
        """Note the number of the last batch in the file beside the database."""
        number = self._commits
        with contextlib.suppress(OSError):  # an older number: a start notices fewer lost commits
            os.pwrite(self._note, NOTED.pack(number, crc32(number.to_bytes(8, "big"))), 0)

    def tidy(self, *, is_idle: bool) -> bool:
        """Give some free pages back to the file system; answer whether there is more to do.

        While batches are waiting this is done only now and then, and if most of the file is free.
        """
        if not is_idle and self._commits % _BUSY:
            return False
        try:
            free, pages = self._ask("freelist_count"), self._ask("page_count")
            if free > _FEW and free * (4 if is_idle else 2) > pages:
                self._give_back()
                return True
            if is_idle and self._gave_back:  # only a checkpoint makes the file shorter
                self._gave_back = not self._shorten()
        except sqlite3.Error:
            return False
        return self._gave_back

    def _give_back(self) -> None:
        self._connection.executescript(f"PRAGMA incremental_vacuum({_STEP})")  # all its steps
        self._gave_back = True

    def _shorten(self) -> bool:
        """Empty the write-ahead log, unless a reader uses it."""
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            busy = self._ask("wal_checkpoint(TRUNCATE)")
        finally:
            self._connection.execute("PRAGMA busy_timeout = 5000")
        if not busy:
            self._grow()
        return not busy

    def _grow(self) -> None:
        """Fill the write-ahead log with zeros to its largest size: growing it costs each sync more.

        SQLite reads the log up to the first frame that is not valid, and zeros are no valid frame.
        """
        with contextlib.suppress(OSError):
            wal = self._path.with_name(f"{self._path.name}-wal")
            file = os.open(wal, os.O_WRONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(file).st_size
                os.pwrite(file, bytes(max(0, _WAL_BYTES - size)), size)
                os.fsync(file)
            finally:
                os.close(file)

    def _ask(self, pragma: str) -> int:
        return int(self._connection.execute(f"PRAGMA {pragma}").fetchone()[0])

    def close(self) -> None:
        """Close the file; SQLite moves the pages of its log into it."""
        self._connection.close()
        os.close(self._note)


def _make(path: Path) -> None:
    """Make a new database beside its place and move it there, so that it is never an empty file.

    SQLite would take an empty file for a new database, and delete the log that belongs to it.
    """
    if not path.exists():
        new = path.with_name(f"{path.name}.new")
        remove(new)
        open_file(new).close()
        new.replace(path)
    elif not path.stat().st_size:
        error = sqlite3.DatabaseError("the file is empty")
        error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
        raise error


def open_file(path: Path) -> sqlite3.Connection:
    """Open a database, or make it.

    Raises OSError: its place can't be used; sqlite3.Error: it can't be opened.
    """
    _hide(path)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in LAYOUT:
            connection.execute(pragma)
        for pragma in (
            "busy_timeout = 5000",
            "journal_mode = WAL",
            "synchronous = FULL",
            "fullfsync = ON",
            "checkpoint_fullfsync = ON",
            f"wal_autocheckpoint = {_WAL_FRAMES}",
            "cache_size = -32768",
            "temp_store = MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")
        for statement in SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def remove(path: Path) -> None:
    """Remove a database and its log."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _hide(path: Path) -> None:
    """Let nobody else read the database; SQLite makes its log, with bodies in it, in its mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for file in (path, *path.parent.glob(f"{path.name}-*")):
        file.chmod(0o600)


def commits(connection: sqlite3.Connection) -> int:
    """The number of the last batch in a database; 0 before the first."""
    row = connection.execute("SELECT v FROM kv WHERE k = ?", (COMMITS,)).fetchone()
    return 0 if row is None else int.from_bytes(row[0], "big")


def put(connection: sqlite3.Connection, puts: Mapping[bytes, bytes]) -> None:
    """Write records, in the transaction that is open."""
    rows: dict[str, list[tuple[bytes | int, bytes, int]]] = {}
    for key, value in puts.items():
        name, where = _place(key)
        rows.setdefault(name, []).append((where, value, crc32(value, crc32(key))))
    for name, of_table in rows.items():
        connection.executemany(_PUT[name], of_table)


def _place(key: bytes) -> tuple[str, bytes | int]:
    table = table_of(key)
    if table is None:
        return "kv", key
    number = table.number(key)
    if number is None:
        raise sqlite3.IntegrityError(f"no key of the table {table.name}: {key.hex()}")
    return table.name, number


def _delete(connection: sqlite3.Connection, deletes: Sequence[bytes]) -> None:
    places: dict[str, list[tuple[bytes | int]]] = {}
    for key in deletes:
        name, where = _place(key)
        places.setdefault(name, []).append((where,))
    for name, of_table in places.items():
        try:
            connection.executemany(_DELETE[name], of_table)
        except sqlite3.DatabaseError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
                raise
            _delete_readable(connection, _DELETE[name], of_table)


def _delete_readable(
    connection: sqlite3.Connection, statement: str, places: Sequence[tuple[bytes | int]]
) -> None:
    """Delete row by row, skipping those in damaged pages, which nothing can read anyway."""
    for place in places:
        connection.execute("SAVEPOINT one")
        try:
            connection.execute(statement, place)
        except sqlite3.DatabaseError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
                raise
            connection.execute("ROLLBACK TO one")
        connection.execute("RELEASE one")


ANSWER = struct.Struct("<iI")
LOCK = "writer.lock"
START = (
    "import os, sys; sys.path.append(os.path.dirname(sys.argv[1])); "
    "from writer import main; main(sys.argv[2])"
)
"""The program of the process; its arguments are this file and the database."""
_BATCH = struct.Struct("<IIQ")
_BUFFER = 1 << 20
_IDLE = 0.05
"""Seconds without a batch after which free pages are given back."""


def encode_batch(puts: Mapping[bytes, bytes], deletes: Sequence[bytes]) -> bytes:
    """Encode a batch for the wire."""
    fields = [*puts, *puts.values(), *deletes]
    lengths = array("I", map(len, fields)).tobytes()
    content = b"".join(fields)
    head = _BATCH.pack(len(puts), len(deletes), len(lengths) + len(content))
    return b"".join((head, lengths, content))


def main(place: str) -> None:
    """Write every batch that comes on standard input to the database at `place`."""
    path = Path(place)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to a whole group: its server ends it
    try:
        lock = os.open(path.with_name(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        database = Database(path)
    except (OSError, sqlite3.Error) as exc:
        _answer(exc)
        return
    _answer(None)
    with open(0, "rb", buffering=_BUFFER, closefd=False) as wire:
        while _serve(wire, database):
            pass
    database.close()


def _serve(wire: BinaryIO, database: Database) -> bool:
    """Write one batch and answer, then tidy up till the next; False where the wire ends."""
    rows = _read(wire)
    if rows is None:
        return False
    try:
        database.write(*rows)
    except sqlite3.Error as exc:
        _answer(exc)
    else:
        _answer(None)  # first, because requests wait for it
        database.note()
    database.tidy(is_idle=False)
    while not select.select([wire], (), (), _IDLE)[0]:
        if not database.tidy(is_idle=True):
            break
    return True


def _read(wire: BinaryIO) -> tuple[dict[bytes, bytes], Sequence[bytes]] | None:
    """The next batch; None where the wire ends, even inside a batch."""
    try:
        head = wire.read(_BATCH.size)
        if len(head) < _BATCH.size:
            return None
        puts, deletes, size = _BATCH.unpack(head)
        data = wire.read(size)
    except ConnectionResetError:  # the server died without reading an answer
        return None
    if len(data) < size:
        return None
    start = 4 * (2 * puts + deletes)
    ends = accumulate(array("I", data[:start]), initial=start)
    fields = [data[begin:end] for begin, end in pairwise(ends)]
    return dict(zip(fields[:puts], fields[puts : 2 * puts], strict=True)), fields[2 * puts :]


def _answer(exc: Exception | None) -> None:
    code = 0 if exc is None else getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_CANTOPEN)
    text = b"" if exc is None else str(exc).encode()
    try:
        os.write(0, ANSWER.pack(code, len(text)) + text)
    except OSError:
        sys.exit()  # the server is gone

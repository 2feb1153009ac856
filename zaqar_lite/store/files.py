"""A store's file: which one a command means, reading it beside its server, and files it becomes."""

import asyncio
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw

from zaqar_lite.domain.addresses import shown
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.opendata import create_engine
from zaqar_lite.storage.opendata.database import Database as OpenDataDatabase
from zaqar_lite.storage.registry import find_driver
from zaqar_lite.storage.sql import directory_of
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.directory import sync_directory
from zaqar_lite.storage.sql.place import OLD_FILE_NAME, InFile, connect

_PATIENCE = 3_600.0
"""Seconds that an import waits for SlateDB, which gets all of it in one batch."""


def place_of(store: str) -> InFile:
    """The directory that a command's word names: its path, or a URI of the embedded store.

    Raises:
        ConfigurationError: the URI is wrong, or that of a store that has no such directory.
    """
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", store):
        return InFile(Path(store))
    if find_driver(store).name != "embedded":
        raise ConfigurationError(
            f"This command works on embedded:// stores, and {shown(store)} is none: look after it "
            "by the tools of what keeps it."
        )
    return InFile(directory_of(store))


def file_of(store: str) -> Path:
    """The file of the store that a command's word names; also that file itself, as of a backup.

    Raises:
        ConfigurationError: there is no store.
    """
    if Path(store).is_file():
        return Path(store)
    place = place_of(store)
    if not place.file.exists():
        if any((place.directory / name).exists() for name in (OLD_FILE_NAME, "slatedb")):
            place.open()  # refuses it, and says what to do
        raise ConfigurationError(f"There is no store in {place.directory}.")
    return place.file


def is_slatedb(store: str) -> bool:
    """Whether a command's word is the URI of a SlateDB store."""
    return re.match(r"(?i)opendata\+(slatedb|s3):", store) is not None


def database_of(store: str) -> Database:
    """The tables to import into, not yet open: of SlateDB, or of a file."""
    if is_slatedb(store):
        return OpenDataDatabase(create_engine(store), Clock(), StoreOptions())
    return Database(place_of(store), Clock(), StoreOptions())


def wait_for_import(database: Database) -> None:
    """Let commits take their time; not before the store is open, since reads have that time too."""
    if isinstance(database, OpenDataDatabase):
        database.engine.patience = _PATIENCE


@contextmanager
def tables_of(store: str) -> Iterator[tuple[apsw.Connection, Sequence[str]]]:
    """The tables of a store to read, and what of its records can't be read.

    Those of a file are as they are at one instant, and its server may run. Those of SlateDB are
    filled from the records, as at the start of a server, so none may run.
    """
    if not is_slatedb(store):
        with snapshot(file_of(store)) as connection:
            yield connection, ()
        return
    engine = create_engine(store, must_exist=True)
    database = OpenDataDatabase(engine, Clock(), StoreOptions())
    with asyncio.Runner() as runner:
        runner.run(database.open())
        try:
            yield database.connection, database.damages
        finally:
            runner.run(database.close())


@contextmanager
def snapshot(file: Path) -> Iterator[apsw.Connection]:
    """Read a store as it is at one instant, by a connection of its own; its server may run.

    Nothing is changed: what a killed server left in the log stays there.
    """
    log = Path(f"{file}-wal")
    has_log = log.exists() and log.stat().st_size > 0
    connection = connect(str(file))
    try:
        connection.set_busy_timeout(10_000)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(has_log))
        connection.execute(
            "PRAGMA temp_store = FILE; PRAGMA query_only = ON; BEGIN;"
            " SELECT count(*) FROM sqlite_schema"
        )
        yield connection
    finally:
        connection.close(force=True)


@contextmanager
def made_beside(target: Path) -> Iterator[Path]:
    """Give a path to write a file at, which takes the place of `target` at the end, durably.

    Only its owner may read it, whatever the earlier file allowed. Nothing is left of one that
    fails. What is no file, such as a pipe, is written as it is. Raises OSError: it can't be made.
    """
    if target.exists() and not target.is_file():
        yield target
        return
    target = target.resolve()  # a link goes on leading to its file
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as directory:
        made = Path(directory, target.name)
        yield made
        made.chmod(0o600)
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(target)
    sync_directory(target.parent)

"""The subcommands: check, back up, export, import, compact and salvage a store.

Those that read take a snapshot, so that the server may run. Those that write take the store's lock.
"""

import argparse
import asyncio
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import apsw
from msgspec import DecodeError

from zaqar_lite.commands.base_command import USAGE, explain
from zaqar_lite.domain.addresses import shown
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, ZaqarLiteError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.server.loading import load as load_settings
from zaqar_lite.storage.opendata import create_engine
from zaqar_lite.storage.opendata.database import Database as OpenDataDatabase
from zaqar_lite.storage.registry import find_driver
from zaqar_lite.storage.sql import directory_of
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.directory import sync_directory
from zaqar_lite.storage.sql.place import FILE_NAME, OLD_FILE_NAME, InFile, check_format, connect
from zaqar_lite.store.checking import check, salvage
from zaqar_lite.store.transfer import export, load

DEFAULT_STORE = "embedded:zaqar-lite-data"
_PATIENCE = 3_600.0
"""Seconds that an import waits for SlateDB, which gets all of it in one batch."""
Run: TypeAlias = Callable[[argparse.Namespace], int | None]


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare `store` and its subcommands."""
    store = subparsers.add_parser("store", help="look after the store")
    commands = store.add_subparsers(dest="store_command", metavar="COMMAND", required=True)
    for name, run, text, word in (
        ("check", run_check, "verify the file, and that all counts are right", ""),
        ("backup", run_backup, "copy a store into a new file, or into a directory", "target"),
        ("export", run_export, "write queues and their messages as JSON lines", "[file]"),
        ("import", run_import, "read into a store what export wrote", "file"),
        ("compact", run_compact, "write a store's file anew, as small as it gets", ""),
        ("salvage", run_salvage, "put what can be read of a store into a new one", "new"),
    ):
        command = commands.add_parser(name, help=text, description=text.capitalize() + ".")
        which = "its directory, its URI or its file (%(default)s)"
        command.add_argument("store", nargs="?", default=DEFAULT_STORE, help=which)
        if word:
            command.add_argument(word.strip("[]"), nargs="?" if word[0] == "[" else None)
        command.set_defaults(run=partial(_run, run))
        if name == "export":
            command.add_argument("--project", help="only this project's queues")
            command.add_argument("--queue", help="only queues of this name")
        if name == "import":
            command.add_argument(
                "--config", type=Path, metavar="FILE", help="settings in TOML, for their limits"
            )


def _run(run: Run, arguments: argparse.Namespace) -> int:
    """Do the work of a command; say in one line what went wrong."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale may know few letters
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return run(arguments) or 0
    except BrokenPipeError:
        raise
    except (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError, DecodeError) as exc:
        why = (
            f"The store is damaged ({exc}), and kept as it is: restore a backup, or save what "
            f"can be read of it: zaqar-lite store salvage {arguments.store} NEW_DIRECTORY."
        )
        return explain(ConfigurationError(why), USAGE)
    except (ZaqarLiteError, OSError, apsw.Error) as exc:
        return explain(exc, USAGE)


def run_check(arguments: argparse.Namespace) -> int:
    """Verify a store; 1 when something is wrong with it."""
    with tables_of(arguments.store) as (connection, damages):
        found = 0
        for found, problem in enumerate(chain(damages, check(connection)), 1):  # noqa: B007 - counted
            print(problem)
        queues = connection.execute("SELECT count(*) FROM queue").get
        messages = connection.execute("SELECT count(*) FROM entry").get
    print(f"{found} problems; {queues} queues, {messages} messages")
    return 1 if found else 0


def run_backup(arguments: argparse.Namespace) -> None:
    """Copy a store as it is at one instant."""
    target = Path(arguments.target)
    if target.is_dir():
        target /= FILE_NAME
    if target.exists() or Path(f"{target}-wal").exists():
        raise ConfigurationError(f"{target} is there already: name a new file for the backup.")
    with snapshot(file_of(arguments.store)) as source, made_beside(target) as made:
        with closing(connect(str(made))) as copy, copy.backup("main", source, "main") as backup:
            backup.step(-1)
    print(f"{target} has {target.stat().st_size} bytes")


def run_export(arguments: argparse.Namespace) -> None:
    """Write queues and messages as JSON lines."""
    with tables_of(arguments.store) as (connection, _):
        lines = (line + b"\n" for line in export(connection, arguments.project, arguments.queue))
        if arguments.file in {None, "-"}:
            sys.stdout.flush()
            sys.stdout.buffer.writelines(lines)
        else:
            with made_beside(Path(arguments.file)) as path, path.open("wb") as file:
                file.writelines(lines)


def run_import(arguments: argparse.Namespace) -> None:
    """Read JSON lines into a store, which is made where there is none."""
    store, made = arguments.store, (Clock(), StoreOptions())
    engine = create_engine(store) if is_slatedb(store) else None
    database = OpenDataDatabase(engine, *made) if engine else Database(place_of(store), *made)
    # The address is no matter of an import, which listens nowhere.
    settings = load_settings(
        environment=os.environ, config=arguments.config, overrides={"host": "localhost"}
    )

    async def work() -> tuple[int, int]:
        await database.open()
        try:
            if engine is not None:  # not before, since reads wait as long
                engine.patience = _PATIENCE
            return await load(database, file, settings)
        finally:
            await database.close()

    with tempfile.TemporaryFile() as file:  # what comes by a pipe is read twice, too
        source: int | str = 0 if arguments.file == "-" else arguments.file
        with open(source, "rb", closefd=source != 0) as given:
            shutil.copyfileobj(given, file)
        queues, messages = asyncio.run(work())
    print(f"imported {messages} messages into {queues} queues")


def run_compact(arguments: argparse.Namespace) -> None:
    """Write the file of a store anew; its server must not run."""
    place, before = place_of(arguments.store), file_of(arguments.store).stat().st_size
    writer = place.open()
    try:
        writer.execute("PRAGMA temp_store = FILE; VACUUM")  # not in RAM
    finally:
        place.close()
    print(f"{before} bytes are {place.file.stat().st_size} now")


def run_salvage(arguments: argparse.Namespace) -> None:
    """Put what can be read of a damaged store into a new one; its server must not run."""
    place = place_of(arguments.new)
    if place.file.exists():
        raise ConfigurationError(f"{place.file} is there already: name a new directory.")
    with snapshot(file_of(arguments.store)) as damaged:
        new = place.open()
        try:
            messages = salvage(damaged, new)
        except apsw.Error:
            place.close()
            place.file.unlink()
            raise
        place.close()
    print(f"{messages} messages are in {place.directory}; zaqar-lite store check verifies it")


# -- which store a word means, and files that are written --


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
            "by the tools of what keeps it. The page 'What a store promises' moves queues."
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


@contextmanager
def tables_of(store: str) -> Iterator[tuple[apsw.Connection, Sequence[str]]]:
    """The tables of a store to read, and what of its records can't be read.

    Those of a file are as they are at one instant, and its server may run. Those of SlateDB are
    filled from the records, as at the start of a server, so none may run.
    """
    if not is_slatedb(store):
        with snapshot(file := file_of(store)) as connection:
            check_format(connection, file)
            yield connection, ()
        return
    database = OpenDataDatabase(create_engine(store, must_exist=True), Clock(), StoreOptions())
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
    if not target.parent.is_dir():
        raise ConfigurationError(f"There is no directory {target.parent}: make it first.")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as directory:
        made = Path(directory, target.name)
        yield made
        made.chmod(0o600)
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(target)
    sync_directory(target.parent)

"""The subcommands: check, back up, export, import, compact and salvage a store.

Those that read take a snapshot, so that the server may run. Those that write take the store's lock.
"""

import argparse
import asyncio
import contextlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import apsw

from zaqar_lite.domain.errors import ConfigurationError, ZaqarLiteError
from zaqar_lite.server.loading import load as load_settings
from zaqar_lite.storage.sql.place import FILE_NAME, connect
from zaqar_lite.store.checking import check, salvage
from zaqar_lite.store.files import (
    database_of,
    file_of,
    made_beside,
    place_of,
    snapshot,
    tables_of,
    wait_for_import,
)
from zaqar_lite.store.transfer import export, load

DEFAULT_STORE = "embedded:zaqar-lite-data"
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
        command.add_argument(
            "store",
            nargs="?",
            default=DEFAULT_STORE,
            help="its directory, its URI or its file (%(default)s)",
        )
        if word:
            command.add_argument(word.strip("[]"), nargs="?" if word[0] == "[" else None)
        command.set_defaults(run=_guarded(run))
        if name == "export":
            command.add_argument("--project", help="only this project's queues")
            command.add_argument("--queue", help="only queues of this name")
        if name == "import":
            command.add_argument(
                "--config", type=Path, metavar="FILE", help="settings in TOML, for their limits"
            )


def _guarded(
    run: Callable[[argparse.Namespace], int | None],
) -> Callable[[argparse.Namespace], int]:
    """Do the work of a command; say in one line what went wrong."""

    def guarded(arguments: argparse.Namespace) -> int:
        if isinstance(sys.stdout, io.TextIOWrapper):  # a locale may know few letters
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return run(arguments) or 0
        except BrokenPipeError:
            raise
        except (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError) as exc:
            why = (
                f"The store is damaged ({exc}), and kept as it is: restore a backup, or save what "
                f"can be read of it: zaqar-lite store salvage {arguments.store} NEW_DIRECTORY."
            )
        except (ZaqarLiteError, OSError, apsw.Error) as exc:
            why = str(exc)
        print(f"zaqar-lite: {why}", file=sys.stderr)
        return 2

    return guarded


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
        with contextlib.closing(connect(str(made))) as copy:
            with copy.backup("main", source, "main") as backup:
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
    database = database_of(arguments.store)
    # The address is no matter of an import, which listens nowhere.
    settings = load_settings(
        environment=os.environ, config=arguments.config, overrides={"host": "localhost"}
    )

    async def work() -> tuple[int, int]:
        await database.open()
        try:
            wait_for_import(database)
            return await load(database, file, settings)
        finally:
            await database.close()

    with tempfile.TemporaryFile() as file:  # what comes by a pipe is read twice, too
        source: int | str = 0 if arguments.file == "-" else arguments.file
        with open(source, "rb", closefd=source != 0) as given:
            shutil.copyfileobj(given, file)
        file.seek(0)
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

"""The command `zaqar-lite store`: check, dump, export and import the embedded store.

Each takes the store's lock, so none runs beside a server on the same directory.
"""

import argparse
import asyncio
import io
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeAlias

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, ZaqarLiteError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.opendata import create_engine, transfer
from zaqar_lite.storage.opendata.checking import check, dump
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.replacing import replacing

DEFAULT_STORE = "embedded:zaqar-lite-data"


Rehearsal: TypeAlias = Callable[[Path | None], transfer.Rehearse]
"""What an import checks queues by, as the settings say: those of a file, where one is given."""


def add_commands(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]", rehearsal: Rehearsal
) -> None:
    """Declare `store` and its subcommands."""
    store = subparsers.add_parser("store", help="look after the store")
    commands = store.add_subparsers(dest="store_command", metavar="COMMAND", required=True)
    for name, run, text in (
        ("check", run_check, "verify every record and how they fit together"),
        ("dump", run_dump, "print every record readably"),
        ("export", run_export, "write queues and their messages as JSON lines"),
        ("import", partial(run_import, rehearsal=rehearsal), "read what export wrote into a store"),
    ):
        command = commands.add_parser(name, help=text, description=text.capitalize() + ".")
        command.add_argument(
            "--store", default=DEFAULT_STORE, metavar="URI", help=f"the store ({DEFAULT_STORE})"
        )
        command.set_defaults(run=run)
        if name in ("export", "import"):
            command.add_argument("file", nargs="?", default="-", help="a file; - is the terminal")
        if name == "export":
            command.add_argument("--project", help="only this project's queues")
            command.add_argument("--queue", help="only queues of this name")
        if name == "import":
            command.add_argument(
                "--config", type=Path, metavar="FILE", help="settings in TOML, for their limits"
            )


def run_check(arguments: argparse.Namespace) -> int:
    """Verify a store; 1 when something is wrong with it."""

    async def work(db: Database) -> int:
        found = await check(db)
        for problem in found.problems:
            print(problem)
        print(found.summary())
        return 1 if found.problems else 0

    return _with_database(arguments.store, work)


def run_dump(arguments: argparse.Namespace) -> int:
    """Print every record."""

    async def work(db: Database) -> int:
        async for line in dump(db.engine):
            print(line)
        return 0

    return _with_database(arguments.store, work)


def run_export(arguments: argparse.Namespace) -> int:
    """Write queues and messages as JSON lines; 1 when something of the store can't be read."""

    async def work(db: Database) -> int:
        export = transfer.Export(db, arguments.project, arguments.queue)
        with _output(arguments.file) as file:
            async for line in export.lines():
                file.write(line.encode() + b"\n")
        if export.missing:
            _say(f"{export.missing} messages can't be read and are not in the export")
        if export.damaged:
            _say(
                f"records of the store can't be read: {export.damaged}; more may be missing from "
                "the export (zaqar-lite store check names them)"
            )
        return 1 if export.missing or export.damaged else 0

    return _with_database(arguments.store, work)


def _output(file: str) -> AbstractContextManager[BinaryIO]:
    if file != "-":
        return replacing(Path(file))
    sys.stdout.flush()
    return nullcontext(sys.stdout.buffer)


def run_import(arguments: argparse.Namespace, rehearsal: Rehearsal) -> int:
    """Read JSON lines into a store, which is made where there is none."""
    try:
        rehearse = rehearsal(arguments.config)
        source: int | str = 0 if arguments.file == "-" else arguments.file
        with open(source, "rb", closefd=source != 0) as file:
            text = file.read()
    except (ConfigurationError, OSError) as exc:
        return _fail(exc)

    async def work(db: Database) -> int:
        queues, messages = await transfer.load(db, text, rehearse)
        print(f"imported {messages} messages into {queues} queues")
        return 0

    return _with_database(arguments.store, work, must_exist=False)


def _with_database(
    uri: str, work: Callable[[Database], Awaitable[int]], *, must_exist: bool = True
) -> int:
    """Open a store, work on it, close it; say in one line what went wrong."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale may know few letters
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return asyncio.run(_work(uri, work, must_exist=must_exist))
    except BrokenPipeError:
        raise
    except (ZaqarLiteError, OSError) as exc:
        return _fail(exc)


def _fail(exc: Exception) -> int:
    _say(str(exc))
    return 2


def _say(text: str) -> None:
    print(f"zaqar-lite: {text}", file=sys.stderr)


async def _work(uri: str, work: Callable[[Database], Awaitable[int]], *, must_exist: bool) -> int:
    db = Database(create_engine(uri, must_exist=must_exist), Clock(), StoreOptions())
    await db.open()
    try:
        return await work(db)
    finally:
        await db.close()

"""The command `zaqar-lite store`: check, dump, export and import the embedded store.

Each takes the store's lock, so none runs beside a server on the same directory.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ZaqarLiteError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.opendata import create_engine, transfer
from zaqar_lite.storage.opendata.checking import check, dump
from zaqar_lite.storage.opendata.database import Database

DEFAULT_STORE = "embedded:zaqar-lite-data"


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare `store` and its subcommands."""
    store = subparsers.add_parser("store", help="look after the store")
    commands = store.add_subparsers(dest="store_command", metavar="COMMAND", required=True)
    for name, run, text in (
        ("check", run_check, "verify every record and how they fit together"),
        ("dump", run_dump, "print every record readably"),
        ("export", run_export, "write queues and their messages as JSON lines"),
        ("import", run_import, "read what export wrote into a store"),
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
    """Write queues and messages as JSON lines."""

    async def work(db: Database) -> int:
        async for line in transfer.export(db, arguments.project, arguments.queue):
            print(line, file=file)
        return 0

    if arguments.file == "-":
        file = sys.stdout
        return _with_database(arguments.store, work)
    try:
        file = Path(arguments.file).open("w", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as exc:
        return _fail(exc)
    with file:
        return _with_database(arguments.store, work)


def run_import(arguments: argparse.Namespace) -> int:
    """Read JSON lines into a store, which is made where there is none."""
    try:
        read = sys.stdin.read if arguments.file == "-" else Path(arguments.file).read_text
        text = read()
    except (OSError, UnicodeError) as exc:
        return _fail(exc)

    async def work(db: Database) -> int:
        queues, messages = await transfer.load(db, text.splitlines())
        print(f"imported {messages} messages into {queues} queues")
        return 0

    return _with_database(arguments.store, work, must_exist=False)


def _with_database(
    uri: str, work: Callable[[Database], Awaitable[int]], *, must_exist: bool = True
) -> int:
    """Open a store, work on it, close it; say in one line what went wrong."""
    try:
        return asyncio.run(_work(uri, work, must_exist=must_exist))
    except (ZaqarLiteError, OSError) as exc:
        return _fail(exc)


def _fail(exc: Exception) -> int:
    print(f"zaqar-lite: {exc}", file=sys.stderr)
    return 2


async def _work(uri: str, work: Callable[[Database], Awaitable[int]], *, must_exist: bool) -> int:
    db = Database(create_engine(uri, must_exist=must_exist), Clock(), StoreOptions())
    await db.open()
    try:
        return await work(db)
    finally:
        await db.close()

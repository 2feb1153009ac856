"""The subcommands: check, export, import and compact the embedded store.

Each takes the store's lock, so none runs beside a server on the same directory. `import` also fills
an empty store with what is intact of a damaged one (`salvaging.py`).
"""

import argparse
import asyncio
import io
import os
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, ZaqarLiteError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.opendata import create_engine
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.sqlite import SqliteEngine
from zaqar_lite.store import transfer
from zaqar_lite.store.checking import check
from zaqar_lite.store.rehearsing import rehearsal
from zaqar_lite.store.salvaging import fill, is_sqlite

DEFAULT_STORE = "embedded:zaqar-lite-data"


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare `store` and its subcommands."""
    store = subparsers.add_parser("store", help="look after the store")
    commands = store.add_subparsers(dest="store_command", metavar="COMMAND", required=True)
    for name, run, text in (
        ("check", run_check, "verify every record and how they fit together"),
        ("export", run_export, "write queues and their messages as JSON lines"),
        (
            "import",
            run_import,
            "read into a store what export wrote, or what is intact of a damaged store",
        ),
        ("compact", run_compact, "write a store's file anew, as small as it gets"),
    ):
        command = commands.add_parser(name, help=text, description=text.capitalize() + ".")
        command.add_argument(
            "--store", default=DEFAULT_STORE, metavar="URI", help=f"the store ({DEFAULT_STORE})"
        )
        command.set_defaults(run=run)
        if name in ("export", "import"):
            what = "a file; - is the terminal"
            if name == "import":
                what += "; a SQLite file is read as a damaged store"
            command.add_argument("file", nargs="?", default="-", help=what)
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

    return _guarded(_work(arguments.store, work))


def run_export(arguments: argparse.Namespace) -> int:
    """Write queues and messages as JSON lines; 1 when something of the store can't be read."""

    async def work(db: Database) -> int:
        export = transfer.Export(db, arguments.project, arguments.queue)
        with _output(arguments.file) as file:
            async for line in export.lines():
                file.write(line + b"\n")
        if export.missing:
            _say(f"{export.missing} messages can't be read and are not in the export")
        if export.damaged:
            _say(
                f"records of the store can't be read: {export.damaged}; more may be missing from "
                "the export (zaqar-lite store check names them)"
            )
        return 1 if export.missing or export.damaged else 0

    return _guarded(_work(arguments.store, work))


def _output(file: str) -> AbstractContextManager[BinaryIO]:
    if file != "-":
        return replacing(Path(file))
    sys.stdout.flush()
    return nullcontext(sys.stdout.buffer)


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Open a file beside `target` that takes its place at the end, or goes when something fails.

    Only its owner may read it, whatever the earlier file allowed. What is no file, such as a pipe,
    is written as it is. Raises OSError: a file can't be written.
    """
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    target = target.resolve()  # a link goes on leading to its file
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(beside, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def run_import(arguments: argparse.Namespace) -> int:
    """Read JSON lines, or a damaged store, into a store, which is made where there is none."""
    if arguments.file != "-" and Path(arguments.file).is_file() and is_sqlite(arguments.file):
        return _guarded(_salvage(Path(arguments.file), arguments.store))
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

    return _guarded(_work(arguments.store, work, must_exist=False))


def run_compact(arguments: argparse.Namespace) -> int:
    """Write the file of a SQLite store anew; the server must not run."""

    async def work() -> int:
        engine = create_engine(arguments.store, must_exist=True)
        if not isinstance(engine, SqliteEngine):
            raise ConfigurationError("Only a SQLite store has a file to compact.")
        before, after = await engine.compact()
        print(f"{before} bytes are {after} now")
        return 0

    return _guarded(work())


async def _salvage(file: Path, uri: str) -> int:
    """Put the intact records of a damaged store into a new one, and open that."""
    target = create_engine(uri)
    await target.open()
    try:
        count = await fill(target, file)
    finally:
        await target.close()
    print(f"{count} records are intact; opening the store, which puts back what it can")

    async def work(db: Database) -> int:
        messages = sum(queue.total for queue in db.queues)
        print(f"{messages} messages are in {len(list(db.queues))} queues")
        return 0

    return await _work(uri, work)


def _guarded(work: Coroutine[object, object, int]) -> int:
    """Do the work of a command; say in one line what went wrong."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale may know few letters
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return asyncio.run(work)
    except BrokenPipeError:
        raise
    except (ZaqarLiteError, OSError, sqlite3.Error) as exc:
        return _fail(exc)


def _fail(exc: Exception) -> int:
    _say(str(exc))
    return 2


def _say(text: str) -> None:
    print(f"zaqar-lite: {text}", file=sys.stderr)


async def _work(
    uri: str, work: Callable[[Database], Awaitable[int]], *, must_exist: bool = True
) -> int:
    """Open a store, work on it, and close it."""
    db = Database(create_engine(uri, must_exist=must_exist), Clock(), StoreOptions())
    await db.open()
    try:
        return await work(db)
    finally:
        await db.close()

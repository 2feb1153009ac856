"""The command `zaqar-lite store`: check, dump, export, import and compact the embedded store.

Each takes the store's lock, so none runs beside a server on the same directory. `import` also fills
an empty store with what is intact of a damaged one: of a SQLite file, damaged or recovered by
SQLite's own tool, or of a store that opens but has damaged places. What that lost is put back from
the metadata log when the new store is opened (`recovery.py`), because it is marked as one that may
miss records.
"""

import argparse
import asyncio
import io
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeAlias

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, ZaqarLiteError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.opendata import create_engine, transfer
from zaqar_lite.storage.opendata.checking import check, dump
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.engine import FIRST, REBUILT, Batch, Engine, Unreadable, replacing
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.sqlite.compacting import intact_rows, is_sqlite
from zaqar_lite.storage.opendata.sqlite.engine import SqliteEngine

_ROWS = 1_000
_END = b"\xff"
_LONGER = 8
"""Bytes by which the keys that are tried are longer than the one that can't be read."""


async def rows_of_file(path: Path) -> AsyncIterator[dict[bytes, bytes]]:
    """The intact records of a SQLite file; a key may come again, the first one is right.

    Raises sqlite3.Error: nothing of it can be read.
    """
    rows = intact_rows(path)
    while part := _first_of_each(rows):
        yield part


def _first_of_each(rows: Iterator[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    part: dict[bytes, bytes] = {}
    for key, value in islice(rows, _ROWS):
        part.setdefault(key, value)
    return part


async def rows_of_store(source: Engine) -> AsyncIterator[dict[bytes, bytes]]:
    """The intact records of an open store, also those behind a block that can't be read."""
    for first, end in keys.ranges():
        start = first
        while start < end:
            try:
                async for chunk in source.scan(start, end):
                    yield {key: value for key, value in chunk if isinstance(value, bytes)}
                    start = chunk[-1][0] + b"\x00"
                break
            except Unreadable as exc:
                _say(str(exc))
                start = await _behind(source, start, end)


async def _behind(source: Engine, start: bytes, end: bytes) -> bytes:
    """Where reading goes on behind a key that can't be read; `end` where nothing is left.

    A damaged block is a range of keys, and nothing tells where it ends. So keys are tried as
    numbers of one width: the steps grow until a read succeeds, and are halved then, for keys that
    get longer until these lead no nearer.
    """
    width = len(start) + _LONGER
    low, last = _number(start, width), _number(end, width)
    step = 1
    while low + step < last and not await _reads(source, _key(low + step, width), end):
        low, step = low + step, 2 * step
    high = min(low + step, last)
    while True:
        while high - low > 1:
            middle = (low + high) // 2
            if await _reads(source, _key(middle, width), end):
                high = middle
            else:
                low = middle
        found = _key(high, width)
        low, high, width = low << 8 * _LONGER, high << 8 * _LONGER, width + _LONGER
        if await _reads(source, _key(low, width), end):  # zeros at the end lead behind it
            found = _key(low, width)
            break
        if not await _reads(source, _key(high - 1, width), end):
            break
    if found >= end:
        return end
    # A number stands for all keys that differ by zeros at the end: the shortest is the first.
    shorter = (found[:size] for size in range(len(found.rstrip(b"\x00")), len(found)))
    for key in shorter:
        if key > start and await _reads(source, key, end):
            return key
    return found


async def _reads(source: Engine, start: bytes, end: bytes) -> bool:
    try:
        async for _ in source.scan(start, end):
            break
    except Unreadable:
        return False
    return True


def _number(key: bytes, width: int) -> int:
    return int.from_bytes(key[:width].ljust(width, b"\x00"), "big")


def _key(number: int, width: int) -> bytes:
    return number.to_bytes(width, "big")


async def fill(target: Engine, parts: AsyncIterator[dict[bytes, bytes]]) -> int:
    """Write records into an open, empty store, and mark it; answer how many.

    Raises ConfigurationError: the store is not empty, or there is nothing to put into it;
    Unavailable: it can't be written.
    """
    async for chunk in target.scan(FIRST, _END):
        if chunk:
            raise ConfigurationError(
                "What is intact of a damaged store goes into an empty one: give --store a "
                "directory of its own."
            )
    count = 0
    async for part in parts:
        there = await target.get(list(part))
        new = {key: value for key, value in part.items() if key >= FIRST and key not in there}
        if new:
            await target.commit(Batch({REBUILT: b"", **new}, ()))
            count += len(new)
    if not count:
        raise ConfigurationError("No record of a store is intact in it.")
    return count


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
        (
            "import",
            partial(run_import, rehearsal=rehearsal),
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
                what += "; a SQLite file, or the URI of a store, is read as a damaged one"
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
                file.write(line + b"\n")
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
    """Read JSON lines, or a damaged store, into a store, which is made where there is none."""
    if "://" in arguments.file or _is_database(arguments.file):
        return _guarded(_salvage(arguments.file, arguments.store))
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


def _is_database(file: str) -> bool:
    return file != "-" and Path(file).is_file() and is_sqlite(Path(file))


async def _salvage(source: str, uri: str) -> int:
    """Put what is intact of a damaged store into a new one, and open that."""
    target = create_engine(uri)
    await target.open()
    try:
        if "://" in source:
            damaged = create_engine(source, must_exist=True)
            await damaged.open()
            try:
                count = await fill(target, rows_of_store(damaged))
            finally:
                await damaged.close()
        else:
            count = await fill(target, rows_of_file(Path(source)))
    finally:
        await target.close()
    print(f"{count} records are intact; opening the store, which puts back what it can")

    async def work(db: Database) -> int:
        messages = sum(queue.total for queue in db.queues)
        print(f"{messages} messages are in {len(list(db.queues))} queues")
        return 0

    return await _work(uri, work, must_exist=True)


def _with_database(
    uri: str, work: Callable[[Database], Awaitable[int]], *, must_exist: bool = True
) -> int:
    """Open a store, work on it, close it; say in one line what went wrong."""
    return _guarded(_work(uri, work, must_exist=must_exist))


def _guarded(work: Coroutine[object, object, int]) -> int:
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


async def _work(uri: str, work: Callable[[Database], Awaitable[int]], *, must_exist: bool) -> int:
    db = Database(create_engine(uri, must_exist=must_exist), Clock(), StoreOptions())
    await db.open()
    try:
        return await work(db)
    finally:
        await db.close()

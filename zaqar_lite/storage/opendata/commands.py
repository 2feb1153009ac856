"""The command `zaqar-lite store`: check, export, import and compact the embedded store.

Each takes the store's lock, so none runs beside a server on the same directory. `import` also fills
an empty store with the intact records of a damaged SQLite file, or of one that SQLite's own tool
has recovered. The new store is marked as one that may miss records, so messages of lost pages are
put back from the metadata log when it is opened (`recovery.py`).
"""

import argparse
import asyncio
import io
import sqlite3
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, ZaqarLiteError
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.storage.opendata import create_engine, transfer
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.engine import (
    FIRST,
    REBUILT,
    Batch,
    Damage,
    Engine,
    Unreadable,
    replacing,
)
from zaqar_lite.storage.opendata.format import CodecError, active, bookkeeping, keys, records
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.paging import walk
from zaqar_lite.storage.opendata.recovery import garbage_ids, unrouted_ids
from zaqar_lite.storage.opendata.sqlite import SqliteEngine
from zaqar_lite.storage.opendata.sqlite.reading import intact_rows, is_sqlite

_ROWS = 1_000


async def fill(target: Engine, file: Path) -> int:
    """Write the intact records of a SQLite file into an open, empty store; answer how many.

    The store is marked: when it is opened, what is missing is put back as far as that can be.
    Raises ConfigurationError: the store is not empty, or there is nothing to put into it;
    Unavailable: it can't be written; sqlite3.Error: nothing of the file can be read.
    """
    async for chunk in target.scan(FIRST, b"\xff"):
        if chunk:
            raise ConfigurationError(
                "What is intact of a damaged store goes into an empty one: give --store a "
                "directory of its own."
            )
    count = 0
    rows = intact_rows(file)
    while part := list(islice(rows, _ROWS)):
        present = await target.get([key for key, _ in part])
        new: dict[bytes, bytes] = {}
        for key, value in part:
            if key >= FIRST and key not in present:
                new.setdefault(key, value)  # the first of a key is right
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


def run_import(arguments: argparse.Namespace, rehearsal: Rehearsal) -> int:
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


# -- check --

_DECODERS: dict[RecordType, Callable[[bytes], Any]] = {
    RecordType.PAYLOAD: records.decode_payload,
    RecordType.ACTIVE: active.read_active,
    RecordType.DONE: records.decode_ended,
    RecordType.FAILED: records.decode_ended,
    RecordType.ATTEMPTS: records.decode_attempts,
    RecordType.ATTEMPT: records.decode_attempt,
    RecordType.CONFIG: bookkeeping.decode_config,
    RecordType.ID_BLOCK: bookkeeping.decode_block,
    RecordType.FORMAT: bytes,
    RecordType.CLAIM: records.decode_claim,
    RecordType.IDEMPOTENCY: bookkeeping.decode_keys,
    RecordType.STATE: bookkeeping.decode_state,
    RecordType.GARBAGE: bookkeeping.decode_garbage,
    RecordType.RECORD: bookkeeping.decode_record,
    RecordType.UNROUTED: bytes,
    RecordType.ADOPTED: bytes.hex,
    RecordType.GROUP: bytes,
}
_LOG_ENTRY = 0x10
_LOG_DECODERS: dict[int, Callable[[bytes], Any]] = {
    _LOG_ENTRY: records.decode_metadata,
    0x20: bookkeeping.decode_block,
    0x30: bookkeeping.decode_segment,
}
"""By the byte behind the segment in the key; a listing's value is empty."""


@dataclass
class Findings:
    """What a check found: the problems, and how many records of each kind there are."""

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        """One line for people."""
        counted = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return f"{len(self.problems)} problems; records: {counted or 'none'}"


async def check(db: Database) -> Findings:
    """Verify checksums, encodings, and that payloads, metadata and queues fit together."""
    found = Findings()
    found.problems += db.engine.damages
    seen = _Seen()
    for start, end in keys.ranges():
        try:
            async for rows in db.engine.scan(start, end):
                for key, value in rows:
                    problem = _check_record(db, key, value, found.counts, seen)
                    if problem is not None:
                        found.problems.append(problem)
        except Unreadable as exc:
            found.problems.append(str(exc))
    garbage, unrouted = await garbage_ids(db), await unrouted_ids(db)
    held: dict[int, QueueRef] = {}
    known: set[bytes] = set()
    members: set[bytes] = set()
    async for queue, entry in walk(db):
        held[entry.id] = queue.ref
        if entry.extras is not None:
            history = entry.extras.history
            known.update(keys.attempt_key(history, kept.number) for kept in entry.extras.kept)
            if entry.extras.group is not None:
                members.add(keys.group_key(queue.raw, entry.extras.group, entry.position))
    for kind, ids in (("payload", seen.payloads), ("metadata", seen.metadata)):
        found.problems += [
            f"message {message_id} of {held[message_id]} has no {kind}"
            for message_id in held.keys() - ids
        ]
        lost = ids - held.keys() - garbage - unrouted
        found.problems += [f"{kind} of message {number}: no queue holds it" for number in lost]
    for wanted, stored in ((known, seen.attempts), (members, seen.groups)):
        found.problems += [f"{keys.describe(key)} is missing" for key in sorted(wanted - stored)]
        lost_keys = sorted(stored - wanted)
        found.problems += [f"{keys.describe(key)}: no message has it" for key in lost_keys]
    return found


@dataclass
class _Seen:
    """The messages with a payload or metadata, and the keys of attempts and of groups."""

    payloads: set[int] = field(default_factory=set)
    metadata: set[int] = field(default_factory=set)
    attempts: set[bytes] = field(default_factory=set)
    groups: set[bytes] = field(default_factory=set)


def _check_record(
    db: Database, key: bytes, value: bytes | Damage, counts: Counter[str], seen: _Seen
) -> str | None:
    """Count a record and note what it belongs to; answer what is wrong with it."""
    try:
        if key[:2] == keys.LOG:
            decode = _LOG_DECODERS.get(key[6], bytes)
            if key[6] == _LOG_ENTRY:
                segment, _, sequence = keys.read_log_entry_key(key)
                start = next(start for start, number in db.segments if number == segment)
                counts["metadata"] += 1
                seen.metadata.add(start + sequence)
        else:
            kind = RecordType(keys.read_prefix(key)[0])
            decode = _DECODERS[kind]
            counts[kind.name.lower().replace("_", " ")] += 1
            if kind is RecordType.PAYLOAD:
                seen.payloads.add(keys.read_message_id(key))
            elif kind is RecordType.ATTEMPT:
                seen.attempts.add(key)
            elif kind is RecordType.GROUP:
                seen.groups.add(key)
        if isinstance(value, Damage):
            return str(value)
        decode(value)
    except (CodecError, ValueError, IndexError, StopIteration) as exc:
        return f"{keys.describe(key)}: {exc}"
    return None

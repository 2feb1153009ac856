"""Post a file: JSON lines, text or CSV, any length in constant memory; refused messages set aside.

A line of JSON is sent as the bytes that it is, and judged by the server: nothing is decoded here.
"""

import argparse
import asyncio
import contextlib
import csv
import datetime as dt
import io
import itertools
import json
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import UsageError, instant, whole_seconds
from zaqar_lite.commands.base_command import FAILED, POST_OPTIONS, connect
from zaqar_lite.commands.output import Output

NO_JSON = (
    "(Each line of the file is a JSON document; --format text posts lines as strings, "
    "--format csv the rows of a table.)"
)
_LARGEST = 1_048_576  # bytes of a line that are read: no server takes a larger message
Item = sdk.NewMessage | sdk.RawBody | str
Items = Generator[Item, None, None]


def post_file(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Post what a file holds, or only count it; return 1 if something was refused."""
    begin, stored = time.monotonic(), 0
    with contextlib.ExitStack() as stack:
        source = _open(arguments.file, stack)
        format_ = arguments.format or arguments.file.rpartition(".")[2]
        read = _csv if format_ == "csv" else _lines
        items = stack.enter_context(contextlib.closing(read(arguments, source)))
        if arguments.dry_run:
            count = sum(1 for _ in items)
            output.record({"queue": arguments.queue, "messages": count, "dry_run": True})
            return None
        rejects = Rejects(arguments, stack)

        def posted(batch: sdk.Posted[Item]) -> None:
            # Stored for certain; a few more may be, when an answer was lost.
            nonlocal stored
            stored += len(batch.ids)

        # asyncio puts a handler of its own in the place of the default one, not of one that does
        # the same, and then Ctrl-C would not end a read that waits for more input.
        before = signal.signal(signal.SIGINT, partial(signal.default_int_handler))
        stack.callback(signal.signal, signal.SIGINT, before)
        try:
            told = {"on_posted": posted, "on_rejected": rejects.add}
            summary = _post(client, arguments, {"items": items, **told})
        except BaseException:
            # Killed by a signal or an error: what to post again is what the user asks next.
            print(f"zaqar-lite: {stored} messages were stored", file=sys.stderr)
            raise
    seconds = time.monotonic() - begin
    output.record(
        {
            "queue": arguments.queue,
            "messages": summary.messages,
            "duplicates": summary.duplicates,
            "rejected": summary.rejected,
            "requests": summary.batches,
            "seconds": round(seconds, 3),
            "messages_per_second": round(summary.messages / seconds) if seconds else None,
        }
    )
    return FAILED if summary.rejected else None


def _post(
    client: "sdk.Client", arguments: argparse.Namespace, given: dict[str, Any]
) -> sdk.PostSummary:
    """Post by tasks, faster than by threads; but these go on while a producer pauses."""
    names = ("queue", "batch_size", "batch_bytes", "in_flight", "rate")
    given |= {name: getattr(arguments, name) for name in names}
    given["key"] = None if arguments.run_name is None else _key(arguments.run_name)

    async def by_tasks() -> sdk.PostSummary:
        async with connect(sdk.AsyncClient, arguments) as tasks:
            return await tasks.post_all(**given)

    file = Path("/dev/stdin" if arguments.file == "-" else arguments.file)
    return asyncio.run(by_tasks()) if file.is_file() else client.post_all(**given)


class Rejects:
    """Where refused messages go: a file of JSON lines, made anew by each run."""

    def __init__(self, arguments: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self._file: TextIO | None = None
        if arguments.rejects is None:
            return
        path = Path(arguments.rejects)
        if arguments.file != "-" and path.resolve() == Path(arguments.file).resolve():
            raise UsageError("--rejects would overwrite --file")
        file = path.open("w", encoding="utf-8", errors="replace")  # it may refuse what is no UTF-8
        self._file = stack.enter_context(file)

    def add(self, rejected: sdk.Rejected[Item]) -> None:
        """Write one: which record it was (from 1), why, and what it said.

        Raises:
            UsageError, ZaqarError: there is no file to write it to.
        """
        record, reason, item = rejected.index + 1, rejected.reason, rejected.item
        body = item.body if isinstance(item, sdk.NewMessage) else item
        hint = ""
        if isinstance(reason, sdk.BadRequest) and isinstance(body, sdk.RawBody):
            try:
                sdk.serialization.loads(bytes(body))
            except json.JSONDecodeError as error:  # the server counts in the whole request
                reason.description = f"it is not JSON at column {error.colno}: {error.msg}."
                hint = f" {NO_JSON}"
        if self._file is None:
            if isinstance(reason, sdk.ZaqarError):
                reason.title = f"Record {record} was refused: {reason.title}"
                reason.description = (reason.description or "") + hint
                raise reason
            raise UsageError(f"record {record}: {reason}") from reason
        text = body.decode("utf-8", "replace") if isinstance(body, sdk.RawBody) else body
        line = {"record": record, "reason": str(reason), "input": text}
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _open(name: str, stack: contextlib.ExitStack) -> BinaryIO:
    """Open the file; a bar on standard error, if that is a terminal, shows how far it is read."""
    if name == "-":
        return sys.stdin.buffer
    source: BinaryIO = stack.enter_context(Path(name).open("rb"))  # noqa: SIM115 - the stack closes it
    if not sys.stderr.isatty():
        return source
    from rich.console import Console  # noqa: PLC0415 - a pipe never needs rich
    from rich.progress import wrap_file  # noqa: PLC0415

    size, console = Path(name).stat().st_size, Console(stderr=True)
    return stack.enter_context(wrap_file(source, size, description="Posting", console=console))


def _key(run: str) -> Callable[[Item], str]:
    """Return what makes the key of each record in turn: its own, or else that of its place."""
    numbers = itertools.count(1)

    def key(item: Item) -> str:
        number = next(numbers)
        return getattr(item, "idempotency_key", None) or f"{run}-{number}"

    return key


def _bounded(source: BinaryIO) -> Iterator[bytes]:
    """Yield the lines; of one that no server takes the beginning, which is too large as well."""
    while part := source.readline(_LARGEST + 2):
        yield part
        while len(part) > _LARGEST and part[-1:] != b"\n":
            part = source.readline(_LARGEST + 2)


def _lines(arguments: argparse.Namespace, source: BinaryIO) -> Items:
    """Return the lines that are not blank: as bodies, if no option applies to all of them."""
    lines = (line for line in _bounded(source) if len(line) > _LARGEST or line.strip())
    bodies: Generator[Any, None, None] = (
        # A line that is not UTF-8 becomes a string that the SDK refuses, and the others go on.
        (line.rstrip(b"\r\n").decode("utf-8", "surrogateescape") for line in lines)
        if arguments.text or arguments.format == "text"
        else (sdk.RawBody(line if len(line) > _LARGEST else line.strip()) for line in lines)
    )
    said = {name: getattr(arguments, name) for name in POST_OPTIONS}
    if all(value is None for value in said.values()):
        return bodies
    return (sdk.NewMessage(body=body, **said) for body in bodies)


def _table_lines(text: TextIO) -> Iterator[str]:
    """Yield the lines of a table, whichever way they end."""
    while line := text.readline(_LARGEST + 1):
        if len(line) > _LARGEST:  # of which row the rest would be is not known
            raise UsageError(f"a line of the table has more than {_LARGEST} characters")
        yield line


def _csv(arguments: argparse.Namespace, source: BinaryIO) -> Items:
    """Yield the rows as messages; a value in a row overrides the option for all rows.

    Raises:
        UsageError: there is no such column, or a row has no body, or more fields than the header.
    """
    csv.field_size_limit(_LARGEST)  # bytes of a body; 128 KiB by itself
    text = io.TextIOWrapper(source, encoding="utf-8-sig", newline="")
    rows = csv.DictReader(_table_lines(text))
    try:
        column, names = arguments.body_column, rows.fieldnames or ()
        if column not in names:
            found = ", ".join(names) or "none"
            raise UsageError(f"the file has no column {column!r}; it has {found}")
        for row in rows:
            if row[column] is None or None in row:
                raise UsageError(f"line {rows.line_num} has not the fields that the header names")
            at, delay = _when(row, arguments)
            ttl, key = _number(row, "ttl", arguments.ttl), row.get("idempotency_key") or None
            given = {"ttl": ttl, "delay": delay, "deliver_at": at, "headers": arguments.headers}
            body, group = row[column], arguments.group
            yield sdk.NewMessage(body=body, idempotency_key=key, group=group, **given)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{arguments.file} is not CSV in UTF-8: {error}") from error
    finally:
        text.detach()  # whoever opened the file closes it


# What is no number or no time is passed on as it is: the SDK refuses that message, which then is
# written to the rejects under its own number, and the others go on.
def _number(row: dict[str, str], column: str, default: Any) -> Any:  # noqa: ANN401
    text = row.get(column)
    with contextlib.suppress(argparse.ArgumentTypeError):
        return whole_seconds(text) if text else default
    return text


def _when(row: dict[str, str], arguments: argparse.Namespace) -> tuple[dt.datetime | None, Any]:
    """Return deliver_at and delay: the row's own, else those of the command's options."""
    text = row.get("deliver_at")
    if not text:
        delay = _number(row, "delay", arguments.delay)
        return (None if row.get("delay") else arguments.deliver_at), delay
    with contextlib.suppress(argparse.ArgumentTypeError):
        return instant(text), None
    return None, f"deliver_at {text}"

"""Post a file: JSON lines or CSV, any length in constant memory, refused messages set aside.

A line of JSON is sent as the bytes that it is, and judged by the server: nothing is decoded here.
"""

import argparse
import asyncio
import contextlib
import csv
import dataclasses
import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

from zaqar_lite.client import NewMessage, PostSummary, RawBody, Rejected
from zaqar_lite.commands.message import instant
from zaqar_lite.commands.output import Output
from zaqar_lite.commands.running import FAILED, UsageError, async_client, pairs

Advance = Callable[[int], None]


def post_file(arguments: argparse.Namespace, output: Output) -> int | None:
    """Post what a file holds; return 1 if something was refused."""
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        source, size = _open(arguments.file, stack)
        rejects = Rejects(arguments, stack)
        items = _read(arguments, source)
        if arguments.dry_run:
            count = sum(1 for _ in items)
            output.record({"queue": arguments.queue, "messages": count, "dry_run": True})
            return None
        advance = _progress(source, size, stack)
        summary = asyncio.run(_post(arguments, items, advance, rejects))
    seconds = time.monotonic() - begin
    output.record(
        {
            "queue": arguments.queue,
            "messages": summary.messages,
            "rejected": summary.rejected,
            "requests": summary.batches,
            "seconds": round(seconds, 3),
            "messages_per_second": round(summary.messages / seconds) if seconds else None,
        }
    )
    return FAILED if summary.rejected else None


class Rejects:
    """Where refused messages go: a file of JSON lines, made anew by each run."""

    def __init__(self, arguments: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self._file: TextIO | None = None
        if arguments.rejects is None or arguments.dry_run:
            return
        path = Path(arguments.rejects)
        if arguments.file != "-" and path.resolve() == Path(arguments.file).resolve():
            message = "--rejects would overwrite --file"
            raise UsageError(message)
        self._file = stack.enter_context(path.open("w", encoding="utf-8"))

    @property
    def wanted(self) -> bool:
        """Whether to go on after a refusal."""
        return self._file is not None

    def add(self, rejected: Rejected[NewMessage]) -> None:
        """Write one: which record it was (from 1), why, and what it said."""
        body = rejected.item.body
        text = body.decode("utf-8", "replace") if isinstance(body, RawBody) else body
        line = {"record": rejected.index + 1, "reason": str(rejected.reason), "input": text}
        if self._file is not None:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")


async def _post(
    arguments: argparse.Namespace, items: Iterable[NewMessage], advance: Advance, rejects: Rejects
) -> PostSummary:
    async with async_client(arguments) as client:
        return await client.post_all(
            arguments.queue,
            items,
            batch_size=arguments.batch_size,
            batch_bytes=arguments.batch_bytes,
            in_flight=arguments.in_flight,
            rate=arguments.rate,
            on_posted=lambda posted: advance(len(posted.ids)),
            on_rejected=rejects.add if rejects.wanted else None,
        )


def _open(name: str, stack: contextlib.ExitStack) -> tuple[BinaryIO, int | None]:
    """Open the file; its size in bytes is None for a pipe."""
    if name == "-":
        return sys.stdin.buffer, None
    source = stack.enter_context(Path(name).open("rb"))  # noqa: SIM115 - the stack closes it
    return source, Path(name).stat().st_size or None


def _read(arguments: argparse.Namespace, source: BinaryIO) -> Iterator[NewMessage]:
    """Yield the messages, each with its own key if the run has a name."""
    form = arguments.format or ("csv" if arguments.file.endswith(".csv") else "jsonl")
    headers = pairs(arguments.header, "--header") or None
    messages = (
        _csv(arguments, headers, source) if form == "csv" else _lines(arguments, headers, source)
    )
    if arguments.run_name is None:
        return messages
    return (
        message
        if message.idempotency_key is not None
        else dataclasses.replace(message, idempotency_key=f"{arguments.run_name}-{record}")
        for record, message in enumerate(messages, 1)
    )


def _lines(
    arguments: argparse.Namespace, headers: dict[str, str] | None, source: BinaryIO
) -> Iterator[NewMessage]:
    """Yield the lines that are not blank."""
    for line in source:
        text = line.strip()
        if text:
            yield NewMessage(
                body=RawBody(text),
                ttl=arguments.ttl,
                delay=arguments.delay,
                deliver_at=arguments.deliver_at,
                headers=headers,
            )


def _csv(
    arguments: argparse.Namespace, headers: dict[str, str] | None, source: BinaryIO
) -> Iterator[NewMessage]:
    """Yield the rows; what a row says of itself goes before what the command says of all.

    Raises:
        ValueError: there is no such column, or a number is none.
    """
    text = io.TextIOWrapper(source, encoding="utf-8-sig", newline="")
    rows = csv.DictReader(text)
    column, names = arguments.body_column, rows.fieldnames or ()
    try:
        if column not in names:
            message = f"the file has no column {column!r}; it has {', '.join(names) or 'none'}"
            raise ValueError(message)
        for row in rows:
            at = row.get("deliver_at")
            delay = _number(row, "delay", arguments.delay)
            yield NewMessage(
                body=row[column],
                ttl=_number(row, "ttl", arguments.ttl),
                delay=None if at else delay,
                deliver_at=instant(at) if at else arguments.deliver_at,
                idempotency_key=row.get("idempotency_key") or None,
                headers=headers,
            )
    finally:
        text.detach()  # whoever opened the file closes it


def _number(row: dict[str, str], column: str, default: int | None) -> int | None:
    text = row.get(column)
    return int(text) if text else default


def _progress(source: BinaryIO, size: int | None, stack: contextlib.ExitStack) -> Advance:
    """Show a bar on standard error if that is a terminal; return what is told each batch."""
    if not sys.stderr.isatty():
        return lambda _: None
    from rich.console import Console  # noqa: PLC0415 - a pipe never needs rich
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    progress = stack.enter_context(
        Progress(
            TextColumn("{task.fields[messages]:,} messages"),
            BarColumn(),
            TextColumn("{task.fields[rate]:,.0f}/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
    )
    task = progress.add_task("", total=size, messages=0, rate=0.0)
    begin, messages = time.monotonic(), 0

    def advance(count: int) -> None:
        nonlocal messages
        messages += count
        rate = messages / max(time.monotonic() - begin, 0.001)
        # What was read is a little ahead of what is stored: good enough for a bar.
        done = source.tell() if size is not None else None
        progress.update(task, completed=done, messages=messages, rate=rate)

    return advance

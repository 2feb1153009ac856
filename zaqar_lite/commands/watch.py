"""`zaqar-lite watch`: ready, delayed, claimed and dead counts of queues, or of all, live."""

import argparse
import dataclasses
import datetime as dt
import itertools
import sys
import time
from collections.abc import Iterator
from itertools import islice

from zaqar_lite import searching
from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import duration, number, seconds_above_zero
from zaqar_lite.commands.base_command import UNAVAILABLE, Leaves, Verbs
from zaqar_lite.commands.output import Output, printable, shown
from zaqar_lite.durations import duration_shown
from zaqar_lite.searching import Search, by_trouble

COLUMNS = ("queue", "ready", "delayed", "claimed", "dead", "oldest_age")
MOST_QUEUES = 1_000
"""How many queues one look asks about; each takes a request."""


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """One look: the rows of the queues, or why there are none."""

    rows: list[dict[str, object]]
    failure: str | None = None
    note: str = ""


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    text = "show ready, delayed, claimed and dead counts live"
    parser = Verbs(subparsers).leaf("watch", watch, text)
    parser.set_defaults(attempts=1)  # each look is a try
    text = "queues in this order; without any, those of the project, the worst first"
    parser.add_argument("queue", nargs="*", help=text)
    text = "only queues that fit, such as 'orders ready>100 oldest>5m dead>0'"
    parser.add_argument("--search", type=search, default=Search(), metavar="WORDS", help=text)
    number(parser, "--top", "most queues to show (20)", default=20)
    text = "time between two looks, such as 500ms or 10s (1s)"
    duration(parser, "--interval", text, default=1, read=seconds_above_zero)
    number(parser, "--count", "end after N looks")


def search(text: str) -> Search:
    """Read words such as `orders ready>100 oldest>5m dead>0`, for argparse."""
    try:
        return searching.search(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def watch(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Show counts until interrupted: a table that stays in place, or a JSON line per look.

    It goes on while the server is away, and when it is back.
    """
    looks = _looks(client, arguments)
    last = _print(looks, output) if output.as_json else _live(looks, arguments.interval)
    return UNAVAILABLE if last.failure is not None else None


def _print(looks: Iterator[Look], output: Output) -> Look:
    last = Look([])
    for look in looks:
        if look.failure is not None and last.failure is None:
            print(f"zaqar-lite: {look.failure}", file=sys.stderr, flush=True)
        elif look.failure is None and last.failure is not None:
            print("zaqar-lite: the server is back", file=sys.stderr, flush=True)
        if look.note and look.note != last.note:
            print(f"zaqar-lite: {look.note}", file=sys.stderr, flush=True)
        output.rows(look.rows, ())
        sys.stdout.flush()
        last = look
    return last


def _live(looks: Iterator[Look], interval: float) -> Look:
    from rich.console import Console, Group  # noqa: PLC0415 - a pipe never needs rich
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from zaqar_lite.commands import tables  # noqa: PLC0415

    last, rows = Look([]), list[dict[str, object]]()
    often = f"every {duration_shown(interval)}; Ctrl-C ends"
    with Live(auto_refresh=False) as live:
        for last in looks:
            rows = rows if last.failure is not None else last.rows
            said = f"{last.failure}; looking again {often}" if last.failure else often
            found = last.note if rows or last.failure else "no queues"
            below = Text("; ".join(filter(None, (found, said))), style="italic")
            # Not the console of `live`, which must be as wide as the terminal is.
            table = tables.table(shown(rows), COLUMNS, Console())
            live.update(Group(table, below), refresh=True)
    return last


def _looks(client: "sdk.Client", arguments: argparse.Namespace) -> Iterator[Look]:
    for looks in itertools.count(1):
        yield _look(client, arguments)
        if looks == arguments.count:
            return
        time.sleep(arguments.interval)


def _look(client: "sdk.Client", arguments: argparse.Namespace) -> Look:
    wanted, top = arguments.search, arguments.top
    part = wanted.names[0] if wanted.names else None
    try:
        if arguments.queue:
            rows = [_counts(client, sdk.Queue(name, "")) for name in arguments.queue]
            return Look(list(filter(wanted.finds, rows)))
        listed = client.list_queues(detailed=True, name=part)
        queues = list(islice((one for one in listed if wanted.names_it(one.name)), MOST_QUEUES + 1))
        rows = [_counts(client, one) for one in queues[:MOST_QUEUES]]
    except (sdk.Unavailable, sdk.Unreachable) as error:
        if isinstance(error, sdk.Unreachable) and error.permanent:
            raise
        return Look([], printable(error))
    rows, notes = sorted(filter(wanted.finds, rows), key=by_trouble), list[str]()
    if len(rows) > top:
        notes.append(f"{len(rows) - top:,} more (--top)")
    if len(queues) > MOST_QUEUES:
        notes.append(f"only the first {MOST_QUEUES:,} queues were looked at")
    return Look(rows[:top], note="; ".join(notes))


def _counts(client: "sdk.Client", queue: "sdk.Queue") -> dict[str, object]:
    stats = client.stats(queue.name)
    metadata = client.get_queue(queue.name) if queue.metadata is None else queue.metadata
    dead_letter_queue = metadata.get("_dead_letter_queue")
    dead = client.stats(str(dead_letter_queue)).total if dead_letter_queue else None
    return {
        "at": dt.datetime.now(dt.UTC),
        "queue": queue.name,
        "ready": stats.claimable,
        "delayed": stats.delayed,
        "claimed": stats.claimed,
        "dead": dead,
        "oldest_age": stats.oldest.age if stats.oldest is not None else None,
    }

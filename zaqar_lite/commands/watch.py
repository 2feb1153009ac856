"""`zaqar-lite watch`: ready, delayed, claimed and dead counts of a queue, live."""

import argparse
import datetime as dt
import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from zaqar_lite.commands.output import Output
from zaqar_lite.commands.running import Leaves, above_zero, add_leaf, at_least

if TYPE_CHECKING:
    from rich.table import Table

    from zaqar_lite.client import Client

COUNTS = ("ready", "delayed", "claimed", "dead")


def add_command(subparsers: Leaves) -> None:
    """Declare the command."""
    parser = add_leaf(
        subparsers, "watch", watch, "show ready, delayed, claimed and dead counts live"
    )
    parser.add_argument("queue", nargs="+")
    parser.add_argument("--interval", type=above_zero, default=1, metavar="S", help="seconds (1)")
    parser.add_argument("--count", type=at_least(1), metavar="N", help="end after N looks")


def watch(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show counts until interrupted: a table that stays in place, or a JSON line per look."""
    looks = _looks(client, arguments)
    if output.as_json:
        for rows in looks:
            output.rows(rows, ())
        return
    from rich.live import Live  # noqa: PLC0415 - a pipe never needs rich

    before: list[dict[str, object]] = []
    with Live(auto_refresh=False) as live:
        for rows in looks:
            live.update(_table(rows, before, arguments.interval), refresh=True)
            before = rows


def _looks(client: "Client", arguments: argparse.Namespace) -> Iterator[list[dict[str, object]]]:
    for number in itertools.count(1):
        yield [_look(client, queue) for queue in arguments.queue]
        if number == arguments.count:
            return
        time.sleep(arguments.interval)


def _look(client: "Client", queue: str) -> dict[str, object]:
    stats = client.stats(queue)
    dead_letter_queue = client.get_queue(queue).get("_dead_letter_queue")
    dead = client.stats(dead_letter_queue).total if dead_letter_queue else None
    return {
        "at": dt.datetime.now(dt.UTC),
        "queue": queue,
        "ready": stats.free if stats.ready is None else stats.ready,
        "delayed": stats.delayed,
        "claimed": stats.claimed,
        "dead": dead,
        "oldest_age": stats.oldest.age if stats.oldest is not None else None,
    }


def _table(
    rows: list[dict[str, object]], before: list[dict[str, object]], interval: float
) -> "Table":
    """Return the counts, each with its change since the last look."""
    from rich.table import Table  # noqa: PLC0415

    table = Table("queue", *COUNTS, "oldest, s", header_style="bold")
    table.caption = f"every {interval:g} s; Ctrl-C ends"
    for index, row in enumerate(rows):
        last = before[index] if before else row
        cells = [_change(row[name], last[name]) for name in COUNTS]
        table.add_row(str(row["queue"]), *cells, str(row["oldest_age"] or ""))
    return table


def _change(now: object, before: object) -> str:
    if not isinstance(now, int):
        return "-"
    change = now - before if isinstance(before, int) else 0
    return f"{now:,} ({change:+,})" if change else f"{now:,}"

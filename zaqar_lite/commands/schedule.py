"""`zaqar-lite schedule`: post messages by the clock."""

import argparse
import json
from itertools import islice
from typing import TYPE_CHECKING

from zaqar_lite.commands.durations import whole_seconds
from zaqar_lite.commands.output import Output
from zaqar_lite.commands.running import Leaves, add_leaf, add_noun, at_least, pairs

if TYPE_CHECKING:
    from zaqar_lite.client import Client

_COLUMNS = ("name", "queue", "when", "time_zone", "paused", "next")
_TEXTS = (
    ("--time-zone", "ZONE", "an IANA name, such as Europe/Berlin (UTC)"),
    ("--start", "TIME", "not before (RFC 3339)"),
    ("--end", "TIME", "not from then on (RFC 3339)"),
    ("--jitter", "DURATION", "up to so much later, such as 5m"),
    ("--catch-up", "DURATION", "how long ago an instant may be that was missed (1h)"),
    ("--group", "NAME", "the group of the messages"),
)


def add_commands(subparsers: Leaves) -> None:
    """Declare the noun and its verbs."""
    verbs = add_noun(subparsers, "schedule", "post messages by the clock")
    parser = add_leaf(verbs, "create", create, "make or replace a schedule")
    parser.add_argument("name")
    parser.add_argument("queue")
    parser.add_argument("body", help="of the messages: JSON, or else a string")
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--cron", metavar="EXPRESSION", help="five fields: '30 2 * * *'")
    when.add_argument("--every", metavar="DURATION", help="such as 90s, 15m or 1h30m")
    when.add_argument("--at", metavar="TIME", help="once (RFC 3339)")
    for option, metavar, text in _TEXTS:
        parser.add_argument(option, metavar=metavar, help=text)
    parser.add_argument("--missed", choices=("skip", "one", "all"), help="what is missed (one)")
    parser.add_argument("--overlap", choices=("allow", "skip"), help="while the last is there")
    for option, text in (("--ttl", "how long a message lives"), ("--delay", "how long it waits")):
        parser.add_argument(option, type=whole_seconds, metavar="DURATION", help=text)
    parser.add_argument("--header", action="append", default=[], metavar="KEY=VALUE")
    parser = add_leaf(verbs, "list", list_, "list schedules")
    parser.add_argument("--limit", type=at_least(0), help="schedules at most")
    for name, handler, text in (
        ("show", show, "show a schedule"),
        ("next", next_, "print the next five instants of a schedule, in UTC"),
        ("fire", fire, "post a schedule's message now"),
        ("pause", pause, "let a schedule wait"),
        ("resume", resume, "let a paused schedule go on"),
        ("delete", delete, "end a schedule"),
    ):
        add_leaf(verbs, name, handler, text).add_argument("name")


def create(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Make or replace a schedule."""
    try:
        body: object = json.loads(arguments.body)
    except ValueError:
        body = arguments.body
    names = ("cron", "every", "at", "time_zone", "start", "end", "jitter", "catch_up", "group")
    plan = {
        name: getattr(arguments, name) for name in (*names, "missed", "overlap", "ttl", "delay")
    }
    headers = pairs(arguments.header, "--header") or None
    made = client.schedules.put(arguments.name, arguments.queue, body, headers=headers, **plan)
    output.record(made)


def list_(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """List schedules."""
    rows = (
        {
            **one,
            "when": one.get("cron") or one.get("every") or one.get("at"),
            "next": (one["next"] or [None])[0],
        }
        for one in islice(client.schedules.list(), arguments.limit)
    )
    output.rows(rows, _COLUMNS, empty="No schedules.")


def show(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show a schedule."""
    output.record(client.schedules.get(arguments.name))


def next_(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Print the next instants of a schedule."""
    shown = client.schedules.get(arguments.name)
    empty = "It is paused." if shown["paused"] else "It does not fire any more."
    output.rows(({"next": at} for at in shown["next"]), ("next",), empty=empty)


def fire(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Post a schedule's message now."""
    output.record({"message_id": client.schedules.fire(arguments.name)})


def pause(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Let a schedule wait."""
    output.record(client.schedules.pause(arguments.name))


def resume(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Let a paused schedule go on."""
    output.record(client.schedules.resume(arguments.name))


def delete(client: "Client", arguments: argparse.Namespace, _: Output) -> None:
    """End a schedule."""
    client.schedules.delete(arguments.name)

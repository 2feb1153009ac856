"""`zaqar-lite schedule`: post messages by the clock."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import duration, json_or_text, number
from zaqar_lite.commands.base_command import Leaves, Verbs, add_headers

_TEXTS = (
    ("--time-zone", "ZONE", "an IANA name, such as Europe/Berlin (UTC)"),
    ("--start", "TIME", "do not fire before this (RFC 3339)"),
    ("--end", "TIME", "do not fire at this or after it (RFC 3339)"),
    ("--jitter", "DURATION", "fire later by a random time of up to this, such as 5m"),
    ("--catch-up", "DURATION", "make up for instants that were missed no longer ago (1h)"),
    ("--group", "NAME", "the group of the messages"),
)
_MISSED = "how many messages to post for the instants that were missed (one)"
_OVERLAP = "whether to post while the message before is still in the queue (allow)"


def add_commands(subparsers: Leaves) -> None:
    """Declare the noun and its verbs."""
    verbs = Verbs.of(subparsers, "schedule", "post messages by the clock")
    parser = verbs.call("create", "schedules.put", "make or replace a schedule", "name", "queue")
    text = "of the messages: JSON, or else a string"
    parser.add_argument("body", type=json_or_text, help=text)
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--cron", metavar="EXPRESSION", help="five fields: '30 2 * * *'")
    when.add_argument("--every", metavar="DURATION", help="such as 90s, 15m or 1h30m")
    when.add_argument("--at", metavar="TIME", help="once (RFC 3339)")
    for option, metavar, text in _TEXTS:
        parser.add_argument(option, metavar=metavar, help=text)
    parser.add_argument("--missed", choices=("skip", "one", "all"), help=_MISSED)
    parser.add_argument("--overlap", choices=("allow", "skip"), help=_OVERLAP)
    duration(parser, "--ttl", "how long a message lives, such as 1h or 2d")
    duration(parser, "--delay", "how long until a message can be claimed, such as 30s or 5m")
    add_headers(parser)
    parser = verbs.list(
        "list",
        list_,
        "list schedules",
        columns=("name", "queue", "when", "time_zone", "paused", "next"),
    )
    number(parser, "--limit", "schedules at most")
    verbs.call("show", "schedules.get", "show a schedule", "name")
    verbs.list(
        "next",
        lambda client, given: ({"next": at} for at in client.schedules.next(given.name)),
        "print the next five instants of a schedule, in UTC",
        "name",
        columns=("next",),
        empty="It is paused, or does not fire any more.",
    )
    text = "post a schedule's message now"
    verbs.call("fire", "schedules.fire", text, "name", prints="message_id")
    text = "pause a schedule: it does not fire until it is resumed"
    verbs.call("pause", "schedules.pause", text, "name")
    verbs.call("resume", "schedules.resume", "let a paused schedule fire again", "name")
    text = "delete a schedule; its messages stay"
    verbs.delete(text, "schedules.get", "schedules.delete", "name")


def list_(client: "sdk.Client", given: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    """List schedules, each with when it fires."""
    del given
    for one in client.schedules.list():
        when = one.get("cron") or one.get("every") or one.get("at")
        yield {**one, "when": when, "next": (one["next"] or [None])[0]}

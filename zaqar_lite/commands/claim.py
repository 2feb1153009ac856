"""`zaqar-lite claim`: take messages for a while, keep them longer, give them back."""

import argparse
from typing import TYPE_CHECKING

from zaqar_lite.commands import durations, each
from zaqar_lite.commands.durations import whole_seconds
from zaqar_lite.commands.message import add_wait
from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.commands.running import Leaves, add_leaf, add_noun, at_least

if TYPE_CHECKING:
    from zaqar_lite.client import Client


def add_commands(subparsers: Leaves) -> None:
    """Declare the noun and its verbs."""
    verbs = add_noun(subparsers, "claim", "claims: messages held for a while")
    parser = add_leaf(verbs, "create", create, "claim messages")
    parser.add_argument("queue")
    parser.add_argument("--limit", type=at_least(1), default=10, help="messages at most (10)")
    _times(parser)
    add_wait(parser, "how long to wait for a message")
    each.add_verb(verbs)
    for verb, handler, text in (
        ("show", show, "show what a claim holds"),
        ("renew", renew, "let a claim last longer"),
        ("release", release, "give back what a claim holds"),
    ):
        parser = add_leaf(verbs, verb, handler, text)
        parser.add_argument("queue")
        parser.add_argument("claim")
        if verb == "renew":
            _times(parser)
        elif verb == "release":
            parser.add_argument(
                "--delay",
                type=whole_seconds,
                metavar="DURATION",
                help="how long until its messages can be claimed again, such as 30s (at once)",
            )


def create(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Claim messages."""
    held = client.create_claim(
        arguments.queue,
        limit=arguments.limit,
        ttl=arguments.ttl,
        grace=arguments.grace,
        details=True,
        wait=arguments.wait,
    )
    if held is not None:
        output.line(f"claim {held.id}, for {durations.shown(held.ttl)}")
    output.rows(
        [] if held is None else map(as_row, held.messages),
        ("id", "claim_count", "failure_count", "body"),
        empty=f"No message of {arguments.queue} can be claimed now.",
    )


def show(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show a claim."""
    held = client.get_claim(arguments.queue, arguments.claim, details=True)
    output.line(f"held for {durations.shown(held.age)} of {durations.shown(held.ttl)}")
    output.rows(
        map(as_row, held.messages),
        ("id", "claim_count", "failure_count", "body"),
        empty=f"The claim {arguments.claim} holds nothing.",
    )


def renew(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Renew a claim."""
    client.renew_claim(arguments.queue, arguments.claim, ttl=arguments.ttl, grace=arguments.grace)
    output.record({"claim": arguments.claim, "ttl": arguments.ttl})


def release(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Release a claim; one that has lapsed, or was released before, is not found."""
    client.get_claim(arguments.queue, arguments.claim)
    client.release_claim(arguments.queue, arguments.claim, delay=arguments.delay)
    output.record({"claim": arguments.claim, "released": True})


def _times(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ttl",
        type=whole_seconds,
        default=300,
        metavar="DURATION",
        help="how long it holds, such as 90s or 1h (5m)",
    )
    parser.add_argument(
        "--grace",
        type=whole_seconds,
        default=60,
        metavar="DURATION",
        help="how long a message outlives the claim (1m)",
    )

"""`zaqar-lite claim`: take messages for a while, keep them longer, give them back."""

import argparse

from zaqar_lite.commands import each, sdk
from zaqar_lite.commands.message import add_wait
from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.commands.running import (
    Leaves,
    add_call,
    add_duration,
    add_leaf,
    add_noun,
    why_empty,
)
from zaqar_lite.commands.values import at_least
from zaqar_lite.durations import duration_shown

_COLUMNS = ("id", "claim_count", "failure_count", "body")


def add_commands(subparsers: Leaves) -> None:
    """Declare the noun and its verbs."""
    verbs = add_noun(subparsers, "claim", "claims: messages held for a while")
    parser = add_leaf(verbs, "create", create, "claim messages", "queue")
    parser.add_argument("--limit", type=at_least(1), default=10, help="messages at most (10)")
    _times(parser)
    add_wait(parser, "how long to wait for a message")
    each.add_verb(verbs)
    add_leaf(verbs, "show", show, "show what a claim holds", "queue", "claim")
    _times(add_call(verbs, "renew", renew, "let a claim last longer", "queue", "claim"))
    text = "give back what a claim holds"
    parser = add_call(verbs, "release", release, text, "queue", "claim")
    text = "how long until its messages can be claimed again, such as 30s (at once)"
    add_duration(parser, "--delay", text)


def create(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
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
        output.line(f"claim {held.id}, for {duration_shown(held.ttl)}")
        output.rows(map(as_row, held.messages), _COLUMNS, empty="")
    elif not output.as_json:
        text = f"No message of {arguments.queue} can be claimed now"
        output.say(why_empty(client, arguments.queue, text))


def show(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show a claim."""
    held = client.get_claim(arguments.queue, arguments.claim, details=True)
    output.line(f"held for {duration_shown(held.age)} of {duration_shown(held.ttl)}")
    output.rows(
        map(as_row, held.messages),
        _COLUMNS,
        empty=f"The claim {arguments.claim} holds nothing.",
    )


def renew(client: "sdk.Client", given: argparse.Namespace) -> dict[str, object]:
    """Renew a claim."""
    client.renew_claim(given.queue, given.claim, ttl=given.ttl, grace=given.grace)
    return {"claim": given.claim, "ttl": given.ttl}


def release(client: "sdk.Client", given: argparse.Namespace) -> dict[str, object]:
    """Release a claim; one that has lapsed, or was released before, is not found."""
    client.get_claim(given.queue, given.claim)
    client.release_claim(given.queue, given.claim, delay=given.delay)
    return {"claim": given.claim, "released": True}


def _times(parser: argparse.ArgumentParser) -> None:
    add_duration(parser, "--ttl", "how long it holds, such as 90s or 1h (5m)", default=300)
    text = "how long a message lives at least after the claim has ended (1m)"
    add_duration(parser, "--grace", text, default=60)

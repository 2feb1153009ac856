"""`zaqar-lite share`: a pre-signed permission for one queue."""

import argparse
import datetime as dt

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import (
    UsageError,
    above_zero,
    duration,
    flag,
    repeated,
    seconds_above_zero,
)
from zaqar_lite.commands.base_command import Leaves, Verbs
from zaqar_lite.commands.output import Output, as_row


def add_commands(subparsers: Leaves) -> None:
    """Declare the commands."""
    text = "print a pre-signed permission for a queue; others use it with --signed FILE"
    parser = Verbs(subparsers).leaf("share", share, text, "queue")
    paths = ("messages", "claims", "subscriptions", "events")
    text = f"what may be reached ({', '.join(paths)}; messages); may be repeated"
    repeated(parser, "--path", "PATH", text, choices=paths)
    repeated(parser, "--method", "GET", "what may be done (GET); may be repeated")
    parser.add_argument("--hours", type=above_zero, default=24, help="how long it lasts (24)")
    text = "how long it lasts, instead of --hours, such as 30m or 7d"
    duration(parser, "--lasts", text, read=seconds_above_zero)
    text = "print the address of the queue's events for a browser, instead of --path"
    flag(parser, "--address", text)
    text = "revoke all permissions that were made for a queue"
    Verbs(subparsers).call("unshare", "unshare", text, "queue")


def share(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
    """Print a permission."""
    try:
        lasts = arguments.lasts or arguments.hours * 3600
        expires = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=lasts)
    except OverflowError as error:
        message = f"{lasts / 3600:g} hours are beyond the end of the calendar"
        raise UsageError(message) from error
    signed = client.share(
        arguments.queue,
        paths=["events"] if arguments.address else arguments.path or ["messages"],
        methods=arguments.method or ["GET"],
        expires=expires,
    )
    if arguments.address:
        output.record({"address": signed.address(client.url), "expires": signed.expires})
    else:
        output.record(as_row(signed))

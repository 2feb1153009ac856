"""`zaqar-lite share`: a pre-signed permission for one queue."""

import argparse
import datetime as dt
from typing import TYPE_CHECKING

from zaqar_lite.commands.durations import seconds_above_zero
from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.commands.running import Leaves, UsageError, above_zero, add_leaf

if TYPE_CHECKING:
    from zaqar_lite.client import Client


def add_commands(subparsers: Leaves) -> None:
    """Declare the commands."""
    parser = add_leaf(
        subparsers,
        "share",
        share,
        "print a pre-signed permission for a queue; others use it with --signed FILE",
    )
    parser.add_argument("queue")
    parser.add_argument(
        "--path",
        action="append",
        choices=("messages", "claims", "subscriptions", "events"),
        help="what may be reached (messages); may be repeated",
    )
    parser.add_argument(
        "--method", action="append", metavar="GET", help="what may be done (GET); may be repeated"
    )
    parser.add_argument("--hours", type=above_zero, default=24, help="how long it lasts (24)")
    parser.add_argument(
        "--lasts",
        type=seconds_above_zero,
        metavar="DURATION",
        help="how long it lasts, instead of --hours, such as 30m or 7d",
    )
    parser.add_argument(
        "--address",
        action="store_true",
        help="print the address of the queue's events for a browser, instead of --path",
    )
    parser = add_leaf(
        subparsers, "unshare", unshare, "revoke all permissions that were made for a queue"
    )
    parser.add_argument("queue")


def unshare(client: "Client", arguments: argparse.Namespace, _: Output) -> None:
    """Revoke what was shared."""
    client.unshare(arguments.queue)


def share(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
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

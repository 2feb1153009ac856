"""`zaqar-lite health`: is the server up, and, for its operator, how is every operation."""

import argparse
import time

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import flag
from zaqar_lite.commands.base_command import UNAVAILABLE, Leaves, Verbs
from zaqar_lite.commands.output import Output


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    text = "ask whether the server and its store are up; exit code 4 if not"
    parser = Verbs(subparsers).leaf("health", health, text)
    parser.set_defaults(attempts=1)  # how it is now, not after a while
    text = "have the server try every operation (it must run with --admin-mode)"
    flag(parser, "--operations", text)


def health(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Ask for the server's health.

    Raises:
        ZaqarError: the server does not try its operations when it is asked to.
    """
    if not arguments.operations:
        begin = time.monotonic()
        client.ping()
        milliseconds = round(1000 * (time.monotonic() - begin), 1)
        output.record({"url": client.url, "up": True, "milliseconds": milliseconds})
        return None
    try:
        found = client.health()
    except sdk.NotFound as error:
        raise sdk.ZaqarError(
            "Not available", "this server tries no operations: it needs `serve --admin-mode`"
        ) from error
    operations = [
        {"operation": name, **status} for name, status in found["operation_status"].items()
    ]
    output.rows(operations, ("operation", "succeeded", "seconds"), empty="No operations.")
    return None if all(one["succeeded"] for one in operations) else UNAVAILABLE

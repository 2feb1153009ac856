"""`zaqar-lite claim`: take messages for a while, run a command for each, give them back."""

import argparse
import json
import os
import shutil
import signal
import subprocess
from functools import partial

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import (
    UsageError,
    duration,
    flag,
    number,
    seconds_above_zero,
)
from zaqar_lite.commands.base_command import FAILED, Leaves, Verbs, why_empty
from zaqar_lite.commands.message import add_wait
from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.durations import duration_shown

REJECTED = 65
"""The exit code (EX_DATAERR of sysexits.h) that says that no later try can help."""
_RUN = (
    "run a command for each message: the body comes on standard input as JSON; exit code 0 deletes "
    f"the message, {REJECTED} makes it a dead letter, any other one is a failure"
)
_COLUMNS = ("id", "claim_count", "failure_count", "body")


def add_commands(subparsers: Leaves) -> None:
    """Declare the noun and its verbs."""
    verbs = Verbs.of(subparsers, "claim", "take messages for a while")
    parser = verbs.leaf("create", create, "claim messages", "queue")
    number(parser, "--limit", "messages at most (10)", default=10)
    _times(parser)
    add_wait(parser, "how long to wait for a message")
    parser = verbs.leaf("run", run_each, _RUN, "queue")
    parser.add_argument("command_words", nargs="+", metavar="COMMAND", help="after --")
    number(parser, "--concurrency", "commands at a time (1)", default=1)
    text = "how long a command may take; then it is killed, which is a failure"
    duration(parser, "--time-limit", text, read=seconds_above_zero)
    flag(parser, "--until-empty", "end when nothing is left")
    verbs.leaf("show", show, "show what a claim holds", "queue", "claim")
    _times(verbs.call("renew", renew, "let a claim last longer", "queue", "claim"))
    parser = verbs.call("release", release, "give back what a claim holds", "queue", "claim")
    text = "how long until its messages can be claimed again, such as 30s (at once)"
    duration(parser, "--delay", text)


def create(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
    """Claim messages."""
    given = {name: getattr(arguments, name) for name in ("limit", "ttl", "grace", "wait")}
    held = client.create_claim(arguments.queue, details=True, **given)
    if held is not None:
        output.line(f"claim {held.id}, for {duration_shown(held.ttl)}")
        output.rows(map(as_row, held.messages), _COLUMNS)
    elif not output.as_json:
        text = f"No message of {arguments.queue} can be claimed now"
        output.say(why_empty(client, arguments, text))


def run_each(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Work until interrupted, or until the queue is empty; 1 when a command failed.

    The worker's log, which goes to standard error, has a line for each failure.
    """
    if shutil.which(arguments.command_words[0]) is None:
        raise UsageError(f"there is no program {arguments.command_words[0]!r} to run")
    if not arguments.until_empty:
        output.say(f"Waiting for messages of {arguments.queue}; Ctrl-C ends.")
    options = sdk.WorkerOptions(concurrency=arguments.concurrency, batch=1, details=True)
    worker = sdk.Worker(partial(_handle, arguments), arguments.queue, options)
    done = worker.run(client, until_empty=arguments.until_empty)
    output.record({"queue": arguments.queue, **as_row(done)})
    return FAILED if done.failed or done.lost else None


def _handle(arguments: argparse.Namespace, message: "sdk.Message") -> None:
    """Run the command; its exit code decides what becomes of the message.

    Raises:
        Reject, Retry: the command did not succeed.
        KeyboardInterrupt: Ctrl-C ended it; its message is given back, which is not a failure.
    """
    try:
        code = subprocess.run(  # noqa: S603 - the user's own command
            arguments.command_words,
            input=json.dumps(message.body, ensure_ascii=False).encode(),
            env={**os.environ, "MESSAGE_ID": message.id, "MESSAGE_QUEUE": arguments.queue},
            timeout=arguments.time_limit,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired as error:
        raise sdk.Retry(reason="time_limit") from error
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if code == REJECTED:
        raise sdk.Reject(f"exit_{code}")
    if code != 0:
        raise sdk.Retry(reason=f"exit_{code}" if code > 0 else f"signal_{-code}")


def show(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show a claim."""
    held = client.get_claim(arguments.queue, arguments.claim, details=True)
    output.line(f"held for {duration_shown(held.age)} of {duration_shown(held.ttl)}")
    output.rows(
        map(as_row, held.messages), _COLUMNS, empty=f"The claim {arguments.claim} holds nothing."
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
    duration(parser, "--ttl", "how long it holds, such as 90s or 1h (5m)", default=300)
    text = "how long a message lives at least after the claim has ended (1m)"
    duration(parser, "--grace", text, default=60)

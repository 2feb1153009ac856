"""`zaqar-lite claim run`: a command for each message, settled by its exit code."""

import argparse
import json
import os
import shutil
import signal
import subprocess

from zaqar_lite.commands import sdk
from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.commands.running import FAILED, Leaves, add_duration, add_leaf
from zaqar_lite.commands.values import UsageError, at_least, seconds_above_zero

REJECTED = 65
"""The exit code (EX_DATAERR of sysexits.h) that says that no later try can help."""
_TEXT = (
    "run a command for each message: the body comes on standard input as JSON; exit code 0 deletes "
    f"the message, {REJECTED} makes it a dead letter, any other one is a failure"
)


def add_verb(verbs: Leaves) -> None:
    """Declare the command; what stands after `--` is the command to run."""
    parser = add_leaf(verbs, "run", run_each, _TEXT, "queue")
    parser.add_argument("command_words", nargs="+", metavar="COMMAND", help="after --")
    parser.add_argument("--concurrency", type=at_least(1), default=1, help="commands at a time (1)")
    text = "how long a command may take; then it is killed, which is a failure"
    add_duration(parser, "--time-limit", text, read=seconds_above_zero)
    parser.add_argument("--until-empty", action="store_true", help="end when nothing is left")


def run_each(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Work until interrupted, or until the queue is empty; 1 when a command failed.

    The worker's log, which goes to standard error, has a line for each failure.
    """

    def handle(message: "sdk.Message") -> None:
        _judge(_exit_code(message, arguments))

    if shutil.which(arguments.command_words[0]) is None:
        raise UsageError(f"there is no program {arguments.command_words[0]!r} to run")
    if not arguments.until_empty:
        output.say(f"Waiting for messages of {arguments.queue}; Ctrl-C ends.")
    options = sdk.WorkerOptions(concurrency=arguments.concurrency, batch=1, details=True)
    worker = sdk.Worker(handle, arguments.queue, options)
    done = worker.run(client, until_empty=arguments.until_empty)
    output.record({"queue": arguments.queue, **as_row(done)})
    return FAILED if done.failed or done.lost else None


def _exit_code(message: "sdk.Message", arguments: argparse.Namespace) -> int | None:
    """Return the command's exit code, None when its time was over."""
    try:
        return subprocess.run(  # noqa: S603 - the user's own command
            arguments.command_words,
            input=json.dumps(message.body, ensure_ascii=False).encode(),
            env={**os.environ, "MESSAGE_ID": message.id, "MESSAGE_QUEUE": arguments.queue},
            timeout=arguments.time_limit,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def _judge(code: int | None) -> None:
    """Decide by the exit code what becomes of the message, and raise that.

    Raises:
        Reject, Retry: the command did not succeed.
        KeyboardInterrupt: Ctrl-C ended it; its message is given back, which is not a failure.
    """
    if code == 0:
        return
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if code is None:
        raise sdk.Retry(reason="time_limit")
    if code == REJECTED:
        raise sdk.Reject(f"exit_{code}")
    raise sdk.Retry(reason=f"exit_{code}" if code > 0 else f"signal_{-code}")

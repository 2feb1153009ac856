"""The command line over the SDK, one module per noun.

Nothing here imports the SDK, an HTTP library or rich before a command runs, so that
`zaqar-lite --help` is quick.
"""

import argparse

from zaqar_lite.commands import (
    claim,
    completion,
    context,
    data_key,
    dlq,
    health,
    key,
    listen,
    message,
    pool,
    queue,
    quota,
    schedule,
    share,
    subscription,
    topic,
    watch,
)


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the commands; each leaf sets `run`, which answers its exit code."""
    for noun in (
        queue,
        message,
        claim,
        dlq,
        key,
        quota,
        pool,
        data_key,
        schedule,
        subscription,
        topic,
        listen,
        share,
        health,
        watch,
        context,
        completion,
    ):
        noun.add_command(subparsers)

"""`zaqar-lite message tail`: show messages as they come into a queue."""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator

from zaqar_lite.commands import sdk
from zaqar_lite.commands.output import Output, as_row, printable
from zaqar_lite.commands.running import Leaves, add_leaf
from zaqar_lite.commands.values import at_least

_WAIT = 20.0


def add_verb(verbs: Leaves) -> None:
    """Declare the command."""
    parser = add_leaf(verbs, "tail", tail, "show messages as they come, claiming none", "queue")
    parser.add_argument("--from-start", action="store_true", help="begin with those that are there")
    parser.add_argument("--count", type=at_least(1), metavar="N", help="end after N messages")


def tail(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
    """Follow a queue until interrupted: an id and a body a line, or a JSON line a message."""
    output.say(f"Waiting for messages of {arguments.queue}; Ctrl-C ends.")
    following = _follow(client, arguments.queue, from_start=arguments.from_start)
    for message in itertools.islice(following, arguments.count):
        if output.as_json:
            output.record(as_row(message))
        else:
            body = json.dumps(message.body, ensure_ascii=False)
            print(message.id, printable(body))
        sys.stdout.flush()


def _follow(client: "sdk.Client", queue: str, *, from_start: bool) -> Iterator["sdk.Message"]:
    """Yield messages as they come: from a stream, or by asking where the server has none."""
    start = "first" if from_start else "now"
    try:
        yield from client.events(queue, start=start, include_delayed=True)
    except sdk.NotFound:
        yield from _poll(client, queue, None if from_start else _newest(client, queue))


def _poll(client: "sdk.Client", queue: str, marker: str | None) -> Iterator["sdk.Message"]:
    while True:
        found = client.list_messages(
            queue, marker=marker, include_claimed=True, include_delayed=True, wait=_WAIT
        )
        for message in found:
            marker = message.id
            yield message


def _newest(client: "sdk.Client", queue: str) -> str | None:
    """Return the id of the message that came last, None in an empty queue."""
    newest = client.stats(queue).newest
    return newest.href.partition("?")[0].rpartition("/")[2] if newest is not None else None

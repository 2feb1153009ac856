"""`zaqar-lite queue`: make, change, list, count, empty and split queues."""

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from zaqar_lite.commands import declared
from zaqar_lite.commands.durations import whole_seconds
from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.commands.running import (
    Leaves,
    UsageError,
    add_leaf,
    add_noun,
    at_least,
    confirm,
    pairs,
)

if TYPE_CHECKING:
    from zaqar_lite.client import Client

# The options that stand for reserved metadata: option, key, how to read it, its name, help.
RESERVED: tuple[tuple[str, str, Callable[[str], int], str, str], ...] = (
    (
        "--ttl",
        "_default_message_ttl",
        whole_seconds,
        "DURATION",
        "how long a message lives by default, such as 30s, 5m, 1h, 2d",
    ),
    (
        "--delay",
        "_default_message_delay",
        whole_seconds,
        "DURATION",
        "how long until it can be claimed; above 0, delays work",
    ),
    (
        "--max-claims",
        "_max_claim_count",
        at_least(0),
        "N",
        "claims before a message is a dead letter",
    ),
    (
        "--max-failures",
        "_max_failures",
        at_least(0),
        "N",
        "failures before a message is a dead letter",
    ),
    (
        "--dead-letter-ttl",
        "_dead_letter_queue_messages_ttl",
        whole_seconds,
        "DURATION",
        "how long a dead letter lives",
    ),
)


def add_commands(subparsers: Leaves) -> None:
    """Declare the noun and its verbs."""
    verbs = add_noun(subparsers, "queue", "queues")
    parser = add_leaf(verbs, "list", list_, "list the project's queues")
    parser.add_argument("--name", help="only names that contain this")
    parser.add_argument("--detailed", action="store_true", help="show metadata too")
    parser = add_leaf(verbs, "names", names, "print the names of queues, one a line")
    parser.add_argument("prefix", nargs="?", default="", help="only names that begin with this")
    for verb, handler, text in (
        ("create", create, "make a queue; one that exists with other options is refused"),
        ("set", set_, "set metadata of a queue"),
    ):
        parser = add_leaf(verbs, verb, handler, text)
        parser.add_argument("queue")
        parser.add_argument(
            "metadata", nargs="*", metavar="KEY=VALUE", help="VALUE is JSON, or else a string"
        )
        for option, key, read, name, explanation in RESERVED:
            parser.add_argument(option, dest=key, type=read, metavar=name, help=explanation)
        parser.add_argument("--dead-letter-queue", dest="_dead_letter_queue", metavar="QUEUE")
    parser = add_leaf(verbs, "unset", unset, "remove metadata of a queue")
    parser.add_argument("queue")
    parser.add_argument("key", nargs="+")
    declared.add_verb(verbs)
    add_leaf(verbs, "show", show, "show a queue's metadata").add_argument("queue")
    add_leaf(verbs, "stats", stats, "count messages").add_argument("queue", nargs="+")
    parser = add_leaf(verbs, "ranges", ranges, "split a queue into parts to read in parallel")
    parser.add_argument("queue")
    parser.add_argument("count", type=at_least(1), help="how many parts")
    parser = add_leaf(verbs, "history", history, "list what was done, if the queue keeps a history")
    parser.add_argument("queue")
    parser.add_argument("--state", choices=("done", "failed"), default="done")
    parser = add_leaf(verbs, "purge", purge, "delete all messages of a queue, claimed ones too")
    parser.add_argument("queue")
    parser.add_argument("--subscriptions", action="store_true", help="delete its subscriptions too")
    _destructive(parser)
    parser = add_leaf(verbs, "delete", delete, "delete a queue with its messages")
    parser.add_argument("queue")
    _destructive(parser)


def list_(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """List queues."""
    found = client.list_queues(detailed=arguments.detailed, name=arguments.name)
    columns = ("name", "metadata") if arguments.detailed else ("name",)
    named = f" with {arguments.name!r} in their name" if arguments.name else ""
    output.rows(map(as_row, found), columns, empty=f"The project has no queues{named}.")


def names(client: "Client", arguments: argparse.Namespace, _output: Output) -> None:
    """Print names; `completing` does so where a word is being completed (`--line`)."""
    for queue in client.list_queues(name=arguments.prefix or None):
        if queue.name.startswith(arguments.prefix):
            print(queue.name)


def create(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Make a queue."""
    from zaqar_lite.client import QueueExists  # noqa: PLC0415 - only once a command runs

    try:
        created = client.create_queue(arguments.queue, _metadata(arguments) or None)
    except QueueExists as error:
        hint = f"`zaqar-lite queue set {arguments.queue} ...` changes it"
        raise QueueExists(error.title, f"{error.description}; {hint}") from error
    output.record({"queue": arguments.queue, "created": created})


def set_(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Set metadata."""
    metadata = _metadata(arguments)
    if not metadata:
        message = "nothing to set"
        raise UsageError(message)
    output.record(client.update_queue(arguments.queue, metadata))


def unset(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Remove metadata."""
    output.record(client.update_queue(arguments.queue, {}, remove=arguments.key))


def show(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show metadata."""
    output.record(client.get_queue(arguments.queue))


def stats(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Count messages."""
    output.rows(
        ({"queue": queue, **as_row(client.stats(queue))} for queue in arguments.queue),
        ("queue", "ready", "delayed", "claimed", "total"),
        empty="",
    )


def ranges(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Split a queue."""
    parts = client.ranges(arguments.queue, arguments.count)
    empty = f"{arguments.queue} is empty."
    output.rows(map(as_row, parts), ("marker", "until"), empty=empty)


def history(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """List what was done."""
    lines = client.history(arguments.queue, state=arguments.state)
    output.rows(
        map(as_row, lines),
        ("id", "at", "attempts", "consumers"),
        empty=f"Nothing of {arguments.queue} is kept as {arguments.state}.",
    )


def purge(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Empty a queue."""
    count = _count(client, arguments.queue)
    if not arguments.dry_run:
        confirm(arguments, f"Delete {count} messages of {arguments.queue}?")
        types = ["messages", *(["subscriptions"] if arguments.subscriptions else [])]
        client.purge(arguments.queue, types)
    output.record(_destroyed(arguments, "purged", count))


def delete(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Delete a queue."""
    count = _count(client, arguments.queue)
    if not arguments.dry_run:
        confirm(arguments, f"Delete {arguments.queue} with {count} messages?")
        client.delete_queue(arguments.queue)
    output.record(_destroyed(arguments, "deleted", count))


def _count(client: "Client", queue: str) -> int:
    """Count the messages of a queue that is there.

    Raises:
        QueueNotFound: it is not, and nothing would be destroyed.
    """
    from zaqar_lite.client import QueueNotFound  # noqa: PLC0415 - only once a command runs

    if not client.queue_exists(queue):
        raise QueueNotFound("No such queue", queue)
    return client.stats(queue).total


def _destroyed(arguments: argparse.Namespace, verb: str, count: int) -> dict[str, object]:
    done = not arguments.dry_run
    row: dict[str, object] = {"queue": arguments.queue, verb: done, "messages": count}
    return row | {"dry_run": arguments.dry_run}


def _destructive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")


def _metadata(arguments: argparse.Namespace) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, text in pairs(arguments.metadata, "metadata").items():
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    keys = [reserved[1] for reserved in RESERVED] + ["_dead_letter_queue"]
    given = {key: getattr(arguments, key) for key in keys}
    return found | {key: value for key, value in given.items() if value is not None}

"""`zaqar-lite queue`: make, change, list, count, empty and split queues."""

import argparse
import json
from typing import TYPE_CHECKING

from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.commands.running import Leaves, UsageError, add_leaf, add_noun, confirm, pairs

if TYPE_CHECKING:
    from zaqar_lite.client import Client

# The options that stand for reserved metadata: option, key, help.
RESERVED = (
    ("--ttl", "_default_message_ttl", "seconds that a message lives by default"),
    (
        "--delay",
        "_default_message_delay",
        "seconds until it can be claimed; above 0, delays work",
    ),
    ("--max-claims", "_max_claim_count", "deliveries before a message is a dead letter"),
    ("--dead-letter-ttl", "_dead_letter_queue_messages_ttl", "seconds that a dead letter lives"),
)


def add_command(subparsers: Leaves) -> None:
    """Declare the noun and its verbs."""
    verbs = add_noun(subparsers, "queue", "queues")
    parser = add_leaf(verbs, "list", list_, "list the project's queues")
    parser.add_argument("--name", help="only names that contain this")
    parser.add_argument("--detailed", action="store_true", help="show metadata too")
    for verb, handler, text in (
        ("create", create, "make a queue; an existing one is left as it is"),
        ("set", set_, "set metadata of a queue"),
    ):
        parser = add_leaf(verbs, verb, handler, text)
        parser.add_argument("queue")
        parser.add_argument(
            "metadata", nargs="*", metavar="KEY=VALUE", help="VALUE is JSON, or else a string"
        )
        for option, key, explanation in RESERVED:
            parser.add_argument(option, dest=key, type=int, metavar="N", help=explanation)
        parser.add_argument("--dead-letter-queue", dest="_dead_letter_queue", metavar="QUEUE")
    parser = add_leaf(verbs, "unset", unset, "remove metadata of a queue")
    parser.add_argument("queue")
    parser.add_argument("key", nargs="+")
    add_leaf(verbs, "show", show, "show a queue's metadata").add_argument("queue")
    add_leaf(verbs, "stats", stats, "count messages").add_argument("queue", nargs="+")
    parser = add_leaf(verbs, "ranges", ranges, "split a queue into parts to read in parallel")
    parser.add_argument("queue")
    parser.add_argument("count", type=int)
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
    output.rows(map(as_row, found), columns)


def create(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Make a queue."""
    created = client.create_queue(arguments.queue, _metadata(arguments) or None)
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
    )


def ranges(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Split a queue."""
    output.rows(map(as_row, client.ranges(arguments.queue, arguments.count)), ("marker", "until"))


def history(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """List what was done."""
    lines = client.history(arguments.queue, state=arguments.state)
    output.rows(map(as_row, lines), ("id", "at", "attempts", "consumers"))


def purge(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Empty a queue."""
    count = client.stats(arguments.queue).total
    if not arguments.dry_run:
        confirm(arguments, f"Delete {count} messages of {arguments.queue}?")
        types = ["messages", *(["subscriptions"] if arguments.subscriptions else [])]
        client.purge(arguments.queue, types)
    output.record({"queue": arguments.queue, "messages": count, "dry_run": arguments.dry_run})


def delete(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Delete a queue."""
    count = client.stats(arguments.queue).total
    if not arguments.dry_run:
        confirm(arguments, f"Delete {arguments.queue} with {count} messages?")
        client.delete_queue(arguments.queue)
    output.record({"queue": arguments.queue, "messages": count, "dry_run": arguments.dry_run})


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
    keys = [key for _, key, _ in RESERVED] + ["_dead_letter_queue"]
    given = {key: getattr(arguments, key) for key in keys}
    return found | {key: value for key, value in given.items() if value is not None}

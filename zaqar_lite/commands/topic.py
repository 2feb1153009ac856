"""`zaqar-lite topic`: post to many queues and receivers at once."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from zaqar_lite.commands.durations import whole_seconds
from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.commands.running import Leaves, UsageError, add_leaf, add_noun, pairs

if TYPE_CHECKING:
    from zaqar_lite.client import Client

_SUBSCRIPTIONS = ("id", "subscriber", "ttl", "age", "confirmed", "disabled")


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    verbs = add_noun(subparsers, "topic", "post to many queues and receivers at once")
    create = add_leaf(verbs, "create", create_topic, "make a topic")
    create.add_argument("topic")
    create.add_argument("--metadata", metavar="JSON", help="its metadata, an object")
    listed = add_leaf(verbs, "list", list_topics, "list topics")
    listed.add_argument("--name", metavar="TEXT", help="those with this in their name")
    for name, handler, text in (
        ("show", show, "show a topic's metadata"),
        ("delete", delete, "delete a topic"),
        ("subscriptions", list_subscriptions, "list a topic's subscriptions"),
    ):
        add_leaf(verbs, name, handler, text).add_argument("topic")
    posting = add_leaf(verbs, "post", post, "post a message to all who subscribe")
    posting.add_argument("topic")
    posting.add_argument("body", help="JSON, or text that is none")
    posting.add_argument("--ttl", type=whole_seconds, metavar="DURATION", help="how long it lives")
    posting.add_argument("--delay", type=whole_seconds, metavar="DURATION", help="when it is due")
    posting.add_argument("--header", action="append", default=[], metavar="KEY=VALUE")
    made = add_leaf(verbs, "subscribe", subscribe, "subscribe a queue, or a receiver")
    made.add_argument("topic")
    made.add_argument("subscriber", metavar="queue:NAME|URL")
    made.add_argument("--ttl", type=whole_seconds, metavar="DURATION", help="how long it lives")
    ended = add_leaf(verbs, "unsubscribe", unsubscribe, "end a subscription")
    ended.add_argument("topic")
    ended.add_argument("id")


def create_topic(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Make a topic."""
    metadata: Any = None
    if arguments.metadata is not None:
        try:
            metadata = json.loads(arguments.metadata)
        except ValueError:
            metadata = None
        if not isinstance(metadata, dict):
            message = "--metadata must be a JSON object"
            raise UsageError(message)
    created = client.create_topic(arguments.topic, metadata)
    output.record({"topic": arguments.topic, "created": created})


def list_topics(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """List topics."""
    rows = ({"name": one.name} for one in client.list_topics(name=arguments.name))
    output.rows(rows, ("name",), empty="No topics.")


def show(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show a topic."""
    output.record(client.get_topic(arguments.topic))


def delete(client: "Client", arguments: argparse.Namespace, _: Output) -> None:
    """Delete a topic."""
    client.delete_topic(arguments.topic)


def post(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Post a message."""
    from zaqar_lite.client import Topic  # noqa: PLC0415 - only once a command runs

    try:
        body = json.loads(arguments.body)
    except ValueError:
        body = arguments.body
    made = client.post(
        Topic(arguments.topic),
        body,
        ttl=arguments.ttl,
        delay=arguments.delay,
        headers=pairs(arguments.header, "--header") or None,
    )
    output.record({"id": made})


def subscribe(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Subscribe."""
    from zaqar_lite.client import Topic  # noqa: PLC0415 - only once a command runs

    made, secret = client.subscribe(Topic(arguments.topic), arguments.subscriber, ttl=arguments.ttl)
    output.record({"id": made, "secret": secret})


def list_subscriptions(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """List subscriptions."""
    from zaqar_lite.client import Topic  # noqa: PLC0415 - only once a command runs

    rows = (as_row(one) for one in client.list_subscriptions(Topic(arguments.topic)))
    output.rows(rows, _SUBSCRIPTIONS, empty=f"No subscriptions of {arguments.topic}.")


def unsubscribe(client: "Client", arguments: argparse.Namespace, _: Output) -> None:
    """End a subscription."""
    from zaqar_lite.client import Topic  # noqa: PLC0415 - only once a command runs

    client.unsubscribe(Topic(arguments.topic), arguments.id)

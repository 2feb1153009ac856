"""`zaqar-lite topic`: post to many queues and receivers at once."""

import argparse
from typing import TYPE_CHECKING

from zaqar_lite.commands.running import Leaves, add_call, add_duration, add_list, add_noun
from zaqar_lite.commands.subscription import COLUMNS
from zaqar_lite.commands.values import json_object, json_or_text, pairs

if TYPE_CHECKING:
    from zaqar_lite.client import Client, Topic


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    verbs = add_noun(subparsers, "topic", "post to many queues and receivers at once")
    create = add_call(verbs, "create", create_topic, "make a topic", "topic")
    create.add_argument("--metadata", type=json_object, metavar="JSON", help="its metadata")
    listed = add_list(
        verbs,
        "list",
        lambda client, given: ({"name": one.name} for one in client.list_topics(name=given.name)),
        "list topics",
        columns=("name",),
        empty="No topics.",
    )
    listed.add_argument("--name", metavar="TEXT", help="only names that contain this")
    text = "show a topic's metadata"
    add_call(verbs, "show", lambda client, given: client.get_topic(given.topic), text, "topic")
    text = "delete a topic"
    add_call(verbs, "delete", lambda client, given: client.delete_topic(given.topic), text, "topic")
    add_list(
        verbs,
        "subscriptions",
        lambda client, given: client.list_subscriptions(_topic(given)),
        "list a topic's subscriptions",
        "topic",
        columns=COLUMNS,
        empty="No subscriptions of {topic}.",
    )
    posting = add_call(verbs, "post", post, "post a message to all who subscribe", "topic")
    posting.add_argument("body", help="JSON, or else a string")
    add_duration(posting, "--ttl", "how long it lives, such as 1h or 2d")
    add_duration(posting, "--delay", "how long until it can be claimed, such as 30s or 5m")
    posting.add_argument("--header", action="append", default=[], metavar="KEY=VALUE")
    made = add_call(verbs, "subscribe", subscribe, "subscribe a queue, or a receiver", "topic")
    made.add_argument("subscriber", metavar="queue:NAME|URL")
    add_duration(made, "--ttl", "how long the subscription lives")
    add_call(
        verbs,
        "unsubscribe",
        lambda client, given: client.unsubscribe(_topic(given), given.id),
        "end a subscription",
        "topic",
        "id",
    )


def create_topic(client: "Client", given: argparse.Namespace) -> dict[str, object]:
    """Make a topic."""
    return {"topic": given.topic, "created": client.create_topic(given.topic, given.metadata)}


def post(client: "Client", given: argparse.Namespace) -> dict[str, object]:
    """Post a message."""
    headers = pairs(given.header, "--header") or None
    body = json_or_text(given.body)
    made = client.post(_topic(given), body, ttl=given.ttl, delay=given.delay, headers=headers)
    return {"id": made}


def subscribe(client: "Client", given: argparse.Namespace) -> dict[str, object]:
    """Subscribe."""
    made, secret = client.subscribe(_topic(given), given.subscriber, ttl=given.ttl)
    return {"id": made, "secret": secret}


def _topic(given: argparse.Namespace) -> "Topic":
    from zaqar_lite.client import Topic  # noqa: PLC0415 - only once a command runs

    return Topic(given.topic)

"""`zaqar-lite topic`: post to many queues and receivers at once."""

import argparse
from contextlib import suppress

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import duration, json_object, json_or_text
from zaqar_lite.commands.base_command import Leaves, Verbs, add_headers, check_made
from zaqar_lite.commands.output import Output
from zaqar_lite.commands.queue import show
from zaqar_lite.commands.subscription import add_list, subscribe


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    text = "post to many queues and receivers at once"
    verbs = Verbs.of(subparsers, "topic", text)
    create = verbs.call("create", create_topic, "make a topic", "topic")
    create.add_argument("--metadata", type=json_object, metavar="JSON", help="its metadata")
    listed = verbs.list(
        "list",
        lambda client, given: ({"name": one.name} for one in client.list_topics(name=given.name)),
        "list topics",
        columns=("name",),
    )
    listed.add_argument("--name", metavar="TEXT", help="only names that contain this")
    verbs.leaf("show", show, "show a topic's metadata", "topic")
    text = "delete a topic; its subscriptions stay"
    verbs.delete(
        text, lambda client, given: check_made(client, given.topic), "delete_topic", "topic"
    )
    add_list(verbs, "subscriptions", "topic")
    posting = verbs.leaf("post", post, "post a message to all who subscribe", "topic")
    posting.add_argument("body", type=json_or_text, help="JSON, or else a string")
    duration(posting, "--ttl", "how long it lives, such as 1h or 2d")
    duration(posting, "--delay", "how long until it can be claimed, such as 30s or 5m")
    add_headers(posting)
    made = verbs.call("subscribe", subscribe, "subscribe a queue, or a receiver", "topic")
    made.add_argument("subscriber", metavar="queue:NAME|URL")
    duration(made, "--ttl", "how long the subscription lives, such as 7d (1h)")
    words = ("topic", "id")
    text = "end a subscription"
    verbs.delete(text, "get_subscription", "unsubscribe", *words, name="unsubscribe")


def create_topic(client: "sdk.Client", given: argparse.Namespace) -> dict[str, object]:
    """Make a topic."""
    return {"topic": given.topic, "created": client.create_topic(given.topic, given.metadata)}


def post(client: "sdk.Client", given: argparse.Namespace, output: Output) -> None:
    """Post a message; tell a person when nobody subscribes, because nobody gets it then."""
    options = {"ttl": given.ttl, "delay": given.delay, "headers": given.headers}
    made = client.post(given.topic, given.body, **options)
    output.record({"id": made})
    if output.as_json:
        return
    with suppress(sdk.ZaqarError):  # who may post may perhaps not list
        if next(iter(client.list_subscriptions(given.topic)), None) is None:
            output.say(f"Nobody subscribes to {given.topic}: the message went nowhere.")

"""`zaqar-lite subscription`: who is sent a queue's messages, and what became of them."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zaqar_lite.commands.durations import instant, whole_seconds
from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.commands.running import FAILED, OK, Leaves, UsageError, add_leaf, add_noun
from zaqar_lite.webhooks import InvalidSignature, verify

if TYPE_CHECKING:
    from zaqar_lite.client import Client

_COLUMNS = ("id", "subscriber", "ttl", "age", "confirmed", "disabled")
_ATTEMPTS = ("at", "id", "attempt", "outcome", "status", "milliseconds", "error", "next_at")
_FAILED = ("id", "message_id", "at", "attempts", "reason")


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    verbs = add_noun(subparsers, "subscription", "send a queue's messages to a URL")
    create = add_leaf(
        verbs, "create", create_subscription, "subscribe, and print the secret: the only copy"
    )
    create.add_argument("queue")
    create.add_argument("subscriber", metavar="URL")
    create.add_argument("--ttl", type=whole_seconds, metavar="DURATION", help="how long it lives")
    create.add_argument("--options", metavar="JSON", help="its options, an object")
    add_leaf(verbs, "list", list_subscriptions, "list a queue's subscriptions").add_argument(
        "queue"
    )
    for name, handler, text in (
        ("show", show, "show a subscription"),
        ("delete", delete, "end a subscription"),
        ("enable", enable, "enable one that the server has disabled"),
        ("rotate", rotate, "make another secret; the one before is good for a day"),
        ("ping", ping, "send a test notification, and print what came back"),
    ):
        leaf = add_leaf(verbs, name, handler, text)
        leaf.add_argument("queue")
        leaf.add_argument("id")
    log = add_leaf(verbs, "log", show_log, "list the last attempts to deliver")
    log.add_argument("queue")
    log.add_argument("id")
    log.add_argument("--failed", action="store_true", help="what could not be delivered, instead")
    retry = add_leaf(verbs, "retry", retry_delivery, "deliver again")
    retry.add_argument("queue")
    retry.add_argument("id")
    retry.add_argument("delivery", help="the id of a failed delivery, or of a message")
    again = add_leaf(verbs, "replay", replay, "deliver again what the queue still has")
    again.add_argument("queue")
    again.add_argument("id")
    again.add_argument("--from", dest="since", type=instant, metavar="TIME", help="posted since")
    again.add_argument("--until", type=instant, metavar="TIME", help="posted before")
    checked = add_leaf(
        verbs, "verify", verify_request, "verify a request that was received; asks no server"
    )
    checked.add_argument("--secret", required=True, metavar="SECRET", help="the subscription's")
    checked.add_argument("--headers", required=True, metavar="JSON", help="the headers, an object")
    checked.add_argument("body", metavar="FILE", help="the body as it came; - reads it from stdin")


def create_subscription(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Subscribe."""
    options = {} if arguments.options is None else _object("--options", arguments.options)
    made, secret = client.subscribe(
        arguments.queue, arguments.subscriber, ttl=arguments.ttl, options=options
    )
    output.record({"id": made, "secret": secret})


def list_subscriptions(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """List subscriptions."""
    rows = (as_row(one) for one in client.list_subscriptions(arguments.queue))
    output.rows(rows, _COLUMNS, empty=f"No subscriptions of {arguments.queue}.")


def show(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show a subscription."""
    output.record(as_row(client.get_subscription(arguments.queue, arguments.id)))


def delete(client: "Client", arguments: argparse.Namespace, _: Output) -> None:
    """End a subscription."""
    client.unsubscribe(arguments.queue, arguments.id)


def enable(client: "Client", arguments: argparse.Namespace, _: Output) -> None:
    """Enable a subscription."""
    client.update_subscription(arguments.queue, arguments.id, disabled=False)


def rotate(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Make another secret."""
    output.record({"secret": client.rotate_secret(arguments.queue, arguments.id)})


def ping(client: "Client", arguments: argparse.Namespace, output: Output) -> int:
    """Send a test notification."""
    answer = client.ping_subscription(arguments.queue, arguments.id)
    output.record(as_row(answer))
    return OK if answer.outcome == "delivered" else FAILED


def show_log(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """List attempts, or what failed."""
    if arguments.failed:
        rows = (as_row(one) for one in client.failed_deliveries(arguments.queue, arguments.id))
        output.rows(rows, _FAILED, empty="Nothing failed in the last 7 days.")
        return
    attempts = client.deliveries(arguments.queue, arguments.id)
    output.rows((as_row(one) for one in attempts), _ATTEMPTS, empty="No attempts yet.")


def retry_delivery(client: "Client", arguments: argparse.Namespace, _: Output) -> None:
    """Deliver again."""
    client.retry_delivery(arguments.queue, arguments.id, arguments.delivery)


def replay(client: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Deliver a span of time again."""
    count = client.replay_messages(
        arguments.queue, arguments.id, since=arguments.since, until=arguments.until
    )
    output.record({"replayed": count})


def verify_request(_: "Client", arguments: argparse.Namespace, output: Output) -> int:
    """Verify a request."""
    body = sys.stdin.buffer.read() if arguments.body == "-" else Path(arguments.body).read_bytes()
    headers = {name: str(value) for name, value in _object("--headers", arguments.headers).items()}
    try:
        output.record({"id": verify(headers, body, arguments.secret)})
    except InvalidSignature as exc:
        print(f"zaqar-lite: {exc}", file=sys.stderr)
        return FAILED
    return OK


def _object(option: str, text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        message = f"{option} must be a JSON object"
        raise UsageError(message)
    return value

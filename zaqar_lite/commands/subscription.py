"""`zaqar-lite subscription`: send a queue's messages to a URL, and see what became of them."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import duration, flag, instant, json_object
from zaqar_lite.commands.base_command import FAILED, OK, Leaves, Verbs, explain
from zaqar_lite.commands.output import Output, as_row
from zaqar_lite.webhooks import InvalidSignature, verify

_COLUMNS = ("id", "subscriber", "ttl", "age", "confirmed", "disabled")
_ATTEMPTS = ("at", "id", "attempt", "outcome", "status", "milliseconds", "error", "next_at")
_FAILED = ("message_id", "attempts", "reason")


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    verbs = Verbs.of(subparsers, "subscription", "send a queue's messages to a URL")
    text = "subscribe, and print the secret: this is the only time"
    create = verbs.call("create", subscribe, text, "queue")
    create.add_argument("subscriber", metavar="URL")
    duration(create, "--ttl", "how long the subscription lives, such as 7d (1h)")
    create.add_argument("--options", type=json_object, metavar="JSON", help="its options")
    add_list(verbs, "list", "queue")
    words = ("queue", "id")
    verbs.call("show", "get_subscription", "show a subscription", *words)
    verbs.call("enable", enable, "enable a subscription that the server has disabled", *words)
    text = "make another secret; the one before still works for a day"
    verbs.call("rotate", "rotate_secret", text, *words, prints="secret")
    verbs.delete("end a subscription", "get_subscription", "unsubscribe", *words)
    verbs.leaf("ping", ping, "send a test notification, and print what came back", *words)
    log = verbs.list(
        "log",
        attempts,
        "list the last attempts to deliver",
        *words,
        columns=(*_ATTEMPTS, *_FAILED),
        empty="Nothing was tried yet, or failed in the last 7 days.",
    )
    flag(log, "--failed", "list what could not be delivered, instead")
    retry = verbs.call("retry", "retry_delivery", "deliver again", *words)
    text = "the id of a failed delivery, or of a message"
    retry.add_argument("delivery_id", metavar="delivery", help=text)
    text = "deliver again what the queue still has"
    again = verbs.call("replay", "replay_messages", text, *words, prints="replayed")
    again.add_argument("--from", dest="since", type=instant, metavar="TIME", help="posted since")
    again.add_argument("--until", type=instant, metavar="TIME", help="posted before")
    text = "verify a request that was received; asks no server"
    checked = verbs.leaf("verify", verify_request, text)
    checked.add_argument("--secret", required=True, help="the subscription's")
    text = "the headers of the request"
    checked.add_argument("--headers", type=json_object, required=True, metavar="JSON", help=text)
    checked.add_argument("body", metavar="FILE", help="its body as it came; - reads it from stdin")


def add_list(verbs: Verbs, name: str, source: str) -> None:
    """Declare the verb that lists the subscriptions of a queue, or a topic."""
    text, empty = f"list a {source}'s subscriptions", f"No subscriptions of {{{source}}}."
    verbs.list(name, "list_subscriptions", text, source, columns=_COLUMNS, empty=empty)


def subscribe(client: "sdk.Client", given: argparse.Namespace) -> dict[str, str | None]:
    """Subscribe to a queue or a topic."""
    source, options = vars(given).get("topic") or given.queue, vars(given).get("options")
    made, secret = client.subscribe(source, given.subscriber, ttl=given.ttl, options=options)
    return {"id": made, "secret": secret}


def enable(client: "sdk.Client", given: argparse.Namespace) -> None:
    """Enable a subscription."""
    client.update_subscription(given.queue, given.id, disabled=False)


def ping(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int:
    """Send a test notification."""
    answer = client.ping_subscription(arguments.queue, arguments.id)
    output.record(as_row(answer))
    return OK if answer.outcome == "delivered" else FAILED


def attempts(client: "sdk.Client", given: argparse.Namespace) -> Iterable[object]:
    """List attempts, or what failed."""
    read = client.failed_deliveries if given.failed else client.deliveries
    return read(given.queue, given.id)


def verify_request(_: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int:
    """Verify a request."""
    body = sys.stdin.buffer.read() if arguments.body == "-" else Path(arguments.body).read_bytes()
    headers = {name: str(value) for name, value in arguments.headers.items()}
    try:
        output.record({"id": verify(headers, body, arguments.secret)})
    except InvalidSignature as exc:
        return explain(exc, FAILED)
    return OK

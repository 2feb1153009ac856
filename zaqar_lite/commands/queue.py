"""`zaqar-lite queue`, `share` and `unshare`: make, change, count, empty and share queues."""

import argparse
import dataclasses
import datetime as dt
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import (
    UsageError,
    at_least,
    duration,
    flag,
    json_or_text,
    number,
    pair,
    repeated,
    seconds_above_zero,
    whole_seconds,
)
from zaqar_lite.commands.base_command import OK, Leaves, Verbs, check_made, confirm, is_absent
from zaqar_lite.commands.output import Output, as_row

_FILED = ("message_ttl", "delay", "dead_letter_ttl", "done_retention", "failed_retention")
_READ: Mapping[str, Callable[[str], object]] = {
    "DURATION": whole_seconds,
    "N": at_least(0),
    "QUEUE": str,
}
_OPTIONS = (
    ("--ttl", "DURATION", "_default_message_ttl", "how long a message lives, such as 5m or 2d"),
    ("--delay", "DURATION", "_default_message_delay", "its default delay; above 0, delays work"),
    ("--max-claims", "N", "_max_claim_count", "claims before a message is a dead letter"),
    ("--max-failures", "N", "_max_failures", "failures before a message is a dead letter"),
    ("--dead-letter-queue", "QUEUE", "_dead_letter_queue", "where dead letters go"),
    ("--dead-letter-ttl", "DURATION", "_dead_letter_queue_messages_ttl", "and for how long"),
)
"""Options for keys of the metadata."""


def add_commands(subparsers: Leaves) -> None:
    """Declare the noun and its verbs."""
    verbs = Verbs.of(subparsers, "queue", "make, change, list, count and empty queues")
    parser = verbs.list(
        "list",
        "list_queues",
        "list the project's queues",
        columns=("name", "metadata"),
        empty=lambda given: f"The project has no queues{_named(given.name)}.",
    )
    parser.add_argument("--name", help="only names that contain this")
    flag(parser, "--detailed", "show metadata too")
    parser = verbs.leaf("names", names, "print the names of queues, one a line")
    parser.add_argument("prefix", nargs="?", default="", help="only names that begin with this")
    text = "make a queue; one that exists with other options is refused"
    _add_metadata(verbs.call("create", create, text, "queue"))
    _add_metadata(verbs.call("set", set_, "set metadata of a queue", "queue"))
    parser = verbs.call(
        "unset",
        lambda client, given: client.update_queue(given.queue, {}, remove=given.key),
        "remove metadata of a queue",
        "queue",
    )
    parser.add_argument("key", nargs="+")
    parser = verbs.leaf("apply", apply, "make queues match a file")
    parser.description = (
        "Make queues match a YAML or JSON file, and print each difference first. "
        "Queues and keys that the file does not name stay as they are."
    )
    parser.epilog = (
        'a file: {"queues": {"orders": {"max_failures": 5, "dead_letter_queue": "dead"}, '
        '"dead": {"message_ttl": "14d"}}}'
    )
    parser.add_argument("file", help="the file; - for standard input")
    flag(parser, "--dry-run", "only print the differences")
    verbs.leaf("show", show, "show a queue's metadata", "queue")
    verbs.leaf("stats", stats, "count messages").add_argument("queue", nargs="+")
    parser = verbs.list(
        "ranges",
        lambda client, given: map(dataclasses.asdict, client.ranges(given.queue, given.count)),
        "split a queue into parts to read in parallel",
        "queue",
        columns=("marker", "until"),
        empty="{queue} is empty.",
    )
    number(parser, "count", "how many parts")
    parser = verbs.list(
        "history",
        lambda client, given: client.history(given.queue, state=given.state),
        "list messages that were deleted or that failed, if the queue keeps a history",
        "queue",
        columns=("id", "at", "attempts", "consumers"),
        empty="No {state} messages of {queue} are kept (for how long, _{state}_retention says).",
    )
    text = "which of them (done)"
    parser.add_argument("--state", choices=("done", "failed"), default="done", help=text)
    parser = verbs.call("purge", purge, "delete all messages of a queue, claimed ones too", "queue")
    flag(parser, "--subscriptions", "delete its subscriptions too")
    _destructive(parser)
    _destructive(verbs.call("delete", delete, "delete a queue with its messages", "queue"))
    _add_share(Verbs(subparsers))


def _add_share(verbs: Verbs) -> None:
    """Declare `share` and `unshare`."""
    text = "print a pre-signed permission for a queue; others use it with --signed FILE"
    parser = verbs.leaf("share", share, text, "queue")
    paths = ("messages", "claims", "subscriptions", "events")
    text = f"what may be reached: {', '.join(paths)} (messages); may be repeated"
    repeated(parser, "--path", "PATH", text, choices=paths)
    repeated(parser, "--method", "GET", "what may be done (GET); may be repeated")
    text = "how long it lasts, such as 30m or 7d (1d)"
    duration(parser, "--lasts", text, default=86_400, read=seconds_above_zero)
    text = "print the address of the queue's events for a browser, instead of --path"
    flag(parser, "--address", text)
    text = "revoke all permissions that were made for a queue"
    verbs.call("unshare", unshare, text, "queue")


def _add_metadata(parser: argparse.ArgumentParser) -> None:
    text = "VALUE is JSON, or else a string"
    parser.add_argument("metadata", nargs="*", type=pair, metavar="KEY=VALUE", help=text)
    for option, metavar, key, text in _OPTIONS:
        parser.add_argument(option, dest=key, type=_READ[metavar], metavar=metavar, help=text)


def _named(name: str | None) -> str:
    return f" with {name!r} in their name" if name else ""


def names(client: "sdk.Client", arguments: argparse.Namespace, _output: Output) -> None:
    """Print names."""
    for queue in client.list_queues(name=arguments.prefix or None):
        if queue.name.startswith(arguments.prefix):
            print(queue.name)


def create(client: "sdk.Client", given: argparse.Namespace) -> dict[str, object]:
    """Make a queue."""
    try:
        return {"queue": given.queue, "created": client.create_queue(given.queue, _given(given))}
    except sdk.QueueExists as error:
        hint = f"`zaqar-lite queue set {given.queue} ...` changes it"
        raise sdk.QueueExists(error.title, f"{error.description}; {hint}") from error


def set_(client: "sdk.Client", given: argparse.Namespace) -> dict[str, object]:
    """Set metadata."""
    metadata = _given(given)
    if metadata is None:
        raise UsageError("nothing to set: give KEY=VALUE, or an option such as --delay 30s")
    return client.update_queue(given.queue, metadata)


def show(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show metadata: the server's defaults for a queue, or topic, that nobody has made."""
    noun = arguments.command
    name = getattr(arguments, noun)
    output.record(client.get_queue(name))
    if not output.as_json and is_absent(client, name):
        output.say(f"There is no {noun} {name}: these are the server's defaults.")


def stats(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
    """Count messages."""
    counted = {queue: client.stats(queue) for queue in arguments.queue}
    output.rows(
        ({"queue": queue, **as_row(found)} for queue, found in counted.items()),
        ("queue", "ready", "delayed", "claimed", "total"),
        empty="",
    )
    for queue in counted:
        if not output.as_json and is_absent(client, queue):
            output.say(f"There is no queue {queue}.")


def purge(client: "sdk.Client", given: argparse.Namespace) -> dict[str, object]:
    """Empty a queue."""
    types = ["messages", *(["subscriptions"] if given.subscriptions else [])]
    question = f"Delete {{}} messages of {given.queue}?"
    return _destroy(client, given, "purged", question, lambda: client.purge(given.queue, types))


def delete(client: "sdk.Client", given: argparse.Namespace) -> dict[str, object]:
    """Delete a queue."""
    question = f"Delete {given.queue} with {{}} messages?"
    return _destroy(client, given, "deleted", question, lambda: client.delete_queue(given.queue))


def _destroy(
    client: "sdk.Client",
    given: argparse.Namespace,
    done: str,
    question: str,
    destroy: Callable[[], None],
) -> dict[str, object]:
    """Count the messages of a queue, if one may, ask, and destroy them, unless that is only tried.

    Raises:
        NotFound: the queue is not there, and nothing would be destroyed.
    """
    count, dry_run = None, given.dry_run
    with suppress(sdk.Forbidden):
        count = client.stats(given.queue).total
        check_made(client, given.queue)
    if not dry_run:
        confirm(given, question.format("all" if count is None else count))
        destroy()
    return {"queue": given.queue, done: not dry_run, "messages": count, "dry_run": dry_run}


def _destructive(parser: argparse.ArgumentParser) -> None:
    flag(parser, "--yes", "do not ask")
    flag(parser, "--dry-run", "only say what would be deleted")


def _given(given: argparse.Namespace) -> dict[str, object] | None:
    """Return the metadata that the words say, None for none."""
    found: dict[str, object] = {key: json_or_text(text) for key, text in given.metadata}
    options = {key: getattr(given, key) for _, _, key, _ in _OPTIONS}
    return found | {key: value for key, value in options.items() if value is not None} or None


def share(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
    """Print a permission."""
    try:
        expires = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=arguments.lasts)
    except OverflowError as error:
        raise UsageError("--lasts is beyond the end of the calendar") from error
    signed = client.share(
        arguments.queue,
        paths=["events"] if arguments.address else arguments.path or ["messages"],
        methods=arguments.method or ["GET"],
        expires=expires,
    )
    if arguments.address:
        output.record({"address": signed.address(client.url), "expires": signed.expires})
    else:
        output.record(as_row(signed))


def unshare(client: "sdk.Client", given: argparse.Namespace) -> dict[str, object]:
    """Revoke permissions, which a queue that nobody has made may have, too.

    Raises:
        NotFound: there is no such queue; for this name they are revoked all the same.
    """
    client.unshare(given.queue)
    if is_absent(client, given.queue):
        raise sdk.NotFound("No such queue", given.queue)
    return {"queue": given.queue, "revoked": True}


def apply(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int:
    """Print how the queues differ from the file, then change them."""
    wanted = read(arguments.file)
    found = [
        one for queue, metadata in wanted.items() for one in _differences(client, queue, metadata)
    ]
    columns = ("queue", "act", "key", "now", "wanted")
    output.rows(found, columns, empty="Every queue is as the file says.")
    if not arguments.dry_run:
        for queue in dict.fromkeys(str(one["queue"]) for one in found):
            client.ensure_queue(queue, wanted[queue])
    return OK


def read(name: str) -> dict[str, dict[str, Any]]:
    """Read a file of queues; return the metadata of each by its name.

    Raises:
        UsageError: the file says something else; nothing was changed.
    """
    import yaml  # noqa: PLC0415 - only this command needs it

    text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        problem = getattr(error, "problem", None) or "it can't be read"
        raise UsageError(f"{name} is neither YAML nor JSON: {problem}{place}") from error
    queues = document.get("queues") if isinstance(document, dict) else None
    if not isinstance(queues, dict) or set(document) != {"queues"}:
        raise UsageError(f"{name} must have one key, `queues`: an object of queues by name")
    if odd := [one for one in queues if type(one) not in {str, int}]:
        raise UsageError(f"{odd[0]!r} in {name} is no name of a queue: put it in quotes")
    return {str(queue): _metadata(str(queue), options) for queue, options in queues.items()}


def _metadata(queue: str, options: object) -> dict[str, Any]:
    """Return a queue's metadata; its options have the names of those of `QueueOptions`."""
    if not isinstance(options, dict | None):
        raise UsageError(f"the options of {queue} must be an object")
    fields: dict[str, Any] = options or {}
    known = [*sdk.queue_options.KEYS, "metadata"]
    if unknown := [name for name in fields if name not in known]:
        there = ", ".join(known)
        raise UsageError(f"{unknown[0]!r} of {queue} is not an option; there are {there}")
    try:
        durations = {name: whole_seconds(str(fields[name])) for name in fields if name in _FILED}
        return sdk.queue_options.checked(sdk.QueueOptions(**(fields | durations)))
    except (TypeError, ValueError, argparse.ArgumentTypeError) as error:
        raise UsageError(f"{queue}: {error}") from error


def _differences(
    client: "sdk.Client", queue: str, metadata: dict[str, Any]
) -> Iterator[dict[str, object]]:
    """Yield each key that is not as the file says; `now` is None if the queue does not have it."""
    act, now, different = "create", dict[str, Any](), metadata or {"": None}
    if client.queue_exists(queue):
        act, now = "change", client.get_queue(queue)
        different = sdk.queue_options.differing(metadata, now)
    for key, value in different.items():
        yield {"queue": queue, "act": act, "key": key, "now": now.get(key), "wanted": value}

"""`zaqar-lite message`: post (one, or a file), list, tail, show, edit, cancel, delete, settle."""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice

from zaqar_lite.commands import jobs, sdk
from zaqar_lite.commands.argument_types import (
    UsageError,
    above_zero,
    at_least,
    duration,
    flag,
    instant,
    json_or_text,
    number,
    repeated,
    seconds_above_zero,
    signed_seconds,
)
from zaqar_lite.commands.base_command import FAILED, POST_OPTIONS, Leaves, Verbs, add_headers
from zaqar_lite.commands.output import Output, as_row, printable

COLUMNS = ("id", "age", "ttl", "body", "claim_count", "delay_expires")
ABSENT = "no such message"
_ATTEMPTS = ("number", "ended_at", "outcome", "delay", "reason", "detail", "client_id")
_SETTLED = {"release": "released", "extend": "extended", "dead": "dead"}
"""What the verbs that need a claim call what they have done."""


def add_commands(subparsers: Leaves) -> None:
    """Declare the noun and its verbs."""
    verbs = Verbs.of(subparsers, "message", "post, list, edit, cancel and delete messages")
    _declare_post(verbs.leaf("post", post, "post messages: the words given, or a file", "queue"))
    parser = verbs.list(
        "list",
        "list_messages",
        "list messages, claiming none",
        "queue",
        columns=COLUMNS,
        empty="No messages to show in {queue}",
    )
    parser.add_argument("--marker", help="begin after this id or marker")
    parser.add_argument("--until", help="end with this id or marker")
    number(parser, "--limit", "messages at most")
    text = "leave out one's own (--client-id)"
    parser.add_argument("--no-echo", dest="echo", action="store_false", help=text)
    flag(parser, "--include-claimed", "show claimed ones too")
    flag(parser, "--include-delayed", "show delayed ones too")
    text = "show claim counts, times, headers, attempts and where dead letters came from"
    flag(parser, "--details", text)
    add_wait(parser, "follow the queue until no message came for this long")
    parser = verbs.leaf("tail", tail, "show messages as they come, claiming none", "queue")
    flag(parser, "--from-start", "begin with those that are there")
    number(parser, "--count", "end after N messages")
    parser = add_show(verbs, "show messages by id, with their attempts")
    flag(parser, "--details", argparse.SUPPRESS)
    parser = verbs.call("edit", "edit", "change a message that is still delayed", "queue", "id")
    parser.add_argument("--body", type=_body, default=..., help="JSON, or else a string")
    _times(parser)
    _if_due(parser)
    parser = verbs.leaf("move", move, "make delayed messages due at another time", "queue")
    _choice(parser)
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--to", type=instant, metavar="TIME", help="when (ISO 8601)")
    duration(when, "--by", "how much later, such as 5m, or -5m for earlier", read=signed_seconds)
    _if_due(parser)
    parser = verbs.leaf("cancel", cancel, "take back messages that nobody holds", "queue")
    _choice(parser)
    parser = verbs.leaf("delete", delete, "delete messages that a claim holds", "queue")
    parser.add_argument("id", nargs="+")
    group = parser.add_mutually_exclusive_group(required=True)
    repeated(group, "--claim", "ID", "the claim that holds them")
    flag(group, "--force", "delete them whoever holds them")
    parser = verbs.list(
        "pop",
        lambda client, given: client.pop(given.queue, given.limit, wait=given.wait),
        "take messages out at once; a lost answer loses them",
        "queue",
        columns=COLUMNS,
        empty="{queue} has nothing to take",
    )
    number(parser, "--count", "messages at most (1)", default=1, dest="limit")
    add_wait(parser, "how long to wait for one")
    _add_settling(verbs)


def add_show(verbs: Verbs, text: str) -> argparse.ArgumentParser:
    """Declare the verb `show`."""
    parser = verbs.leaf("show", show, text, "queue")
    parser.add_argument("id", nargs="+")
    return parser


def show(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
    """Show messages by id, one after the other.

    Raises:
        MessageNotFound: some of them do not exist; the others were shown.
    """
    queue, wanted = arguments.queue, arguments.id
    found = {message.id: message for message in client.get_messages(queue, wanted, details=True)}
    for one in wanted:
        if one in found:
            _show_one(found[one], output)
    missing = [one for one in wanted if one not in found]
    if missing:
        raise sdk.MessageNotFound("Not found", f"no message {', '.join(missing)} in {queue}")


def _show_one(message: "sdk.Message", output: Output) -> None:
    record = as_row(message)
    if output.as_json:
        output.record(record)
        return
    record.pop("attempts", None)  # they have a table of their own
    output.record(record)
    if message.attempts:
        output.rows(map(as_row, message.attempts), _ATTEMPTS)
    elif message.attempts is not None:
        output.line("No attempt has ended yet.")


def add_wait(parser: argparse.ArgumentParser, text: str) -> None:
    """Declare how long a command waits for messages."""
    duration(parser, "--wait", f"{text}, such as 30s", default=0, read=seconds_above_zero)


def _choice(parser: argparse.ArgumentParser) -> None:
    """Declare which messages are meant, and how fast a job acts on them."""
    parser.add_argument("id", nargs="*")
    text = "instead of ids: all delayed messages that were posted in this group"
    parser.add_argument("--group", help=text)
    jobs.add_options(parser)


def _declare_post(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("body", nargs="*", help="bodies: JSON, or else strings")
    flag(parser, "--text", "post bodies as strings, even if they are JSON")
    parser.add_argument("--key", help="idempotency key of the message (for one body only)")
    add_headers(parser)
    parser.add_argument("--group", help="a group that jobs can choose by")
    _times(parser)
    group = parser.add_argument_group("posting a file")
    group.add_argument("--file", metavar="FILE", help="a message per line or row; - reads stdin")
    text = "lines of JSON (the default), lines of text, or CSV with a header (for *.csv)"
    group.add_argument("--format", choices=("jsonl", "text", "csv"), help=text)
    group.add_argument(
        "--body-column",
        default="body",
        metavar="NAME",
        help="CSV: the column with the body, a string (body); columns ttl, delay, deliver_at and "
        "idempotency_key are understood too",
    )
    text = "name of this import: the same file under the same name stores nothing twice"
    group.add_argument("--run", dest="run_name", metavar="NAME", help=text)
    text = "write refused messages to this file, and go on"
    group.add_argument("--rejects", metavar="FILE", help=text)
    for option, default, text in (
        ("--batch-size", 100, "messages per request (100)"),
        ("--batch-bytes", 262_144, "bytes per request (262144)"),
        ("--in-flight", 8, "requests at a time (8)"),
    ):
        group.add_argument(option, type=at_least(1), default=default, help=text)
    group.add_argument("--rate", type=above_zero, help="messages per second at most")
    flag(group, "--dry-run", "read and count, post nothing")


def post(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Post the words given, or a file."""
    if bool(arguments.body) == (arguments.file is not None):
        raise UsageError("give bodies, or --file")
    if arguments.key is not None and len(arguments.body) != 1:
        raise UsageError("--key goes with exactly one body")
    if arguments.file is not None:
        from zaqar_lite.commands import file_posting  # noqa: PLC0415 - loads what only a file needs

        return file_posting.post_file(client, arguments, output)
    messages = [_new_message(arguments, text) for text in arguments.body]
    if arguments.dry_run:
        output.record({"queue": arguments.queue, "messages": len(messages), "dry_run": True})
        return None
    ids = client.post_batch(arguments.queue, messages)
    rows = [{"id": one} | ({"duplicate": True} if one in ids.duplicates else {}) for one in ids]
    output.rows(rows, ("id", "duplicate"))
    return None


def tail(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
    """Follow a queue until interrupted: an id and a body a line, or a JSON line a message."""
    output.say(f"Waiting for messages of {arguments.queue}; Ctrl-C ends.")
    following = _follow(client, arguments.queue, from_start=arguments.from_start)
    for message in islice(following, arguments.count):
        if output.as_json:
            output.record(as_row(message))
        else:
            body = json.dumps(message.body, ensure_ascii=False)
            print(message.id, printable(body))
        sys.stdout.flush()


def _follow(client: "sdk.Client", queue: str, *, from_start: bool) -> Iterator["sdk.Message"]:
    """Yield messages as they come: from a stream, or from a list that waits.

    The server may have no streams, or a permission may be for messages alone.
    """
    start = "first" if from_start else "now"
    try:
        yield from client.events(queue, start=start, include_delayed=True)
    except sdk.NotFound:
        newest = None if from_start else client.stats(queue).newest
        yield from client.list_messages(
            queue,
            marker=None if newest is None else newest.message_id,
            include_claimed=True,
            include_delayed=True,
            wait=math.inf,
        )


def move(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Make delayed messages due at another time."""
    when = {name: getattr(arguments, name) for name in ("to", "by", "if_due")}
    return _by_job(client, arguments, output, "move", **when)


def _by_job(
    client: "sdk.Client", arguments: argparse.Namespace, output: Output, act: str, **order: object
) -> int | None:
    """Have the server act on the messages that are meant, and follow its job."""
    chosen, rate = _chosen(arguments), arguments.rate
    jobs.check_queue(client, arguments.queue)
    job = client.act_on_delayed(arguments.queue, act, **chosen, **order, max_per_second=rate)
    return jobs.follow(client, job, output, watch=arguments.watch)


def _if_due(parser: argparse.ArgumentParser) -> None:
    text = "only what is due then (ISO 8601)"
    parser.add_argument("--if-due", type=instant, metavar="TIME", help=text)


def _chosen(arguments: argparse.Namespace) -> dict[str, object]:
    """Read which messages are meant: some ids, or a group.

    Raises:
        UsageError: neither, or both.
    """
    if (arguments.group is None) == (not arguments.id):
        raise UsageError("give ids, or --group")
    if arguments.group is None:
        return {"ids": arguments.id}
    return {"filter": {"group": arguments.group}}


def cancel(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Take messages back."""
    if "ids" not in _chosen(arguments):
        return _by_job(client, arguments, output, "cancel")
    reasons = _missing(client, arguments)
    for one in [one for one, reason in reasons.items() if reason is None]:
        try:
            client.cancel(arguments.queue, one)
        except sdk.MessageClaimed:
            reasons[one] = "somebody holds it"
    return _report(output, reasons, "cancelled")


def delete(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Delete messages."""
    reasons = _missing(client, arguments)
    client.delete_messages(
        arguments.queue, arguments.id, claim_ids=arguments.claim or None, force=arguments.force
    )
    return _report(output, reasons, "deleted")


def _missing(client: "sdk.Client", arguments: argparse.Namespace) -> dict[str, str | None]:
    """Return for each message why nothing can be done to it: it is not there, or nothing.

    The server does not say what a delete found. Who may delete and not look is told of none.
    """
    there = set(arguments.id)
    with suppress(sdk.Forbidden):
        there = {message.id for message in client.get_messages(arguments.queue, arguments.id)}
    return {one: None if one in there else ABSENT for one in arguments.id}


def _times(parser: argparse.ArgumentParser) -> None:
    duration(parser, "--ttl", "how long it lives, such as 1h or 2d")
    group = parser.add_mutually_exclusive_group()
    duration(group, "--delay", "how long until it can be claimed, such as 30s or 5m")
    text = "when it can be claimed (ISO 8601)"
    group.add_argument("--deliver-at", type=instant, metavar="TIME", help=text)


def _body(text: str) -> object:
    """Return a word as JSON, or else as the string that it is."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("a body is not valid UTF-8: encode binary data, as base64 does") from None
    found: object = json_or_text(text)
    if found is text and text.startswith(("{", "[")):
        warning = "is not valid JSON and is posted as a string (--text says that you mean it)"
        print(f"zaqar-lite: warning: {printable(text[:40])} {warning}", file=sys.stderr)
    return found


def _new_message(arguments: argparse.Namespace, text: str) -> "sdk.NewMessage":
    return sdk.NewMessage(
        body=text if arguments.text else _body(text),
        idempotency_key=arguments.key,
        **{name: getattr(arguments, name) for name in POST_OPTIONS},
    )


def _add_settling(verbs: Verbs) -> None:
    """Declare the verbs of `message` that need a claim."""
    parsers = []
    for verb, text in (
        ("release", "give messages back before their claim ends"),
        ("dead", "send messages to the dead letters now"),
        ("extend", "hold messages for longer"),
    ):
        parser = verbs.leaf(verb, settle, text, "queue")
        parser.add_argument("id", nargs="+")
        parser.add_argument("--claim", metavar="ID", required=True, help="what holds them")
        parsers.append(parser)
    release, dead, extend = parsers
    text = (
        "how long until they can be claimed again, such as 30s or 5m "
        "(at once; for a failure, as the queue's _retry_backoff says)"
    )
    duration(release, "--delay", text)
    flag(release, "--failed", "count it as a failure")
    for parser in (release, dead):
        parser.add_argument("--reason", metavar="WORD", help="why, in a word (128 bytes)")
        parser.add_argument("--detail", metavar="TEXT", help="why, in more words (2 KiB)")
    duration(extend, "--ttl", "how long from now, such as 90s or 1h (5m)", default=300)


def settle(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Release messages, extend them or make them dead letters, and report on each."""
    make = getattr(sdk.Settlement, arguments.message_verb)
    names = ("delay", "failed", "reason", "detail", "ttl")
    given = {name: getattr(arguments, name) for name in names if name in arguments}
    settlements = [make(one, **given) for one in arguments.id]
    results = client.settle(arguments.queue, arguments.claim, settlements)
    reasons = {
        one.id: ABSENT if one.status == 404 else None if one.done else one.description
        for one in results
    }
    return _report(output, reasons, _SETTLED[arguments.message_verb])


def _report(output: Output, reasons: Mapping[str, str | None], done: str) -> int | None:
    """Print a row for each message, with the reason why it was not `done`, None where it was.

    The result is 1 if it was not done to all of them.

    Raises:
        MessageNotFound: none of them exists.
    """
    rows = (
        {"id": one, done: why is None} | ({} if why is None else {"reason": why})
        for one, why in reasons.items()
    )
    output.rows(rows, ("id", done, "reason"))
    if all(why == ABSENT for why in reasons.values()):
        raise sdk.MessageNotFound("Not found", "none of these messages exist")
    return FAILED if any(why is not None for why in reasons.values()) else None
